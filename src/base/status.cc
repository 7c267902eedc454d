#include "penstock/status.hpp"

#include <array>
#include <cerrno>
#include <cstring>

#include "base/no_memory.hpp"

namespace penstock {
namespace {

errc code_of_errno(int error_number) noexcept {
  switch (error_number) {
    case 0:
      return errc::internal;  // a failure without an errno is our bug
    case ENOENT:
      return errc::not_found;
    case EACCES:
    case EPERM:
    case EROFS:
    case ETXTBSY:
      return errc::permission_denied;
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
      return errc::no_space;
    case ENOMEM:
    case EMFILE:
    case ENFILE:
      return errc::out_of_memory;
    case EAGAIN:
      return errc::would_block;
    case EFAULT:
      return errc::bad_memory;
    case EISDIR:
    case ENOTDIR:
    case ESPIPE:
    case ENXIO:
      return errc::not_a_file;  // ENXIO: a socket, or a FIFO without a reader
    case EINVAL:
    case EOVERFLOW:
    case ENAMETOOLONG:
      return errc::invalid_argument;
    case ENOSYS:
    case EOPNOTSUPP:
    case ENODEV:  // mmap on a file that cannot be mapped
    case ENOTTY:
      return errc::unsupported;
    case ECANCELED:
      return errc::cancelled;
    default:
      return errc::io;
  }
}

// strerror_r has two declarations; overload resolution picks the one that this libc uses.
[[maybe_unused]] const char* error_text(int filled, const char* buffer) noexcept { return filled == 0 ? buffer : "unknown error"; }
[[maybe_unused]] const char* error_text(const char* text, const char* /*buffer*/) noexcept { return text; }

}  // namespace

std::string_view to_string(errc code) noexcept {
  switch (code) {
    case errc::ok:
      return "ok";
    case errc::invalid_argument:
      return "invalid_argument";
    case errc::bad_memory:
      return "bad_memory";
    case errc::not_found:
      return "not_found";
    case errc::permission_denied:
      return "permission_denied";
    case errc::not_a_file:
      return "not_a_file";
    case errc::io:
      return "io";
    case errc::no_space:
      return "no_space";
    case errc::out_of_memory:
      return "out_of_memory";
    case errc::would_block:
      return "would_block";
    case errc::closed:
      return "closed";
    case errc::unsupported:
      return "unsupported";
    case errc::cancelled:
      return "cancelled";
    case errc::timed_out:
      return "timed_out";
    case errc::forked:
      return "forked";
    case errc::device:
      return "device";
    case errc::internal:
      return "internal";
  }
  return "unknown";
}

std::string_view to_string(error_domain domain) noexcept {
  switch (domain) {
    case error_domain::penstock:
      return "penstock";
    case error_domain::os:
      return "os";
    case error_domain::cuda:
      return "cuda";
    case error_domain::cufile:
      return "cufile";
  }
  return "unknown";
}

// One record per code, used when there is no memory for a more specific one: the code is right, and callers need not handle exceptions.
const std::array<status::record_pointer, errc_count>& status::spare_records() {
  static const auto made = [] {
    std::array<record_pointer, errc_count> records;
    for (std::size_t i = 0; i < records.size(); ++i) {
      const auto code = static_cast<errc>(i);
      records[i] = std::make_shared<const record>(record{code, error_domain::penstock, 0, std::string(to_string(code))});
    }
    return records;
  }();
  return made;
}

status::status(errc code, std::string message, error_domain domain, int native) {
  if (code == errc::ok) return;
  const auto& spare = spare_records();  // created when the library is loaded, with no_memory()'s status
  record_ = or_without_memory(
      [&] {
        return std::make_shared<const record>(record{code, domain, native, std::move(message)});
      },
      [&] { return spare[static_cast<std::size_t>(code)]; });
}

status status::from_errno(int error_number, std::string message) {
  char buffer[128] = {};
  const char* text = error_text(strerror_r(error_number, buffer, sizeof buffer), buffer);
  message.append(": ").append(text).append(" (os ").append(std::to_string(error_number)).append(")");
  return {code_of_errno(error_number), std::move(message), error_domain::os, error_number};
}

status status::with_context(std::string_view context) const {
  if (ok()) return {};
  return or_without_memory(
      [&]() -> status {
        std::string message(context);
        message.append(": ").append(record_->message);
        return {record_->code, std::move(message), record_->domain, record_->native};
      },
      [this] { return *this; });
}

const status& no_memory() noexcept {
  static const status told(errc::out_of_memory, "no memory");
  return told;
}

namespace {

[[maybe_unused]] const status& made_at_load = no_memory();

}  // namespace

bad_result::bad_result(const status& error)
    : std::logic_error("the program read the value of a failed result: " + std::string(error.message())) {}

void throw_bad_result(const status& error) { throw bad_result(error); }

}  // namespace penstock
