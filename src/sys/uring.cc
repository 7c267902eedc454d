#include "sys/uring.hpp"

#if PENSTOCK_HAVE_URING

#include <fmt/format.h>
#include <liburing.h>
#include <poll.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cassert>
#include <cerrno>
#include <utility>
#include <vector>

#include "base/checked.hpp"

namespace penstock::sys {
namespace {

constexpr unsigned buffer_slots = 16;
// How many times to retry a submission that makes no progress; the thread yields in between.
constexpr int max_idle_retries = 1000;

// The token for the poll on interrupt()'s eventfd; the owner's requests do not use it.
constexpr std::uint64_t alarm_token = ~std::uint64_t{0};

// Linux 7.4 registers buffers by this description; older kernels take an iovec. The layout is that of its io_uring.h, with our own names.
struct buffer_description {
  std::uint32_t type = 0;
  std::uint32_t flags = 0;
  std::uint64_t size = 0;  // 0 for a dma-buf, as is address
  std::uint64_t address = 0;
  std::int32_t dma_buf = 0;
  std::int32_t file = 0;  // the file whose requests may use the buffer
  std::array<std::uint64_t, 6> reserved{};
};
static_assert(sizeof(buffer_description) == 80);
constexpr std::uint32_t describes_nothing = 0;
constexpr std::uint32_t describes_dma_buf = 2;

// io_uring_rsrc_update2. In older kernels its second word had to be zero.
struct described_update {
  std::uint32_t slot = 0;
  std::uint32_t flags = 0;
  std::uint64_t descriptions = 0;
  std::uint64_t tags = 0;
  std::uint32_t count = 0;
  std::uint32_t reserved = 0;
};
static_assert(sizeof(described_update) == sizeof(io_uring_rsrc_update2));
constexpr std::uint32_t update_has_descriptions = 1U << 1;
constexpr unsigned update_buffers = 16;  // IORING_REGISTER_BUFFERS_UPDATE

bool is_transient(int error) noexcept { return error == EINTR || error == EAGAIN || error == EBUSY; }

class uring final : public ring {
 public:
  uring() noexcept = default;
  uring(const uring&) = delete;
  uring& operator=(const uring&) = delete;
  ~uring() override {
    assert(pending_ == 0 && "all requests must be reaped before a ring is destroyed");
    if (!is_open_) return;
    io_uring_queue_exit(&ring_);
    ::close(alarm_);
  }

  // Call this once. After an error, nothing is open.
  status open(unsigned entries);

  status register_buffer(unsigned slot, void* base, std::size_t length) override;
  status register_dma_buf(unsigned slot, int dma_buf, int file) override;
  status forget_dma_buf(unsigned slot) override;
  bool queue_read(int fd, void* target, std::uint32_t length, std::uint64_t offset, std::uint64_t token, int buffer_slot) override;
  bool queue_write(int fd, const void* source, std::uint32_t length, std::uint64_t offset, std::uint64_t token, int buffer_slot) override;
  status submit() override;
  result<std::size_t> reap(std::span<ring_completion> out, bool wait) override;
  void interrupt() noexcept override {
    const std::uint64_t one = 1;
    (void)!::write(alarm_, &one, sizeof one);  // fails only if the alarm is already set
  }

 private:
  status make_slots();
  status describe_slot(unsigned slot, const buffer_description& as);
  bool enqueued(io_uring_sqe* entry, std::uint64_t token) noexcept;
  int submit_all();
  int wait_for_completion();
  void arm();
  bool note(const ring_completion& event, std::span<ring_completion> out, std::size_t taken) noexcept;
  bool retry_after(int error, int& idle_retries);
  void fail_queued(int error);
  void stash_completions();
  std::size_t take(std::span<ring_completion> out);

