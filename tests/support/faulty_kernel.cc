#include "support/faulty_kernel.hpp"
#include "support/reliable.hpp"

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <map>
#include <mutex>
#include <random>
#include <set>
#include <utility>

namespace penstock::testing {
namespace {

constexpr std::size_t history_limit = 100000;
// Fills the unread part of the target after a short read, so that no caller profits from bytes beyond the returned count.
constexpr int scrub_byte = 0xdb;

status injected_error(std::string_view call, int error) {
  const keeping_books spared;
  return status::from_errno(error, fmt::format("{} (injected)", call));
}

bool is_transfer(std::string_view call) {
  return call == "pread" || call == "pwrite" || call == "pread_uncached" || call == "pwrite_uncached" || call == "ring.read" ||
         call == "ring.write";
}

template <class Fault>
struct armed {
  Fault fault;
  std::uint64_t seen = 0;

  bool fires() {
    ++seen;
    return seen == fault.nth || (fault.lasting && seen > fault.nth);
  }
};

// The fault to apply to one call.
struct verdict {
  int error = 0;  // 0: do not fail
  bool shortened = false;
  std::optional<std::uint64_t> bytes;

  [[nodiscard]] std::uint64_t limit(std::uint64_t asked) const { return shortened ? std::min(asked, bytes.value_or(asked / 2)) : asked; }
};

// A direct write cannot be shortened to an odd length beforehand, so it runs in full and is reported short.
bool may_cut_write(sys::kernel& inner, int fd) {
  const auto flags = inner.descriptor_flags(fd);
  return flags && (*flags & O_DIRECT) == 0;
}

}  // namespace

class faulty_kernel::ledger {
 public:
  verdict before(std::string_view call) {
    verdict decided;
    std::shared_ptr<const hook> before_call;
    std::uint64_t number = 0;
    {
      const keeping_books spared;
      const std::lock_guard lock(mutex_);
      number = ++counts_[std::string(call)];
      ++total_;
      if (history_.size() < history_limit) history_.emplace_back(call);
      before_call = hook_;
      decided = armed_verdict(call);
    }
    const auto refused = before_call && *before_call ? (*before_call)(call, number) : std::nullopt;
    if (refused) decided.error = *refused;
    if (decided.error != 0 || decided.shortened) note_injected();
    return decided;
  }

  // For calls that cannot fail.
  void note(std::string_view call) {
    const keeping_books spared;
    const std::lock_guard lock(mutex_);
    ++counts_[std::string(call)];
  }

  template <class Change>
  auto locked(Change change) const {
    const keeping_books spared;
    const std::lock_guard lock(mutex_);
    return change();
  }

  void shuffle(std::span<sys::ring_completion> completions) {
    const keeping_books spared;
    const std::lock_guard lock(mutex_);
    if (order_) std::shuffle(completions.begin(), completions.end(), *order_);
  }

  // All members below are guarded by mutex_ and accessed through locked().
  std::map<std::string, std::uint64_t, std::less<>> counts_;
  std::uint64_t total_ = 0;
  std::uint64_t injected_ = 0;
  std::vector<std::string> history_;
  std::vector<armed<call_fault>> faults_;
  std::vector<armed<short_count>> shorts_;
  std::shared_ptr<const hook> hook_;
  std::optional<std::mt19937_64> order_;
  std::set<int> descriptors_;
  std::int64_t stray_closes_ = 0;
  std::int64_t mapped_bytes_ = 0;
  std::int64_t live_rings_ = 0;

 private:
  verdict armed_verdict(std::string_view call) {
    verdict decided;
    for (auto& each : faults_) {
      if ((each.fault.call.empty() || each.fault.call == call) && each.fires() && decided.error == 0) decided.error = each.fault.error;
    }
    for (auto& each : shorts_) {
      if (!(each.fault.call.empty() ? is_transfer(call) : each.fault.call == call) || !each.fires() || decided.shortened) continue;
      decided.shortened = true;
      decided.bytes = each.fault.bytes;
    }
    return decided;
  }

