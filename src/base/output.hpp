// How the library and the command print to the standard streams. Printing to standard error cannot fail: it throws no exception, raises no
// signal, and never writes to a file that only happens to have descriptor 2. Thread-safe.
#pragma once

#include <stdexcept>
#include <string_view>

namespace penstock {

// Writes the text to standard error. Text that cannot be written (full disk, closed pipe) is dropped without raising SIGPIPE. Writes
// nothing if descriptor 2 is not standard error: it was closed when the program started, or it has O_CLOEXEC. Blocks while a pipe is full.
// Preserves errno.
void print_error(std::string_view text) noexcept;

// Thrown when writing to standard output fails. The message contains the reason.
class output_failure : public std::runtime_error {
 public:
  explicit output_failure(int error_number);
};

// Writes the text to standard output through stdio. Throws output_failure.
void print_output(std::string_view text);
// Flushes the stdio buffer of standard output. Throws output_failure.
void flush_output();

}  // namespace penstock
