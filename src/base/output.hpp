// What is printed on the standard streams, by the library and the command. Printing on standard error cannot fail: no exception, no signal,
// and no byte in a file that only happens to have its number. Safe from any thread.
#pragma once

#include <stdexcept>
#include <string_view>

namespace penstock {

// Writes the text to standard error. What cannot be written is dropped (a full disk, a reader that has gone); SIGPIPE is not raised. Writes
// nothing if descriptor 2 was closed when the program started, or is a file that was opened with O_CLOEXEC: then it is not standard error.
// Blocks while a pipe is full. Leaves errno alone.
void print_error(std::string_view text) noexcept;

// Standard output cannot be written. The message says so, and why.
class output_failure : public std::runtime_error {
 public:
  explicit output_failure(int error_number);
};

// Writes the text to standard output, through stdio. Throws output_failure.
void print_output(std::string_view text);
// What stdio still holds of standard output. Throws output_failure.
void flush_output();

}  // namespace penstock
