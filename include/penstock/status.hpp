// Errors are values. A status has a code, the source of the error (domain and native number) and a message that says what was attempted, on
// which file and at which offset. A result<T> is either a T or a status.
// Copies of a status share one immutable record, which any thread may read.
#pragma once

#if __cplusplus < 202002L
#error "Penstock needs C++20: compile with -std=c++20, or set CMAKE_CXX_STANDARD to 20"
#endif

#include <array>
#include <cassert>
#include <cstdint>
#include <memory>
#include <stdexcept>
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
  bad_memory,         // the memory range is not (or no longer) what the caller claimed: freed, foreign, too short, read-only
  not_found,          // no such file, device or library
  permission_denied,  // the file or descriptor does not allow this (a read-only descriptor for a write)
  not_a_file,         // a directory, pipe, socket or terminal where a regular file or block device is needed
  io,                 // the kernel reported an I/O error
  no_space,           // disk or quota full
  out_of_memory,      // host, pinned or device memory exhausted
  would_block,        // the operation would block; retry later (EAGAIN)
  closed,             // the handle was closed, or is stale
  unsupported,        // not supported by this kernel, file system or device
  cancelled,          // cancel() was called before completion
  timed_out,          // the deadline passed
  forked,             // the engine belongs to the parent process
  device,             // the GPU driver reported an error that fits no other code
  internal,           // a defect in Penstock; please report it
};
inline constexpr int errc_count = static_cast<int>(errc::internal) + 1;

// The source of the native number.
enum class error_domain : std::uint8_t { penstock = 0, os, cuda, cufile };

PENSTOCK_API std::string_view to_string(errc code) noexcept;
PENSTOCK_API std::string_view to_string(error_domain domain) noexcept;

class [[nodiscard]] PENSTOCK_API status {
 public:
  status() noexcept = default;  // ok
  status(errc code, std::string message, error_domain domain = error_domain::penstock, int native = 0);

  // Creates a status from an errno value, which determines the code. message: what was attempted.
  static status from_errno(int error_number, std::string message);

  [[nodiscard]] bool ok() const noexcept { return record_ == nullptr; }
  [[nodiscard]] errc code() const noexcept { return record_ ? record_->code : errc::ok; }
  [[nodiscard]] error_domain domain() const noexcept { return record_ ? record_->domain : error_domain::penstock; }
  [[nodiscard]] int native() const noexcept { return record_ ? record_->native : 0; }
  // "staged: read 4096 at 1048576 of /data/x: No space left on device (os 28)"; empty when ok.
  [[nodiscard]] std::string_view message() const noexcept { return record_ ? std::string_view(record_->message) : std::string_view(); }
  // Returns the same status with "context: " prepended to its message (unchanged if there is no memory for that). Ok stays ok.
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

// Thrown when a program reads the value of a failed result without checking it first. what() describes the status.
class PENSTOCK_API bad_result : public std::logic_error {
 public:
  explicit bad_result(const status& error);
};
[[noreturn]] PENSTOCK_API void throw_bad_result(const status& error);

// A value, or the error that explains why there is none. Check it before you read the value: * and -> on a failed result throw bad_result.
template <class T>
class [[nodiscard]] result {
 public:
  result(T value) : content_(std::in_place_index<0>, std::move(value)) {}      // NOLINT(google-explicit-constructor)
  result(status error) : content_(std::in_place_index<1>, std::move(error)) {  // NOLINT(google-explicit-constructor)
    assert(!std::get<1>(content_).ok() && "a result without a value needs an error");
  }

  [[nodiscard]] bool ok() const noexcept { return content_.index() == 0; }
  explicit operator bool() const noexcept { return ok(); }
  [[nodiscard]] T& operator*() & { return *value(*this); }
  [[nodiscard]] const T& operator*() const& { return *value(*this); }
  [[nodiscard]] T&& operator*() && { return std::move(*value(*this)); }
  [[nodiscard]] T* operator->() { return value(*this); }
  [[nodiscard]] const T* operator->() const { return value(*this); }
  [[nodiscard]] T value_or(T fallback) const& { return ok() ? std::get<0>(content_) : std::move(fallback); }
  [[nodiscard]] status error() const { return ok() ? status() : std::get<1>(content_); }

 private:
  template <class Self>
  static auto* value(Self& self) {
    auto* const found = std::get_if<0>(&self.content_);
    if (found == nullptr) throw_bad_result(*std::get_if<1>(&self.content_));
    return found;
  }

  std::variant<T, status> content_;
};

// The result of a read or write. bytes_done: the contiguous bytes moved from the start of the request; also valid if error is not ok. ok()
// with fewer bytes than requested means the end of the file was reached.
struct io_result {
  std::uint64_t bytes_done = 0;
  status error;
  std::uint64_t direct_bytes = 0;  // of these, bytes moved between the drive and a GPU without passing through host memory
  [[nodiscard]] bool ok() const noexcept { return error.ok(); }
};

}  // namespace penstock
