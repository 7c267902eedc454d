// penstock cp: copies files and folders. A file appears under its name only once it is complete.
#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <set>

#include "base/crew.hpp"
#include "base/key_path.hpp"
#include "base/refused_call.hpp"
#include "bench/meter.hpp"
#include "cli/common/at_once.hpp"
#include "cli/common/command.hpp"
#include "cli/common/interrupt.hpp"
#include "cli/common/json.hpp"
#include "cli/common/plain_file.hpp"
#include "cli/common/say.hpp"
#include "cli/common/sizes.hpp"
#include "cli/files/copy_file.hpp"
#include "cli/files/copy_objects.hpp"
#include "cli/files/folder_tree.hpp"

namespace penstock::cli {
namespace {

namespace fs = std::filesystem;

struct cp_options {
  std::vector<std::string> paths;  // the last one is the target
  copy_options how;
  bool no_clone = false;
  bool verbose = false;
  std::uint64_t bytes_per_second = 0;
  output_options output;
};

struct cp_totals {
  std::uint64_t files = 0, links = 0, folders = 0, kept = 0, cloned = 0;
  std::uint64_t bytes = 0, copied = 0;
  std::vector<status> errors;
};

// Returns the last component of a path without slashes: "b" for a/b/, "" for "/". For a URL, returns the text after the last slash, with
// its escapes.
std::string last_name(const std::string& path) {
  if (is_url(path)) return fs::path(shown_name(path)).filename().string();
  const std::string name = path.substr(0, path.find_last_not_of('/') + 1);
  return name.substr(name.rfind('/') + 1);
}

bool is_folder(const std::string& path) {
  struct stat info {};
  return ::stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode);
}

mode_t umask_of_process() {
  const mode_t mask = ::umask(0);
  ::umask(mask);
  return mask;
}

class copier {
 public:
  copier(const engine& owner, const cp_options& wanted) : owner_(owner), wanted_(wanted), how_(wanted.how), umask_(umask_of_process()) {}

  // For paths on the command line: follows links.
  void copy_named(const std::string& from, const std::string& to) {
    struct stat info {};
    const bool is_object = is_url(from);
    if (is_url(to)) return how_.recursive && (is_object || is_folder(from)) ? copy_to_objects(from, to) : copy_one_to_object(from, to);
    if (is_object && how_.recursive) return copy_objects(from, to);
    if (!is_object && ::stat(from.c_str(), &info) != 0) return failed(status::from_errno(errno, from));
    if (is_object || !S_ISDIR(info.st_mode)) {
      copy_one_file(from, to);
      return sync_folder_of(to);
    }
    if (!how_.recursive) return failed({errc::invalid_argument, fmt::format("{} is a folder; use -r to copy it", from)});
    if (lies_in(from, to))
      return failed({errc::invalid_argument, fmt::format("{} is inside {}: a folder cannot be copied into itself", to, from)});
    copy_folder(from, to, info);
    copy_new_files();
    for (const folder_to_finish& each : folders_) finish_folder(each);
    folders_.clear();
    sync_folder_of(to);
  }
  // Copies under the same name into a folder. If the name is "." or "..", copies the contents, as cp does.
  void copy_into(const std::string& from, const std::string& folder) {
    const bool below_it = is_url(from) && how_.recursive && from.ends_with('/');
    const std::string name = last_name(below_it ? from.substr(0, from.size() - 1) : from);
    const bool is_dots = name == "." || name == "..";
    if (is_url(from) && (name.empty() || is_dots))
      return failed(
          {errc::invalid_argument, fmt::format("{} does not end with a name: add the name of the file to write", shown_name(from))});
    if (is_dots) return copy_named(from, folder);
    copy_named(from, is_url(folder) ? folder + name : (fs::path(folder) / name).string());
  }
  [[nodiscard]] const cp_totals& totals() const { return totals_; }

 private:
  // Source and target folder of new files. The first file opens them, so that the kernel does not look up their paths for each file.
  struct folder_pair {
    std::once_flag once;
    owned_fd from, to;
    std::atomic<bool> may_clone{true};
  };
  struct new_file {
    std::string from, to;
    std::shared_ptr<folder_pair> in;
  };
  struct object_download {
    remote_object from;
    std::string to;
    std::string folder;  // of the target, relative to the tree
    bool is_new;         // the target does not exist, or is another object's
  };
  struct object_upload {
    remote_object from;  // or a file's path
    std::string to;
  };
  struct folder_to_finish {
    std::string path;
    struct stat like;  // the folder it was copied from
    bool is_new;
  };

