// Reads a URL or a file several times with KvikIO's C++ library, as cuDF does, and prints the seconds of the first and of the best read,
// the CPU seconds of the best, and a checksum, as JSON. Arguments: URL_OR_PATH REPEATS PIECE_BYTES. PIECE_BYTES is the length of each
// pread(), or 0 for one call for everything; all calls are issued at once. bench/kvikio_remote_bench.py builds and starts it.
#include <sys/resource.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <future>
#include <kvikio/file_handle.hpp>
#include <kvikio/remote_handle.hpp>
#include <string>
#include <vector>

namespace {

double cpu_seconds() {
  rusage used{};
  getrusage(RUSAGE_SELF, &used);
  const auto seconds = [](const timeval& time) { return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6; };
  return seconds(used.ru_utime) + seconds(used.ru_stime);
}

template <class Handle>
void measure(Handle handle, int repeats, std::size_t piece) {
  const std::size_t bytes = handle.nbytes();
  if (piece == 0) piece = bytes;
  std::vector<unsigned char> memory(bytes, 1);
  double first = 0;
  double best = 0;
  double best_cpu = 0;
  for (int i = 0; i < repeats; ++i) {
    const auto start = std::chrono::steady_clock::now();
    const double cpu = cpu_seconds();
    std::vector<std::future<std::size_t>> reads;
    for (std::size_t at = 0; at < bytes; at += piece) reads.push_back(handle.pread(memory.data() + at, std::min(piece, bytes - at), at));
    std::size_t done = 0;
    for (auto& read : reads) done += read.get();
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    if (done != bytes) std::abort();
    if (i == 0) first = seconds;
    if (i == 0 || seconds < best) {
      best = seconds;
      best_cpu = cpu_seconds() - cpu;
    }
  }
  std::uint64_t sum = 14695981039346656037U;
  for (const unsigned char byte : memory) sum = (sum ^ byte) * 1099511628211U;  // FNV-1a
  std::printf("{\"bytes\": %zu, \"first\": %.6f, \"best\": %.6f, \"cpu\": %.6f, \"sum\": \"%016llx\"}\n", bytes, first, best, best_cpu,
              static_cast<unsigned long long>(sum));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  const std::string name = argv[1];
  const int repeats = std::atoi(argv[2]);
  const std::size_t piece = std::strtoull(argv[3], nullptr, 10);
  if (name.find("://") == std::string::npos) {
    measure(kvikio::FileHandle(name, "r"), repeats, piece);
  } else {
    measure(kvikio::RemoteHandle::open(name), repeats, piece);
  }
  return 0;
}
