// What a file has of the one whose place it is to take: owner, group, permissions with their access control list, and attributes.
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

// For the descriptor of a new file that nobody else may open yet. Owner and group: as far as this process may set them. Permissions: mode
// or, without one, those of the old file with its access control list; fewer where the group or the list cannot be set, and more at no
// moment. Attributes that can be set: the user's (user.*) and the label of SELinux. Those that speak of the old bytes, as capabilities and
// signatures do, stay behind. Returns the mode that the file is to have once it is written: writing takes its bits to run as owner or group
// away. It has these of the old file only with its owner and group. Errors: of fchmod(2), which name `name`.
result<unsigned> take_over(int descriptor, const replaced_file& old, const std::optional<unsigned>& mode, const std::string& name);

// This mode and no access control list, as the folder may have given it to the new file. Returns and errors as above.
result<unsigned> set_mode(int descriptor, unsigned mode, const std::string& name);

// fchmod(2), or chmod(2) where a sandbox refuses that. False, and errno, on failure.
bool set_bits(int descriptor, unsigned mode);

}  // namespace penstock
