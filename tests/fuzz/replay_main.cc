// Feeds every file of the folders (or files) given as arguments to a fuzz target, for builds without clang's fuzzer. Prints their number;
// fails if there are none.
#include <cstdint>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace {

namespace fs = std::filesystem;

void feed(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(file), {}};
  std::fprintf(stderr, "%s\n", path.c_str());  // the last one named is the one that crashed
  LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size());
}

int feed_all(const fs::path& place) {
  if (fs::is_regular_file(place)) return feed(place), 1;
  int fed = 0;
  for (const auto& entry : fs::recursive_directory_iterator(place)) {
    if (!entry.is_regular_file()) continue;
    feed(entry.path());
    ++fed;
  }
  return fed;
}

}  // namespace

int main(int argc, char** argv) {
  int fed = 0;
  try {
    for (int i = 1; i < argc; ++i) fed += feed_all(argv[i]);
  } catch (const std::exception& problem) {
    std::fprintf(stderr, "replay: %s\n", problem.what());
    return 2;
  }
  std::printf("replay: %d inputs\n", fed);
  return fed > 0 ? 0 : 1;
}
