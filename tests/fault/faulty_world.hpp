// An engine over a kernel and a device that fail on demand, and a count of what it leaks. One world per case of a fault loop; objects that
// are slow to make and hold no engine state (the device, its memory, the files) are shared by all worlds of the process.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "device/device.hpp"
#include "fault/reclaiming_kernel.hpp"
#include "penstock/engine.hpp"
#include "support/faulty_device.hpp"
#include "support/faulty_kernel.hpp"

namespace penstock::testing {

inline constexpr std::size_t kib = 1024;
inline constexpr std::size_t mib = 1024 * kib;

// --- shared by all worlds

// The device below the faulty door: nothing done here is counted, or fails.
class bare_device {
 public:
  static bare_device& shared();
  [[nodiscard]] const std::shared_ptr<device::driver>& driver() const noexcept { return driver_; }
  [[nodiscard]] device::session& session() const noexcept { return *session_; }
  [[nodiscard]] std::byte* memory() const noexcept { return memory_; }  // memory_bytes, shared too
  static constexpr std::size_t memory_bytes = 11 * mib;
  void put(std::byte* target, std::span<const std::byte> bytes);
  void get(std::span<std::byte> bytes, const std::byte* source);

 private:
  bare_device();
  std::shared_ptr<device::driver> driver_;
  device::session* session_ = nullptr;
  std::byte* memory_ = nullptr;
};

enum class heat { hot, cold, half };

// A file whose content the test keeps too, on a file system that has direct I/O on most machines.
class kept_file {
 public:
  // Written and brought to disk, so that it can be cooled.
  kept_file(const std::string& name, std::uint64_t seed, std::size_t bytes);
  [[nodiscard]] const std::string& path() const noexcept { return path_; }
  [[nodiscard]] const std::vector<std::byte>& content() const noexcept { return content_; }
  // Brings the range into the page cache, out of it, or its first half in and the rest out.
  void make(heat wanted, std::size_t offset, std::size_t length) const;
  // Makes the file what content() says again.
  void restore() const;
  [[nodiscard]] std::vector<std::byte> read_back() const;

 private:
  std::string path_;
  std::vector<std::byte> content_;
};

// --- faults

enum class door { kernel, kernel_short, device };

constexpr const char* any_call = "";

struct fault {
  door where = door::kernel;
  std::string call;
  std::uint64_t nth = 1;
  bool lasting = false;
  int error = 0;                       // kernel
  std::optional<std::uint64_t> bytes;  // kernel_short; nothing: half
  errc code = errc::io;                // what an error of the operation must say; device: what is injected
  bool harmless = false;               // the operation must do without
  bool ends_file = false;              // looks like the end of the file: fewer bytes are right
  [[nodiscard]] std::string name() const;
};

// --- one world

class faulty_world {
 public:
  explicit faulty_world(const engine_options& options);
  faulty_world(const faulty_world&) = delete;
  faulty_world& operator=(const faulty_world&) = delete;
  ~faulty_world();

  [[nodiscard]] penstock::engine& engine() { return *engine_; }
  void arm(const fault& wanted);
  void disarm();
  [[nodiscard]] std::uint64_t injected() const { return kernel_->injected() + device_->injected(); }
  [[nodiscard]] std::uint64_t count(door where, const std::string& call) const;
  // Ends the engine, after everything made from it is gone. What it left behind; empty when nothing.
  std::string end();

 private:
  [[nodiscard]] std::string leaks() const;

  std::shared_ptr<reclaiming_kernel> real_ = std::make_shared<reclaiming_kernel>();
  std::shared_ptr<faulty_kernel> kernel_ = std::make_shared<faulty_kernel>(real_);
  std::shared_ptr<faulty_driver> device_ = make_faulty_driver(bare_device::shared().driver());
  std::optional<penstock::engine> engine_;
  bool may_abandon_ = false;
};

}  // namespace penstock::testing
