#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <utility>

#include "base/crew.hpp"
#include "base/no_memory.hpp"
#include "penstock/tree.hpp"
#include "tensors/tree_blocks.hpp"

namespace penstock {

namespace {

constexpr std::size_t files_per_step = 4;

// From linux/openat2.h, which headers before Linux 5.6 lack.
constexpr long openat2_number = 437;
struct resolving_open {
  std::uint64_t flags = 0, mode = 0, resolve = 0;
};
constexpr std::uint64_t below_folder = 0x08 | 0x02;  // and no magic links

class descriptor {
 public:
  explicit descriptor(int fd) : fd_(fd) {}
  descriptor(const descriptor&) = delete;
  descriptor& operator=(const descriptor&) = delete;
  ~descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  [[nodiscard]] int get() const noexcept { return fd_; }

 private:
  const int fd_;
};

struct open_folder {
  std::string path;  // "" or "a/b/", from the tree's folder on
  descriptor fd;
};

struct entry {
  std::string name;
  bool is_link = false;
};

// A step: a folder to list, or files to read.
struct job {
  std::string folder;                       // to list
  std::shared_ptr<const open_folder> from;  // of the files
  std::vector<entry> files;
};

bool is_same_version(const struct stat& one, const struct stat& other) {
  const auto same_time = [](const timespec& a, const timespec& b) { return a.tv_sec == b.tv_sec && a.tv_nsec == b.tv_nsec; };
  return one.st_size == other.st_size && same_time(one.st_mtim, other.st_mtim) && same_time(one.st_ctim, other.st_ctim);
}

class tree_reader {
 public:
  tree_reader(const std::string& folder, const tree_options& options) : folder_(folder), options_(options) {}

