// The memory that files are read into or written from. One thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "penstock/penstock.hpp"

namespace penstock::cli {

inline constexpr std::string_view host_memory = "host";  // in addition to the device names

// Returns the device name for a word on the command line: "cuda:1" for 1, "cuda:0" for cuda, "host:0" for cpu and host. Any other word is
// already a name.
std::string device_called(const std::string& word);
// Returns the device with this name, or the engine's first device if the name is empty. Errors: not_found, which lists the devices.
result<device_info> choose_device(const engine& owner, const std::string& name);
// The same for gdsio's option -d, which all its examples use. If there is no GPU, the error says what to do instead.
result<device_info> choose_device_of_d(const engine& owner, const std::string& name);
// The same, but "host" and "cpu" mean plain host memory, which is not a device.
result<device_info> choose_memory(const engine& owner, const std::string& name);

// "cuda:0 (NVIDIA H200)".
std::string describe_device(const device_info& device);
// Returns one line that explains why there is no GPU among the devices; empty if there is one.
std::string why_no_gpu(const engine& owner);

// Memory on one device or on the host, reused from one transfer to the next.
class transfer_memory {
 public:
  transfer_memory(const engine& owner, device_info where) : owner_(owner), where_(std::move(where)) {}
  // Allocates room for length bytes or, if memory is short, for pieces of 1 GiB or 64 MiB. Keeps the current memory if it is large enough.
  // Errors: out_of_memory, device.
  status make_room(std::uint64_t length);
  [[nodiscard]] void* data() const { return where_.name == host_memory ? on_host_.get() : on_device_.data(); }
  // Returns the maximum size of one transfer, in bytes.
  [[nodiscard]] std::uint64_t size() const { return size_; }
  [[nodiscard]] const device_info& where() const { return where_; }

 private:
  struct freer {
    void operator()(void* memory) const noexcept;
  };
  [[nodiscard]] std::uint64_t most_at_once(std::uint64_t length) const;
  status allocate(std::uint64_t bytes);
  const engine& owner_;
  device_info where_;
  device_buffer on_device_;
  std::unique_ptr<void, freer> on_host_;
  std::uint64_t size_ = 0;
  bool least_ = false;  // size_ is less than requested, because memory is short
};

}  // namespace penstock::cli
