// A process that reads an object through a node cache, for tests that start many of them and kill some. Usage: penstock_cache_reader URL
// FOLDER SEED. Expects the pattern bytes of that seed. Exits with 0 if all are right.
#include <charconv>
#include <cstdio>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "penstock/engine.hpp"
#include "support/pattern.hpp"

namespace {

int fail(const penstock::status& why) {
  std::fprintf(stderr, "penstock_cache_reader: %.*s\n", static_cast<int>(why.message().size()), why.message().data());
  return 1;
}

int read_all(const std::string& url, const std::string& folder, std::uint64_t seed) {
  penstock::engine_options options;
  options.use_cuda = false;
  options.use_board = false;
  options.node_cache_dir = folder;
  const auto engine = penstock::engine::create(options);
  if (!engine) return fail(engine.error());
  const auto file = engine->open(url);
  if (!file) return fail(file.error());
  const auto size = file->size();
  if (!size) return fail(size.error());
  std::vector<std::byte> memory(*size);
  const auto got = file->read(memory.data(), memory.size(), 0);
  if (!got.ok()) return fail(got.error);
  return got.bytes_done == *size && memory == penstock::testing::pattern::make(memory.size(), seed) ? 0 : 2;
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 4) return 3;
  std::uint64_t seed = 0;
  const std::string_view text = arguments[3];
  std::from_chars(text.data(), text.data() + text.size(), seed);
  return read_all(arguments[1], arguments[2], seed);
}