  result<std::vector<tree_file>> read() {
    root_ = std::make_unique<descriptor>(::open(folder_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (root_->get() < 0) return status::from_errno(errno, fmt::format("open folder {}", folder_));
    jobs_.push_back({});
    run_in_crew(options_.max_threads == 0 ? most_crew_threads() : options_.max_threads, [this](bool is_caller) { return step(is_caller); });
    if (!error_.ok()) return std::move(error_);
    std::sort(files_.begin(), files_.end(), [](const tree_file& one, const tree_file& other) { return one.path < other.path; });
    return std::move(files_);
  }

 private:
  [[nodiscard]] std::string shown(const std::string& path) const {
    return folder_.ends_with('/') || path.empty() ? folder_ + path : folder_ + "/" + path;
  }

  bool step(bool is_caller) {
    job next;
    if (!take(next, is_caller)) return false;
    status error = or_no_memory([&] { return next.files.empty() ? list(next.folder) : read_files(next); });
    const std::lock_guard guard(lock_);
    --busy_;
    if (!error.ok() && error_.ok()) error_ = std::move(error);
    if (!error_.ok() || (jobs_.empty() && busy_ == 0)) changed_.notify_all();
    return true;
  }

  bool take(job& next, bool is_caller) {
    constexpr std::chrono::milliseconds tick{50};
    for (;;) {
      const bool stops = is_caller && options_.stop_requested && options_.stop_requested();
      std::unique_lock guard(lock_);
      if (stops && error_.ok()) {
        error_ = {errc::cancelled, fmt::format("reading {} was stopped", folder_)};
        changed_.notify_all();
      }
      if (!error_.ok() || (jobs_.empty() && busy_ == 0)) return false;
      if (jobs_.empty()) {
        changed_.wait_for(guard, tick);
        continue;
      }
      next = std::move(jobs_.front());
      jobs_.pop_front();
      ++busy_;
      return true;
    }
  }

  // Files go first, so that few folders are open.
  void add(job&& more) {
    const std::lock_guard guard(lock_);
    more.files.empty() ? jobs_.push_back(std::move(more)) : jobs_.push_front(std::move(more));
    changed_.notify_one();
  }

  // Opens the folders on the way one after another, so that none is a link by now.
  result<std::shared_ptr<const open_folder>> enter(const std::string& path) {
    int at = ::openat(root_->get(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    for (std::size_t begin = 0; at >= 0 && begin < path.size();) {
      const std::size_t end = path.find('/', begin);
      const int below = ::openat(at, path.substr(begin, end - begin).c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
      const int error = errno;
      ::close(at);
      errno = error;
      at = below;
      begin = end + 1;
    }
    if (at < 0) return status::from_errno(errno, fmt::format("open folder {}", shown(path)));
    return std::shared_ptr<const open_folder>(new open_folder{path, descriptor(at)});
  }

  status list(const std::string& path) {
    auto folder = enter(path);
    if (!folder) return folder.error();
    const int listed = ::openat((*folder)->fd.get(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR* const names = listed < 0 ? nullptr : ::fdopendir(listed);
    if (names == nullptr) {
      const int error = errno;
      if (listed >= 0) ::close(listed);
      return status::from_errno(error, fmt::format("list folder {}", shown(path)));
    }
    const std::unique_ptr<DIR, int (*)(DIR*)> closing(names, &::closedir);
    job files{{}, *folder, {}};
    errno = 0;
    for (const dirent* each = ::readdir(names); each != nullptr; errno = 0, each = ::readdir(names)) {
      const std::string name = each->d_name;
      if (name == "." || name == "..") continue;
      auto kind = each->d_type;
      if (kind == DT_UNKNOWN) {
        struct stat info {};
        if (::fstatat((*folder)->fd.get(), name.c_str(), &info, AT_SYMLINK_NOFOLLOW) != 0)
          return status::from_errno(errno, shown(path + name));
        kind = static_cast<unsigned char>(IFTODT(info.st_mode));
      }
      if (kind == DT_DIR) {
        add({path + name + "/", nullptr, {}});
        continue;
      }
      if (kind != DT_REG && kind != DT_LNK)
        return {errc::not_a_file, fmt::format("{} is not a file, a folder or a link", shown(path + name))};
      if (entries_.fetch_add(1) >= options_.max_files)
        return {errc::invalid_argument, fmt::format("{} contains more than {} files (max_files)", folder_, options_.max_files)};
      files.files.push_back({name, kind == DT_LNK});
      if (files.files.size() == files_per_step) add(std::exchange(files, {{}, *folder, {}}));
    }
    if (errno != 0) return status::from_errno(errno, fmt::format("list folder {}", shown(path)));
    if (!files.files.empty()) add(std::move(files));
    return {};
  }

  status read_files(const job& what) {
    block_in_use into = take_block();
    std::vector<tree_file> done;
    for (const entry& each : what.files) {
      if (status error = read_file(*what.from, each, into, done); !error.ok()) return error;
    }
    const std::lock_guard guard(lock_);
    std::move(done.begin(), done.end(), std::back_inserter(files_));
    if (into.block != nullptr) blocks_.push_back(std::move(into));
    return {};
  }

  block_in_use take_block() {
    const std::lock_guard guard(lock_);
    if (blocks_.empty()) return {};
    block_in_use found = std::move(blocks_.back());
    blocks_.pop_back();
    return found;
  }

  result<int> open_file(const open_folder& folder, const entry& which) {
    constexpr int flags = O_RDONLY | O_NONBLOCK | O_CLOEXEC;  // does not wait for the writer of a FIFO
    const std::string path = folder.path + which.name;
    if (!which.is_link) {
      const int fd = ::openat(folder.fd.get(), which.name.c_str(), flags | O_NOFOLLOW);
      if (fd < 0) return status::from_errno(errno, fmt::format("open {}", shown(path)));
      return fd;
    }
    const resolving_open how{static_cast<std::uint64_t>(flags), 0, below_folder};
    const auto fd = static_cast<int>(::syscall(openat2_number, root_->get(), path.c_str(), &how, sizeof how));
    if (fd >= 0) return fd;
    if (errno == EXDEV) return status(errc::not_a_file, fmt::format("{} is a link that leads out of the folder", shown(path)));
    if (errno == ENOSYS || errno == EPERM)
      return status(errc::unsupported, fmt::format("{} is a link, which this system cannot follow safely", shown(path)));
    return status::from_errno(errno, fmt::format("follow the link {}", shown(path)));
  }

  status read_file(const open_folder& folder, const entry& which, block_in_use& into, std::vector<tree_file>& done) {
    const std::string path = folder.path + which.name;
    const auto opened = open_file(folder, which);
    if (!opened) return opened.error();
    const descriptor fd(*opened);
    struct stat before {};
    if (::fstat(fd.get(), &before) != 0) return status::from_errno(errno, shown(path));
    if (!S_ISREG(before.st_mode))
      return {errc::not_a_file, fmt::format("{} is {}not a file", shown(path), which.is_link ? "a link to something that is " : "")};
    const auto bytes = static_cast<std::size_t>(before.st_size);
    if (bytes > options_.max_bytes || total_bytes_.fetch_add(bytes) + bytes > options_.max_bytes)
      return {errc::invalid_argument, fmt::format("the files in {} have more than {} bytes (max_bytes)", folder_, options_.max_bytes)};
    tree_file file{path, nullptr, 0, bytes};
    if (status error = find_room(file, into); !error.ok()) return error;
    populate(file);
    std::size_t got = 0;
    while (got < bytes) {
      const ssize_t count = ::pread(fd.get(), file.block->memory.get() + file.offset + got, bytes - got, static_cast<off_t>(got));
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) return status::from_errno(errno, fmt::format("read {}", shown(path)));
      if (count == 0) break;
      got += static_cast<std::size_t>(count);
    }
    struct stat after {};
    if (::fstat(fd.get(), &after) != 0) return status::from_errno(errno, shown(path));
    if (got < bytes || !is_same_version(before, after)) return {errc::io, fmt::format("{} changed while it was read", shown(path))};
    done.push_back(std::move(file));
    return {};
  }

  const std::string& folder_;
  const tree_options& options_;
  std::unique_ptr<descriptor> root_;
  std::atomic<std::uint64_t> total_bytes_{0};
  std::atomic<std::size_t> entries_{0};
  std::mutex lock_;  // guards the members below
  std::condition_variable changed_;
  std::deque<job> jobs_;
  unsigned busy_ = 0;  // threads with a job
  std::vector<block_in_use> blocks_;
  std::vector<tree_file> files_;
  status error_;
};

}  // namespace

result<std::vector<tree_file>> read_tree(const std::string& folder, const tree_options& options) {
  return or_no_memory([&]() -> result<std::vector<tree_file>> { return tree_reader(folder, options).read(); });
}

}  // namespace penstock
