// Printing of the library and the command on the standard streams. Printing on standard error cannot fail: it throws no exception, raises
// no signal, and never writes into a file that only happens to have descriptor 2. Safe from any thread.
#pragma once

#include <stdexcept>
#include <string_view>

namespace penstock {

// Writes the text to standard error. Drops text that cannot be written (a full disk, a closed pipe) without raising SIGPIPE. Writes nothing
// if descriptor 2 was closed when the program started, or was opened with O_CLOEXEC: it is then not standard error. Blocks while a pipe is
// full. Keeps errno.
void print_error(std::string_view text) noexcept;

// Thrown if standard output cannot be written. The message gives the reason.
class output_failure : public std::runtime_error {
 public:
  explicit output_failure(int error_number);
};

// Writes the text to standard output, through stdio. Throws output_failure.
void print_output(std::string_view text);
// Flushes the stdio buffer of standard output. Throws output_failure.
void flush_output();

}  // namespace penstock
