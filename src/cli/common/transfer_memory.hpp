// The memory that files are read into or written from. One thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "penstock/penstock.hpp"

namespace penstock::cli {

inline constexpr std::string_view host_memory = "host";  // besides the names of devices

// The name of the device that a word of the command line means: "cuda:1" of 1, "cuda:0" of cuda, "host:0" of cpu and host; any other is a
// name already.
std::string device_called(const std::string& word);
// The device that a word means, or the engine's first for none. Errors: not_found, naming the devices there are.
result<device_info> choose_device(const engine& owner, const std::string& name);
// The same for -d of gdsio's options, which all of its examples have; the error tells what to do without a GPU.
result<device_info> choose_device_of_d(const engine& owner, const std::string& name);
// The same, or plain memory of the host, which is no device, for host and cpu.
result<device_info> choose_memory(const engine& owner, const std::string& name);

// "cuda:0 (NVIDIA H200)".
std::string describe_device(const device_info& device);
// One line that says why there is no GPU among the devices; empty when there is one.
std::string why_no_gpu(const engine& owner);

// Memory of one device, or of the host, that is used again from one transfer to the next.
class transfer_memory {
 public:
  transfer_memory(const engine& owner, device_info where) : owner_(owner), where_(std::move(where)) {}
  // Makes room for length bytes, or for pieces of 1 GiB or 64 MiB where there is too little memory for all. What is there already is kept
  // where it is enough. Errors: out_of_memory, device.
  status make_room(std::uint64_t length);
  [[nodiscard]] void* data() const { return where_.name == host_memory ? on_host_.get() : on_device_.data(); }
  // The most that one transfer may move.
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
  bool least_ = false;  // there was no memory for more
};

}  // namespace penstock::cli