  void note_injected() {
    const keeping_books spared;
    const std::lock_guard lock(mutex_);
    ++injected_;
  }

  mutable std::mutex mutex_;
};

namespace {

class faulty_ring final : public sys::ring {
 public:
  faulty_ring(std::unique_ptr<sys::ring> inner, std::shared_ptr<sys::kernel> kernel, std::shared_ptr<faulty_kernel::ledger> ledger)
      : inner_(std::move(inner)), kernel_(std::move(kernel)), ledger_(std::move(ledger)) {
    ledger_->locked([&] { ++ledger_->live_rings_; });
  }
  faulty_ring(const faulty_ring&) = delete;
  faulty_ring& operator=(const faulty_ring&) = delete;
  ~faulty_ring() override {
    ledger_->locked([&] { --ledger_->live_rings_; });
  }

  status register_buffer(unsigned slot, void* base, std::size_t length) override {
    if (const verdict decided = ledger_->before("ring.register"); decided.error != 0) return injected_error("ring.register", decided.error);
    return inner_->register_buffer(slot, base, length);
  }

  bool queue_read(int fd, void* target, std::uint32_t length, std::uint64_t offset, std::uint64_t token, int buffer_slot) override {
    const verdict decided = next_verdict("ring.read", unused_read_);
    const bool refused = decided.error != 0;
    const auto limit = static_cast<std::uint32_t>(decided.limit(length));
    const bool accepted = inner_->queue_read(fd, target, refused ? 0 : length, offset, next_id_, refused ? -1 : buffer_slot);
    if (!accepted) unused_read_ = decided;
    return accepted && noted({token, decided.error, limit, static_cast<std::byte*>(target)});
  }

  bool queue_write(int fd, const void* source, std::uint32_t length, std::uint64_t offset, std::uint64_t token, int buffer_slot) override {
    const verdict decided = next_verdict("ring.write", unused_write_);
    const bool refused = decided.error != 0;
    const auto limit = static_cast<std::uint32_t>(decided.limit(length));
    const std::uint32_t written = refused ? 0 : decided.shortened && may_cut_write(*kernel_, fd) ? limit : length;
    const bool accepted = inner_->queue_write(fd, source, written, offset, next_id_, refused ? -1 : buffer_slot);
    if (!accepted) unused_write_ = decided;
    return accepted && noted({token, decided.error, limit, nullptr});
  }

  status submit() override {
    if (const verdict decided = ledger_->before("ring.submit"); decided.error != 0) return injected_error("ring.submit", decided.error);
    return inner_->submit();
  }

  result<std::size_t> reap(std::span<sys::ring_completion> out, bool wait) override {
    if (const verdict decided = ledger_->before("ring.reap"); decided.error != 0) return injected_error("ring.reap", decided.error);
    auto count = inner_->reap(out, wait);
    if (!count) return count;
    for (auto& completion : out.first(*count)) settle(completion);
    ledger_->shuffle(out.first(*count));
    return count;
  }

  void interrupt() noexcept override { inner_->interrupt(); }

 private:
  struct request {
    std::uint64_t token;
    int error;            // 0: none injected
    std::uint32_t limit;  // the most bytes to report
    std::byte* target;    // of a read
  };

  // A request that finds the queue full is repeated: it counts as one call, and keeps its verdict.
  verdict next_verdict(std::string_view call, std::optional<verdict>& unused) {
    if (unused) return *std::exchange(unused, std::nullopt);
    return ledger_->before(call);
  }

  // Allocates nothing, since engine threads do not allocate when they use a real ring. The queue has already rejected requests that do not
  // fit.
  bool noted(const request& asked) {
    requests_[next_id_] = asked;
    while (requests_[next_id_]) next_id_ = (next_id_ + 1) % requests_.size();
    return true;
  }

