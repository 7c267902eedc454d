// Prints the stacks of this process's threads on standard error: for a test that hangs, before it aborts, and for uncaught exceptions.
#pragma once

namespace penstock::testing {

// A frame is "module(+offset)"; addr2line -Cfie <module> <offset> names it. Skips a thread that does not handle the signal within a second.
void print_thread_stacks();

// From now on, an exception that ends the process first prints the stack that it was thrown from: nothing has been unwound then.
void print_stack_of_uncaught_exceptions();

}  // namespace penstock::testing
