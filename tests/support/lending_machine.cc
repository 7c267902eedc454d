#include "support/lending_machine.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <deque>
#include <new>
#include <optional>
#include <set>

#include "sys/dma_buf.hpp"
#include "sys/page_size.hpp"

namespace penstock::testing {

namespace {

std::uint64_t inode_of(int descriptor) {
  struct stat seen {};
  return ::fstat(descriptor, &seen) == 0 ? seen.st_ino : 0;
}

}  // namespace

// --- the world

std::vector<std::string> lent_world::broken_rules() {
  const std::lock_guard guard(lock_);
  return broken_;
}

void lent_world::breaks(std::string rule) {
  const std::lock_guard guard(lock_);
  broken_.push_back(std::move(rule));
}

void lent_world::lend(int descriptor, const dma_buf& what) {
  const std::lock_guard guard(lock_);
  lent_[inode_of(descriptor)] = what;
}

lent_world::dma_buf lent_world::find(int descriptor) {
  const std::lock_guard guard(lock_);
  const auto found = lent_.find(inode_of(descriptor));
  return found == lent_.end() ? dma_buf() : found->second;
}

// --- the GPU

// Forwards everything except allocation to the host device, whose allocations begin anywhere in a page.
class lending_session final : public device::session {
 public:
  using stream = device::stream;
  using event = device::event;

  lending_session(std::shared_ptr<lent_world> world, device::session& inner)
      : world_(std::move(world)), inner_(inner), stream_(*inner.make_stream()) {}
  ~lending_session() override { (void)inner_.destroy_stream(stream_); }

  result<void*> allocate(std::size_t bytes) override {
    constexpr std::uint64_t unit = 65536;
    ++world_->allocated;
    auto made = inner_.allocate(bytes + unit);
    if (!made) return made;
    auto* const start = static_cast<std::byte*>(*made);
    auto* const base = start + (unit - reinterpret_cast<std::uintptr_t>(start) % unit) % unit;
    const std::lock_guard guard(lock_);
    allocations_[base] = {start, bytes, ++numbers_};
    return base;
  }
  status release(void* memory) override {
    std::unique_lock guard(lock_);
    const auto found = allocations_.find(static_cast<std::byte*>(memory));
    if (found == allocations_.end()) return {errc::bad_memory, "release: not allocated"};
    auto* const start = found->second.start;
    allocations_.erase(found);
    guard.unlock();
    return inner_.release(start);
  }
  status dma_buf_problem() override {
    return world_->driver_refuses ? status(errc::unsupported, "the driver is not the open one") : status();
  }
  result<device::allocation> allocation_of(const void* memory) override {
    const auto* const address = static_cast<const std::byte*>(memory);
    if (world_->no_memory_at > 0 && --world_->no_memory_at == 0) throw std::bad_alloc();
    const std::lock_guard guard(lock_);
    const auto after = allocations_.upper_bound(const_cast<std::byte*>(address));
    if (after == allocations_.begin()) return status(errc::bad_memory, "not allocated");
    const auto& [base, known] = *std::prev(after);
    if (address >= base + known.bytes) return status(errc::bad_memory, "not allocated");
    return device::allocation{base, known.bytes, known.number};
  }
  result<sys::owned_descriptor> export_dma_buf(void* memory, std::uint64_t bytes) override {
    const auto in = allocation_of(memory);
    if (!in) return in.error();
    auto* const base = static_cast<std::byte*>(memory);
    const bool is_inside = base + bytes <= in->base + in->size;
    const bool is_whole = (reinterpret_cast<std::uintptr_t>(memory) | bytes) % sys::page_size() == 0 && bytes > 0;
    if (!is_inside || !is_whole) world_->breaks("a range that is not whole pages of an allocation was lent");
    if (world_->memory_refuses) return status(errc::unsupported, "lend: CUDA_ERROR_NOT_SUPPORTED (cuda 801)");
    const int made = ::memfd_create("dma-buf", MFD_CLOEXEC);
    if (made < 0) return status::from_errno(errno, "lend");
    world_->lend(made, {this, base, bytes, in->number});
    return sys::owned_descriptor(made);
  }
  status carry(std::byte* target, const std::byte* source, std::size_t bytes) { return inner_.copy_small(target, source, bytes, stream_); }

