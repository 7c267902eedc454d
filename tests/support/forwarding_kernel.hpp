// Passes all calls to the real kernel. Tests that change a few calls derive from it and override those.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "sys/kernel.hpp"

namespace penstock::testing {

class forwarding_kernel : public sys::kernel {
 public:
  result<int> open(const std::string& path, int flags, unsigned mode) override { return inner_->open(path, flags, mode); }
  result<int> reopen(int fd, int flags) override { return inner_->reopen(fd, flags); }
  result<int> duplicate(int fd) override { return inner_->duplicate(fd); }
  status close(int fd) override { return inner_->close(fd); }
  result<sys::file_info> describe(int fd) override { return inner_->describe(fd); }
  void read_ahead(int fd, std::uint64_t offset, std::uint64_t length) noexcept override { inner_->read_ahead(fd, offset, length); }
  std::uint64_t most_read_at_once(std::uint64_t device) override { return inner_->most_read_at_once(device); }
  result<int> descriptor_flags(int fd) override { return inner_->descriptor_flags(fd); }
  result<std::uint64_t> file_size(int fd) override { return inner_->file_size(fd); }
  result<std::size_t> pread(int fd, void* target, std::size_t length, std::uint64_t offset) override {
    return inner_->pread(fd, target, length, offset);
  }
  result<std::size_t> pwrite(int fd, const void* source, std::size_t length, std::uint64_t offset) override {
    return inner_->pwrite(fd, source, length, offset);
  }
  result<std::size_t> pread_uncached(int fd, void* target, std::size_t length, std::uint64_t offset) override {
    return inner_->pread_uncached(fd, target, length, offset);
  }
  result<std::size_t> pwrite_uncached(int fd, const void* source, std::size_t length, std::uint64_t offset) override {
    return inner_->pwrite_uncached(fd, source, length, offset);
  }
  result<std::uint64_t> resident_bytes(int fd, std::uint64_t offset, std::uint64_t length) override {
    return inner_->resident_bytes(fd, offset, length);
  }
  status read_into_cache(int fd, std::uint64_t offset, std::uint64_t length) override {
    return inner_->read_into_cache(fd, offset, length);
  }
  status drop_cache(int fd, std::uint64_t offset, std::uint64_t length) override { return inner_->drop_cache(fd, offset, length); }
  status sync_data(int fd) override { return inner_->sync_data(fd); }
  status truncate(int fd, std::uint64_t size_bytes) override { return inner_->truncate(fd, size_bytes); }
  result<void*> map_file(int fd, std::uint64_t offset, std::size_t length) override { return inner_->map_file(fd, offset, length); }
  result<void*> map_memory(std::size_t length, int numa_node) override { return inner_->map_memory(length, numa_node); }
  status unmap(void* base, std::size_t length) override { return inner_->unmap(base, length); }
  result<sys::memory_state> memory_now() override { return inner_->memory_now(); }
  result<std::unique_ptr<sys::ring>> make_ring(unsigned entries) override { return inner_->make_ring(entries); }
  int current_node() noexcept override { return inner_->current_node(); }
  int node_of_memory(const void* address) noexcept override { return inner_->node_of_memory(address); }
  unsigned usable_cores() override { return inner_->usable_cores(); }
  sys::core_use core_use_now() noexcept override { return inner_->core_use_now(); }
  pci_device describe_pci(const std::string& address) override { return inner_->describe_pci(address); }
  std::vector<std::string> pci_addresses() override { return inner_->pci_addresses(); }
  bool path_exists(const std::string& path) override { return inner_->path_exists(path); }

 protected:
  [[nodiscard]] sys::kernel& inner() const { return *inner_; }

 private:
  std::shared_ptr<sys::kernel> inner_ = sys::make_kernel();
};

}  // namespace penstock::testing
