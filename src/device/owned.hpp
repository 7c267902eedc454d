// Owners of streams and events. Each stream or event belongs to the session that created it, which must outlive it.
#pragma once

#include <utility>

#include "base/no_memory.hpp"
#include "device/device.hpp"

namespace penstock::device {

// Owns one handle of a session, or none. Only one thread at a time may move or close it.
template <class Handle, result<Handle> (session::*make_one)(), status (session::*destroy_one)(Handle)>
class owned {
 public:
  static result<owned> make(session& of) {
    auto made = (of.*make_one)();
    if (!made) return made.error();
    return owned(of, *made);
  }
  owned() noexcept = default;
  // Takes over a handle from this session; null: none.
  owned(session& of, Handle handle) noexcept : of_(&of), handle_(handle) {}
  owned(owned&& other) noexcept : of_(other.of_), handle_(other.release()) {}
  owned& operator=(owned other) noexcept {
    std::swap(of_, other.of_);
    std::swap(handle_, other.handle_);
    return *this;
  }
  // Ignores errors. Call close() if errors of queued work would otherwise go unreported.
  ~owned() {
    (void)or_no_memory([this] { return close(); });
  }

  [[nodiscard]] Handle get() const noexcept { return handle_; }
  explicit operator bool() const noexcept { return handle_ != nullptr; }
  // Destroys the handle now. Errors: those of destroying it, which may come from work queued earlier. In every case, the owner is empty
  // afterwards.
  status close() {
    if (handle_ == nullptr) return {};
    return (of_->*destroy_one)(release());
  }
  // Releases the handle to the caller, who must destroy it.
  [[nodiscard]] Handle release() noexcept { return std::exchange(handle_, nullptr); }

 private:
  session* of_ = nullptr;
  Handle handle_ = nullptr;
};

using owned_stream = owned<stream, &session::make_stream, &session::destroy_stream>;
using owned_event = owned<event, &session::make_event, &session::destroy_event>;

}  // namespace penstock::device
