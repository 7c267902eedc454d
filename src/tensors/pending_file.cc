#include "penstock/pending_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <filesystem>
#include <string_view>
#include <utility>

#include "base/no_memory.hpp"
#include "base/refused_call.hpp"
#include "base/rename_in.hpp"
#include "tensors/take_over.hpp"

namespace penstock {

namespace {

std::string folder_of(const std::string& path) {
  const std::string folder = std::filesystem::path(path).parent_path().string();
  return folder.empty() ? "." : folder;
}

// Returns true if linkat() can link the file to a name later: the call itself is not blocked (with an empty name it fails with ENOENT), and
// /proc is mounted. Checking /proc takes longer, so its success is remembered.
bool can_be_named_later() {
  static std::atomic<bool> has_proc{false};
  if (::linkat(AT_FDCWD, "", AT_FDCWD, "", 0) == 0 || errno != ENOENT) return false;
  if (!has_proc && ::access("/proc/self/fd", X_OK) == 0) has_proc = true;
  return has_proc;
}

// Returns true for the errors returned if the file system, kernel or seccomp profile does not support O_TMPFILE.
bool cannot_be_unnamed(int error) { return is_refused_call(error) || error == EISDIR || error == ENOENT; }

// --- the file that currently has the name

// Follows symbolic links; the last one may be dangling.
result<std::string> follow_links(std::string path) {
  constexpr int most_links = 40;  // the kernel's limit
  for (int i = 0; i < most_links; ++i) {
    std::array<char, PATH_MAX> target{};
    const ssize_t length = ::readlink(path.c_str(), target.data(), target.size());
    if (length < 0 && (errno == EINVAL || errno == ENOENT)) return path;  // not a link
    if (length < 0) return status::from_errno(errno, fmt::format("follow the link {}", path));
    const std::string_view leads(target.data(), static_cast<std::size_t>(length));
    path = (std::filesystem::path(path).parent_path() / leads).string();
  }
  return status::from_errno(ELOOP, fmt::format("follow the link {}", path));
}

bool same_file(const struct stat& one, const struct stat& other) { return one.st_dev == other.st_dev && one.st_ino == other.st_ino; }

bool same_permissions(const struct stat& one, const struct stat& other) {
  return one.st_mode == other.st_mode && one.st_uid == other.st_uid && one.st_gid == other.st_gid;
}

// The new file's path, and the file that it replaces.
struct target_place {
  std::string path;
  std::optional<replaced_file> old{};
};

status check_replaceable(const std::string& path, const struct stat& info) {
  const std::string no_file = fmt::format("{} is not a regular file", path);
  if (S_ISDIR(info.st_mode)) return status::from_errno(EISDIR, no_file);
  return S_ISREG(info.st_mode) ? status() : status(errc::not_a_file, no_file);
}

// Requires the permission to open it for writing, although replacing it needs only write access to its folder.
status check_writable(int folder, const std::string& name, const std::string& path) {
  if (::faccessat(folder, name.c_str(), W_OK, AT_EACCESS) == 0) return {};
  if (is_refused_call(errno)) {
    if (const int fd = ::openat(folder, name.c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC); fd >= 0) {
      ::close(fd);
      return {};
    }
  }
  return status::from_errno(errno, fmt::format("write to {}", path));
}

result<target_place> look_at_target(const std::string& path) {
  struct stat info {};
  bool exists = ::lstat(path.c_str(), &info) == 0;
  const bool is_link = exists && S_ISLNK(info.st_mode);
  if (is_link) exists = ::stat(path.c_str(), &info) == 0;
  if (!exists && errno != ENOENT) return status::from_errno(errno, fmt::format("stat {}", path));
  if (exists) {
    if (status error = check_replaceable(path, info); !error.ok()) return error;
  }
  auto leads = is_link ? follow_links(path) : result<std::string>(path);
  if (!leads) return leads.error();
  target_place place{*std::move(leads)};
  if (std::filesystem::path(place.path).filename().empty()) return status::from_errno(ENOENT, fmt::format("create {}", path));
  if (!exists) return place;
  // A link in /proc may point to a file without a name. The result is not compared with the first stat(), because another process may
  // replace the file between the calls.
  if (place.path != path && (::stat(place.path.c_str(), &info) != 0 || !S_ISREG(info.st_mode)))
    return status(errc::not_a_file, fmt::format("{} points to a file without a name", path));
  if (status error = check_writable(AT_FDCWD, path, path); !error.ok()) return error;
  place.old = replaced_file{place.path, info};
  return place;
}

// The same in a folder that the caller has opened. Does not follow links.
result<target_place> look_in_folder(int folder, const std::string& path) {
  const std::string name = std::filesystem::path(path).filename().string();
  if (name.empty() || name == "." || name == "..") return status::from_errno(ENOENT, fmt::format("create {}", path));
  target_place place{path};
  struct stat info {};
  if (::fstatat(folder, name.c_str(), &info, AT_SYMLINK_NOFOLLOW) != 0)
    return errno == ENOENT ? result<target_place>(std::move(place)) : status::from_errno(errno, fmt::format("stat {}", path));
  if (S_ISLNK(info.st_mode)) return status(errc::not_a_file, fmt::format("{} is a symbolic link, which is not followed here", path));
  if (status error = check_replaceable(path, info); !error.ok()) return error;
  if (status error = check_writable(folder, name, path); !error.ok()) return error;
  place.old = replaced_file{path, info};
  return place;
}

// Returns the initial mode: no other user can open the file before it has its final permissions.
unsigned first_mode(const pending_file_options& options, const std::optional<replaced_file>& old) {
  if (options.mode) return 0600 & *options.mode;
  return old ? 0600 & old->facts.st_mode : options.new_mode;
}

// --- names

constexpr std::size_t most_name_bytes = 255;

// Shortens the name to this many bytes, without splitting a UTF-8 character.
void shorten(std::string& name, std::size_t most) {
  if (name.size() <= most) return;
  std::size_t end = most;
  while (end > 0 && end + 4 > most && (static_cast<unsigned char>(name[end]) & 0xC0) == 0x80) --end;
  name.resize(end);
}

// longest: the folder's limit on name length in bytes; -1: unknown.
std::string hidden_name_of(std::string name, long longest) {
  static std::atomic<unsigned> count{0};
  const std::string ending = fmt::format(".penstock-{}-{}", ::getpid(), count++);
  const std::size_t most = longest < 0 ? most_name_bytes : std::min(static_cast<std::size_t>(longest), most_name_bytes);
  shorten(name, most - std::min(most, ending.size() + 1));
  return "." + name + ending;
}

std::string unnamed_path(int descriptor) { return fmt::format("/proc/self/fd/{}", descriptor); }

// Gives an unnamed file a name. Returns false and sets errno if linkat(2) fails. Linking the descriptor itself takes less time and no
// /proc, but requires Linux 6.10 or a capability.
bool link_unnamed(int descriptor, int folder, const std::string& name) {
  if (::linkat(descriptor, "", folder, name.c_str(), AT_EMPTY_PATH) == 0) return true;
  return errno != EEXIST && ::linkat(AT_FDCWD, unnamed_path(descriptor).c_str(), folder, name.c_str(), AT_SYMLINK_FOLLOW) == 0;
}

// Like rename(2) in a folder, but fails if the name is taken (EEXIST). NFS does not support that (EINVAL), but has hard links. If there are
// no hard links either (CIFS, FAT), an empty file reserves the name first; only one process can create it.
int rename_to_free_name(int folder, const std::string& from, const std::string& to) {
  if (::renameat2(folder, from.c_str(), folder, to.c_str(), RENAME_NOREPLACE) == 0) return 0;
  if (!is_refused_call(errno)) return -1;
  if (::linkat(folder, from.c_str(), folder, to.c_str(), 0) == 0) {
    ::unlinkat(folder, from.c_str(), 0);
    return 0;
  }
  if (!is_refused_call(errno)) return -1;
  const int claim = ::openat(folder, to.c_str(), O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0600);
  if (claim < 0) return -1;
  ::close(claim);
  if (rename_in(folder, from.c_str(), to.c_str()) == 0) return 0;
  const int error = errno;
  ::unlinkat(folder, to.c_str(), 0);
  errno = error;
  return -1;
}

// --- sync

// Closing any descriptor of the file makes network file systems flush their data and report errors.
status close_a_twin(int descriptor, const std::string& path) {
  const int twin = ::fcntl(descriptor, F_DUPFD_CLOEXEC, 0);
  if (twin < 0 || (::close(twin) != 0 && errno != EINTR)) return status::from_errno(errno, fmt::format("close {}", path));
  return {};
}

// call: fsync(2) or fdatasync(2). Returns 0 or errno.
int sync_by(int (*call)(int), int descriptor) {
  int error = EINTR;
  while (error == EINTR) error = call(descriptor) == 0 ? 0 : errno;
  return error;
}

// A file system that cannot sync (EINVAL) offers no alternative.
status sync_bytes(int descriptor, const std::string& path) {
  int error = sync_by(::fdatasync, descriptor);
  if (is_refused_call(error)) error = sync_by(::fsync, descriptor);
  return error == 0 || error == EINVAL ? status() : status::from_errno(error, fmt::format("fdatasync {}", path));
}

status sync_names(int folder, const std::string& path) {
  const int descriptor = ::openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) return status::from_errno(errno, fmt::format("open the folder of {}", path));
  int error = sync_by(::fsync, descriptor);
  if (is_refused_call(error)) error = sync_by(::fdatasync, descriptor);
  ::close(descriptor);
  return error == 0 || error == EINVAL ? status() : status::from_errno(error, fmt::format("fsync the folder of {}", path));
}

}  // namespace

