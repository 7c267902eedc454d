// A FUSE file system for bench/late_mount_bench.py and bench/ranks_bench.py: it answers each read after a fixed latency.
//   penstock_late_mount MOUNT_POINT SIZE_MIB LATENCY_US [AT_ONCE [MAX_READ [OPTION...]]]
// AT_ONCE: number of reads whose latencies may overlap; 0: any number. MAX_READ: the most bytes per read; 0: the kernel's limit. Options:
//   no_direct      refuse O_DIRECT
//   folder=FOLDER  serve the files in this folder. By default, the only file is `data`, of SIZE_MIB
//   mount=POINT    mount the same files here too. As on a second host, this mount has its own page cache
//   rate=BYTES     the most bytes per second for all mounts together
// The extended attributes user.read_bytes and user.reads of a file say how much of it was read through that mount.
// Runs until it is unmounted or its parent dies. Reads have no threads of their own: with 256 threads, the benchmark would measure this
// program.
#define FUSE_USE_VERSION 312

#include <dirent.h>
#include <fcntl.h>
#include <fuse_lowlevel.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace {

using clock_type = std::chrono::steady_clock;

constexpr fuse_ino_t first_inode = 2;
constexpr std::size_t most_mounts = 8;
constexpr double for_long = 1e6;
// Not a multiple of any reader's piece size, so that misplaced pieces are detected. bench/late_mount_bench.py uses the same value.
constexpr std::size_t period_bytes = (std::size_t{1} << 20) + 4096;
constexpr std::size_t most_read_bytes = std::size_t{1} << 20;

struct served_file {
  struct counter {
    std::atomic<std::uint64_t> bytes{0};
    std::atomic<std::uint64_t> reads{0};
  };

  std::string name;
  std::uint64_t size_bytes = 0;
  const char* content = nullptr;
  std::uint64_t period = 0;                 // the content repeats after this many bytes; 0: it does not
  std::array<counter, most_mounts> read{};  // by mount
};

struct waiting_read {
  fuse_req_t request;
  const served_file* file;
  std::size_t length;
  std::uint64_t offset;
  clock_type::time_point due;
};

struct file_system {
  std::vector<std::unique_ptr<served_file>> files;  // the inode of the first is first_inode
  std::chrono::microseconds latency{};
  double bytes_per_second = 0;  // 0: no limit
  unsigned at_once = 0;
  unsigned max_read = 0;
  bool refuses_direct = false;
  std::vector<char> content;  // one period and the longest read, so that any read is one range of it

  std::mutex lock;  // guards the members below
  std::condition_variable alarm;
  std::deque<waiting_read> waiting;  // in the order in which they are due
  clock_type::time_point link_is_free{};
};

file_system served;

void make_content() {
  served.content.resize(period_bytes + most_read_bytes);
  std::uint64_t state = 88172645463325252ULL;
  for (std::size_t at = 0; at < period_bytes; at += sizeof state) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    std::memcpy(served.content.data() + at, &state, sizeof state);
  }
  std::memcpy(served.content.data() + period_bytes, served.content.data(), most_read_bytes);
}

void serve_data(std::uint64_t size_bytes) {
  make_content();
  auto& file = *served.files.emplace_back(std::make_unique<served_file>());
  file.name = "data";
  file.size_bytes = size_bytes;
  file.content = served.content.data();
  file.period = period_bytes;
}

bool serve_folder(const std::string& folder) {
  DIR* entries = opendir(folder.c_str());
  if (entries == nullptr) return false;
  while (const dirent* entry = readdir(entries)) {
    const int descriptor = openat(dirfd(entries), entry->d_name, O_RDONLY | O_CLOEXEC);
    struct stat facts {};
    if (descriptor >= 0 && fstat(descriptor, &facts) == 0 && S_ISREG(facts.st_mode) && facts.st_size > 0) {
      const auto size = static_cast<std::size_t>(facts.st_size);
      void* content = mmap(nullptr, size, PROT_READ, MAP_SHARED, descriptor, 0);
      if (content == MAP_FAILED) return false;
      auto& file = *served.files.emplace_back(std::make_unique<served_file>());
      file.name = entry->d_name;
      file.size_bytes = size;
      file.content = static_cast<const char*>(content);
    }
    if (descriptor >= 0) close(descriptor);
  }
  closedir(entries);
  return true;
}

