// The real kernel, which states another size of files than they have, as it does of files of /proc and of some of FUSE.
#pragma once

#include <cstdint>
#include <optional>

#include "support/forwarding_kernel.hpp"

namespace penstock::testing {

class lying_kernel final : public forwarding_kernel {
 public:
  explicit lying_kernel(std::optional<std::uint64_t> stated) : stated_(stated) {}
  // Nothing: the truth.
  void state(std::optional<std::uint64_t> size) { stated_ = size; }
  result<std::uint64_t> file_size(int fd) override { return stated_ ? *stated_ : inner().file_size(fd); }

 private:
  std::optional<std::uint64_t> stated_;
};

}  // namespace penstock::testing
