// Reads many small ranges of a file as one batch, which is gathered and copied to the device together, such as rows of an embedding table.
#include <penstock/penstock.hpp>

#include <cstdint>
#include <iostream>
#include <vector>

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: batch_of_ranges FILE\n";
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

  constexpr std::uint64_t row = 4000;
  const std::uint64_t rows = *bytes / row / 3;
  auto buffer = engine->allocate(engine->devices().front().name, rows * row + 1);
  if (!buffer) return fail(buffer.error());

  std::vector<penstock::io_request> wanted;
  for (std::uint64_t i = 0; i < rows; ++i) {  // every third row; adjacent in device memory
    wanted.push_back({&*file, static_cast<char*>(buffer->data()) + i * row, row, static_cast<std::int64_t>(3 * i * row), false});
  }

  auto batch = engine->submit(wanted);
  std::uint64_t total = 0;
  for (const auto& each : batch.wait()) {  // one result per request, in the same order
    if (!each.ok()) return fail(each.error);
    total += each.bytes_done;
  }
  std::cout << rows << " rows, " << total << " bytes\n";
  return total == rows * row ? 0 : 1;
}
