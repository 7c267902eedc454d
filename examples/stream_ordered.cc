// Copies a file through device memory in the order of the default stream. Reads and writes are queued like kernels: each waits for the
// previous one, and the host continues. A kernel launched in between would process the bytes in memory at that time.
#include <penstock/penstock.hpp>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <future>
#include <iostream>

namespace {

// The engine reads these when the stream reaches the request, so they must stay valid until then.
struct piece {
  std::size_t length;
  std::int64_t offset;
  std::promise<penstock::io_result> written;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::cerr << "usage: stream_ordered FROM TO\n";
    return 2;
  }
  const auto fail = [](const penstock::status& error) {
    std::cerr << error.message() << '\n';
    return 1;
  };

  std::deque<piece> pieces;  // must outlive the files, which wait for queued requests when they are closed
  auto engine = penstock::engine::create();
  if (!engine) return fail(engine.error());
  auto from = engine->open(argv[1]);
  if (!from) return fail(from.error());
  auto to = engine->open(argv[2], {.write = true, .create = true, .truncate = true});
  if (!to) return fail(to.error());
  auto bytes = from->size();
  if (!bytes) return fail(bytes.error());
  constexpr std::uint64_t chunk = 1 << 20;
  auto buffer = engine->allocate(engine->devices().front().name, chunk);
  if (!buffer) return fail(buffer.error());

  penstock::status problem;
  for (std::uint64_t at = 0; at < *bytes && problem.ok(); at += chunk) {
    auto& next = pieces.emplace_back(piece{std::min(chunk, *bytes - at), static_cast<std::int64_t>(at), {}});
    penstock::stream_request request{.stream = nullptr, .memory = buffer->data(), .length = &next.length, .offset = &next.offset};
    problem = from->read_on_stream(request);
    // Launch a kernel that processes buffer->data() here, on the same stream.
    request.ended = [&next](const penstock::io_result& outcome) { next.written.set_value(outcome); };
    if (problem.ok()) problem = to->write_on_stream(request);
    if (!problem.ok()) next.written.set_value({0, problem});
  }
  std::cout << pieces.size() << " pieces are queued\n";

  std::uint64_t total = 0;
  for (auto& each : pieces) {  // a CUDA program would synchronize the stream
    const auto outcome = each.written.get_future().get();
    if (!outcome.ok()) problem = outcome.error;
    total += outcome.bytes_done;
  }
  std::cout << total << " of " << *bytes << " bytes are copied\n";
  return problem.ok() ? 0 : fail(problem);
}