  [[nodiscard]] int ordinal() const override { return inner_.ordinal(); }
  status pin(void* base, std::size_t length, bool read_only) override { return inner_.pin(base, length, read_only); }
  status unpin(void* base) override { return inner_.unpin(base); }
  result<stream> make_stream() override { return inner_.make_stream(); }
  status destroy_stream(stream target) override { return inner_.destroy_stream(target); }
  std::uint64_t identity_of(stream target) override { return inner_.identity_of(target); }
  result<event> make_event() override { return inner_.make_event(); }
  status destroy_event(event target) override { return inner_.destroy_event(target); }
  status copy(void* target, const void* source, std::size_t bytes, stream on) override { return inner_.copy(target, source, bytes, on); }
  status scatter(const device::segment* table, std::size_t count, stream on) override { return inner_.scatter(table, count, on); }
  status scatter_short(std::span<const device::segment> table, stream on) override { return inner_.scatter_short(table, on); }
  status prepare_scatter() override { return inner_.prepare_scatter(); }
  status add_to_digest(std::span<const device::digest_part> parts, std::uint64_t* sums, stream on) override {
    return inner_.add_to_digest(parts, sums, on);
  }
  status record(event target, stream on) override { return inner_.record(target, on); }
  status wait_event(stream on, event until) override { return inner_.wait_event(on, until); }
  status call(stream on, void (*function)(void*), void* argument) override { return inner_.call(on, function, argument); }
  status wait_value(stream on, std::uint32_t* flag, std::uint32_t value) override { return inner_.wait_value(on, flag, value); }
  status write_value(stream on, std::uint32_t* flag, std::uint32_t value) override { return inner_.write_value(on, flag, value); }
  result<bool> idle(stream target) override { return inner_.idle(target); }
  result<bool> reached(event target) override { return inner_.reached(target); }
  status wait(event target) override { return inner_.wait(target); }
  status synchronize(stream target) override { return inner_.synchronize(target); }
  status copy_small(void* target, const void* source, std::size_t bytes, stream on) override {
    return inner_.copy_small(target, source, bytes, on);
  }

 private:
  struct known {
    std::byte* start = nullptr;  // of the host device's allocation
    std::uint64_t bytes = 0;
    std::uint64_t number = 0;
  };
  std::shared_ptr<lent_world> world_;
  device::session& inner_;
  const stream stream_;
  std::mutex lock_;
  std::map<std::byte*, known> allocations_;
  std::uint64_t numbers_ = 0;
};

lending_gpu::lending_gpu(std::shared_ptr<lent_world> world)
    : session_(std::make_unique<lending_session>(std::move(world), **inner_->open(0, nullptr))) {}
lending_gpu::~lending_gpu() = default;

result<device::session*> lending_gpu::open(int ordinal, void* context) {
  if (ordinal != 0 || context != nullptr) return status(errc::not_found, "there is one GPU");
  return session_.get();
}

// --- the kernel

namespace {

class lending_ring final : public sys::ring {
 public:
  lending_ring(std::shared_ptr<lent_world> world, std::unique_ptr<sys::ring> inner) : world_(std::move(world)), inner_(std::move(inner)) {}
  ~lending_ring() override {
    for (auto& each : slots_) empty(each);
  }

  status register_buffer(unsigned slot, void* base, std::size_t length) override { return inner_->register_buffer(slot, base, length); }
  status register_dma_buf(unsigned slot, int dma_buf, int file) override {
    const auto refuse = [](int error) { return status::from_errno(error, "register dma-buf"); };
    if (const int error = world_->kernel_refuses; error != 0) return refuse(error);
    if (slot >= slots_.size()) return refuse(EINVAL);
    const auto what = world_->find(dma_buf);
    if (what.base == nullptr || ::fcntl(file, F_GETFD) < 0) return refuse(EBADF);
    if (const int error = world_->file_refuses; error != 0) return refuse(error);
    if (what.bytes > sys::most_dma_buf_bytes) return refuse(EINVAL);
    empty(slots_.at(slot));
    slots_.at(slot) = entry{what, dma_buf, inode_of(dma_buf), file, inode_of(file)};
    ++world_->registered;
    ++world_->registrations;
    return {};
  }
  status forget_dma_buf(unsigned slot) override {
    empty(slots_.at(slot));
    return {};
  }
  bool queue_read(int fd, void* target, std::uint32_t length, std::uint64_t offset, std::uint64_t token, int slot) override {
    if (slot < 0 || !slots_.at(static_cast<std::size_t>(slot))) return inner_->queue_read(fd, target, length, offset, token, slot);
    ended_.push_back(
        {token, run(*slots_[static_cast<std::size_t>(slot)], {fd, reinterpret_cast<std::uintptr_t>(target), length, offset, false})});
    return true;
  }
  bool queue_write(int fd, const void* source, std::uint32_t length, std::uint64_t offset, std::uint64_t token, int slot) override {
    if (slot < 0 || !slots_.at(static_cast<std::size_t>(slot))) return inner_->queue_write(fd, source, length, offset, token, slot);
    ended_.push_back(
        {token, run(*slots_[static_cast<std::size_t>(slot)], {fd, reinterpret_cast<std::uintptr_t>(source), length, offset, true})});
    return true;
  }
  status submit() override { return inner_->submit(); }
  result<std::size_t> reap(std::span<sys::ring_completion> out, bool wait) override {
    std::size_t count = 0;
    if (world_->is_silent) return abandoned().insert(this), status(errc::io, "reap: the test wants it to fail");
    // In reverse order: no caller may rely on an order.
    for (; count < out.size() && !ended_.empty(); ++count, ended_.pop_back()) out[count] = ended_.back();
    return count > 0 ? result<std::size_t>(count) : inner_->reap(out, wait);
  }
  void interrupt() noexcept override { inner_->interrupt(); }

