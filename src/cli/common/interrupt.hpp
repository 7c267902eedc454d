// Ctrl-C and SIGTERM: the first asks the program to stop, so that it can cancel its transfer, remove its temporary files and say what was
// done, for which it has 10 s; the second ends it at once. The state is the process's own, as signals are.
#pragma once

namespace penstock::cli {

// Call once, before other threads exist.
void catch_interrupts();
// From here on the first ends the program at once: it has nothing to remove.
void end_at_first_interrupt() noexcept;
// True once a signal has asked the program to stop. Any thread.
bool interrupted() noexcept;
// Can be polled for POLLIN, which it has once a signal has asked the program to stop; -1 where there is none. Nobody reads from it.
int interrupt_descriptor() noexcept;
// What main returns after an interrupt: 128 + the number of the signal (130 for Ctrl-C).
int interrupted_exit_code() noexcept;

}  // namespace penstock::cli
