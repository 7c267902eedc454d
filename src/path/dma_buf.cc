// The drive reads and writes device memory itself, without a library or kernel module from NVIDIA: the device exports its memory as a
// dma-buf, which an io_uring accepts for fixed requests on one file (Linux 7.4). The kernel is queried once per engine. Each file system or
// drive is tried once per device: it reads a block into memory of the engine, which is compared with the same block read through host
// memory, because one stack reported complete reads whose bytes never arrived. Untested on hardware; tested on stand-ins for kernel and
// device. The kernel does not report whether the bytes are transferred peer to peer or whether the driver serves them from host memory.
#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <forward_list>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "base/ask_once.hpp"
#include "base/no_memory.hpp"
#include "path/data_path.hpp"
#include "path/lent_memory.hpp"
#include "path/refusals.hpp"
#include "sys/dma_buf.hpp"

namespace penstock::path {

extern const declaration declared_dma_buf;

namespace {

constexpr std::uint64_t tried_bytes = direct_alignment;

// Returns true if such an error may be temporary.
bool is_passing(const status& error) {
  const int number = error.domain() == error_domain::os ? error.native() : 0;
  return error.code() == errc::out_of_memory || number == EAGAIN || number == EINTR || number == EMFILE || number == ENFILE;
}

// Device memory owned by the engine, for a trial.
class trial_memory {
 public:
  // A size for which the driver allocates separate pages.
  static constexpr std::size_t bytes = std::size_t{2} << 20;
  explicit trial_memory(device::session& session) : session_(session), made_(session.allocate(bytes)) {}
  trial_memory(const trial_memory&) = delete;
  trial_memory& operator=(const trial_memory&) = delete;
  ~trial_memory() {
    if (made_) (void)session_.release(*made_);
  }
  [[nodiscard]] status error() const { return made_ ? status() : made_.error(); }
  [[nodiscard]] std::byte* data() const {
    const auto start = reinterpret_cast<std::uintptr_t>(*made_);
    return static_cast<std::byte*>(*made_) + ((start + most_alignment - 1) / most_alignment * most_alignment - start);
  }

 private:
  static constexpr std::uint64_t most_alignment = std::uint64_t{64} << 10;  // the largest page size of a host
  device::session& session_;
  result<void*> made_;
};

struct aligned_block {
  struct alignas(tried_bytes) block {
    std::array<std::byte, tried_bytes> bytes;
  };
  std::unique_ptr<block> of = std::make_unique<block>();
  [[nodiscard]] std::byte* data() const { return of->bytes.data(); }
  bool operator==(const aligned_block& other) const { return std::memcmp(data(), other.data(), tried_bytes) == 0; }
};

// The facts known about a drive or file system.
struct lending_drive {
  lending_drive(const source::source_facts& of, sys::kernel& kernel)
      : device(of.device), is_raw(of.inode == 0), memory(kernel, sys::most_dma_buf_bytes) {}
  [[nodiscard]] bool holds(const source::source_facts& file) const { return device == file.device && is_raw == (file.inode == 0); }
  struct verdict {
    asked_once asked;
    status why_not;
  };
  std::uint64_t device;  // source_facts::device
  bool is_raw;           // the device itself, whose driver may support what its file system, with the same number, does not
  lent_memory memory;
  // Guarded by the path's lock.
  unsigned failures = 0;                               // to lend memory, in requests after the trial
  status why_given_up;                                 // set after too many failures; ok: not given up
  std::map<const device::session*, verdict> verdicts;  // guarded by the path's lock; each entry by its own asked_once
};

class dma_buf final : public data_path {
 public:
  explicit dma_buf(const services& with) : kernel_(with.kernel), use_io_uring_(with.use_io_uring) {}

  [[nodiscard]] const declaration& declared() const override { return declared_dma_buf; }

  [[nodiscard]] bool serves_nothing() const noexcept override { return is_useless_.load(std::memory_order_relaxed); }

  [[nodiscard]] std::optional<std::string> refuses(const question& asked) override {
    if (!asked.memory->on_device()) return "the memory is not on a device";
    if (asked.memory->emulated()) return std::string(no_gpu_memory);
    if (asked.file->descriptors().direct < 0) return "the file could not be opened with O_DIRECT";
    if (auto why = useless(); !why.ok()) return std::string(why.message());
    if (asked.memory->via == nullptr) return std::nullopt;
    if (auto why = asked.memory->via->session().dma_buf_problem(); !why.ok()) return std::string(why.message());
    if (auto why = verdict_on(*asked.file, *asked.memory->via); !why.ok()) return std::string(why.message());
    if (asked.is_write && (asked.offset | asked.length) % direct_alignment != 0) return "this path writes only whole blocks";
    return std::nullopt;
  }

  bool run(job& item) override {
    const auto end = carry(item);
    if (end.handed_over) {
      item.owner->hand_over(item, end.why.with_context("dma_buf"));
    } else {
      item.owner->finished(item, item.moved, end.why.with_context("dma_buf"));
    }
    return true;
  }