 private:
  struct entry {
    lent_world::dma_buf what;
    int dma_buf;
    std::uint64_t dma_buf_inode;
    int file;
    std::uint64_t file_inode;
  };
  struct request {
    int fd;
    std::uint64_t at;  // in the dma-buf
    std::uint32_t length;
    std::uint64_t offset;
    bool is_write;
  };

  // Keeps rings that are never destroyed reachable, so that leak checkers do not report them.
  static std::set<lending_ring*>& abandoned() {
    static auto* const kept = new std::set<lending_ring*>;
    return *kept;
  }

  void empty(std::optional<entry>& slot) {
    if (!slot) return;
    if (inode_of(slot->dma_buf) != slot->dma_buf_inode) world_->breaks("a dma-buf was closed while it was registered");
    if (inode_of(slot->file) != slot->file_inode) world_->breaks("a file was closed while a dma-buf was registered for it");
    slot.reset();
    --world_->registered;
  }

  std::int32_t run(const entry& slot, const request& what) {
    constexpr std::uint64_t sector = 512;
    if (world_->takes_back > 0) return --world_->takes_back, -EAGAIN;
    if (inode_of(what.fd) != slot.file_inode) return -EINVAL;
    if (what.at > slot.what.bytes || what.length > slot.what.bytes - what.at) return -EFAULT;
    if ((what.at | what.length | what.offset) % sector != 0) return -EINVAL;
    const auto now = slot.what.session->allocation_of(slot.what.base + what.at);
    if (!now || now->number != slot.what.allocation) {
      world_->breaks("memory was used by a dma-buf after it was released");
      return -EFAULT;
    }
    if (world_->requests++ >= world_->fails_after) return -EIO;
    return transfer(slot, what);
  }

  std::int32_t transfer(const entry& slot, const request& what) {
    const std::size_t bytes = std::min<std::uint64_t>(what.length, world_->most_moved);
    constexpr std::size_t alignment = 4096;  // the descriptor may be O_DIRECT
    std::vector<std::byte> room(bytes + alignment);
    auto* const through = room.data() + (alignment - reinterpret_cast<std::uintptr_t>(room.data()) % alignment);
    auto* const memory = slot.what.base + what.at;
    if (what.is_write && !carry(slot, through, memory, bytes)) return -EIO;
    const auto moved = what.is_write ? ::pwrite(what.fd, through, bytes, static_cast<off_t>(what.offset))
                                     : ::pread(what.fd, through, bytes, static_cast<off_t>(what.offset));
    if (moved < 0) return -errno;
    const bool arrives = !what.is_write && !world_->loses_bytes;
    if (arrives && !carry(slot, memory, through, static_cast<std::size_t>(moved))) return -EIO;
    return static_cast<std::int32_t>(moved);
  }
  static bool carry(const entry& slot, std::byte* target, const std::byte* source, std::size_t bytes) {
    constexpr std::size_t step = 128 << 10;
    for (std::size_t done = 0; done < bytes; done += step) {
      if (!slot.what.session->carry(target + done, source + done, std::min(step, bytes - done)).ok()) return false;
    }
    return true;
  }

  std::shared_ptr<lent_world> world_;
  std::unique_ptr<sys::ring> inner_;
  std::array<std::optional<entry>, 16> slots_;
  std::deque<sys::ring_completion> ended_;
};

}  // namespace

result<std::unique_ptr<sys::ring>> lending_kernel::make_ring(unsigned entries) {
  if (const int error = world_->no_rings; error != 0 && entries == 1) {
    ++world_->rings_refused;
    return status::from_errno(error, "io_uring_setup");
  }
  auto made = inner().make_ring(entries);
  if (!made) return made;
  return std::unique_ptr<sys::ring>(std::make_unique<lending_ring>(world_, *std::move(made)));
}

result<int> lending_kernel::reopen(int fd, int flags) {
  if (world_->has_no_direct && (flags & O_DIRECT) != 0) return status::from_errno(EINVAL, "open");
  return inner().reopen(fd, flags & ~O_DIRECT);
}

result<std::uint64_t> lending_kernel::resident_bytes(int fd, std::uint64_t offset, std::uint64_t length) {
  ++world_->residency_asked;
  return inner().resident_bytes(fd, offset, length);
}

result<sys::file_info> lending_kernel::describe(int fd) {
  auto facts = inner().describe(fd);
  if (facts) facts->direct_offset_alignment = facts->direct_memory_alignment = 512;
  if (facts && facts->inode == world_->raw_inode) {
    facts->type = sys::file_type::block_device;
    facts->block_device = facts->device;
  }
  return facts;
}

}  // namespace penstock::testing