// --- the file

struct pending_file::state {
  explicit state(upload begun) : given(begun.url()), path(given), object(std::move(begun)), is_object(true) {}
  state(std::string given_path, std::string real_path)
      : given(std::move(given_path)), path(std::move(real_path)), name(std::filesystem::path(path).filename().string()) {}
  state(const state&) = delete;
  state& operator=(const state&) = delete;
  ~state() { discard(); }

  void discard() noexcept {
    object.discard();
    if (!hidden.empty() && process == ::getpid()) ::unlinkat(folder, hidden.c_str(), 0);
    hidden.clear();
    for (int* each : {&descriptor, &folder}) {
      if (*each >= 0) ::close(std::exchange(*each, -1));
    }
  }

  status open(const pending_file_options& options, unsigned first_mode);
  status open_hidden(unsigned mode);
  status take_permissions(const std::optional<replaced_file>& old, const std::optional<unsigned>& mode);
  status look_again();
  status set_late_mode();
  status take_hidden_name();
  status give_name(bool replace);
  template <class Take>
  int try_hidden_names(const Take& take);

  std::string given;  // the path in messages
  std::string path;   // the final path
  std::string name;   // the final name in its folder
  int folder = -1;    // keeps the folder open, in case the process changes its working directory
  int descriptor = -1;
  std::string hidden;  // its current name in the folder; empty: unnamed
  int process = ::getpid();
  std::optional<replaced_file> old{};   // the file whose permissions it takes over
  bool has_own_mode = false;            // its own mode, regardless of the replaced file
  std::optional<unsigned> late_mode{};  // set after writing
  bool published = false;
  upload object{};
  bool is_object = false;
};