  void forget(const source::source& closing) override {
    for_all_drives([&](lent_memory& lent) { lent.forget(closing); });
  }
  void forget_memory(std::byte* base) override { memory_ends(base); }
  void memory_ends(std::byte* base) override {
    for_all_drives([&](lent_memory& lent) { lent.forget_memory(base); });
  }
  void trim() override {
    for_all_drives([](lent_memory& lent) { lent.trim(); });
  }
  status rest() override {
    status problem;
    for_all_drives([&](lent_memory& lent) {
      if (auto failed = lent.rest(); !failed.ok()) problem = std::move(failed);
    });
    return problem;
  }

 private:
  struct ending {
    status why;
    bool handed_over = false;
  };

  // Returns why this process cannot use this path; ok if it can.
  status useless() {
    if (auto unasked = known_.ask([&] { return ask_kernel(); }); !unasked.ok()) return unasked;
    const std::lock_guard guard(lock_);
    return why_useless_;
  }

  status ask_kernel() {
    const auto ask = [&] { return use_io_uring_ ? sys::dma_bufs_known(*kernel_) : status(errc::unsupported, "io_uring is switched off"); };
    auto known = or_no_memory(ask);
    if (known.ok()) return {};
    if (is_passing(known) && ++passing_refusals_ < most_passing_refusals) return known;
    give_up_all(std::move(known));
    return {};
  }

  void give_up_all(status why) {
    const std::lock_guard guard(lock_);
    why_useless_ = std::move(why);
    is_useless_.store(true, std::memory_order_relaxed);
  }

  // Returns a file's drive, whose address is stable. Returns null if there are too many drives.
  lending_drive* drive_of(source::source& file) {
    constexpr std::ptrdiff_t most_drives = 64;
    const std::lock_guard guard(lock_);
    const auto found = std::ranges::find_if(drives_, [&](const lending_drive& each) { return each.holds(file.facts()); });
    if (found != drives_.end()) return &*found;
    if (std::ranges::distance(drives_) == most_drives) return nullptr;
    return &drives_.emplace_front(file.facts(), *kernel_);
  }

  template <class Each>
  void for_all_drives(Each each) {
    std::unique_lock guard(lock_);
    const auto first = drives_.begin();
    guard.unlock();
    for (auto drive = first; drive != drives_.end(); ++drive) each(drive->memory);
  }

  status verdict_on(source::source& file, staging::link& via) {
    auto* const drive = drive_of(file);
    if (drive == nullptr) return {errc::unsupported, "there are too many drives to keep a ring for each"};
    std::unique_lock guard(lock_);
    if (!drive->why_given_up.ok()) return drive->why_given_up;
    auto& entry = drive->verdicts[&via.session()];
    guard.unlock();
    auto unasked = entry.asked.ask([&] { return or_no_memory([&] { return try_out(*drive, file, via, entry); }); });
    return unasked.ok() ? entry.why_not : unasked;
  }

  // A later request may contradict the verdict, because the ring has failed or because its file or memory differs from the trial's.
  // Counting failures keeps each request from having to discover that again.
  void count_failure(lending_drive& drive, const status& why) {
    constexpr unsigned most_failures = 16;
    if (is_passing(why)) return;
    const std::lock_guard guard(lock_);
    if (++drive.failures != most_failures) return;
    drive.why_given_up = {
        errc::unsupported,
        fmt::format("{} requests on this drive could not be transferred directly; the latest error: {}", most_failures, why.message())};
  }

  // Returns an error if the attempt gave no verdict. Before the read, each byte of the memory differs from the file's, so that missing
  // bytes are detected.
  status try_out(lending_drive& drive, source::source& file, staging::link& via, lending_drive::verdict& found) {
    constexpr int most_tries = 3;
    auto& session = via.session();
    if (!file.facts().readable) return {errc::unsupported, "an unreadable file cannot show whether its drive can access this memory"};
    aligned_block before;
    if (auto got = read_plainly(file, before); !got.ok()) return got;
    const trial_memory memory(session);  // only now, because a file that cannot be tried must cost no memory
    if (!memory.error().ok()) return memory.error();
    for (int i = 0; i < most_tries; ++i) {
      aligned_block arrived;
      aligned_block after;
      for (std::size_t at = 0; at < tried_bytes; ++at) arrived.data()[at] = ~before.data()[at];
      auto moved = read_into(drive, file, via, memory.data(), arrived);
      drive.memory.forget_memory(memory.data());
      if (!moved.ok() && is_passing(moved)) return moved;
      found.why_not = moved;
      if (!moved.ok()) return {};
      if (auto got = read_plainly(file, after); !got.ok()) return got;
      if (arrived == before) return {};
      if (before == after) {
        give_up_all({errc::io, fmt::format("a read from {} into memory on device {} was reported complete, but its bytes had not arrived: "
                                           "this path is now disabled",
                                           file.name(), session.ordinal())});
        return useless();
      }
      std::swap(before, after);
    }
    return {errc::unsupported, "the file is being changed, so it cannot show whether its drive can access this memory"};
  }