  static bool is_there_already(const status& error) { return error.domain() == error_domain::os && error.native() == EEXIST; }

  void failed(const status& error) {
    if (error.code() == errc::cancelled && interrupted()) return;
    totals_.errors.push_back(error);
    (void)fail(error);
  }

  static bool lies_in(const std::string& folder, const std::string& path) {
    std::error_code ignored;
    const fs::path outer = fs::weakly_canonical(folder, ignored), inner = fs::weakly_canonical(path, ignored);
    return std::mismatch(outer.begin(), outer.end(), inner.begin(), inner.end()).first == outer.end();
  }

  static std::string real_path(const std::string& path) {
    std::error_code ignored;
    return fs::weakly_canonical(path, ignored).string();
  }

  void told(const std::string& from, const std::string& to) const {
    if (wanted_.verbose && !wanted_.output.json) say("{} -> {}\n", shown_name(from), to);
  }

  // Returns true if this command created the file at this path, or the target of a link at this path.
  [[nodiscard]] bool has_made(const std::string& to) const {
    struct stat info {};
    if (::lstat(to.c_str(), &info) != 0) return false;
    if (made_.contains({info.st_dev, info.st_ino})) return true;
    return S_ISLNK(info.st_mode) && ::stat(to.c_str(), &info) == 0 && made_.contains({info.st_dev, info.st_ino});
  }

  // Returns true if the path may be written. A file that this command created is not replaced by another source.
  bool may_make(const std::string& from, const std::string& to) {
    struct stat info {};
    if (how_.keep_existing && ::lstat(to.c_str(), &info) == 0) {
      ++totals_.kept;
      return false;
    }
    if (!has_made(to)) return true;
    failed({errc::invalid_argument, fmt::format("{} would replace {}, which this command just wrote", shown_name(from), to)});
    return false;
  }

  void copy_one_file(const std::string& from, const std::string& to) {
    if (!may_make(from, to)) return;
    const auto copied = is_url(from) ? copy_object(owner_, {from, std::nullopt}, to, how_) : copy_file(owner_, from, to, how_);
    note_copied(from, to, copied);
  }

  void note_copied(const std::string& from, const std::string& to, const result<copied_file>& copied) {
    if (!copied) return failed(copied.error());
    ++totals_.files;
    made_.insert(copied->identity);
    totals_.bytes += copied->bytes;
    totals_.copied += copied->copied;
    totals_.cloned += copied->cloned ? 1 : 0;
    told(from, to);
    if (!copied->not_preserved.ok()) failed(copied->not_preserved);
  }

  void copy_one_to_object(const std::string& from, const std::string& to) {
    if (is_folder(from)) return failed({errc::invalid_argument, fmt::format("{} is a folder; use -r to copy it", from)});
    if (may_upload(from, to)) note_uploaded(from, to, copy_to_object(owner_, {from, std::nullopt}, to, how_));
  }
  bool may_upload(const std::string& from, const std::string& to) {
    if (objects_.insert(to).second) return true;
    failed({errc::invalid_argument, fmt::format("{} would replace {}, which was just written", shown_name(from), to)});
    return false;
  }
  void note_uploaded(const std::string& from, const std::string& to, const result<copied_file>& copied) {
    if (!copied && how_.keep_existing && is_there_already(copied.error())) {
      ++totals_.kept;
      return;
    }
    if (!copied) return failed(copied.error());
    ++totals_.files;
    totals_.bytes += copied->bytes;
    totals_.copied += copied->copied;
    told(from, to);
  }