  // Restores the caller's token, and applies the fault.
  void settle(sys::ring_completion& completion) {
    const request asked = *std::exchange(requests_.at(completion.token), std::nullopt);
    completion.token = asked.token;
    if (asked.error != 0) {
      completion.result = -asked.error;
    } else if (completion.result > 0 && static_cast<std::uint32_t>(completion.result) > asked.limit) {
      if (asked.target != nullptr)
        std::memset(asked.target + asked.limit, scrub_byte, static_cast<std::uint32_t>(completion.result) - asked.limit);
      completion.result = static_cast<std::int32_t>(asked.limit);
    }
  }

  std::unique_ptr<sys::ring> inner_;
  std::shared_ptr<sys::kernel> kernel_;
  std::shared_ptr<faulty_kernel::ledger> ledger_;
  std::vector<std::optional<request>> requests_ = std::vector<std::optional<request>>(4096);  // by the token of the inner ring
  std::uint64_t next_id_ = 0;
  std::optional<verdict> unused_read_;
  std::optional<verdict> unused_write_;
};

// Reports at most limit bytes of a read.
result<std::size_t> cut_read(result<std::size_t> count, void* target, std::uint64_t limit) {
  if (!count || *count <= limit) return count;
  std::memset(static_cast<std::byte*>(target) + limit, scrub_byte, *count - limit);
  return static_cast<std::size_t>(limit);
}

}  // namespace

faulty_kernel::faulty_kernel(std::shared_ptr<sys::kernel> inner) : inner_(std::move(inner)), ledger_(std::make_shared<ledger>()) {}
faulty_kernel::~faulty_kernel() = default;

void faulty_kernel::fail(call_fault fault) {
  ledger_->locked([&] { ledger_->faults_.push_back({std::move(fault)}); });
}

void faulty_kernel::shorten(short_count fault) {
  ledger_->locked([&] { ledger_->shorts_.push_back({std::move(fault)}); });
}

void faulty_kernel::set_hook(hook before_call) {
  auto shared = std::make_shared<const hook>(std::move(before_call));
  ledger_->locked([&] { ledger_->hook_.swap(shared); });
}

void faulty_kernel::reorder_completions(std::uint64_t seed) {
  ledger_->locked([&] { ledger_->order_.emplace(seed); });
}

void faulty_kernel::disarm() {
  ledger_->locked([&] {
    ledger_->faults_.clear();
    ledger_->shorts_.clear();
    ledger_->hook_.reset();
    ledger_->order_.reset();
  });
}

std::uint64_t faulty_kernel::count(std::string_view call) const {
  return ledger_->locked([&] {
    const auto found = ledger_->counts_.find(call);
    return found == ledger_->counts_.end() ? std::uint64_t{0} : found->second;
  });
}

std::uint64_t faulty_kernel::count() const {
  return ledger_->locked([&] { return ledger_->total_; });
}

std::uint64_t faulty_kernel::injected() const {
  return ledger_->locked([&] { return ledger_->injected_; });
}

std::vector<std::string> faulty_kernel::history() const {
  return ledger_->locked([&] { return ledger_->history_; });
}

std::int64_t faulty_kernel::open_descriptors() const {
  return ledger_->locked([&] { return static_cast<std::int64_t>(ledger_->descriptors_.size()); });
}

std::vector<std::string> faulty_kernel::open_files() const {
  return ledger_->locked([&] {
    std::vector<std::string> names;
    for (const int each : ledger_->descriptors_) {
      std::error_code gone;
      const auto name = std::filesystem::read_symlink(fmt::format("/proc/self/fd/{}", each), gone).string();
      names.push_back(fmt::format("{} (descriptor {}, flags {:o})", name, each, inner_->descriptor_flags(each).value_or(-1)));
    }
    return names;
  });
}

std::int64_t faulty_kernel::stray_closes() const {
  return ledger_->locked([&] { return ledger_->stray_closes_; });
}

std::int64_t faulty_kernel::mapped_bytes() const {
  return ledger_->locked([&] { return ledger_->mapped_bytes_; });
}

std::int64_t faulty_kernel::live_rings() const {
  return ledger_->locked([&] { return ledger_->live_rings_; });
}

result<int> faulty_kernel::open(const std::string& path, int flags, unsigned mode) {
  if (const verdict decided = ledger_->before("open"); decided.error != 0) return injected_error("open " + path, decided.error);
  auto fd = inner_->open(path, flags, mode);
  if (fd) ledger_->locked([&] { ledger_->descriptors_.insert(*fd); });
  return fd;
}

result<int> faulty_kernel::reopen(int fd, int flags) {
  if (const verdict decided = ledger_->before("reopen"); decided.error != 0) return injected_error("reopen", decided.error);
  auto anew = inner_->reopen(fd, flags);
  if (anew) ledger_->locked([&] { ledger_->descriptors_.insert(*anew); });
  return anew;
}

result<int> faulty_kernel::duplicate(int fd) {
  if (const verdict decided = ledger_->before("duplicate"); decided.error != 0) return injected_error("duplicate", decided.error);
  auto second = inner_->duplicate(fd);
  if (second) ledger_->locked([&] { ledger_->descriptors_.insert(*second); });
  return second;
}

status faulty_kernel::close(int fd) {
  const verdict decided = ledger_->before("close");
  // Forget the descriptor before closing it: afterwards another thread may open a file under the same number.
  ledger_->locked([&] {
    if (ledger_->descriptors_.erase(fd) == 0) ++ledger_->stray_closes_;
  });
  status closed = inner_->close(fd);
  return decided.error != 0 ? injected_error("close", decided.error) : closed;
}

result<sys::file_info> faulty_kernel::describe(int fd) {
  if (const verdict decided = ledger_->before("describe"); decided.error != 0) return injected_error("describe", decided.error);
  return inner_->describe(fd);
}

result<int> faulty_kernel::descriptor_flags(int fd) {
  if (const verdict decided = ledger_->before("descriptor_flags"); decided.error != 0) {
    return injected_error("descriptor_flags", decided.error);
  }
  return inner_->descriptor_flags(fd);
}

result<std::uint64_t> faulty_kernel::file_size(int fd) {
  if (const verdict decided = ledger_->before("file_size"); decided.error != 0) return injected_error("file_size", decided.error);
  return inner_->file_size(fd);
}

result<std::size_t> faulty_kernel::pread(int fd, void* target, std::size_t length, std::uint64_t offset) {
  const verdict decided = ledger_->before("pread");
  if (decided.error != 0) return injected_error("pread", decided.error);
  return cut_read(inner_->pread(fd, target, length, offset), target, decided.limit(length));
}

result<std::size_t> faulty_kernel::pwrite(int fd, const void* source, std::size_t length, std::uint64_t offset) {
  const verdict decided = ledger_->before("pwrite");
  if (decided.error != 0) return injected_error("pwrite", decided.error);
  const std::uint64_t limit = decided.limit(length);
  auto count = inner_->pwrite(fd, source, decided.shortened && may_cut_write(*inner_, fd) ? limit : length, offset);
  return count && *count > limit ? result<std::size_t>(limit) : count;
}

result<std::size_t> faulty_kernel::pread_uncached(int fd, void* target, std::size_t length, std::uint64_t offset) {
  const verdict decided = ledger_->before("pread_uncached");
  if (decided.error == EOPNOTSUPP) return status(errc::unsupported, "no uncached transfers here");
  if (decided.error != 0) return injected_error("pread_uncached", decided.error);
  return inner_->pread_uncached(fd, target, decided.limit(length), offset);
}

result<std::size_t> faulty_kernel::pwrite_uncached(int fd, const void* source, std::size_t length, std::uint64_t offset) {
  const verdict decided = ledger_->before("pwrite_uncached");
  if (decided.error == EOPNOTSUPP) return status(errc::unsupported, "no uncached transfers here");
  if (decided.error != 0) return injected_error("pwrite_uncached", decided.error);
  return inner_->pwrite_uncached(fd, source, decided.limit(length), offset);
}

result<std::uint64_t> faulty_kernel::resident_bytes(int fd, std::uint64_t offset, std::uint64_t length) {
  if (const verdict decided = ledger_->before("resident_bytes"); decided.error != 0) return injected_error("resident_bytes", decided.error);
  return inner_->resident_bytes(fd, offset, length);
}

status faulty_kernel::read_into_cache(int fd, std::uint64_t offset, std::uint64_t length) {
  if (const verdict decided = ledger_->before("read_into_cache"); decided.error != 0)
    return injected_error("read_into_cache", decided.error);
  return inner_->read_into_cache(fd, offset, length);
}

status faulty_kernel::drop_cache(int fd, std::uint64_t offset, std::uint64_t length) {
  if (const verdict decided = ledger_->before("drop_cache"); decided.error != 0) return injected_error("drop_cache", decided.error);
  return inner_->drop_cache(fd, offset, length);
}

status faulty_kernel::sync_data(int fd) {
  if (const verdict decided = ledger_->before("sync_data"); decided.error != 0) return injected_error("sync_data", decided.error);
  return inner_->sync_data(fd);
}

status faulty_kernel::truncate(int fd, std::uint64_t size_bytes) {
  if (const verdict decided = ledger_->before("truncate"); decided.error != 0) return injected_error("truncate", decided.error);
  return inner_->truncate(fd, size_bytes);
}

result<void*> faulty_kernel::map_file(int fd, std::uint64_t offset, std::size_t length) {
  if (const verdict decided = ledger_->before("map_file"); decided.error != 0) return injected_error("map_file", decided.error);
  auto base = inner_->map_file(fd, offset, length);
  if (base) ledger_->locked([&] { ledger_->mapped_bytes_ += static_cast<std::int64_t>(length); });
  return base;
}

result<void*> faulty_kernel::map_memory(std::size_t length, int numa_node) {
  if (const verdict decided = ledger_->before("map_memory"); decided.error != 0) return injected_error("map_memory", decided.error);
  auto base = inner_->map_memory(length, numa_node);
  if (base) ledger_->locked([&] { ledger_->mapped_bytes_ += static_cast<std::int64_t>(length); });
  return base;
}

status faulty_kernel::unmap(void* base, std::size_t length) {
  const verdict decided = ledger_->before("unmap");
  status unmapped = inner_->unmap(base, length);
  if (unmapped.ok()) ledger_->locked([&] { ledger_->mapped_bytes_ -= static_cast<std::int64_t>(length); });
  return decided.error != 0 ? injected_error("unmap", decided.error) : unmapped;
}

result<sys::memory_state> faulty_kernel::memory_now() {
  if (const verdict decided = ledger_->before("memory_now"); decided.error != 0) return injected_error("memory_now", decided.error);
  return inner_->memory_now();
}

result<std::unique_ptr<sys::ring>> faulty_kernel::make_ring(unsigned entries) {
  if (const verdict decided = ledger_->before("make_ring"); decided.error != 0) return injected_error("make_ring", decided.error);
  auto inner = inner_->make_ring(entries);
  if (!inner) return inner.error();
  return std::unique_ptr<sys::ring>(std::make_unique<faulty_ring>(*std::move(inner), inner_, ledger_));
}

unsigned faulty_kernel::usable_cores() {
  ledger_->note("usable_cores");
  return inner_->usable_cores();
}

pci_device faulty_kernel::describe_pci(const std::string& address) {
  ledger_->note("describe_pci");
  return inner_->describe_pci(address);
}

std::vector<std::string> faulty_kernel::pci_addresses() {
  ledger_->note("pci_addresses");
  return inner_->pci_addresses();
}

bool faulty_kernel::path_exists(const std::string& path) {
  ledger_->note("path_exists");
  return inner_->path_exists(path);
}

}  // namespace penstock::testing
