#include <fmt/format.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "cli/common/sizes.hpp"
#include "cli/io/io_worker.hpp"

namespace penstock::cli {

void io_memory::freer::operator()(void* memory) const noexcept {
  if (mapped_bytes > 0) {
    ::munmap(memory, mapped_bytes);
  } else {
    std::free(memory);
  }
}

result<io_memory> io_memory::make(const engine& owner, buffer_type type, const std::string& device, std::uint64_t bytes, bool registered) {
  constexpr std::uint64_t block = 4096;  // the alignment that direct I/O needs
  const std::uint64_t length = (bytes + block - 1) / block * block;
  const status no_memory(errc::out_of_memory, fmt::format("not enough memory for {}", format_size(length)));
  io_memory made;
  if (type == buffer_type::device || type == buffer_type::mapped_device) {
    auto memory = owner.allocate(device, length);
    if (!memory) return memory.error();
    made.on_device_ = *std::move(memory);
    made.data_ = static_cast<std::byte*>(made.on_device_.data());
  } else if (type == buffer_type::anonymous_map) {
    void* const mapped = ::mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped == MAP_FAILED) return no_memory;
    made.on_host_ = std::unique_ptr<void, freer>(mapped, freer{length});
  } else {
    void* const memory = std::aligned_alloc(block, length);
    if (memory == nullptr) return no_memory;
    made.on_host_ = std::unique_ptr<void, freer>(memory, freer{0});
  }
  if (made.on_host_ != nullptr) {
    made.data_ = static_cast<std::byte*>(made.on_host_.get());
    std::memset(made.data_, 0, length);  // fault the pages in now, so that the first measurements do not include page faults
  }
  // Plain memory must not be registered.
  if (type != buffer_type::pinned && (!registered || made.on_host_ != nullptr)) return made;
  auto held = owner.register_memory(made.data_, length);
  if (!held) return held.error();
  made.registered_ = *std::move(held);
  return made;
}

}  // namespace penstock::cli