  // Copies a folder, or all objects below a URL, to the objects below another URL.
  void copy_to_objects(const std::string& from, const std::string& to) {
    if (how_.preserve)
      return failed({errc::unsupported, fmt::format("copy {} to {}: modes, times and owners cannot be preserved in objects",
                                                    shown_name(from), shown_name(to))});
    std::vector<object_upload> uploads;
    if (is_url(from)) {
      const auto found = objects_below(from);
      if (!found) return failed(found.error());
      if (found->empty()) return copy_one_to_object(from, to);
      for (const remote_object& each : *found)
        uploads.push_back({each, url_of_folder(to) + std::string(key_below(url_of_folder(from), each.url))});
    } else {
      add_uploads(from, url_of_folder(to), real_path(from), uploads);
    }
    std::erase_if(uploads, [this](const object_upload& each) { return !may_upload(each.from.url, each.to); });
    std::mutex lock;
    copy_with_server(sizes_of(uploads), [&](std::size_t i) {
      const auto& [source, target] = uploads[i];
      const auto copied = copy_to_object(owner_, source, target, how_);
      const std::lock_guard guard(lock);
      note_uploaded(source.url, target, copied);
    });
  }

  // Adds all files below a folder. Objects cannot be links, so a link to a file inside `whole`, the folder's real path, is copied as a
  // file.
  void add_uploads(const std::string& from, const std::string& to, const std::string& whole, std::vector<object_upload>& uploads) {
    for (const auto& [name, is_file] : names_in(from)) {
      if (interrupted()) return;
      const std::string path = (fs::path(from) / name).string();
      struct stat info {};
      if (::lstat(path.c_str(), &info) != 0) {
        failed(status::from_errno(errno, path));
        continue;
      }
      const bool is_link = S_ISLNK(info.st_mode);
      if (is_link && (::stat(path.c_str(), &info) != 0 || !S_ISREG(info.st_mode) || !lies_in(whole, path))) {
        failed({errc::not_a_file, fmt::format("{} was not copied: it is a link that does not lead to a file inside {}", path, whole)});
      } else if (S_ISDIR(info.st_mode)) {
        add_uploads(path, to + name + "/", whole, uploads);
      } else if (S_ISREG(info.st_mode)) {
        uploads.push_back({{path, static_cast<std::uint64_t>(info.st_size)}, to + name});
      } else {
        failed({errc::not_a_file, fmt::format("{} was not copied: it is not a file, a folder or a link", path)});
      }
    }
  }

  void copy_link(const std::string& from, const std::string& to) {
    if (!may_make(from, to)) return;
    std::error_code error;
    const fs::path target = fs::read_symlink(from, error);
    if (error) return failed(status::from_errno(error.value(), fmt::format("read link {}", from)));
    struct stat there {};
    if (::lstat(to.c_str(), &there) == 0 && S_ISDIR(there.st_mode))
      return failed({errc::not_a_file, fmt::format("{} is a folder, but {} is a link", to, from)});
    std::string hidden;
    int left = EEXIST;
    for (int i = 0; i < pending_file::most_hidden_names && left == EEXIST; ++i) {
      hidden = pending_file::hidden_name(to);
      left = ::symlink(target.c_str(), hidden.c_str()) == 0 ? 0 : errno;
    }
    if (left != 0) return failed(status::from_errno(left, fmt::format("create link {}", to)));
    if (::rename(hidden.c_str(), to.c_str()) != 0) {
      const int number = errno;
      ::unlink(hidden.c_str());
      return failed(status::from_errno(number, fmt::format("rename to {}", to)));
    }
    ++totals_.links;
    if (::lstat(to.c_str(), &there) == 0) made_.insert({there.st_dev, there.st_ino});
    told(from, to);
  }

  // Returns no objects if the server cannot list objects.
  result<std::vector<remote_object>> objects_below(const std::string& url) {
    auto found = owner_.list_remote(url_of_folder(url), how_.server);
    const bool is_unlisted = !found && (found.error().code() == errc::unsupported || found.error().code() == errc::invalid_argument);
    return is_unlisted ? std::vector<remote_object>() : std::move(found);
  }

  template <class Copy>
  static std::vector<std::optional<std::uint64_t>> sizes_of(const std::vector<Copy>& copies) {
    std::vector<std::optional<std::uint64_t>> sizes;
    for (const Copy& each : copies) sizes.push_back(each.from.size);
    return sizes;
  }

