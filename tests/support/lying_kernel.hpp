// The real kernel, except that it reports a wrong size for files, as happens for files of /proc and of some FUSE file systems.
#pragma once

#include <cstdint>
#include <optional>

#include "support/forwarding_kernel.hpp"

namespace penstock::testing {

class lying_kernel final : public forwarding_kernel {
 public:
  explicit lying_kernel(std::optional<std::uint64_t> stated) : stated_(stated) {}
  // nullopt: report the true size.
  void state(std::optional<std::uint64_t> size) { stated_ = size; }
  result<std::uint64_t> file_size(int fd) override { return stated_ ? *stated_ : inner().file_size(fd); }

 private:
  std::optional<std::uint64_t> stated_;
};

}  // namespace penstock::testing