served_file* file_of(fuse_ino_t inode) {
  return inode < first_inode || inode - first_inode >= served.files.size() ? nullptr : served.files[inode - first_inode].get();
}

served_file::counter& counter_of(fuse_req_t request, served_file& file) {
  return file.read[*static_cast<const std::size_t*>(fuse_req_userdata(request))];
}

struct stat attributes_of(fuse_ino_t inode) {
  const served_file* file = file_of(inode);
  struct stat found {};
  found.st_ino = inode;
  found.st_mode = file != nullptr ? S_IFREG | 0644 : S_IFDIR | 0755;
  found.st_nlink = 1;
  found.st_size = file != nullptr ? static_cast<off_t>(file->size_bytes) : 0;
  found.st_blksize = 4096;
  found.st_blocks = (found.st_size + 511) / 512;
  return found;
}

void serve_init(void* /*data*/, fuse_conn_info* connection) {
  connection->max_background = 1000;
  connection->congestion_threshold = 1000;
  if (served.max_read > 0) connection->max_read = served.max_read;
}

void serve_lookup(fuse_req_t request, fuse_ino_t parent, const char* name) {
  const auto found = std::find_if(served.files.begin(), served.files.end(), [&](const auto& each) { return each->name == name; });
  if (parent != FUSE_ROOT_ID || found == served.files.end()) {
    fuse_reply_err(request, ENOENT);
    return;
  }
  fuse_entry_param entry{};
  entry.ino = first_inode + static_cast<fuse_ino_t>(found - served.files.begin());
  entry.attr = attributes_of(entry.ino);
  entry.entry_timeout = entry.attr_timeout = for_long;
  fuse_reply_entry(request, &entry);
}

void serve_attributes(fuse_req_t request, fuse_ino_t inode, fuse_file_info* /*open*/) {
  const auto found = attributes_of(inode);
  fuse_reply_attr(request, &found, for_long);
}

void serve_open(fuse_req_t request, fuse_ino_t inode, fuse_file_info* open) {
  if (file_of(inode) == nullptr) {
    fuse_reply_err(request, EISDIR);
  } else if (served.refuses_direct && (open->flags & O_DIRECT) != 0) {
    fuse_reply_err(request, EINVAL);
  } else {
    open->keep_cache = 1;
    fuse_reply_open(request, open);
  }
}

void serve_folder_entries(fuse_req_t request, fuse_ino_t /*inode*/, std::size_t length, off_t offset, fuse_file_info* /*open*/) {
  std::vector<char> entries(length);
  std::size_t filled = 0;
  for (auto at = static_cast<std::size_t>(offset); at < served.files.size(); ++at) {
    const auto facts = attributes_of(first_inode + at);
    const char* name = served.files[at]->name.c_str();
    const auto needed = fuse_add_direntry(request, entries.data() + filled, length - filled, name, &facts, static_cast<off_t>(at) + 1);
    if (needed > length - filled) break;
    filled += needed;
  }
  fuse_reply_buf(request, entries.data(), filled);
}

void serve_attribute(fuse_req_t request, fuse_ino_t inode, const char* name, std::size_t length) {
  served_file* file = file_of(inode);
  const bool is_bytes = std::strcmp(name, "user.read_bytes") == 0;
  if (file == nullptr || (!is_bytes && std::strcmp(name, "user.reads") != 0)) {
    fuse_reply_err(request, ENODATA);
    return;
  }
  const auto& counter = counter_of(request, *file);
  const std::string value = std::to_string(is_bytes ? counter.bytes : counter.reads);
  if (length == 0) {
    fuse_reply_xattr(request, value.size());
  } else if (length < value.size()) {
    fuse_reply_err(request, ERANGE);
  } else {
    fuse_reply_buf(request, value.data(), value.size());
  }
}

void answer(const waiting_read& read) {
  fuse_reply_buf(read.request, read.file->content + (read.file->period > 0 ? read.offset % read.file->period : read.offset), read.length);
}

