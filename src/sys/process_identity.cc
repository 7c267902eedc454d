#include "sys/process_identity.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <string_view>

#include <fmt/format.h>

#include "sys/peer.hpp"

namespace penstock::sys {

namespace {

result<std::string> small_file(const std::string& name) {
  owned_descriptor from(open(name.c_str(), O_RDONLY | O_CLOEXEC));
  if (from.get() < 0) return status::from_errno(errno, fmt::format("open {}", name));
  std::string text(4096, '\0');
  const auto count = ::read(from.get(), text.data(), text.size());
  if (count < 0) return status::from_errno(errno, fmt::format("read {}", name));
  text.resize(static_cast<std::size_t>(count));
  return text;
}

std::string_view last_part(std::string_view path) { return path.substr(path.rfind('/') + 1); }

}  // namespace

result<process_identity> identify_process(int pid) {
  const auto text = small_file(fmt::format("/proc/{}/stat", pid));
  if (!text)
    return text.error().code() == errc::not_found ? status(errc::not_found, fmt::format("there is no process {}", pid)) : text.error();
  process_identity known{.pid = pid};
  // The second field is the program's name, which may contain blanks and parentheses; the 22nd is the start time. A zombie counts as
  // exited.
  std::string_view rest(*text);
  const auto bracket = rest.rfind(')');
  if (bracket == std::string_view::npos || bracket + 2 >= rest.size())
    return status(errc::io, fmt::format("cannot parse /proc/{}/stat", pid));
  rest.remove_prefix(bracket + 2);
  if (rest.front() == 'Z' || rest.front() == 'X') return status(errc::not_found, fmt::format("process {} has exited", pid));
  for (int field = 3; field < 22 && !rest.empty(); ++field) rest.remove_prefix(std::min(rest.find(' '), rest.size() - 1) + 1);
  if (std::from_chars(rest.data(), rest.data() + rest.size(), known.start_ticks).ec != std::errc())
    return status(errc::io, fmt::format("cannot parse /proc/{}/stat", pid));
  struct stat facts {};
  if (stat("/proc/self/ns/pid", &facts) == 0) known.namespace_inode = facts.st_ino;
  return known;
}

result<process_identity> identify_own_process() { return identify_process(getpid()); }

std::string program_name(int pid) {
  const auto text = small_file(fmt::format("/proc/{}/cmdline", pid));
  if (!text || text->empty()) return {};
  const std::string_view words(*text);
  const auto first = last_part(words.substr(0, words.find('\0')));
  std::string name(first);
  if (!first.starts_with("python") || words.find('\0') == std::string_view::npos) return name;
  const auto rest = words.substr(words.find('\0') + 1);
  const auto script = rest.substr(0, rest.find('\0'));
  if (!script.empty() && !script.starts_with('-')) name += fmt::format(" {}", last_part(script));
  return name;
}

result<unsigned> owner_of_process(int pid) {
  struct stat facts {};
  if (stat(fmt::format("/proc/{}", pid).c_str(), &facts) != 0) return status(errc::not_found, fmt::format("there is no process {}", pid));
  return facts.st_uid;
}

}  // namespace penstock::sys
