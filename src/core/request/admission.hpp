// The token that every request takes first and gives back last: the use of its file, a checked range, and the place of its memory. Its end
// names the request in the error, counts the outcome, and lets go of the file. In between it is listed, once it lies where it stays: the
// list of an engine tells what is under way.
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

// What a caller asks for.
struct transfer {
  std::byte* memory = nullptr;
  std::uint64_t length = 0;
  std::uint64_t offset = 0;
  bool is_write = false;
  request_priority priority = request_priority::normal;
};

// The error with the request in front of it, unless it names the file already (a failed copy or a missing slab knows of none). Ok stays ok.
status in_context(const status& error, const transfer& what, const file_core& file) noexcept;
// A range that no file has, memory that is none, or a deadline that has passed.
status check(const transfer& what, const io_options& options);

// For one thread at a time, which keeps the runtime. What its end needs lies in one cache line, since batches have thousands of them, which
// end on other cores than they began; so they are listed together, and each tells only whether it may be read.
class alignas(64) admission {
 public:
  admission() noexcept = default;  // of nothing
  // The new one is not listed, and the old one is no more; where it is the first of several, these are. One that is shown is hidden before.
  admission(admission&& other) noexcept { *this = std::move(other); }
  admission& operator=(admission&& other) noexcept;
  ~admission() { unlist(); }

  // Takes the use of the file, which outlives this, or is kept by it.
  status enter(runtime& with, file_core& file, const transfer& what, std::shared_ptr<file_core> kept = nullptr);
  // The range and the deadline.
  [[nodiscard]] status check(const io_options& options) const { return core::check(what_, options); }
  // Where its memory lies. Nothing is asked for no bytes.
  status locate(seen_allocation* seen = nullptr);
  // It lies there, as was found out otherwise.
  void place_at(const staging::place& known) noexcept;
  // Makes the route of a request that may run, once. Of one whose caller waits, from locate() on.
  void decide(const io_options& options, asker who);
  // All four; and waits for the default stream where waits_for_default_stream() says so.
  status admit(runtime& with, file_core& file, const transfer& what, const io_options& options, asker who,
               std::shared_ptr<file_core> kept = nullptr);

  // The file lives as long as this.
  void keep(std::shared_ptr<file_core> file) noexcept { kept_ = std::move(file); }

  // From enter() on, whatever it returned.
  [[nodiscard]] const transfer& what() const noexcept { return what_; }
  void restate(const transfer& what) noexcept;  // known only now
  [[nodiscard]] file_core& file() const noexcept { return *file_; }
  // From locate() on.
  [[nodiscard]] const staging::place& place() const noexcept { return place_; }
  // From decide() on.
  [[nodiscard]] const core::route& route() const noexcept { return route_; }
  // Whether the options ask that the default stream of its memory comes first.
  [[nodiscard]] bool waits_for_default_stream(const io_options& options) const noexcept {
    return options.after_default_stream && is_write_ && place_.on_device();
  }

  // The request ends so: names it in the error, counts it, and takes it off the list, before anybody is told. Nothing, for one of nothing.
  void count(io_result& outcome) noexcept;
  // The same of reads of one file into one place, which have moved all that they asked for.
  static void count_moved(std::span<admission> together) noexcept;
  // let_go() of each, which are of one file.
  static void let_go(std::span<admission> together) noexcept;
  // The last thing, once the outcome has been told.
  void let_go() noexcept {
    shown_.store(shown::nothing, std::memory_order_relaxed);
    if (listed_ == 1) unlist();
    use_ = {};
  }

  // --- the list of what is under way
  // Lists this until it is let go of. It stays where it is, and only restate() and place_at() change it. Nothing in a forked child.
  void list() noexcept;
  // Lists these until unlist() of the first; each of them is told of from its show() until it is let go of.
  static void list(runtime& with, std::span<admission> together) noexcept;
  void show() noexcept;
  // Nobody looks at this any more, which is listed with that one, so that it can be moved.
  void hide(admission& first) noexcept;
  void unlist() noexcept;
  // All of an engine. None in a forked child.
  static std::vector<request_info> under_way(runtime& with);
  [[nodiscard]] sharded_list<admission>::link& link() noexcept { return link_; }
  [[nodiscard]] const sharded_list<admission>::link& link() const noexcept { return link_; }

 private:
  // What those who walk the list may read.
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
  std::uint32_t listed_ = 0;  // so many, from this one on, are listed with this one's link
  staging::place place_;

  transfer what_;
  std::int64_t since_ns_ = 0;  // they were listed
  sharded_list<admission>::link link_;
};
static_assert(sizeof(admission) == 128);

}  // namespace penstock::core
