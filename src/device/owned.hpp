// Streams and events that go with their owner. Each belongs to the session that made it, which outlives it.
#pragma once

#include <utility>

#include "base/no_memory.hpp"
#include "device/device.hpp"

namespace penstock::device {

// A handle of a session, or none. Like what it holds, to be used by one thread at a time where it is moved or closed.
template <class Handle, result<Handle> (session::*make_one)(), status (session::*destroy_one)(Handle)>
class owned {
 public:
  static result<owned> make(session& of) {
    auto made = (of.*make_one)();
    if (!made) return made.error();
    return owned(of, *made);
  }
  owned() noexcept = default;
  // Takes over a handle of this session; null: none.
  owned(session& of, Handle handle) noexcept : of_(&of), handle_(handle) {}
  owned(owned&& other) noexcept : of_(other.of_), handle_(other.release()) {}
  owned& operator=(owned other) noexcept {
    std::swap(of_, other.of_);
    std::swap(handle_, other.handle_);
    return *this;
  }
  // Nobody hears of an error. Whoever has queued work that nothing else has reported calls close().
  ~owned() {
    (void)or_no_memory([this] { return close(); });
  }

  [[nodiscard]] Handle get() const noexcept { return handle_; }
  explicit operator bool() const noexcept { return handle_ != nullptr; }
  // Lets go of it now. Errors: those of destroying it, which may be those of work queued before. Empty afterwards either way.
  status close() {
    if (handle_ == nullptr) return {};
    return (of_->*destroy_one)(release());
  }
  // Hands it to the caller, who destroys it.
  [[nodiscard]] Handle release() noexcept { return std::exchange(handle_, nullptr); }

 private:
  session* of_ = nullptr;
  Handle handle_ = nullptr;
};

using owned_stream = owned<stream, &session::make_stream, &session::destroy_stream>;
using owned_event = owned<event, &session::make_event, &session::destroy_event>;

}  // namespace penstock::device
