// Serves a FUSE mount for one test: files in memory shared with the test, which hang, fail and report wrong sizes as the test asks. A
// separate program, so that no thread of the test can hang in it, and so that killing it ends the mount.
//   fuse_server CONTROL_DESCRIPTOR MOUNT_POINT
// It dies with the test. When the caller of a held call is killed, the call returns EINTR, so that no process is stuck.
#define FUSE_USE_VERSION 312

#include <fcntl.h>
#include <fuse_lowlevel.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <ctime>

#include "support/fuse_control.hpp"

namespace {

using penstock::testing::fuse_control;
using penstock::testing::fuse_file_control;

constexpr double for_long = 1e6;
constexpr fuse_ino_t first_file = 2;

fuse_control* control = nullptr;

std::byte* content_of(std::size_t index) { return reinterpret_cast<std::byte*>(control) + fuse_control::content_at(index); }

// Null: no such file.
fuse_file_control* file_at(fuse_ino_t inode) {
  const auto index = inode - first_file;
  return inode >= first_file && index < control->file_count.load() ? &control->files[index] : nullptr;
}

void pause_ms(long ms) {
  timespec left{ms / 1000, ms % 1000 * 1000000};
  while (nanosleep(&left, &left) != 0 && errno == EINTR) {
  }
}

// Waits while the call is held. False when the caller was interrupted: it gets EINTR, and the call has been answered.
bool pass(fuse_req_t request, fuse_file_control& file, penstock::testing::fuse_call call) {
  if ((file.held_calls.load() & call) == 0) return true;
  ++file.held_now;
  bool interrupted = false;
  constexpr long longest_ms = 64;  // hundreds are held for long, and would keep a core busy with looking
  for (long pause = 1; (file.held_calls.load() & call) != 0 && !interrupted; pause = std::min(2 * pause, longest_ms)) {
    pause_ms(pause);
    interrupted = fuse_req_interrupted(request) != 0;
  }
  --file.held_now;
  if (interrupted) fuse_reply_err(request, EINTR);
  return !interrupted;
}

struct stat attributes_of(fuse_ino_t inode) {
  struct stat found {};
  found.st_ino = inode;
  found.st_uid = getuid();
  found.st_gid = getgid();
  found.st_blksize = 4096;
  if (const auto* file = file_at(inode)) {
    found.st_mode = S_IFREG | 0666;
    found.st_nlink = 1;
    const auto claimed = file->claimed_bytes.load();
    found.st_size = static_cast<off_t>(claimed == fuse_file_control::never ? file->size_bytes.load() : claimed);
    found.st_blocks = (found.st_size + 511) / 512;
  } else {
    found.st_mode = S_IFDIR | 0755;
    found.st_nlink = 2;
  }
  return found;
}

void serve_init(void* /*data*/, fuse_conn_info* connection) {
  connection->max_background = 1000;  // requests that hang must leave room for others
  connection->congestion_threshold = 1000;
  connection->max_write = 1 << 20;
  connection->want &= ~static_cast<unsigned>(FUSE_CAP_WRITEBACK_CACHE);
}

void serve_lookup(fuse_req_t request, fuse_ino_t parent, const char* name) {
  for (std::uint32_t i = 0; parent == FUSE_ROOT_ID && i < control->file_count.load(); ++i) {
    if (std::strcmp(control->files[i].name, name) != 0) continue;
    fuse_entry_param entry{};
    entry.ino = first_file + i;
    entry.attr = attributes_of(entry.ino);
    entry.entry_timeout = for_long;
    entry.attr_timeout = 0;
    fuse_reply_entry(request, &entry);
    return;
  }
  fuse_reply_err(request, ENOENT);
}

void serve_attributes(fuse_req_t request, fuse_ino_t inode, fuse_file_info* /*open*/) {
  auto* file = file_at(inode);
  if (file != nullptr && !pass(request, *file, penstock::testing::fuse_attributes)) return;
  const auto found = attributes_of(inode);
  fuse_reply_attr(request, &found, 0);
}

void serve_change(fuse_req_t request, fuse_ino_t inode, struct stat* wanted, int what, fuse_file_info* /*open*/) {
  auto* file = file_at(inode);
  if (file != nullptr && (what & FUSE_SET_ATTR_SIZE) != 0) {
    if (static_cast<std::uint64_t>(wanted->st_size) > fuse_control::file_capacity_bytes) {
      fuse_reply_err(request, EFBIG);
      return;
    }
    file->size_bytes = static_cast<std::uint64_t>(wanted->st_size);
  }
  const auto found = attributes_of(inode);
  fuse_reply_attr(request, &found, 0);
}

void serve_open(fuse_req_t request, fuse_ino_t inode, fuse_file_info* open) {
  auto* file = file_at(inode);
  if (file == nullptr) {
    fuse_reply_err(request, EISDIR);
    return;
  }
  if (!pass(request, *file, penstock::testing::fuse_opens)) return;
  if ((open->flags & O_DIRECT) != 0 && file->refuses_direct.load() != 0) {
    fuse_reply_err(request, EINVAL);
    return;
  }
  open->direct_io = file->direct_io.load() != 0 ? 1U : 0U;
  open->keep_cache = 1;
  fuse_reply_open(request, open);
}

void serve_read(fuse_req_t request, fuse_ino_t inode, std::size_t length, off_t at, fuse_file_info* /*open*/) {
  auto& file = *file_at(inode);
  ++file.reads;
  if (!pass(request, file, penstock::testing::fuse_reads)) return;
  if (const auto delay = file.delay_ms.load(); delay > 0) pause_ms(delay);
  const auto offset = static_cast<std::uint64_t>(at);
  const auto fails_from = file.fails_from.load();
  const auto size = file.size_bytes.load();
  std::uint64_t there = offset < size ? std::min<std::uint64_t>(length, size - offset) : 0;
  // A short answer into the page cache would mean the end of the file: the kernel fills the rest with zeros and gives those out.
  const bool may_be_short = file.direct_io.load() != 0;
  if (offset >= fails_from || (there > fails_from - offset && !may_be_short)) {
    fuse_reply_err(request, EIO);
    return;
  }
  there = std::min(there, fails_from - offset);
  if (file.short_reads.load() != 0 && there > 1) there = std::max<std::uint64_t>(1, std::min<std::uint64_t>(there, length / 2));
  fuse_reply_buf(request, reinterpret_cast<const char*>(content_of(inode - first_file) + offset), there);
}

void serve_write(fuse_req_t request, fuse_ino_t inode, const char* source, std::size_t length, off_t at, fuse_file_info* /*open*/) {
  auto& file = *file_at(inode);
  ++file.writes;
  if (!pass(request, file, penstock::testing::fuse_writes)) return;
  if (const auto delay = file.delay_ms.load(); delay > 0) pause_ms(delay);
  const auto offset = static_cast<std::uint64_t>(at);
  const auto limit = std::min(file.full_from.load(), fuse_control::file_capacity_bytes);
  if (offset >= limit) {
    fuse_reply_err(request, ENOSPC);
    return;
  }
  std::uint64_t taken = std::min<std::uint64_t>(length, limit - offset);
  if (file.short_writes.load() != 0 && taken > 1) taken = std::max<std::uint64_t>(1, taken / 2);
  std::memcpy(content_of(inode - first_file) + offset, source, taken);
  auto size = file.size_bytes.load();
  while (size < offset + taken && !file.size_bytes.compare_exchange_weak(size, offset + taken)) {
  }
  fuse_reply_write(request, taken);
}

void serve_sync(fuse_req_t request, fuse_ino_t inode, int /*only_data*/, fuse_file_info* /*open*/) {
  auto* file = file_at(inode);
  if (file != nullptr && !pass(request, *file, penstock::testing::fuse_syncs)) return;
  fuse_reply_err(request, 0);
}

int give_up(int error) {
  control->error = error == 0 ? EIO : error;
  control->stage = fuse_control::failed;
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (argc != 3 || getppid() == 1) return 2;
  void* shared = mmap(nullptr, fuse_control::total_bytes(), PROT_READ | PROT_WRITE, MAP_SHARED, std::atoi(argv[1]), 0);
  if (shared == MAP_FAILED) return 2;
  control = static_cast<fuse_control*>(shared);

  fuse_lowlevel_ops calls{};
  calls.init = serve_init;
  calls.lookup = serve_lookup;
  calls.getattr = serve_attributes;
  calls.setattr = serve_change;
  calls.open = serve_open;
  calls.read = serve_read;
  calls.write = serve_write;
  calls.fsync = serve_sync;

  char* words[] = {argv[0], nullptr};
  fuse_args arguments FUSE_ARGS_INIT(1, words);
  fuse_session* session = fuse_session_new(&arguments, &calls, sizeof calls, nullptr);
  if (session == nullptr) return give_up(errno);
  if (fuse_session_mount(session, argv[2]) != 0) return give_up(errno);
  control->stage = fuse_control::serving;

  fuse_loop_config* threads = fuse_loop_cfg_create();
  fuse_loop_cfg_set_clone_fd(threads, 0);
  fuse_loop_cfg_set_max_threads(threads, 2000);
  fuse_loop_cfg_set_idle_threads(threads, 2000);
  (void)fuse_session_loop_mt(session, threads);
  _exit(0);
}
