// Errors are values. A status says what went wrong (code), who said so (domain and native number) and, in words, what was
// being done, to which file, at which offset. A result<T> is a T or a status.
// Owned by whoever holds it; copies share one immutable record. Safe to read from any thread.
#pragma once

#include <array>
#include <cassert>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

#if defined(__GNUC__)
#define PENSTOCK_API [[gnu::visibility("default")]]
#else
#define PENSTOCK_API
#endif

namespace penstock {

enum class errc : std::uint8_t {
  ok = 0,
  invalid_argument,   // the caller's mistake: negative offset, overflow, empty path
  bad_memory,         // the memory range is not (or no longer) what was claimed: freed, foreign, too short, read-only
  not_found,          // no such file, device or library
  permission_denied,  // the file or descriptor does not allow this (a read-only descriptor for a write)
  not_a_file,         // a directory, pipe, socket or terminal where a regular file or block device is needed
  io,                 // the kernel reported an I/O error
  no_space,           // disk or quota full
  out_of_memory,      // host, pinned or device memory exhausted
  would_block,        // the kernel says to try again (EAGAIN)
  closed,             // the handle was closed, or is stale
  unsupported,        // this kernel, file system or device cannot do it
  cancelled,          // cancel() came first
  timed_out,          // the deadline passed
  forked,             // the engine belongs to the parent process
  device,             // the GPU driver reported an error that fits no other code
  internal,           // a defect in Penstock; please report it
};
inline constexpr int errc_count = static_cast<int>(errc::internal) + 1;

// Who reported the native number.
enum class error_domain : std::uint8_t { penstock = 0, os, cuda, cufile };

PENSTOCK_API std::string_view to_string(errc code) noexcept;
PENSTOCK_API std::string_view to_string(error_domain domain) noexcept;

class [[nodiscard]] PENSTOCK_API status {
 public:
  status() noexcept = default;  // ok
  status(errc code, std::string message, error_domain domain = error_domain::penstock, int native = 0);

  // A status for an errno value; the code follows from it. message says what was being done.
  static status from_errno(int error_number, std::string message);

  [[nodiscard]] bool ok() const noexcept { return record_ == nullptr; }
  [[nodiscard]] errc code() const noexcept { return record_ ? record_->code : errc::ok; }
  [[nodiscard]] error_domain domain() const noexcept { return record_ ? record_->domain : error_domain::penstock; }
  [[nodiscard]] int native() const noexcept { return record_ ? record_->native : 0; }
  // "staged: read 4096 at 1048576 of /data/x: No space left on device (os 28)"; empty when ok.
  [[nodiscard]] std::string_view message() const noexcept { return record_ ? std::string_view(record_->message) : std::string_view(); }
  // The same status with "context: " in front of its message (or as it is, where there is no memory for that). Ok stays ok.
  [[nodiscard]] status with_context(std::string_view context) const;

 private:
  struct record {
    errc code;
    error_domain domain;
    int native;
    std::string message;
  };
  using record_pointer = std::shared_ptr<const record>;
  static const std::array<record_pointer, errc_count>& spare_records();

  record_pointer record_;
};

// A value or the reason why there is none. Reading the value of a failed result is a caller's defect and asserts.
template <class T>
class [[nodiscard]] result {
 public:
  result(T value) : content_(std::in_place_index<0>, std::move(value)) {}      // NOLINT(google-explicit-constructor)
  result(status error) : content_(std::in_place_index<1>, std::move(error)) {  // NOLINT(google-explicit-constructor)
    assert(!std::get<1>(content_).ok() && "a result without a value needs an error");
  }

  [[nodiscard]] bool ok() const noexcept { return content_.index() == 0; }
  explicit operator bool() const noexcept { return ok(); }
  [[nodiscard]] T& operator*() & { return std::get<0>(content_); }
  [[nodiscard]] const T& operator*() const& { return std::get<0>(content_); }
  [[nodiscard]] T&& operator*() && { return std::get<0>(std::move(content_)); }
  [[nodiscard]] T* operator->() { return &std::get<0>(content_); }
  [[nodiscard]] const T* operator->() const { return &std::get<0>(content_); }
  [[nodiscard]] T value_or(T fallback) const& { return ok() ? std::get<0>(content_) : std::move(fallback); }
  [[nodiscard]] status error() const { return ok() ? status() : std::get<1>(content_); }

 private:
  std::variant<T, status> content_;
};

// How a read or write ended. bytes_done is the length of the contiguous part, from the start of the request, that was
// moved; it is true also when error is not ok. ok() with fewer bytes than asked means end of file, and nothing else.
struct io_result {
  std::uint64_t bytes_done = 0;
  status error;
  std::uint64_t direct_bytes = 0;  // of these, moved between the drive and a GPU without passing through memory of the host
  [[nodiscard]] bool ok() const noexcept { return error.ok(); }
};

}  // namespace penstock
