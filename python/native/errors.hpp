// Statuses as Python exceptions: penstock.Error and its subclasses, which python/penstock/_errors.py defines. All need the GIL.
#pragma once

#include <nanobind/nanobind.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <penstock/penstock.hpp>
#include <string>

namespace penstock::python {

namespace nb = nanobind;

// What an error says beside its message.
struct error_place {
  std::string file{};                    // as it was opened; empty: none
  std::optional<std::int64_t> offset{};  // of the request, in the file
  std::uint64_t bytes_done = 0;          // from the start of the request
};

// The exception, not raised.
nb::object make_error(const status& error, const error_place& where = {});
[[noreturn]] void raise(const status& error, const error_place& where = {});
// Ok does nothing.
void raise_unless_ok(const status& error, const error_place& where = {});
// The caller's mistake: penstock.InvalidArgument, which is a ValueError.
[[noreturn]] void raise_invalid(const std::string& message);
// penstock.BufferError, which is a ValueError too: memory that cannot be used for this.
[[noreturn]] void raise_bad_memory(const std::string& message);

// How long a thread waits before it looks at signals again.
inline constexpr std::chrono::milliseconds interrupt_interval{50};
// Runs pending signal handlers, on Python's main thread. True: one of them raised, and its exception is set.
[[nodiscard]] bool interrupted() noexcept;
// Raises what interrupted() has set.
void raise_if_interrupted();

}  // namespace penstock::python
