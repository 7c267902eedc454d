// Where the threads of this process are, on stderr: for a test that hangs, before it aborts, and for an exception that nobody catches.
#pragma once

namespace penstock::testing {

// A frame is "module(+offset)": addr2line -Cfie <module> <offset> names it. A thread that cannot take a signal is passed over after a
// second.
void print_thread_stacks();

// From now on an exception that ends the process prints the stack that it was thrown from first: nothing has been unwound then.
void print_stack_of_uncaught_exceptions();

}  // namespace penstock::testing
