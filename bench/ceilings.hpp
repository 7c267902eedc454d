// What the hardware can do, measured without the engine: the raw speed of the link, the page cache and the disk. Every figure of the
// benchmark is printed as a fraction of one of these, measured in the same run.
// One thread; a measurement blocks for up to a few seconds and frees what it used.
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
  double from_device_gbs = 0;  // back
  double copy_4k_us = 0;       // one 4 KiB copy to the device and the wait for it, median
};

struct ceiling {
  double value = 0;  // GB/s, or reads per second
  std::string how;   // the setting that reached it: "1 MiB x 32"
};

class ceiling_meter {
 public:
  // device: "cuda:N" or "host:0". Makes no context before link() or cached_write().
  explicit ceiling_meter(const std::string& device);
  ceiling_meter(const ceiling_meter&) = delete;
  ceiling_meter& operator=(const ceiling_meter&) = delete;
  ~ceiling_meter();

  result<link_ceiling> link();
  // Page cache to memory by pread, 1 to 16 threads, the first `bytes` of the file, which should be resident.
  result<ceiling> cached_read(const std::string& path, std::uint64_t bytes);
  // O_DIRECT through io_uring with registered buffers: 512 KiB x 64, 1 MiB x 32, 4 MiB x 8. The first `bytes` of the file.
  // Errors: unsupported without io_uring or where the file system has no O_DIRECT.
  result<ceiling> direct_read(const std::string& path, std::uint64_t bytes);
  // The same, overwriting the file with zeros.
  result<ceiling> direct_write(const std::string& path, std::uint64_t bytes);
  // 4 KiB O_DIRECT reads at random places of the file, 128 in flight: reads per second.
  result<ceiling> random_read(const std::string& path, std::uint64_t count);
  // Pinned memory to page cache by pwrite of 1 and 4 MiB by 1, 2 and 4 threads: overwrites the first `bytes` of the file.
  result<ceiling> cached_write(const std::string& path, std::uint64_t bytes);

  [[nodiscard]] sys::kernel& kernel() const;

 private:
  struct parts;
  std::unique_ptr<parts> parts_;
};

}  // namespace penstock::bench
