// Reads a file in pieces that are all under way at once, and does other work meanwhile. Callbacks report which piece has arrived.
#include <penstock/penstock.hpp>

#include <algorithm>
#include <atomic>
#include <iostream>
#include <vector>

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: async_reads FILE\n";
    return 2;
  }
  const auto fail = [](const penstock::status& error) {
    std::cerr << error.message() << '\n';
    return 1;
  };

  auto engine = penstock::engine::create();
  if (!engine) return fail(engine.error());
  auto file = engine->open(argv[1]);
  if (!file) return fail(file.error());
  auto bytes = file->size();
  if (!bytes) return fail(bytes.error());
  auto buffer = engine->allocate(engine->devices().front().name, std::max<std::size_t>(*bytes, 1));
  if (!buffer) return fail(buffer.error());

  // The memory, and whatever the callbacks use, must outlive the operations, so declare them first.
  std::atomic<std::uint64_t> there{0};
  std::vector<penstock::operation> under_way;
  constexpr std::uint64_t piece = 16 << 20;
  for (std::uint64_t at = 0; at < *bytes; at += piece) {
    auto* const memory = static_cast<char*>(buffer->data()) + at;
    under_way.push_back(file->read_async(memory, std::min(piece, *bytes - at), static_cast<std::int64_t>(at), {},
                                         [&there](const penstock::io_result& ended) { there += ended.bytes_done; }));
  }

  std::cout << under_way.size() << " reads are under way\n";  // do other work here

  int failed = 0;
  for (auto& each : under_way) {
    const auto ended = each.wait();  // returns after the callback
    if (!ended.ok()) failed += fail(ended.error);
  }
  std::cout << there << " of " << *bytes << " bytes have come\n";
  return failed == 0 ? 0 : 1;
}
