// A driver that wraps another one, makes chosen calls fail before they reach it, and counts live objects, so that tests can assert that no
// error path leaks. Calls have the names of device.hpp: "allocate", "release", "pin", "unpin", "make_stream", "destroy_stream",
// "make_event", "destroy_event", "copy", "scatter", "prepare_scatter", "add_to_digest", "record", "call", "wait_value", "reached", "wait",
// "synchronize", "copy_small", "copy_beside", "share", "open_shared", "close_shared", "make_current" of its sessions, "count", "describe",
// "classify", "cpu_address", "open" of the driver. Thread-safe, like the real ones. Calls that free or wait (release, unpin,
// destroy_stream, destroy_event, wait, synchronize) also run when they fail: so only a missing call counts as a leak, and no caller
// continues before the device is idle.
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
  // Receives the name of each call, and its number among the calls of that name (from 1). The call fails with the returned status. Runs on
  // the calling thread; must not call the driver.
  using hook = std::function<std::optional<status>(std::string_view call, std::uint64_t n)>;
  static constexpr std::uint64_t always = std::numeric_limits<std::uint64_t>::max();

  // Objects made through this driver and not freed yet.
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
  // Makes the nth call of any kind from now on (1: the next) fail, and the ones after it, `times` calls in all.
  void fail_any(std::uint64_t nth, status error, std::uint64_t times = 1);
  // The same, for calls of one name.
  void fail(std::string_view call, std::uint64_t nth, status error, std::uint64_t times = 1);
  void clear_faults();  // the hook too; counts stay

  [[nodiscard]] std::uint64_t calls() const;
  [[nodiscard]] std::uint64_t calls(std::string_view call) const;
  [[nodiscard]] std::uint64_t injected() const;  // failures so far
  [[nodiscard]] live_counts live() const;
  // Returns the number of streams that copy() was called with.
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

  // Counts a call. Returns the error to fail it with, if any.
  std::optional<status> enter(std::string_view call);
  std::optional<status> next_fault(std::string_view call);
  void change(std::int64_t live_counts::*what, std::int64_t by);
  void note_copy(device::stream on);

  std::shared_ptr<device::driver> inner_;
  mutable std::mutex lock_;  // guards all members below
  std::set<device::stream> streams_of_copies_;
  hook hook_;
  std::vector<fault> faults_;
  std::map<std::string, std::uint64_t, std::less<>> calls_;
  std::uint64_t all_calls_ = 0;
  std::uint64_t injected_ = 0;
  live_counts live_;
  std::map<device::session*, std::unique_ptr<faulty_session>> sessions_;  // keyed by the wrapped session
};

std::shared_ptr<faulty_driver> make_faulty_driver(std::shared_ptr<device::driver> inner);

}  // namespace penstock::testing
