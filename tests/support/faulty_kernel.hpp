// A kernel that fails on demand. It wraps a real one, and passes on all calls that it does not fail.
//
// Calls are named "open", "reopen", "close", "describe", "descriptor_flags", "file_size", "pread", "pwrite", "pread_uncached",
// "pwrite_uncached", "resident_bytes", "read_into_cache", "drop_cache", "sync_data", "truncate", "map_file", "map_memory", "unmap",
// "memory_now", "make_ring", "ring.register", "ring.read", "ring.write", "ring.submit", "ring.reap"; and, counted but never failing,
// "usable_cores", "describe_pci", "pci_addresses", "path_exists".
//
//   auto faulty = std::make_shared<testing::faulty_kernel>();
//   faulty->fail({.call = "pread", .nth = 3, .error = EIO});
//   faulty->fail({.call = "pwrite", .nth = 1, .error = ENOSPC, .lasting = true});
//   faulty->shorten({.call = "pread", .nth = 2, .bytes = 1});
//
// An injected fault has these effects:
//   close, unmap            run all the same, so that only a missing call shows as a leak;
//   ring.read, ring.write   are queued as empty requests whose completion becomes -errno: nothing is moved;
//   ring.submit, ring.reap  do not reach the kernel: queued requests stay queued, completions stay to be reaped;
//   all others              do not reach the kernel.
// Thread-safe. Rings of one kernel may belong to different threads, and may outlive the kernel.
#pragma once

#include <cerrno>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sys/kernel.hpp"

namespace penstock::testing {

struct call_fault {
  std::string call = {};  // empty: any call that can fail
  std::uint64_t nth = 1;  // counted from the time of arming: 1 is the next matching call
  int error = EIO;
  bool lasting = false;  // all calls from the nth on
};

// A transfer that moves less than requested. Applies only to "pread", "pwrite", "ring.read" and "ring.write".
struct short_count {
  std::string call = {};  // empty: any of these
  std::uint64_t nth = 1;
  std::optional<std::uint64_t> bytes = {};  // nullopt: half of the requested bytes
  bool lasting = false;
};

class faulty_kernel final : public sys::kernel {
 public:
  // Runs before each call that can fail, with its name and its number among the calls of that name, from 1. A returned errno fails the
  // call. Called without locks, possibly by many threads at once: it may use the real kernel, for example to truncate a file.
  using hook = std::function<std::optional<int>(std::string_view call, std::uint64_t number)>;

  explicit faulty_kernel(std::shared_ptr<sys::kernel> inner = sys::make_kernel());
  ~faulty_kernel() override;

  // --- arming; several faults may be armed at once
  void fail(call_fault fault);
  void shorten(short_count fault);
  void set_hook(hook before_call);
  // From now on, each reap returns its completions in a random order drawn from the seed.
  void reorder_completions(std::uint64_t seed);
  // Disarms all faults. Counts stay.
  void disarm();

  // --- counts
  [[nodiscard]] std::uint64_t count(std::string_view call) const;
  [[nodiscard]] std::uint64_t count() const;     // of all calls that can fail
  [[nodiscard]] std::uint64_t injected() const;  // faults that took effect, including the hook's
  // Returns the calls that can fail since construction, in order; at most the first 100000.
  [[nodiscard]] std::vector<std::string> history() const;

  // --- leaks of objects made through this kernel
  [[nodiscard]] std::int64_t open_descriptors() const;        // opened and not yet closed
  [[nodiscard]] std::vector<std::string> open_files() const;  // their names
  [[nodiscard]] std::int64_t stray_closes() const;            // closes of descriptors that were not opened here: closed twice, or lent
  [[nodiscard]] std::int64_t mapped_bytes() const;            // mapped minus unmapped
  [[nodiscard]] std::int64_t live_rings() const;

  // --- sys::kernel
  result<int> open(const std::string& path, int flags, unsigned mode) override;
  result<int> reopen(int fd, int flags) override;
  result<int> duplicate(int fd) override;
  status close(int fd) override;
  result<sys::file_info> describe(int fd) override;
  void read_ahead(int fd, std::uint64_t offset, std::uint64_t length) noexcept override { inner_->read_ahead(fd, offset, length); }
  std::uint64_t most_read_at_once(std::uint64_t device) override { return inner_->most_read_at_once(device); }
  result<int> descriptor_flags(int fd) override;
  result<std::uint64_t> file_size(int fd) override;
  result<std::size_t> pread(int fd, void* target, std::size_t length, std::uint64_t offset) override;
  result<std::size_t> pwrite(int fd, const void* source, std::size_t length, std::uint64_t offset) override;
  result<std::size_t> pread_uncached(int fd, void* target, std::size_t length, std::uint64_t offset) override;
  result<std::size_t> pwrite_uncached(int fd, const void* source, std::size_t length, std::uint64_t offset) override;
  result<std::uint64_t> resident_bytes(int fd, std::uint64_t offset, std::uint64_t length) override;
  status read_into_cache(int fd, std::uint64_t offset, std::uint64_t length) override;
  status drop_cache(int fd, std::uint64_t offset, std::uint64_t length) override;
  status sync_data(int fd) override;
  status truncate(int fd, std::uint64_t size_bytes) override;
  result<void*> map_file(int fd, std::uint64_t offset, std::size_t length) override;
  result<void*> map_memory(std::size_t length, int numa_node) override;
  status unmap(void* base, std::size_t length) override;
  result<sys::memory_state> memory_now() override;
  result<std::unique_ptr<sys::ring>> make_ring(unsigned entries) override;
  int current_node() noexcept override { return inner_->current_node(); }  // these two cannot fail, so they are not counted
  int node_of_memory(const void* address) noexcept override { return inner_->node_of_memory(address); }
  unsigned usable_cores() override;
  pci_device describe_pci(const std::string& address) override;
  std::vector<std::string> pci_addresses() override;
  bool path_exists(const std::string& path) override;

  class ledger;  // the state that rings share with their kernel

 private:
  std::shared_ptr<sys::kernel> inner_;
  std::shared_ptr<ledger> ledger_;
};

}  // namespace penstock::testing
