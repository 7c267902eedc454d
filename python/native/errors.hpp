// Statuses as Python exceptions: penstock.Error and its subclasses from python/penstock/_core/errors.py. All need the GIL.
#pragma once

#include <nanobind/nanobind.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <penstock/penstock.hpp>
#include <string>

namespace penstock::python {

namespace nb = nanobind;

// The details of an error other than its message.
struct error_place {
  std::string file{};                    // the name that the file was opened with; empty: none
  std::optional<std::int64_t> offset{};  // file offset of the request
  std::uint64_t bytes_done = 0;          // from the start of the request
};

// Creates the exception without raising it.
nb::object make_error(const status& error, const error_place& where = {});
[[noreturn]] void raise(const status& error, const error_place& where = {});
// Does nothing if error is ok.
void raise_unless_ok(const status& error, const error_place& where = {});
// Raises penstock.InvalidArgument, a ValueError, for a caller's mistake.
[[noreturn]] void raise_invalid(const std::string& message);
// Raises penstock.BufferError, also a ValueError, for memory that cannot be used.
[[noreturn]] void raise_bad_memory(const std::string& message);

// A blocking call for at most this many bytes completes without a check for signals.
inline constexpr std::uint64_t uninterrupted_bytes = std::uint64_t{64} << 20;
// The time that a thread waits for a longer call before it checks for signals again.
inline constexpr std::chrono::milliseconds interrupt_interval{50};
// Runs pending signal handlers, on Python's main thread. Returns true if one raised; its exception is then set.
[[nodiscard]] bool interrupted() noexcept;
// Raises a signal handler's exception, if there is one.
void raise_if_interrupted();

}  // namespace penstock::python
