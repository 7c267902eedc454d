// Reads a file into the memory of the first device: a GPU, or the host device, which imitates one, if there is none.
#include <penstock/penstock.hpp>

#include <iostream>
#include <string>

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: read_file FILE\n";
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

  const std::string device = engine->devices().front().name;  // "cuda:0", or "host:0"
  auto buffer = engine->allocate(device, *bytes);
  if (!buffer) return fail(buffer.error());

  const penstock::io_result done = file->read(buffer->data(), *bytes, 0);
  if (!done.ok()) return fail(done.error);
  std::cout << done.bytes_done << " bytes of " << file->path() << " are in the memory of " << device << '\n';

  // Print which path the bytes took, and why.
  auto plan = engine->explain(*file, device, *bytes, 0);
  if (!plan) return fail(plan.error());
  for (const auto& part : plan->parts) std::cout << part.length << " bytes: " << to_string(part.path) << ", " << part.reason << '\n';
}