void serve_read(fuse_req_t request, fuse_ino_t inode, std::size_t length, off_t offset, fuse_file_info* /*open*/) {
  served_file& file = *file_of(inode);
  const auto start = std::min(static_cast<std::uint64_t>(offset), file.size_bytes);
  length = std::min<std::uint64_t>(length, file.size_bytes - start);
  counter_of(request, file).bytes += length;
  ++counter_of(request, file).reads;
  const std::lock_guard guard(served.lock);
  auto begins = clock_type::now();
  // If at_once reads are in progress, this read starts when the at_once-th read before it ends.
  if (const auto ahead = served.waiting.size(); served.at_once > 0 && ahead >= served.at_once) {
    begins = std::max(begins, served.waiting[ahead - served.at_once].due);
  }
  auto due = begins + served.latency;
  if (served.bytes_per_second > 0) {
    const std::chrono::duration<double> transfer(static_cast<double>(length) / served.bytes_per_second);
    due = served.link_is_free = std::max(due, served.link_is_free) + std::chrono::duration_cast<clock_type::duration>(transfer);
  }
  served.waiting.push_back({request, &file, length, start, due});
  served.alarm.notify_one();
}

void answer_in_time() {
  for (std::unique_lock guard(served.lock);;) {
    served.alarm.wait(guard, [] { return !served.waiting.empty(); });
    if (const auto due = served.waiting.front().due; due > clock_type::now()) {
      served.alarm.wait_until(guard, due);
      continue;
    }
    const auto next = served.waiting.front();
    served.waiting.pop_front();
    guard.unlock();
    answer(next);
    guard.lock();
  }
}

std::string value_of(const std::string& option, const std::string& name) {
  return option.rfind(name + '=', 0) == 0 ? option.substr(name.size() + 1) : std::string();
}

// Serves one mount until it is unmounted. number: its place in the arrays of counters.
void serve(const char* program, const std::string& mount_point, std::size_t number) {
  fuse_lowlevel_ops calls{};
  calls.init = serve_init;
  calls.lookup = serve_lookup;
  calls.getattr = serve_attributes;
  calls.getxattr = serve_attribute;
  calls.open = serve_open;
  calls.read = serve_read;
  calls.readdir = serve_folder_entries;

  // The kernel requires the same value here and in serve_init().
  std::string limit = "max_read=" + std::to_string(served.max_read);
  std::string option = "-o";
  std::string name = program;
  char* words[] = {name.data(), option.data(), limit.data(), nullptr};
  fuse_args arguments FUSE_ARGS_INIT(served.max_read > 0 ? 3 : 1, words);
  fuse_session* session = fuse_session_new(&arguments, &calls, sizeof calls, &number);
  if (session == nullptr || fuse_session_mount(session, mount_point.c_str()) != 0) _exit(1);
  fuse_loop_config* threads = fuse_loop_cfg_create();
  fuse_loop_cfg_set_clone_fd(threads, 0);
  fuse_loop_cfg_set_max_threads(threads, 4);
  (void)fuse_session_loop_mt(session, threads);
  _exit(0);
}

}  // namespace

int main(int argc, char** argv) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (argc < 4 || getppid() == 1) return 2;
  served.latency = std::chrono::microseconds(std::strtol(argv[3], nullptr, 10));
  if (argc > 4) served.at_once = static_cast<unsigned>(std::strtoul(argv[4], nullptr, 10));
  if (argc > 5) served.max_read = static_cast<unsigned>(std::strtoul(argv[5], nullptr, 10));
  std::vector<std::string> mount_points{argv[1]};
  for (int i = 6; i < argc; ++i) {
    const std::string option = argv[i];
    served.refuses_direct = served.refuses_direct || option == "no_direct";
    if (const auto folder = value_of(option, "folder"); !folder.empty() && !serve_folder(folder)) return 1;
    if (const auto point = value_of(option, "mount"); !point.empty()) mount_points.push_back(point);
    if (const auto rate = value_of(option, "rate"); !rate.empty()) served.bytes_per_second = std::strtod(rate.c_str(), nullptr);
  }
  if (mount_points.size() > most_mounts) return 2;
  if (served.files.empty()) serve_data(std::strtoull(argv[2], nullptr, 10) << 20);
  for (int i = 0; i < 2; ++i) std::thread(answer_in_time).detach();
  for (std::size_t i = 1; i < mount_points.size(); ++i) std::thread(serve, argv[0], mount_points[i], i).detach();
  serve(argv[0], mount_points[0], 0);
}
