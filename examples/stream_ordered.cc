// Copies a file through the memory of a device in the order of its default stream: reads and writes are queued like kernels, each waits for
// the one before, and the host goes on. A kernel launched in between would work on the bytes that lie there then.
#include <penstock/penstock.hpp>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <future>
#include <iostream>

namespace {

// What the engine looks at when the stream gets there. It has to stay where it is until then.
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

  std::deque<piece> pieces;  // outlives the files, which wait for what is queued when they are closed
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
    // A kernel that works on buffer->data() would be launched here, on the same stream.
    request.ended = [&next](const penstock::io_result& outcome) { next.written.set_value(outcome); };
    if (problem.ok()) problem = to->write_on_stream(request);
    if (!problem.ok()) next.written.set_value({0, problem});
  }
  std::cout << pieces.size() << " pieces are queued\n";

  std::uint64_t total = 0;
  for (auto& each : pieces) {  // a program with CUDA would synchronize the stream
    const auto outcome = each.written.get_future().get();
    if (!outcome.ok()) problem = outcome.error;
    total += outcome.bytes_done;
  }
  std::cout << total << " of " << *bytes << " bytes are copied\n";
  return problem.ok() ? 0 : fail(problem);
}
