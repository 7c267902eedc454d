#include "source/process_memory.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

namespace penstock::source {

namespace {

class memory_of_process final : public source {
 public:
  memory_of_process(std::shared_ptr<sys::peer> door, pid_t process, std::uint64_t address, std::uint64_t length)
      : source(fmt::format("memory of process {}", process)),
        door_(std::move(door)),
        process_(process),
        address_(address),
        length_(length) {
    facts_ = {.in_memory = true, .writable = false};
    direct_problem_ = {errc::unsupported, "the data is in memory"};
  }

  result<std::uint64_t> size() override { return length_; }
  status sync() override { return {}; }
  result<std::uint64_t> resident_bytes(std::uint64_t /*offset*/, std::uint64_t length) override { return length; }
  result<bool> ends_at(std::uint64_t offset) override { return offset >= length_; }
  io_result fill(std::byte* target, std::uint64_t length, std::uint64_t offset, caching /*by*/) override {
    const auto there = std::min(length, length_ - std::min(offset, length_));
    auto problem = there > 0 ? door_->read_memory(process_, address_ + offset, target, there) : status();
    return {problem.ok() ? there : 0, std::move(problem)};
  }
  io_result drain(const std::byte* /*memory*/, std::uint64_t /*length*/, std::uint64_t /*offset*/, const drain_manner& /*how*/) override {
    return {0, {errc::unsupported, "this memory is read-only"}};
  }

 private:
  const std::shared_ptr<sys::peer> door_;
  const pid_t process_;
  const std::uint64_t address_;
  const std::uint64_t length_;
};

}  // namespace

std::unique_ptr<source> process_memory(std::shared_ptr<sys::peer> door, pid_t process, std::uint64_t address, std::uint64_t length) {
  return std::make_unique<memory_of_process>(std::move(door), process, address, length);
}

}  // namespace penstock::source
