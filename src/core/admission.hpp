// The token that every request takes first and gives back last: the use of its file, a checked range, and the place of its memory. Its end
// names the request in the error, counts the outcome, and lets go of the file.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "core/file_core.hpp"
#include "core/memory_map.hpp"
#include "core/runtime.hpp"

namespace penstock::core {

// What a caller asks for.
struct transfer {
  std::byte* memory = nullptr;
  std::uint64_t length = 0;
  std::uint64_t offset = 0;
  bool is_write = false;
};

// The error with the request in front of it, unless it names the file already (a failed copy or a missing slab knows of none). Ok stays ok.
status in_context(const status& error, const transfer& what, const file_core& file) noexcept;
// A range that no file has, memory that is none, or a deadline that has passed.
status check(const transfer& what, const io_options& options);

// For one thread at a time, which keeps the runtime. What its end needs lies in one cache line, since batches have thousands of them, which
// end on other cores than they began.
class alignas(64) admission {
 public:
  admission() noexcept = default;  // of nothing
  admission(admission&& other) noexcept { *this = std::move(other); }
  admission& operator=(admission&& other) noexcept;
  ~admission() { let_go(); }

  // Takes the use of the file, which outlives this, or is kept by it.
  status enter(runtime& with, file_core& file, const transfer& what, std::shared_ptr<file_core> kept = nullptr);
  // The range and the deadline.
  [[nodiscard]] status check(const io_options& options) const { return core::check(what_, options); }
  // Where its memory lies. Nothing is asked for no bytes.
  status locate(seen_allocation* seen = nullptr);
  // All three; and waits for the default stream where waits_for_default_stream() says so.
  status admit(runtime& with, file_core& file, const transfer& what, const io_options& options, std::shared_ptr<file_core> kept = nullptr);

  // From enter() on, whatever it returned.
  [[nodiscard]] const transfer& what() const noexcept { return what_; }
  void restate(const transfer& what) noexcept { what_ = what; }  // known only now
  [[nodiscard]] file_core& file() const noexcept { return *file_; }
  // From locate() on.
  [[nodiscard]] const staging::place& place() const noexcept { return place_; }
  // Whether the options ask that the default stream of its memory comes first.
  [[nodiscard]] bool waits_for_default_stream(const io_options& options) const noexcept {
    return options.after_default_stream && is_write_ && place_.on_device();
  }

  // The request ends so: names it in the error, and counts it. Nothing, for one of nothing.
  void count(io_result& outcome) noexcept;
  // The last thing, once the outcome has been told.
  void let_go() noexcept { use_ = {}; }

 private:
  runtime* with_ = nullptr;
  file_core* file_ = nullptr;
  std::shared_ptr<file_core> kept_;
  file_use use_;
  bool is_write_ = false;
  staging::place place_;
  transfer what_;
};

}  // namespace penstock::core