  // Copies all objects below a URL, or the object with this URL if there are none.
  void copy_objects(const std::string& from, const std::string& to) {
    auto found = objects_below(from);
    if (!found) return failed(found.error());
    if (found->empty()) {
      copy_one_file(from, to);
      return sync_folder_of(to);
    }
    const auto tree = folder_tree::open(to);
    if (!tree) return failed(tree.error());
    auto copies = targets_of(url_of_folder(from), *std::move(found), *tree);
    std::mutex lock;
    std::vector<object_download*> later;  // their targets appeared in the meantime
    copy_with_server(sizes_of(copies), [&](std::size_t i) {
      auto how = how_;
      how.keep_existing = how.keep_existing || copies[i].is_new;
      const auto copied = copy_below(copies[i], *tree, how);
      const std::lock_guard guard(lock);
      if (!copied && is_there_already(copied.error())) {
        later.push_back(&copies[i]);
      } else {
        note_downloaded(copies[i], copied);
      }
    });
    // Such a target may be this command's copy of another object, if the file system ignores case.
    for (const object_download* each : later) {
      if (may_make(each->from.url, each->to)) note_downloaded(*each, copy_below(*each, *tree, how_));
    }
  }
  result<copied_file> copy_below(const object_download& what, const folder_tree& tree, const copy_options& how) {
    auto folder = tree.enter(what.folder);
    if (!folder) return folder.error().with_context(fmt::format("copy {} to {}", shown_name(what.from.url), what.to));
    return copy_object(owner_, what.from, what.to, how, folder->get());
  }
  void note_downloaded(const object_download& what, const result<copied_file>& copied) {
    note_copied(what.from.url, what.to, copied);
    if (copied) sync_folder_of(what.to);
  }

  // Returns the objects to copy and their targets, and creates folders for objects that only mark folders. folder: the URL above them.
  std::vector<object_download> targets_of(const std::string& folder, std::vector<remote_object> found, const folder_tree& tree) {
    std::vector<object_download> copies;
    std::set<std::string> inner;              // folders of objects
    std::set<std::pair<dev_t, ino_t>> there;  // targets
    for (remote_object& each : found) {
      const auto refuse = [&](std::string_view why) {
        failed({errc::invalid_argument, fmt::format("{} was not copied: {}", shown_name(each.url), why)});
      };
      const auto at = path_of_key(key_below(folder, each.url));
      if (!at) {
        refuse(at.error().message());
        continue;
      }
      const std::string parent = at->is_folder ? at->path : fs::path(at->path).parent_path().string();
      for (fs::path outer = parent; !outer.empty() && inner.insert(outer.string()).second;) outer = outer.parent_path();
      if (at->is_folder && each.size.value_or(0) > 0) {
        refuse("its key ends with a slash, but it is not empty");
      } else if (at->is_folder) {
        if (auto made = tree.enter(at->path); !made) failed(made.error().with_context(fmt::format("copy {}", shown_name(each.url))));
      } else {
        copies.push_back({std::move(each), (fs::path(tree.path()) / at->path).string(), parent, true});
      }
    }
    const auto is_left_out = [&](object_download& each) {
      const auto refuse = [&](const std::string& why) {
        failed({errc::invalid_argument, fmt::format("{} was not copied: {}", shown_name(each.from.url), why)});
        return true;
      };
      if (inner.contains((fs::path(each.folder) / fs::path(each.to).filename()).string()))
        return refuse(fmt::format("{} is a folder that contains other objects", each.to));
      if (!may_make(each.from.url, each.to)) return true;
      if (!targets_.insert(each.to).second) return refuse(fmt::format("another object has the same target, {}", each.to));
      struct stat info {};
      if (::lstat(each.to.c_str(), &info) == 0) each.is_new = !there.insert({info.st_dev, info.st_ino}).second;
      return false;
    };
    std::erase_if(copies, is_left_out);
    return copies;
  }

  // Makes the folder writable while files are copied into it, whatever its final mode.
  status make_folder(const std::string& from, const std::string& to, const struct stat& like) {
    if (::mkdir(to.c_str(), (like.st_mode & 0777 & ~umask_) | 0700) == 0) {
      ++totals_.folders;
      return {};
    }
    const int number = errno;
    struct stat info {};
    // Do not follow a link, not even one that was just copied: it may point anywhere.
    if (number == EEXIST && ::lstat(to.c_str(), &info) == 0) {
      if (S_ISDIR(info.st_mode)) return {};
      if (S_ISLNK(info.st_mode)) return {errc::not_a_file, fmt::format("{} is a link, but {} is a folder", to, from)};
    }
    return status::from_errno(number, fmt::format("create folder {}", to));
  }

