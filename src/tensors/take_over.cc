#include "tensors/take_over.hpp"

#include <fmt/format.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string_view>
#include <vector>

#include "base/refused_call.hpp"

namespace penstock {

namespace {

constexpr const char* access_list = "system.posix_acl_access";
constexpr std::size_t most_attribute_bytes = 65536;  // the kernel's XATTR_LIST_MAX and XATTR_SIZE_MAX

void set_owner(int descriptor, const struct stat& like) {
  // A file's owner may set any group of which the owner is a member.
  if (::fchown(descriptor, like.st_uid, like.st_gid) != 0)
    static_cast<void>(::fchown(descriptor, static_cast<uid_t>(-1), like.st_gid) == 0);
}

bool tells_of_no_list(int error) { return error == ENODATA || error == EOPNOTSUPP || error == ENOSYS; }

// Returns true if the access control list is as required. The list refers to the group, so it is not copied if the group is not.
bool set_access_list(int descriptor, const std::string& from, bool same_group) {
  std::vector<char> list(most_attribute_bytes);
  const ssize_t length = ::getxattr(from.c_str(), access_list, list.data(), list.size());
  if (length >= 0) return same_group && ::fsetxattr(descriptor, access_list, list.data(), static_cast<std::size_t>(length), 0) == 0;
  if (!tells_of_no_list(errno)) return false;
  // The new file may have inherited a default list from the folder.
  return ::fgetxattr(descriptor, access_list, nullptr, 0) < 0 || ::fremovexattr(descriptor, access_list) == 0;
}

bool is_kept(std::string_view attribute) { return attribute.starts_with("user.") || attribute == "security.selinux"; }

void set_attributes(int descriptor, const std::string& from) {
  std::vector<char> names(most_attribute_bytes), value(most_attribute_bytes);
  const ssize_t length = ::listxattr(from.c_str(), names.data(), names.size());
  for (ssize_t at = 0; at < length; at += static_cast<ssize_t>(std::strlen(names.data() + at)) + 1) {
    const char* name = names.data() + at;
    if (!is_kept(name)) continue;
    const ssize_t bytes = ::getxattr(from.c_str(), name, value.data(), value.size());
    if (bytes >= 0) static_cast<void>(::fsetxattr(descriptor, name, value.data(), static_cast<std::size_t>(bytes), 0) == 0);
  }
}

// Returns the mode to set after writing. A process that has changed the file's owner may not be allowed to change its mode (CAP_FOWNER). It
// then restores the owner and drops the setuid bit. Mounts without file modes (CIFS, gcsfuse, goofys) and sandboxes reject the call. The
// file then keeps the mode that it was created with, which is never wider.
result<unsigned> change_mode(int descriptor, unsigned mode, const std::string& name) {
  if (set_bits(descriptor, mode & 0777)) return mode;
  const int error = errno;
  if (error == EPERM && ::fchown(descriptor, ::geteuid(), static_cast<gid_t>(-1)) == 0 && set_bits(descriptor, mode & 0777))
    return mode & 01777;
  if (is_refused_call(error)) return mode & 0777;
  return status::from_errno(error, fmt::format("set the mode of {}", name));
}

// If the group cannot be set, its members get the permissions of others, limited to those that the group had.
unsigned without_group(unsigned mode) {
  const unsigned both = mode & (mode >> 3) & 07;
  return (mode & 07700) | both << 3 | both;
}

}  // namespace

bool set_bits(int descriptor, unsigned mode) {
  if (::fchmod(descriptor, mode) == 0) return true;
  const int error = errno;
  if (is_refused_call(error) && ::chmod(fmt::format("/proc/self/fd/{}", descriptor).c_str(), mode) == 0) return true;
  errno = error;
  return false;
}

result<unsigned> take_over(int descriptor, const replaced_file& old, const std::optional<unsigned>& mode, const std::string& name) {
  set_owner(descriptor, old.facts);
  struct stat now {};
  if (::fstat(descriptor, &now) != 0) return status::from_errno(errno, fmt::format("stat the new file for {}", name));
  const bool same_group = now.st_gid == old.facts.st_gid;
  unsigned wanted = mode.value_or(old.facts.st_mode & 07777);
  if (!mode) {
    if (!set_access_list(descriptor, old.path, same_group)) wanted &= 07700;
    if (!same_group) wanted = without_group(wanted);
    if (!same_group || now.st_uid != old.facts.st_uid) wanted &= 01777;
  }
  set_attributes(descriptor, old.path);
  return mode ? set_mode(descriptor, wanted, name) : change_mode(descriptor, wanted, name);
}

result<unsigned> set_mode(int descriptor, unsigned mode, const std::string& name) {
  static_cast<void>(::fremovexattr(descriptor, access_list) == 0);
  return change_mode(descriptor, mode, name);
}

}  // namespace penstock
