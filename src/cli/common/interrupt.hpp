// Ctrl-C and SIGTERM. The first signal asks the program to stop: it has 10 s to cancel its transfer, remove its temporary files and report
// what was done. The second terminates it immediately. The state is process-wide, like signal handlers.
#pragma once

namespace penstock::cli {

// Call once, before other threads exist.
void catch_interrupts();
// From now on, the first signal terminates the program immediately, because there is nothing to clean up.
void end_at_first_interrupt() noexcept;
// Returns true once a signal has asked the program to stop. Any thread.
bool interrupted() noexcept;
// Returns a descriptor that becomes readable (POLLIN) once a signal has asked the program to stop; -1 if there is none. Do not read from
// it.
int interrupt_descriptor() noexcept;
// Returns main's exit code after an interrupt: 128 plus the signal number (130 for Ctrl-C).
int interrupted_exit_code() noexcept;

}  // namespace penstock::cli
