// Host memory that another component fills. Reads wait until all bytes have arrived. As a far source, it needs no thread to wait.
// Read-only. Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include "source/source.hpp"

namespace penstock::source {

class awaited_memory final : public source {
 public:
  // Errors: std::bad_alloc.
  awaited_memory(std::string name, std::uint64_t length);
  ~awaited_memory() override;

  // The memory to fill. Nothing else reads it before come() is called.
  [[nodiscard]] std::byte* memory() const noexcept { return memory_.get(); }
  // Reports that all bytes have arrived, or why they never will. Call this once. Completes waiting fills on the calling thread.
  void come(const status& outcome) noexcept;

  result<std::uint64_t> size() override { return length_; }
  status sync() override { return {}; }
  result<bool> ends_at(std::uint64_t offset) override { return offset >= length_; }
  io_result drain(const std::byte* memory, std::uint64_t length, std::uint64_t offset, const drain_manner& how) override;
  void begin_fill(far_fill& what) noexcept override;
  void cancel(far_fill& what) noexcept override;
  status close() override;

 private:
  void serve(far_fill& what) const noexcept;

  const std::uint64_t length_;
  const std::unique_ptr<std::byte[]> memory_;
  std::mutex lock_;  // guards the members below
  bool has_come_ = false;
  status outcome_;  // fixed once has_come_ is set
  far_fill* waiting_ = nullptr;
};

}  // namespace penstock::source
