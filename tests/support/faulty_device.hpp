// A driver around another one that makes chosen calls fail before they reach it, and counts what is alive, so that tests can assert that
// nothing leaks on any path of failure. Calls are named as in device.hpp: "allocate", "release", "pin", "unpin", "make_stream",
// "destroy_stream", "make_event", "destroy_event", "copy", "scatter", "prepare_scatter", "record", "call", "wait_value", "reached", "wait",
// "synchronize", "copy_small", "copy_beside", "share", "open_shared", "close_shared", "make_current" of its sessions, "count", "describe",
// "classify", "cpu_address", "open" of the driver. Thread-safe, as the real ones are. Calls that give back or wait (release, unpin,
// destroy_stream, destroy_event, wait, synchronize) are carried out all the same, so that only a missing call shows as a leak, and nobody
// goes on before the device is quiet.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "device/device.hpp"

namespace penstock::testing {

class faulty_driver final : public device::driver {
 public:
  // Asked at each call: its name, and its number among the calls of that name (from 1). A status fails the call.
  // Runs on the calling thread; may not call the driver.
  using hook = std::function<std::optional<status>(std::string_view call, std::uint64_t n)>;
  static constexpr std::uint64_t always = std::numeric_limits<std::uint64_t>::max();

  // What was made through this driver and not yet given back.
  struct live_counts {
    std::int64_t streams = 0;
    std::int64_t events = 0;
    std::int64_t pinned_ranges = 0;
    std::int64_t allocations = 0;
    std::int64_t imports = 0;
    std::int64_t current_contexts = 0;  // made current and not restored
    [[nodiscard]] bool none() const {
      return streams == 0 && events == 0 && pinned_ranges == 0 && allocations == 0 && imports == 0 && current_contexts == 0;
    }
  };

  explicit faulty_driver(std::shared_ptr<device::driver> inner);
  ~faulty_driver() override;

  void set_hook(hook ask);  // null: none
  // The nth call from now on (1: the next), of any kind, fails, and so do the calls after it until `times` have.
  void fail_any(std::uint64_t nth, status error, std::uint64_t times = 1);
  // Likewise, counting only calls of one name.
  void fail(std::string_view call, std::uint64_t nth, status error, std::uint64_t times = 1);
  void clear_faults();  // the hook too; counts stay

  [[nodiscard]] std::uint64_t calls() const;
  [[nodiscard]] std::uint64_t calls(std::string_view call) const;
  [[nodiscard]] std::uint64_t injected() const;  // failures so far
  [[nodiscard]] live_counts live() const;
  // Streams that copy() was called for.
  [[nodiscard]] std::size_t streams_of_copies() const;

  [[nodiscard]] std::string_view kind() const override { return inner_->kind(); }
  result<int> count() override;
  result<device::device_facts> describe(int ordinal) override;
  result<device::memory_info> classify(const void* memory) override;
  bool is_mapped(const void* memory) override { return inner_->is_mapped(memory); }  // cannot fail, so not counted
  result<std::byte*> cpu_address(const void* memory, std::uint64_t length) override;
  result<device::session*> open(int ordinal, void* context) override;

 private:
  class faulty_session;
  struct fault {
    std::string call;  // empty: any
    std::uint64_t skip = 0;
    std::uint64_t times = 0;
    status error;
  };

  // Counts a call. The error that it is to end with, if any.
  std::optional<status> enter(std::string_view call);
  std::optional<status> next_fault(std::string_view call);
  void change(std::int64_t live_counts::*what, std::int64_t by);
  void note_copy(device::stream on);

  std::shared_ptr<device::driver> inner_;
  mutable std::mutex lock_;  // guards what follows
  std::set<device::stream> streams_of_copies_;
  hook hook_;
  std::vector<fault> faults_;
  std::map<std::string, std::uint64_t, std::less<>> calls_;
  std::uint64_t all_calls_ = 0;
  std::uint64_t injected_ = 0;
  live_counts live_;
  std::map<device::session*, std::unique_ptr<faulty_session>> sessions_;  // by the session inside
};

std::shared_ptr<faulty_driver> make_faulty_driver(std::shared_ptr<device::driver> inner);

}  // namespace penstock::testing