  void finish_folder(const folder_to_finish& folder) {
    const auto& [to, like, is_new] = folder;
    if ((!how_.preserve && !is_new && !how_.to_disk) || interrupted()) return;
    const owned_fd fd(::open(to.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (fd.get() < 0) return failed(status::from_errno(errno, fmt::format("open {}", to)));
    if (how_.preserve) {
      if (status error = preserve_facts(fd.get(), like, to); !error.ok()) failed(error);
    } else if (is_new) {
      // The set-group-ID bit is inherited from the parent folder.
      struct stat now {};
      const mode_t inherited = ::fstat(fd.get(), &now) == 0 ? now.st_mode & S_ISGID : 0;
      const mode_t mode = (like.st_mode & 0777 & ~umask_) | inherited;
      if (::fchmod(fd.get(), mode) != 0 && !is_refused_call(errno))
        failed(status::from_errno(errno, fmt::format("set the mode of {}", to)));
    }
    if (how_.to_disk) sync_folder(fd.get(), to);
  }

  // A directory entry is on disk only once its folder is synced.
  void sync_folder(int fd, const std::string& folder) {
    // Some file systems refuse fsync on folders because they do not need it.
    if (::fsync(fd) != 0 && !is_refused_call(errno)) failed(status::from_errno(errno, fmt::format("fsync {}", folder)));
  }
  void sync_folder_of(const std::string& path) {
    if (!how_.to_disk || interrupted()) return;
    const std::string parent = fs::path(path).parent_path().string(), folder = parent.empty() ? "." : parent;
    const owned_fd fd(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (fd.get() < 0) return failed(status::from_errno(errno, fmt::format("open {}", folder)));
    sync_folder(fd.get(), folder);
  }

  void copy_folder(const std::string& from, const std::string& to, const struct stat& info) {
    const std::uint64_t before = totals_.folders;
    if (status error = make_folder(from, to, info); !error.ok()) return failed(error);
    const bool is_new = totals_.folders > before;
    const auto in = std::make_shared<folder_pair>();
    for (const auto& [name, is_file] : names_in(from)) {
      if (interrupted()) return;
      // A new target folder is empty, so such a file needs no system calls now. On a network file system, each one takes milliseconds.
      is_file&& is_new&& wanted_.bytes_per_second == 0 ? copy_later(from + "/" + name, to + "/" + name, in)
                                                       : copy_entry(from + "/" + name, to + "/" + name, in);
    }
    folders_.push_back({to, info, is_new});
  }

  // Returns the names in a folder, sorted, each with true if the listing says that it is a file.
  std::vector<std::pair<std::string, bool>> names_in(const std::string& folder) {
    std::vector<std::pair<std::string, bool>> names;
    std::error_code error, unknown;
    for (fs::directory_iterator each(folder, error); !error && each != fs::directory_iterator(); each.increment(error))
      names.emplace_back(each->path().filename().string(), !each->is_symlink(unknown) && each->is_regular_file(unknown));
    if (error) failed(status::from_errno(error.value(), fmt::format("list {}", folder)));
    std::sort(names.begin(), names.end());
    return names;
  }

  // Queues a file whose target does not exist yet. Small files are copied concurrently, because one at a time cannot keep a disk busy.
  void copy_later(const std::string& from, const std::string& to, const std::shared_ptr<folder_pair>& in) {
    constexpr std::size_t most_later = 10000;
    new_files_.push_back({from, to, in});
    if (new_files_.size() == most_later) copy_new_files();
  }
  void copy_new_files() {
    auto how = how_;
    how.keep_existing = true;
    std::mutex lock;
    std::vector<std::size_t> others;     // large files, and files that appeared in the meantime
    constexpr unsigned descriptors = 8;  // per thread: both files, both folders, copies of two, and a reserve
    run_at_once(new_files_.size(), steps_at_once(small_file, most_crew_threads(descriptors)), [&](std::size_t i) {
      const auto copied = copy_new_file(new_files_[i], how);
      new_files_[i].in.reset();
      const std::lock_guard guard(lock);
      if (!copied || (!*copied && is_there_already(copied->error()))) {
        others.push_back(i);
      } else {
        note_copied(new_files_[i].from, new_files_[i].to, *copied);
      }
    });
    // A target that appeared in the meantime may be this command's copy of another file, if the file system ignores case.
    std::sort(others.begin(), others.end());
    for (const std::size_t i : others) copy_one_file(new_files_[i].from, new_files_[i].to);
    new_files_.clear();
  }
  // Returns nullopt for a large file.
  std::optional<result<copied_file>> copy_new_file(const new_file& what, copy_options how) const {
    std::call_once(what.in->once, [&] {
      what.in->from = owned_fd(::open(fs::path(what.from).parent_path().c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
      what.in->to = owned_fd(::open(fs::path(what.to).parent_path().c_str(), O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    });
    const auto source = open_source(what.from, what.in->from.get());
    if (!source) return source.error();
    if (static_cast<std::uint64_t>(source->facts.st_size) >= small_file) return std::nullopt;
    how.clone = how.clone && what.in->may_clone;
    auto copied = copy_file(owner_, *source, what.from, what.to, how, what.in->to.get());
    if (copied && !copied->may_clone) what.in->may_clone = false;
    return copied;
  }

  void copy_entry(const std::string& from, const std::string& to, const std::shared_ptr<folder_pair>& in) {
    struct stat info {};
    if (::lstat(from.c_str(), &info) != 0) return failed(status::from_errno(errno, from));
    if (S_ISDIR(info.st_mode)) return copy_folder(from, to, info);
    if (S_ISLNK(info.st_mode)) return copy_link(from, to);
    const bool is_small = static_cast<std::uint64_t>(info.st_size) < small_file && wanted_.bytes_per_second == 0;
    if (struct stat there{}; S_ISREG(info.st_mode) && is_small && ::lstat(to.c_str(), &there) != 0 && errno == ENOENT)
      return copy_later(from, to, in);
    if (S_ISREG(info.st_mode)) return copy_one_file(from, to);
    failed({errc::not_a_file, fmt::format("{} was not copied: it is not a file, a folder or a link", from)});
  }

  const engine& owner_;
  const cp_options& wanted_;
  copy_options how_;
  mode_t umask_;
  cp_totals totals_;
  std::set<std::pair<dev_t, ino_t>> made_;  // files and links
  std::set<std::string> targets_;           // paths that objects are copied to
  std::set<std::string> objects_;           // URLs of objects that this command wrote
  std::vector<new_file> new_files_;
  std::vector<folder_to_finish> folders_;  // inner ones first
};

void print_totals(const cp_options& wanted, const cp_totals& totals, double seconds) {
  const double speed = bench::gigabytes_per_second(totals.bytes, seconds);
  if (wanted.output.json) {
    auto errors = nlohmann::json::array();
    for (const status& each : totals.errors) errors.push_back(std::string(each.message()));
    print_json({{"files", totals.files},
                {"folders", totals.folders},
                {"links", totals.links},
                {"kept", totals.kept},
                {"cloned", totals.cloned},
                {"bytes", totals.bytes},
                {"copied_bytes", totals.copied},
                {"seconds", seconds},
                {"gb_per_s", speed},
                {"verified", wanted.how.verify},
                {"errors", std::move(errors)}});
    return;
  }
  if (wanted.output.quiet || totals.files + totals.links + totals.folders + totals.kept == 0) return;
  std::string text = fmt::format("{} {}, {} in {:.3f} s, {:.2f} GB/s", totals.files, totals.files == 1 ? "file" : "files",
                                 format_size(totals.bytes), seconds, speed);
  if (totals.cloned > 0) text += fmt::format(", {} by sharing blocks", totals.cloned);
  if (totals.kept > 0) text += fmt::format(", {} kept", totals.kept);
  say("{}{}\n", text, wanted.how.verify ? ", verified" : "");
}

// Doubles the limit, because each byte of a copy is both read and written.
result<engine> engine_for(const cp_options& wanted) {
  return make_engine([&wanted](engine_options& options) {
    if (wanted.bytes_per_second > 0) options.bytes_per_second = 2 * wanted.bytes_per_second;
  });
}

void add_object_options(CLI::App& sub, remote_options& to) {
  const auto add = [&](const char* name, std::string& target, const char* what) {
    sub.add_option(name, target, what)->type_name("TEXT")->group("S3 objects");
  };
  add("--content-type", to.content_type, "Content-Type of written objects");
  add("--sse", to.server_side_encryption, "Encryption of written objects: AES256, aws:kms or aws:kms:dsse");
  add("--sse-kms-key-id", to.sse_kms_key_id, "Key for aws:kms");
  add("--storage-class", to.storage_class, "Storage class of written objects, such as STANDARD_IA");
  add("--acl", to.acl, "Canned ACL of written objects, such as bucket-owner-full-control");
  const auto take_tag = [&to](const std::string& text) {
    const auto equals = text.find('=');
    if (equals == std::string::npos || equals == 0)
      throw CLI::ValidationError("--tag", fmt::format("\"{}\" must have the form NAME=VALUE", text));
    to.tags.push_back({text.substr(0, equals), text.substr(equals + 1)});
  };
  const auto take_tags = [take_tag](const std::vector<std::string>& all) { std::ranges::for_each(all, take_tag); };
  sub.add_option_function<std::vector<std::string>>("--tag", take_tags, "Tag of written objects; can be repeated")
      ->type_name("NAME=VALUE")
      ->allow_extra_args(false)
      ->group("S3 objects");
  const auto pay = [&to] { to.requester_pays = true; };
  sub.add_flag_callback("--requester-pays", pay, "Your account pays for the requests")->group("S3 objects");
  const auto allow = [&to] { to.allow_credential_process = true; };
  sub.add_flag_callback("--allow-credential-process", allow, "Allow an AWS profile to run a program for its credentials")
      ->group("S3 objects");
}

int copy_all(cp_options wanted) {
  if (wanted.paths.size() < 2) {
    const std::string why = fmt::format("{} has no target: add one, as in penstock cp FILE TO", wanted.paths.front());
    note_failure(why);
    complain("penstock: cp: {}\n", why);
    return exit_usage;
  }
  wanted.how.clone = !wanted.no_clone;
  const std::string to = wanted.paths.back();
  wanted.paths.pop_back();
  const bool into = is_url(to) ? to.ends_with('/') : is_folder(to);
  if (!into && (wanted.paths.size() > 1 || to.ends_with('/'))) return fail({errc::invalid_argument, fmt::format("{} is not a folder", to)});
  auto owner = engine_for(wanted);
  if (!owner) return fail(owner.error());
  copier work(*owner, wanted);
  const bench::stopwatch watch;
  for (const std::string& from : wanted.paths) {
    if (interrupted()) break;
    into ? work.copy_into(from, to) : work.copy_named(from, to);
  }
  print_totals(wanted, work.totals(), watch.seconds());
  if (interrupted()) return interrupted_exit_code();
  return work.totals().errors.empty() ? exit_success : exit_failure;
}

}  // namespace

void add_cp(CLI::App& app, command& chosen) {
  auto wanted = std::make_shared<cp_options>();
  CLI::App& sub = *app.add_subcommand("cp", "Copy files, folders and objects; a copy appears under its name only when it is complete");
  sub.add_option("FILE", wanted->paths,
                 "Files, folders or URLs to copy, then the target: a file, an existing folder, or an object (s3://BUCKET/KEY)")
      ->required()
      ->option_text("FILE... TO");
  sub.add_flag("-r,-R,--recursive", wanted->how.recursive, "Copy folders recursively; links in them are copied as links");
  sub.add_flag("-p,--preserve", wanted->how.preserve, "Preserve modes and times, and also owners if you are root");
  sub.add_flag("--verify", wanted->how.verify, "Read each copy back from the disk and compare it with its source");
  sub.add_flag("--sync", wanted->how.to_disk, "fsync each copy and its folder, without reading it back");
  sub.add_flag("--no-clone", wanted->no_clone, "Copy the bytes even if the file system could share them");
  sub.add_flag("-n,--no-clobber", wanted->how.keep_existing, "Keep existing files");
  add_object_options(sub, wanted->how.server);
  add_size_option(sub, "--bytes-per-second", wanted->bytes_per_second, "Copy at most this much per second");
  sub.add_flag("-v,--verbose", wanted->verbose, "Print each copied file");
  add_output_options(sub, wanted->output);
  sub.callback([wanted, &chosen] { chosen.run = [wanted] { return copy_all(*wanted); }; });
}

}  // namespace penstock::cli
