#include "cli/files/folder_tree.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cassert>
#include <cerrno>
#include <cstddef>
#include <filesystem>
#include <system_error>
#include <utility>

namespace penstock::cli {
namespace {

namespace fs = std::filesystem;

// shown: the full path, for the message.
status no_folder(int parent, const std::string& name, int number, const std::string& shown) {
  struct stat info {};
  const bool is_link = ::fstatat(parent, name.c_str(), &info, AT_SYMLINK_NOFOLLOW) == 0 && S_ISLNK(info.st_mode);
  if (is_link)
    return {errc::not_a_file, fmt::format("{} is a link, but must be a folder: cp does not follow links inside the target", shown)};
  return status::from_errno(number, fmt::format("open folder {}", shown));
}

owned_fd open_folder(int parent, const std::string& name) {
  return owned_fd(::openat(parent, name.c_str(), O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
}

result<owned_fd> enter_one(int parent, const std::string& name, const std::string& shown) {
  owned_fd there = open_folder(parent, name);
  if (there.get() < 0 && errno == ENOENT) {
    if (::mkdirat(parent, name.c_str(), 0777) != 0 && errno != EEXIST)
      return status::from_errno(errno, fmt::format("create folder {}", shown));
    there = open_folder(parent, name);
  }
  if (there.get() < 0) return no_folder(parent, name, errno, shown);
  return there;
}

}  // namespace

result<folder_tree> folder_tree::open(const std::string& path) {
  const fs::path whole(path.substr(0, std::max(path.find_last_not_of('/') + 1, std::size_t{1})));
  std::error_code error;
  fs::create_directories(whole.parent_path().empty() ? "." : whole.parent_path(), error);
  if (error) return status::from_errno(error.value(), fmt::format("create folder {}", whole.parent_path().string()));
  // "/", "." and similar paths have no name that could be a link.
  const bool has_name = whole.has_filename() && whole.filename() != "." && whole.filename() != "..";
  auto fd = has_name ? enter_one(AT_FDCWD, whole.string(), whole.string())
                     : result<owned_fd>(owned_fd(::open(path.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC)));
  if (!fd) return fd.error();
  if (fd->get() < 0) return status::from_errno(errno, fmt::format("open folder {}", path));
  return folder_tree(path, *std::move(fd));
}

result<owned_fd> folder_tree::enter(const std::string& path) const {
  owned_fd at(::openat(fd_.get(), ".", O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (at.get() < 0) return status::from_errno(errno, fmt::format("open folder {}", path_));
  fs::path shown(path_);
  for (const fs::path& each : fs::path(path)) {
    assert(each != ".." && !each.is_absolute() && "the path would lead outside the folder");
    if (each.empty() || each == ".") continue;
    shown /= each;
    auto next = enter_one(at.get(), each.string(), shown.string());
    if (!next) return next.error();
    at = *std::move(next);
  }
  return at;
}

}  // namespace penstock::cli