  io_uring ring_{};
  int alarm_ = -1;                      // eventfd
  bool is_open_ = false;                // ring_ and alarm_ are open
  bool armed_ = false;                  // the poll on alarm_ is in the ring
  bool interrupted_ = false;            // the alarm has fired
  std::size_t pending_ = 0;             // requests queued or in flight that reap has not returned yet
  bool slots_made_ = false;             // the sparse table of fixed buffers exists
  std::vector<ring_completion> stash_;  // completions from the kernel or from fail_queued that reap has not returned yet
};

status uring::make_slots() {
  if (slots_made_) return {};
  const int made = io_uring_register_buffers_sparse(&ring_, buffer_slots);
  // EINVAL: Linux before 5.19.
  if (made == -EINVAL)
    return {errc::unsupported, "register buffer: this kernel does not support sparse buffer tables", error_domain::os, EINVAL};
  if (made < 0) return status::from_errno(-made, "register buffer: create the table");
  slots_made_ = true;
  return {};
}

status uring::register_buffer(unsigned slot, void* base, std::size_t length) {
  if (slot >= buffer_slots)
    return {errc::invalid_argument, fmt::format("register buffer: slot {} is out of range: there are {} slots", slot, buffer_slots)};
  if (auto made = make_slots(); !made.ok()) return made;
  const iovec range{base, length};
  const __u64 tag = 0;  // no completion when the buffer is released
  const int updated = io_uring_register_buffers_update_tag(&ring_, slot, &range, &tag, 1);
  if (updated < 0) return status::from_errno(-updated, fmt::format("register buffer: {} bytes at {} in slot {}", length, base, slot));
  return {};
}

status uring::register_dma_buf(unsigned slot, int dma_buf, int file) {
  buffer_description as;
  as.type = describes_dma_buf;
  as.dma_buf = dma_buf;
  as.file = file;
  return describe_slot(slot, as).with_context("register dma-buf");
}

status uring::forget_dma_buf(unsigned slot) {
  buffer_description as;
  as.type = describes_nothing;
  return describe_slot(slot, as).with_context("forget dma-buf");
}

// liburing 2.3 lacks a function for this.
status uring::describe_slot(unsigned slot, const buffer_description& as) {
  if (slot >= buffer_slots) return {errc::invalid_argument, fmt::format("slot {} is out of range: there are {} slots", slot, buffer_slots)};
  if (auto made = make_slots(); !made.ok()) return made;
  described_update update;
  update.slot = slot;
  update.flags = update_has_descriptions;
  update.descriptions = reinterpret_cast<std::uintptr_t>(&as);
  update.count = 1;
  const long updated = ::syscall(SYS_io_uring_register, ring_.ring_fd, update_buffers, &update, sizeof update);
  if (updated < 0) return status::from_errno(errno, fmt::format("slot {}", slot));
  return {};
}

bool uring::enqueued(io_uring_sqe* entry, std::uint64_t token) noexcept {
  io_uring_sqe_set_data64(entry, token);
  ++pending_;
  return true;
}

bool uring::queue_read(int fd, void* target, std::uint32_t length, std::uint64_t offset, std::uint64_t token, int buffer_slot) {
  assert(offset <= max_file_offset && "offset -1 would mean the descriptor's file position");
  io_uring_sqe* entry = io_uring_get_sqe(&ring_);
  if (entry == nullptr) return false;
  if (buffer_slot < 0) {
    io_uring_prep_read(entry, fd, target, length, offset);
  } else {
    io_uring_prep_read_fixed(entry, fd, target, length, offset, buffer_slot);
  }
  return enqueued(entry, token);
}

bool uring::queue_write(int fd, const void* source, std::uint32_t length, std::uint64_t offset, std::uint64_t token, int buffer_slot) {
  assert(offset <= max_file_offset && "offset -1 would mean the descriptor's file position");
  io_uring_sqe* entry = io_uring_get_sqe(&ring_);
  if (entry == nullptr) return false;
  if (buffer_slot < 0) {
    io_uring_prep_write(entry, fd, source, length, offset);
  } else {
    io_uring_prep_write_fixed(entry, fd, source, length, offset, buffer_slot);
  }
  return enqueued(entry, token);
}

status uring::submit() {
  const unsigned queued = io_uring_sq_ready(&ring_);
  const int error = submit_all();
  if (error != 0) return status::from_errno(error, fmt::format("io_uring: submit {} requests", queued));
  return {};
}

result<std::size_t> uring::reap(std::span<ring_completion> out, bool wait) {
  // Requests that were rejected by a failed submission are among the completions, so its status is not needed.
  if (!wait || out.empty()) submit_all();
  if (out.empty()) return std::size_t{0};
  std::size_t taken = take(out);
  if (!wait) return taken;
  if (taken > 0) {
    submit_all();
    return taken;
  }
  interrupted_ = false;
  while (taken == 0 && pending_ > 0 && !interrupted_) {
    arm();
    const int error = wait_for_completion();
    taken = take(out);
    if (taken == 0 && error != 0) return status::from_errno(error, "io_uring: wait for a completion");
  }
  return taken;
}

// Returns 0 or an errno. The kernel stops at a request that it rejects immediately (which completes with its error), so one call may not be
// enough. Afterwards the submission queue is always empty.
int uring::submit_all() {
  int idle_retries = 0;
  while (io_uring_sq_ready(&ring_) > 0) {
    const int submitted = io_uring_submit(&ring_);
    if (submitted > 0) {
      idle_retries = 0;
    } else if (!retry_after(submitted < 0 ? -submitted : EAGAIN, idle_retries)) {
      const int error = submitted < 0 ? -submitted : EAGAIN;
      fail_queued(error);
      return error;
    }
  }
  return 0;
}

// Adds the poll on the alarm to the next submission. If the queue is full, a later call adds it.
void uring::arm() {
  if (armed_) return;
  io_uring_sqe* entry = io_uring_get_sqe(&ring_);
  if (entry == nullptr) return;
  io_uring_prep_poll_add(entry, alarm_, POLLIN);
  io_uring_sqe_set_data64(entry, alarm_token);
  armed_ = true;
}

// Handles one completion from the kernel. Stores it in out if it is for the owner; the alarm's completion sets interrupted_. Returns true
// if it was stored.
bool uring::note(const ring_completion& event, std::span<ring_completion> out, std::size_t taken) noexcept {
  if (event.token != alarm_token) {
    out[taken] = event;
    return true;
  }
  armed_ = false;
  interrupted_ = true;
  std::uint64_t count = 0;
  (void)!::read(alarm_, &count, sizeof count);
  return false;
}

// Submits queued requests and sleeps until a completion arrives, normally in one system call. Returns 0 or an errno.
int uring::wait_for_completion() {
  int idle_retries = 0;
  while (stash_.empty() && io_uring_cq_ready(&ring_) == 0) {
    const int submitted = io_uring_submit_and_wait(&ring_, 1);
    if (submitted == -EINTR || submitted >= 0) continue;
    if (retry_after(-submitted, idle_retries)) continue;
    fail_queued(-submitted);
    return -submitted;
  }
  return 0;
}

bool uring::retry_after(int error, int& idle_retries) {
  if (!is_transient(error) || ++idle_retries > max_idle_retries) return false;
  // EBUSY (Linux before 5.19): the kernel accepts no requests while completions do not fit in the completion queue.
  if (error == EBUSY) stash_completions();
  sched_yield();
  return true;
}

// Withdraws requests that the kernel has not accepted and completes them with -error. Without a polling kernel thread, the kernel reads the
// queue only inside io_uring_enter, so its tail may be moved back here.
void uring::fail_queued(int error) {
  io_uring_sq& queue = ring_.sq;
  const unsigned head = *queue.khead;
  for (unsigned i = head; i != queue.sqe_tail; ++i) {
    stash_.push_back({queue.sqes[i & queue.ring_mask].user_data, -error});
  }
  queue.sqe_head = queue.sqe_tail = head;
  *queue.ktail = head;
}

void uring::stash_completions() {
  std::array<io_uring_cqe*, 64> entries;
  for (;;) {
    const unsigned count = io_uring_peek_batch_cqe(&ring_, entries.data(), entries.size());
    if (count == 0) return;
    for (unsigned i = 0; i < count; ++i) stash_.push_back({entries[i]->user_data, entries[i]->res});
    io_uring_cq_advance(&ring_, count);
  }
}

std::size_t uring::take(std::span<ring_completion> out) {
  const std::size_t stashed = std::min(out.size(), stash_.size());
  std::size_t taken = 0;
  for (std::size_t i = 0; i < stashed; ++i) taken += note(stash_[i], out, taken) ? 1 : 0;
  stash_.erase(stash_.begin(), stash_.begin() + static_cast<std::ptrdiff_t>(stashed));
  std::array<io_uring_cqe*, 64> entries;
  while (taken < out.size()) {
    // This call enters the kernel if completions overflowed or their task work has not run yet.
    const auto wanted = static_cast<unsigned>(std::min(out.size() - taken, entries.size()));
    const unsigned count = io_uring_peek_batch_cqe(&ring_, entries.data(), wanted);
    if (count == 0) break;
    for (unsigned i = 0; i < count; ++i) taken += note({entries[i]->user_data, entries[i]->res}, out, taken) ? 1 : 0;
    io_uring_cq_advance(&ring_, count);
  }
  pending_ -= taken;
  return taken;
}

// Submits an empty request: a seccomp profile may allow creating a ring but deny io_uring_enter, which makes the ring useless. Returns 0 or
// an errno.
int try_out(io_uring& made) noexcept {
  io_uring_sqe* entry = io_uring_get_sqe(&made);
  if (entry == nullptr) return ENOMEM;
  io_uring_prep_nop(entry);
  int outcome = 0;
  for (int tries = 0; tries < max_idle_retries && io_uring_sq_ready(&made) > 0; ++tries) {
    outcome = io_uring_submit(&made);
    if (outcome < 0 && !is_transient(-outcome)) return -outcome;
  }
  if (outcome < 0) return -outcome;
  io_uring_cqe* completion = nullptr;
  do outcome = io_uring_wait_cqe(&made, &completion);
  while (outcome == -EINTR);
  if (outcome < 0) return -outcome;
  outcome = completion->res;
  io_uring_cqe_seen(&made, completion);
  return outcome < 0 ? -outcome : 0;
}

status uring::open(unsigned entries) {
  io_uring_params params{};
  // The kernel posts completions during the owner's next system call instead of interrupting it; a ring flag indicates that some are
  // waiting.
  params.flags = IORING_SETUP_CLAMP | IORING_SETUP_COOP_TASKRUN | IORING_SETUP_TASKRUN_FLAG;
  int error = io_uring_queue_init_params(entries, &ring_, &params);
  if (error == -EINVAL) {  // Linux before 5.19
    params = {};
    params.flags = IORING_SETUP_CLAMP;
    error = io_uring_queue_init_params(entries, &ring_, &params);
  }
  if (error < 0) return status::from_errno(-error, fmt::format("io_uring: create a ring with {} entries", entries));
  if (const int refused = try_out(ring_); refused != 0) {
    io_uring_queue_exit(&ring_);
    return status::from_errno(refused, "io_uring: a ring was created, but an empty request failed");
  }
  alarm_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (alarm_ < 0) {
    error = errno;
    io_uring_queue_exit(&ring_);
    return status::from_errno(error, "io_uring: create an eventfd");
  }
  is_open_ = true;
  return {};
}

}  // namespace

result<std::unique_ptr<ring>> make_uring(unsigned entries) {
  // Allocated first: if memory runs out, no descriptor exists yet that could leak.
  auto made = std::make_unique<uring>();
  if (auto problem = made->open(entries); !problem.ok()) return problem;
  return std::unique_ptr<ring>(std::move(made));
}

}  // namespace penstock::sys

#else

namespace penstock::sys {

result<std::unique_ptr<ring>> make_uring(unsigned /*entries*/) { return status(errc::unsupported, "Penstock was built without liburing"); }

}  // namespace penstock::sys

#endif
