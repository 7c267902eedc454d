// A FUSE file system for bench/late_mount_bench.py: it contains one file, `data`, and answers each read after a fixed latency.
//   penstock_late_mount MOUNT_POINT SIZE_MIB LATENCY_US [AT_ONCE [MAX_READ [OPTION...]]]
// AT_ONCE: number of reads whose latencies may overlap; 0: any number. MAX_READ: the most bytes per read; 0: the kernel's limit. OPTION:
// no_direct (refuse O_DIRECT). Runs until it is unmounted or its parent dies. Reads have no threads of their own: with 256 threads, the
// benchmark would measure this program.
#define FUSE_USE_VERSION 312

#include <fcntl.h>
#include <fuse_lowlevel.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace {

using clock_type = std::chrono::steady_clock;

constexpr fuse_ino_t data_inode = 2;
constexpr double for_long = 1e6;
// Not a multiple of any reader's piece size, so that misplaced pieces are detected. bench/late_mount_bench.py uses the same value.
constexpr std::size_t period_bytes = (std::size_t{1} << 20) + 4096;
constexpr std::size_t most_read_bytes = std::size_t{1} << 20;

struct waiting_read {
  fuse_req_t request;
  std::size_t length;
  std::uint64_t offset;
  clock_type::time_point due;
};

struct file_system {
  std::uint64_t size_bytes = 0;
  std::chrono::microseconds latency{};
  unsigned at_once = 0;
  unsigned max_read = 0;
  bool refuses_direct = false;
  std::vector<char> content;  // one period and the longest read, so that any read is one range of it

  std::mutex lock;  // guards the members below
  std::condition_variable alarm;
  std::deque<waiting_read> waiting;  // in the order in which they are due
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

struct stat attributes_of(fuse_ino_t inode) {
  struct stat found {};
  found.st_ino = inode;
  found.st_mode = inode == data_inode ? S_IFREG | 0644 : S_IFDIR | 0755;
  found.st_nlink = 1;
  found.st_size = inode == data_inode ? static_cast<off_t>(served.size_bytes) : 0;
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
  if (parent != FUSE_ROOT_ID || std::strcmp(name, "data") != 0) {
    fuse_reply_err(request, ENOENT);
    return;
  }
  fuse_entry_param entry{};
  entry.ino = data_inode;
  entry.attr = attributes_of(data_inode);
  entry.entry_timeout = entry.attr_timeout = for_long;
  fuse_reply_entry(request, &entry);
}

void serve_attributes(fuse_req_t request, fuse_ino_t inode, fuse_file_info* /*open*/) {
  const auto found = attributes_of(inode);
  fuse_reply_attr(request, &found, for_long);
}

void serve_open(fuse_req_t request, fuse_ino_t inode, fuse_file_info* open) {
  if (inode != data_inode) {
    fuse_reply_err(request, EISDIR);
  } else if (served.refuses_direct && (open->flags & O_DIRECT) != 0) {
    fuse_reply_err(request, EINVAL);
  } else {
    open->keep_cache = 1;
    fuse_reply_open(request, open);
  }
}

void answer(const waiting_read& read) {
  const std::uint64_t there = read.offset < served.size_bytes ? std::min<std::uint64_t>(read.length, served.size_bytes - read.offset) : 0;
  fuse_reply_buf(read.request, served.content.data() + read.offset % period_bytes, there);
}

void serve_read(fuse_req_t request, fuse_ino_t /*inode*/, std::size_t length, off_t offset, fuse_file_info* /*open*/) {
  const std::lock_guard guard(served.lock);
  auto begins = clock_type::now();
  // If at_once reads are in progress, this read starts when the at_once-th read before it ends.
  if (const auto ahead = served.waiting.size(); served.at_once > 0 && ahead >= served.at_once) {
    begins = std::max(begins, served.waiting[ahead - served.at_once].due);
  }
  served.waiting.push_back({request, length, static_cast<std::uint64_t>(offset), begins + served.latency});
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

}  // namespace

int main(int argc, char** argv) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (argc < 4 || getppid() == 1) return 2;
  served.size_bytes = std::strtoull(argv[2], nullptr, 10) << 20;
  served.latency = std::chrono::microseconds(std::strtol(argv[3], nullptr, 10));
  if (argc > 4) served.at_once = static_cast<unsigned>(std::strtoul(argv[4], nullptr, 10));
  if (argc > 5) served.max_read = static_cast<unsigned>(std::strtoul(argv[5], nullptr, 10));
  for (int i = 6; i < argc; ++i) served.refuses_direct = served.refuses_direct || std::strcmp(argv[i], "no_direct") == 0;
  make_content();

  fuse_lowlevel_ops calls{};
  calls.init = serve_init;
  calls.lookup = serve_lookup;
  calls.getattr = serve_attributes;
  calls.open = serve_open;
  calls.read = serve_read;

  // The kernel requires the same value here and in serve_init().
  std::string limit = "max_read=" + std::to_string(served.max_read);
  std::string option = "-o";
  char* words[] = {argv[0], option.data(), limit.data(), nullptr};
  fuse_args arguments FUSE_ARGS_INIT(served.max_read > 0 ? 3 : 1, words);
  fuse_session* session = fuse_session_new(&arguments, &calls, sizeof calls, nullptr);
  if (session == nullptr || fuse_session_mount(session, argv[1]) != 0) return 1;
  for (int i = 0; i < 2; ++i) std::thread(answer_in_time).detach();

  fuse_loop_config* threads = fuse_loop_cfg_create();
  fuse_loop_cfg_set_clone_fd(threads, 0);
  fuse_loop_cfg_set_max_threads(threads, 4);
  (void)fuse_session_loop_mt(session, threads);
  _exit(0);
}