// Calls `take` with different hidden names until one is free. Returns errno.
template <class Take>
int pending_file::state::try_hidden_names(const Take& take) {
  int error = EEXIST;
  for (int i = 0; i < most_hidden_names && error == EEXIST; ++i) {
    std::string next = hidden_name_of(name, ::fpathconf(folder, _PC_NAME_MAX));
    error = take(next) ? 0 : errno;
    if (error == 0) hidden = std::move(next);
  }
  return error;
}

status pending_file::state::open_hidden(unsigned mode) {
  const int error = try_hidden_names([&](const std::string& next) {
    descriptor = ::openat(folder, next.c_str(), O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, mode);
    return descriptor >= 0;
  });
  return error == 0 ? status() : status::from_errno(error, fmt::format("create {} in {}", given, folder_of(path)));
}

status pending_file::state::open(const pending_file_options& options, unsigned first_mode) {
  folder =
      options.folder < 0 ? ::open(folder_of(path).c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC) : ::fcntl(options.folder, F_DUPFD_CLOEXEC, 0);
  if (folder < 0) return status::from_errno(errno, fmt::format("create {} in {}", given, folder_of(path)));
  if (options.unnamed && can_be_named_later()) {
    descriptor = ::openat(folder, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, first_mode);
    if (descriptor >= 0) return {};
    if (!cannot_be_unnamed(errno)) return status::from_errno(errno, fmt::format("create {} in {}", given, folder_of(path)));
  }
  return open_hidden(first_mode);
}

status pending_file::state::take_permissions(const std::optional<replaced_file>& from, const std::optional<unsigned>& mode) {
  std::optional<unsigned> made = mode;
  if (from) {
    auto taken = take_over(descriptor, *from, mode, given);
    if (!taken) return taken.error();
    made = *taken;
  } else if (mode) {
    auto set = set_mode(descriptor, *mode, given);
    if (!set) return set.error();
    made = *set;
  }
  late_mode = made && (*made & 07000) != 0 ? made : std::nullopt;
  old = from;
  return {};
}

// The replaced file's permissions may have changed since.
status pending_file::state::look_again() {
  if (has_own_mode || !old) return {};
  replaced_file now{old->path};
  if (::fstatat(folder, name.c_str(), &now.facts, AT_SYMLINK_NOFOLLOW) != 0 || !same_file(now.facts, old->facts)) return {};
  return same_permissions(now.facts, old->facts) ? status() : take_permissions(now, {});
}

// Call after writing, because writing clears the setuid and setgid bits.
status pending_file::state::set_late_mode() {
  if (!late_mode || set_bits(descriptor, *late_mode) || is_refused_call(errno)) return {};
  return status::from_errno(errno, fmt::format("set the mode of {}", given));
}

