// Imitates a machine with Linux 7.4 and a GPU whose driver exports its memory: the real kernel, whose rings also accept dma-bufs, and the
// host device under another name. Transfers through a dma-buf run as pread and pwrite, and as the host device's own copies. It enforces the
// real interface's rules and reports violations. Thread-safe; set it up before use.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "core/runtime.hpp"
#include "device/device.hpp"
#include "support/forwarding_kernel.hpp"

namespace penstock::testing {

class lending_session;

// State that the kernel and the driver share: allocations, and their dma-bufs.
struct lent_world {
  struct dma_buf {
    lending_session* session = nullptr;
    std::byte* base = nullptr;
    std::uint64_t bytes = 0;
    std::uint64_t allocation = 0;
  };

  // --- for tests
  std::atomic<int> kernel_refuses{0};          // errno of all registrations: EINVAL is an old kernel
  std::atomic<int> file_refuses{0};            // errno of dma-bufs for files
  std::atomic<bool> driver_refuses{false};     // attribute 124 is 0
  std::atomic<bool> memory_refuses{false};     // cuMemGetHandleForAddressRange fails
  std::atomic<unsigned> takes_back{0};         // this many completions are -EAGAIN
  std::atomic<unsigned> fails_after{~0U};      // after this many requests, all end with EIO
  std::atomic<std::uint32_t> most_moved{~0U};  // per request
  std::atomic<bool> loses_bytes{false};        // reads report bytes that do not arrive
  std::atomic<int> no_rings{0};                // errno of making a ring with one entry, as probes do
  std::atomic<bool> is_silent{false};          // requests under way never complete
  std::atomic<bool> has_no_direct{false};      // files cannot be opened with O_DIRECT
  std::atomic<std::uint64_t> raw_inode{0};     // this file seems to be the block device of the drive that holds it
  std::atomic<int> no_memory_at{0};            // the nth query about an allocation from now on fails
  std::atomic<unsigned> rings_refused{0};      // so far
  std::atomic<unsigned> residency_asked{0};    // so far
  std::atomic<unsigned> allocated{0};          // by the GPU, so far
  std::atomic<unsigned> requests{0};           // of dma-bufs, that have ended
  std::atomic<unsigned> registered{0};         // currently
  std::atomic<unsigned> registrations{0};      // so far
  std::vector<std::string> broken_rules();     // of the interface

  // --- for the kernel and the driver
  void breaks(std::string rule);
  void lend(int descriptor, const dma_buf& what);
  // Returns the dma-buf of a descriptor; its base is null if there is none.
  dma_buf find(int descriptor);

 private:
  std::mutex lock_;
  std::vector<std::string> broken_;
  std::map<std::uint64_t, dma_buf> lent_;  // by inode
};

class lending_kernel final : public forwarding_kernel {
 public:
  explicit lending_kernel(std::shared_ptr<lent_world> world) : world_(std::move(world)) {}
  result<std::unique_ptr<sys::ring>> make_ring(unsigned entries) override;
  // Files seem to be opened with O_DIRECT on any file system.
  result<int> reopen(int fd, int flags) override;
  result<sys::file_info> describe(int fd) override;
  result<std::uint64_t> resident_bytes(int fd, std::uint64_t offset, std::uint64_t length) override;

 private:
  std::shared_ptr<lent_world> world_;
};

class lending_gpu final : public device::driver {
 public:
  explicit lending_gpu(std::shared_ptr<lent_world> world);
  ~lending_gpu() override;
  [[nodiscard]] std::string_view kind() const override { return "cuda"; }
  result<int> count() override { return 1; }
  result<device::device_facts> describe(int /*ordinal*/) override { return inner_->describe(0); }
  result<device::memory_info> classify(const void* memory) override { return inner_->classify(memory); }
  result<device::session*> open(int ordinal, void* context) override;

 private:
  std::shared_ptr<device::driver> inner_ = device::make_host_driver();
  std::unique_ptr<lending_session> session_;
};

struct lending_machine {
  std::shared_ptr<lent_world> world = std::make_shared<lent_world>();
  std::shared_ptr<lending_kernel> kernel = std::make_shared<lending_kernel>(world);
  std::shared_ptr<lending_gpu> gpu = std::make_shared<lending_gpu>(world);

  // Returns why this machine cannot be imitated: the kernel has no rings.
  [[nodiscard]] status problem() const {
    const auto ring = kernel->make_ring(1);
    return ring ? status() : ring.error();
  }
  [[nodiscard]] core::seams doors() const { return {kernel, gpu, device::make_host_driver()}; }
};

}  // namespace penstock::testing
