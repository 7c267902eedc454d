// A request's admission: the use of its file, a checked range, and the place of its memory. Every request acquires it first and releases it
// last. On completion it adds the request to the error message, counts the outcome, and releases the file. Until then, the engine lists it
// among the requests in flight, from the point at which its address no longer changes.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "base/sharded_list.hpp"
#include "core/file_core.hpp"
#include "core/memory_map.hpp"
#include "core/request/route.hpp"
#include "core/runtime.hpp"

namespace penstock::core {

// The arguments of a read or write.
struct transfer {
  std::byte* memory = nullptr;
  std::uint64_t length = 0;
  std::uint64_t offset = 0;
  bool is_write = false;
  request_priority priority = request_priority::normal;
};

// Prefixes the error with the request, unless the error already names the file. (An error from a failed copy or about a missing slab
// cannot name it.) Ok stays ok.
status in_context(const status& error, const transfer& what, const file_core& file) noexcept;
// Returns an error for an impossible range, a null pointer, or a deadline that has passed.
status check(const transfer& what, const io_options& options);

// Used by one thread at a time, which keeps the runtime alive. The members needed on completion share one cache line, because a batch has
// thousands of admissions that complete on different cores than they started on. For the same reason a batch is listed as a whole, and each
// admission only records whether it may be read.
class alignas(64) admission {
 public:
  admission() noexcept = default;  // refers to no request
  // The new object is not listed, and the old one is taken off the list. If the old one is the first of several, all of them are taken off.
  // Call hide() before moving one that is shown.
  admission(admission&& other) noexcept { *this = std::move(other); }
  admission& operator=(admission&& other) noexcept;
  ~admission() { unlist(); }

  // Starts the use of the file. The file must outlive this, unless `kept` keeps it alive.
  status enter(runtime& with, file_core& file, const transfer& what, std::shared_ptr<file_core> kept = nullptr);
  // Checks the range and the deadline.
  [[nodiscard]] status check(const io_options& options) const { return core::check(what_, options); }
  // Finds the place of the memory. Does nothing for an empty request.
  status locate(seen_allocation* seen = nullptr);
  // Sets the place if the caller already knows it.
  void place_at(const staging::place& known) noexcept;
  // Chooses the route of a request that may run. Call it once. For a request whose caller waits, call it after locate().
  void decide(const io_options& options, asker who);
  // Does all four steps. Also waits for the default stream if waits_for_default_stream() returns true.
  status admit(runtime& with, file_core& file, const transfer& what, const io_options& options, asker who,
               std::shared_ptr<file_core> kept = nullptr);

  // Keeps the file alive as long as this object.
  void keep(std::shared_ptr<file_core> file) noexcept { kept_ = std::move(file); }

  // Valid after enter(), even if it failed.
  [[nodiscard]] const transfer& what() const noexcept { return what_; }
  void restate(const transfer& what) noexcept;  // corrects the request once its values are known
  [[nodiscard]] file_core& file() const noexcept { return *file_; }
  // Valid after locate().
  [[nodiscard]] const staging::place& place() const noexcept { return place_; }
  // Valid after decide().
  [[nodiscard]] const core::route& route() const noexcept { return route_; }
  // Returns true if the request must wait for the default stream of its memory's context.
  [[nodiscard]] bool waits_for_default_stream(const io_options& options) const noexcept {
    return options.cufile.after_default_stream && is_write_ && place_.on_device();
  }

  // Ends the request with this outcome: adds the request to the error, counts it, and takes it off the list. Call it before any thread is
  // notified. Does nothing for an empty admission.
  void count(io_result& outcome) noexcept;
  // Does the same for reads from one file into one place that have transferred all their bytes.
  static void count_moved(std::span<admission> together) noexcept;
  // Calls let_go() for each. All of them must use the same file.
  static void let_go(std::span<admission> together) noexcept;
  // The last step, after the outcome was delivered.
  void let_go() noexcept {
    shown_.store(shown::nothing, std::memory_order_relaxed);
    if (listed_ == 1) unlist();
    use_ = {};
  }

  // --- the list of requests in flight
  // Lists this until let_go(). Until then it must not be moved, and only restate() and place_at() may change it. Does nothing in a forked
  // child.
  void list() noexcept;
  // Lists these until unlist() of the first. Each is visible from its show() until its let_go().
  static void list(runtime& with, std::span<admission> together) noexcept;
  void show() noexcept;
  // Ensures that no other thread is still reading this, so that it can be moved. first: the admission with which it was listed.
  void hide(admission& first) noexcept;
  void unlist() noexcept;
  // Returns the listed requests of an engine. Returns none in a forked child.
  static std::vector<request_info> under_way(runtime& with);
  [[nodiscard]] sharded_list<admission>::link& link() noexcept { return link_; }
  [[nodiscard]] const sharded_list<admission>::link& link() const noexcept { return link_; }

 private:
  // The data that a thread walking the list may read.
  enum class shown : std::uint8_t { nothing, request, place };
  struct seen;

  void tell(std::vector<seen>& to) const;

  runtime* with_ = nullptr;
  file_core* file_ = nullptr;
  std::shared_ptr<file_core> kept_;
  file_use use_;
  bool is_write_ = false;
  bool located_ = false;
  std::atomic<shown> shown_{shown::nothing};
  core::route route_;
  std::uint32_t listed_ = 0;  // this many admissions, starting with this one, are listed with this one's link
  staging::place place_;

  transfer what_;
  std::int64_t since_ns_ = 0;  // when they were listed
  sharded_list<admission>::link link_;
};
static_assert(sizeof(admission) == 128);

}  // namespace penstock::core
