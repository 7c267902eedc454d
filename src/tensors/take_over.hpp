// Copies owner, group, permissions with their access control list, and attributes from a file to the one that replaces it.
#pragma once

#include <sys/stat.h>

#include <optional>
#include <string>

#include "penstock/status.hpp"

namespace penstock {

struct replaced_file {
  std::string path;
  struct stat facts {};
};

// Call it on the descriptor of a new file that nobody else can open yet. Sets owner and group if this process may. Sets the permissions to
// mode or, if there is none, to those of the old file with its access control list; fewer if the group or the list cannot be set, and never
// more in between. Copies attributes if possible: user.* and the SELinux label, but not those that describe the old bytes, such as
// capabilities and signatures. Returns the mode to set after the file is written, because writing clears the setuid and setgid bits; it
// includes those of the old file only if owner and group were set. Errors: those of fchmod(2), naming `name`.
result<unsigned> take_over(int descriptor, const replaced_file& old, const std::optional<unsigned>& mode, const std::string& name);

// Sets this mode and removes an access control list that the folder may have given to the new file. Returns and errors as above.
result<unsigned> set_mode(int descriptor, unsigned mode, const std::string& name);

// Calls fchmod(2), or chmod(2) if a sandbox refuses that. Returns false and sets errno on failure.
bool set_bits(int descriptor, unsigned mode);

}  // namespace penstock
