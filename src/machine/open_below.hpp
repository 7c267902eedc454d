// Opens a file of a machine whose files are in a folder. No link in that folder can lead outside it. Free function; thread-safe.
#pragma once

#include <string>

namespace penstock::machine {

// path begins with '/' and is relative to root, like absolute links in it. root empty: this machine. flags: those of open(2) for reading;
// O_CLOEXEC is added. Returns a descriptor that the caller must close, or -1 with errno set. Resolves links with openat2 (Linux 5.6), or
// one by one if the kernel refuses that call.
int open_below(const std::string& root, const std::string& path, int flags);

}  // namespace penstock::machine