  status read_plainly(source::source& file, const aligned_block& into) {
    const auto got = kernel_->pread(file.descriptors().direct, into.data(), tried_bytes, 0);
    if (!got) return got.error();
    if (*got == tried_bytes) return {};
    return {errc::unsupported, "the file is too short to show whether its drive can access this memory"};
  }

  // Fills the memory from `through`, makes the drive read over it, and reads it back into `through`.
  static status read_into(lending_drive& drive, source::source& file, staging::link& via, std::byte* memory, const aligned_block& through) {
    auto& session = via.session();
    const auto stream = via.small_stream();
    if (!stream) return stream.error();
    if (auto filled = session.copy_small(memory, through.data(), tried_bytes, *stream); !filled.ok()) return filled;
    auto moved = drive.memory.move({&file, &session, memory, 0, tried_bytes, false});
    if (!moved.error.ok()) return moved.error;
    if (moved.bytes < tried_bytes) return {errc::io, "the drive read less than a block into the exported memory"};
    return session.copy_small(through.data(), memory, tried_bytes, *stream);
  }

  ending carry(job& item) {
    item.moved = 0;
    if (!item.ranges.empty()) return give_up({errc::unsupported, "many small ranges are faster through a slab"});
    if (!source::aligned(item.memory, item.length, item.offset))
      return give_up({errc::unsupported, "this path transfers only whole blocks"});
    const lent_memory::extent all{item.file, &item.place.via->session(), item.memory, item.offset, item.length, item.is_write};
    auto* const drive = drive_of(*all.file);
    if (drive == nullptr) return give_up({errc::unsupported, "this file has not been checked"});
    while (item.moved < all.length) {
      if (auto stop = item.owner->stopped(); !stop.ok()) return {std::move(stop)};
      const auto rest = rest_of(all, item.moved);
      auto got = drive->memory.move(rest);
      item.moved += got.bytes;
      if (got.asked == 0) count_failure(*drive, got.error);
      if (got.is_in_doubt && all.is_write) return {in_doubt(got.error, rest)};
      if (!got.error.ok()) return give_up(at(got.error, rest));
      if (got.bytes == got.asked || (got.bytes > 0 && got.bytes % direct_alignment == 0)) continue;
      auto why = short_count(rest_of(all, item.moved));
      return why.ok() ? ending() : give_up(std::move(why));
    }
    return {};
  }

  static lent_memory::extent rest_of(const lent_memory::extent& of, std::uint64_t done) {
    return {of.file, of.session, of.memory + done, of.offset + done, of.length - done, of.is_write};
  }

  // Returns ok if the file ends there.
  static status short_count(const lent_memory::extent& rest) {
    if (rest.is_write) return at({errc::io, "fewer bytes were written than requested"}, rest);
    const auto ended = rest.file->ends_at(rest.offset);
    if (!ended) return ended.error();
    return *ended ? status() : at({errc::io, "fewer bytes were read than requested, before the end of the file"}, rest);
  }

  // No other path may write there in this state, because the drive could overwrite it, even after the user's next write.
  static status in_doubt(const status& error, const lent_memory::extent& rest) {
    return at({errc::io, fmt::format("the drive may still be writing, and its ring has failed: {}", error.message())}, rest);
  }

  static ending give_up(status why) { return {std::move(why), true}; }

  static status at(const status& error, const lent_memory::extent& of) {
    return error.with_context(fmt::format("{} {} at {} of {}", of.is_write ? "write" : "read", of.length, of.offset, of.file->name()));
  }

  // Each refusal makes its request, and the requests queued after it, wait for a system call.
  static constexpr unsigned most_passing_refusals = 8;

  const std::shared_ptr<sys::kernel> kernel_;
  const bool use_io_uring_;
  asked_once known_;
  unsigned passing_refusals_ = 0;  // by the kernel; used only during the query of known_
  std::atomic<bool> is_useless_{false};
  std::mutex lock_;  // guards the members below, not the objects that they point to
  status why_useless_;
  std::forward_list<lending_drive> drives_;  // newest first; none is removed, so a thread that has read the head may walk the list
};

}  // namespace

constinit const declaration declared_dma_buf{
    .name = "dma_buf",
    .rank = 12,
    .successor = "staged",
    .gpu_direct = true,
    .carries = portion::whole_requests,
    // No small requests, until measured, because callers would queue for the drive's only ring.
    .most_carried_now = 0,
    .alignment = direct_alignment,
    .whole_blocks = true,
    .reason = "the drive transfers the bytes directly, through a dma-buf",
    .make = [](const services& with) -> std::unique_ptr<data_path> { return std::make_unique<dma_buf>(with); },
};

}  // namespace penstock::path