// Links an unnamed (O_TMPFILE) file to a hidden name.
status pending_file::state::take_hidden_name() {
  const int error = try_hidden_names([&](const std::string& next) { return link_unnamed(descriptor, folder, next); });
  return error == 0 ? status() : status::from_errno(error, fmt::format("link a temporary name next to {}", given));
}

status pending_file::state::give_name(bool replace) {
  if (hidden.empty()) {
    if (link_unnamed(descriptor, folder, name)) return {};
    if (errno != EEXIST || !replace) return status::from_errno(errno, fmt::format("create {}", given));
    if (status error = take_hidden_name(); !error.ok()) return error;
  }
  if (!replace) {
    if (rename_to_free_name(folder, hidden, name) != 0) return status::from_errno(errno, fmt::format("create {}", given));
  } else if (rename_in(folder, hidden.c_str(), name.c_str()) != 0) {
    return status::from_errno(errno, fmt::format("rename to {}", given));
  }
  return {};
}

pending_file::pending_file(std::unique_ptr<state> made) noexcept : state_(std::move(made)) {}
pending_file::pending_file(pending_file&& other) noexcept = default;
pending_file& pending_file::operator=(pending_file&& other) noexcept = default;
pending_file::~pending_file() = default;

int pending_file::descriptor() const noexcept { return state_ == nullptr ? -1 : state_->descriptor; }

const std::string& pending_file::path() const noexcept {
  static const std::string none;
  return state_ == nullptr ? none : state_->path;
}

void pending_file::discard() noexcept {
  if (state_ != nullptr) state_->discard();
}

std::string pending_file::hidden_name(const std::string& path) {
  const std::filesystem::path whole(path);
  return (whole.parent_path() / hidden_name_of(whole.filename().string(), ::pathconf(folder_of(path).c_str(), _PC_NAME_MAX))).string();
}

bool pending_file::is_object() const noexcept { return state_ != nullptr && state_->is_object; }

result<file> pending_file::open(const engine& by, const adopt_options& options) const {
  if (is_object()) return state_->object.open(options.bytes_per_second);
  if (descriptor() < 0) return status(errc::closed, "the pending file was discarded");
  return by.adopt(descriptor(), options);
}

result<pending_file> pending_file::create(const engine& by, const std::string& path, const pending_file_options& options) {
  if (!is_url(path)) return create(path, options);
  return or_no_memory([&]() -> result<pending_file> {
    auto begun = by.begin_upload(path, options.remote);
    if (!begun) return begun.error();
    return pending_file(std::make_unique<state>(*std::move(begun)));
  });
}

result<pending_file> pending_file::create(const std::string& path, const pending_file_options& options) {
  return or_no_memory([&]() -> result<pending_file> {
    if (is_url(path)) {
      const auto by = engine::shared();
      if (!by) return by.error();
      return create(*by, path, options);
    }
    if (path.find('\0') != std::string::npos) return status(errc::invalid_argument, "a path must not contain NUL bytes");
    const bool in_folder = options.folder >= 0;
    const std::string plain = file_path(path);
    auto target = in_folder ? look_in_folder(options.folder, plain) : look_at_target(plain);
    if (!target) return target.error();
    auto made = std::make_unique<state>(plain, std::move(target->path));
    if (status error = made->open(options, first_mode(options, target->old)); !error.ok()) return error;
    if (in_folder && target->old) target->old->path = fmt::format("{}/{}", unnamed_path(made->folder), made->name);
    if (status error = made->take_permissions(target->old, options.mode); !error.ok()) return error;
    made->has_own_mode = options.mode.has_value();
    return pending_file(std::move(made));
  });
}

status pending_file::publish(const publish_options& options) {
  return or_no_memory([&]() -> status {
    if (state_ != nullptr && state_->published) return {errc::closed, fmt::format("{} was already published", state_->given)};
    if (is_object()) {
      const status done = state_->object.publish(options.replace);
      state_->published = done.ok();
      return done;
    }
    if (descriptor() < 0) return {errc::closed, "the pending file was discarded"};
    state& it = *state_;
    if (options.replace) {
      if (status error = it.look_again(); !error.ok()) return error;
    }
    if (status error = it.set_late_mode(); !error.ok()) return error;
    if (status error = close_a_twin(it.descriptor, it.given); !error.ok()) return error;
    if (options.durable) {
      if (status error = sync_bytes(it.descriptor, it.given); !error.ok()) return error;
    }
    if (status error = it.give_name(options.replace); !error.ok()) return error;
    it.published = true;
    it.hidden.clear();
    if (!options.durable) return {};
    const status error = sync_names(it.folder, it.given);
    return error.ok() ? error : error.with_context(fmt::format("{} is complete and in place, but a power failure may undo that", it.given));
  });
}

}  // namespace penstock
