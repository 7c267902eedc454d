// Where every thread of this process is, on stderr: for a test that hangs, before it aborts.
#pragma once

namespace penstock::testing {

// A frame is "module(+offset)": addr2line -Cfie <module> <offset> names it. A thread that cannot take a signal is passed over after a
// second.
void print_thread_stacks();

}  // namespace penstock::testing
