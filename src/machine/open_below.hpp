// Opening a file of a machine that a folder holds: whatever links such a folder has, none leads out of it. Free function; safe from any
// thread.
#pragma once

#include <string>

namespace penstock::machine {

// path begins with '/' and is as the machine calls it whose "/" is the folder root; so are absolute links on the way. root empty: this
// machine. flags: those of open(2) for reading, O_CLOEXEC is added. Returns a descriptor that the caller closes, or -1 with errno set.
// Links are resolved by openat2 (Linux 5.6), or one by one where the kernel refuses that.
int open_below(const std::string& root, const std::string& path, int flags);

}  // namespace penstock::machine
