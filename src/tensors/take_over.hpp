// Copies owner, group, permissions (including the access control list) and attributes from a file to its replacement.
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

// Call on the descriptor of a new file that no other user can open yet. Sets owner and group if this process is allowed to. Sets the
// permissions to mode or, if there is none, to those of the old file including its access control list. Permissions are reduced if the
// group or the list cannot be set, and are never wider in between. Copies attributes if possible: user.* and the SELinux label, but not
// attributes that describe the old contents, such as capabilities and signatures. Returns the mode to set after the file is written,
// because writing clears the setuid and setgid bits. The mode includes the old file's bits only if owner and group were set. Errors: those
// of fchmod(2), with `name` in the message.
result<unsigned> take_over(int descriptor, const replaced_file& old, const std::optional<unsigned>& mode, const std::string& name);

// Sets this mode and removes an access control list that the new file may have inherited from the folder. Returns and errors as above.
result<unsigned> set_mode(int descriptor, unsigned mode, const std::string& name);

// Calls fchmod(2), or chmod(2) if a sandbox rejects that. Returns false and sets errno on failure.
bool set_bits(int descriptor, unsigned mode);

}  // namespace penstock
