// Measures hardware limits without the engine: the raw speed of the link, the page cache and the disk. Every figure of the benchmark is
// printed as a fraction of one of these, measured in the same run.
// One thread; a measurement blocks for up to a few seconds and frees its resources.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "penstock/status.hpp"

namespace penstock::sys {
class kernel;
}

namespace penstock::bench {

struct link_ceiling {
  double to_device_gbs = 0;    // pinned host memory to device, 64 MiB copies, best of 5
  double from_device_gbs = 0;  // device to pinned host memory, measured the same way
  double copy_4k_us = 0;       // time of one 4 KiB copy to the device, including the wait; median
};

struct ceiling {
  double value = 0;  // GB/s, or reads per second
  std::string how;   // the fastest setting: "1 MiB x 32"
};

class ceiling_meter {
 public:
  // device: "cuda:N" or "host:0". Creates no context before link() or cached_write().
  explicit ceiling_meter(const std::string& device);
  ceiling_meter(const ceiling_meter&) = delete;
  ceiling_meter& operator=(const ceiling_meter&) = delete;
  ~ceiling_meter();

  result<link_ceiling> link();
  // Reads the first `bytes` of the file, which should be cached, with pread by 1 to 16 threads.
  result<ceiling> cached_read(const std::string& path, std::uint64_t bytes);
  // Reads the first `bytes` of the file with O_DIRECT through io_uring with registered buffers: 512 KiB x 64, 1 MiB x 32, 4 MiB x 8.
  // Errors: unsupported without io_uring, or if the file system does not support O_DIRECT.
  result<ceiling> direct_read(const std::string& path, std::uint64_t bytes);
  // The same for writes: overwrites the file with zeros.
  result<ceiling> direct_write(const std::string& path, std::uint64_t bytes);
  // Makes 4 KiB O_DIRECT reads at random offsets, 128 in flight. Returns reads per second.
  result<ceiling> random_read(const std::string& path, std::uint64_t count);
  // Overwrites the first `bytes` of the file from pinned memory with pwrite of 1 and 4 MiB by 1, 2 and 4 threads.
  result<ceiling> cached_write(const std::string& path, std::uint64_t bytes);

  [[nodiscard]] sys::kernel& kernel() const;

 private:
  struct parts;
  std::unique_ptr<parts> parts_;
};

}  // namespace penstock::bench
