// Host memory for far reads. While any block is in use, returned blocks are kept for later reads, so that a long transfer does not touch
// new pages for each piece. Thread-safe. Blocks may outlive this object.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace penstock::path {

class host_blocks {
  struct spares;

 public:
  struct returner {
    std::shared_ptr<spares> home{};
    std::uint64_t bytes = 0;
    void operator()(std::byte* memory) const noexcept;
  };
  using block = std::unique_ptr<std::byte[], returner>;

  host_blocks();
  // Returns memory with unspecified contents. Throws std::bad_alloc.
  block take(std::uint64_t bytes);

 private:
  const std::shared_ptr<spares> spares_;
};

}  // namespace penstock::path
