// The interface to the operating system. All other code uses it, so tests can make any call fail, return less than requested or complete
// late. Each engine has one object, which its threads share. Every call is thread-safe unless documented otherwise. If a system call fails,
// its errno is returned as a status whose message names the call and its arguments.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "penstock/machine.hpp"
#include "penstock/status.hpp"
#include "sys/core_use.hpp"
#include "sys/memory_state.hpp"
#include "sys/refusals.hpp"

namespace penstock::sys {

// The alignment of direct I/O. Multiples of it suit every drive and file system that Penstock accesses without the page cache, because
// sectors are 512 or 4096 bytes long, whatever the page size (sys/page_size). A file that needs a larger alignment is read through the page
// cache.
inline constexpr std::uint32_t direct_alignment = 4096;

enum class file_type : std::uint8_t { regular, block_device, other };

struct file_info {
  file_type type = file_type::other;
  std::uint64_t size_bytes = 0;  // also set for block devices
  std::uint64_t device = 0;      // st_dev; with inode it identifies the file
  std::uint64_t inode = 0;
  std::int64_t modified_ns = 0;        // last change of the contents, ns since 1970
  std::int64_t changed_ns = 0;         // last change of contents or metadata
  std::uint64_t block_device = 0;      // st_rdev of a block device
  std::uint64_t filesystem_magic = 0;  // f_type of statfs(2)
  bool from_server = false;            // the bytes come from a server (over a network, or another process with FUSE) that may respond late
  // The alignment that O_DIRECT requires (statx STATX_DIOALIGN, Linux 6.1); 0: O_DIRECT is not supported. direct_alignment if the kernel
  // does not report it.
  std::uint32_t direct_memory_alignment = 0;
  std::uint32_t direct_offset_alignment = 0;
};

struct ring_completion {
  std::uint64_t token = 0;
  std::int32_t result = 0;  // bytes, or -errno
};

// One io_uring. Except for interrupt(), use it from one thread at a time.
class ring {
 public:
  virtual ~ring() = default;
  // Registers [base, base+length) as fixed buffer `slot` (0..15). Replaces the slot's previous buffer, which no request in flight may use.
  // null and 0 clear the slot. Fails if RLIMIT_MEMLOCK is too small; then continue without the registration.
  virtual status register_buffer(unsigned slot, void* base, std::size_t length) = 0;
  // Registers a dma-buf as fixed buffer `slot`. Replaces the slot's previous buffer, which no request in flight may use. Only requests for
  // `file`, a descriptor opened with O_DIRECT, can use it; the address in such a request is an offset into the dma-buf. Both descriptors
  // must stay open until the slot is cleared or replaced. A dma-buf can be at most most_dma_buf_bytes long (sys/dma_buf.hpp). Requests may
  // complete with -EAGAIN for no apparent reason. Errors: unsupported or invalid_argument if the kernel, the file system or the drive
  // cannot do this.
  virtual status register_dma_buf(unsigned /*slot*/, int /*dma_buf*/, int /*file*/) {
    return {errc::unsupported, "this ring cannot register dma-bufs"};
  }
  // Clears the slot. No request in flight may use it.
  virtual status forget_dma_buf(unsigned /*slot*/) { return {errc::unsupported, "this ring cannot register dma-bufs"}; }
  // Queues a read or write. buffer_slot -1: the memory is not registered. Returns false if the submission queue is full; call submit()
  // first.
  virtual bool queue_read(int fd, void* target, std::uint32_t length, std::uint64_t offset, std::uint64_t token, int buffer_slot) = 0;
  virtual bool queue_write(int fd, const void* source, std::uint32_t length, std::uint64_t offset, std::uint64_t token,
                           int buffer_slot) = 0;
  // Submits queued requests to the kernel. Retries a limited number of times on EINTR, EAGAIN and EBUSY.
  virtual status submit() = 0;
  // Submits queued requests and retrieves completions; waits for at least one if wait is set and a request is in flight. Returns the number
  // of completions.
  virtual result<std::size_t> reap(std::span<ring_completion> out, bool wait) = 0;
  // Makes a waiting reap(), or the next one that would wait, return at once, possibly without completions. Can be called from any thread.
  virtual void interrupt() noexcept = 0;
};

class kernel {
 public:
  virtual ~kernel() = default;

  // --- files. flags are those of open(2); O_CLOEXEC is added. open() waits until another process releases its lease on a regular file,
  // even with O_NONBLOCK; the flag only prevents waiting for the other end of a FIFO.
  virtual result<int> open(const std::string& path, int flags, unsigned mode) = 0;
  // Reopens the file that fd refers to with other flags, through /proc/self/fd. Errors: would_block if fd itself holds a lease that this
  // would break.
  virtual result<int> reopen(int fd, int flags) = 0;
  // Returns a second descriptor for the same open file, with O_CLOEXEC and a number above the standard streams. It stays open when fd is
  // closed.
  virtual result<int> duplicate(int fd) = 0;
  // Closes fd, or keeps it open if closing it would drop this process's record locks (see sys/kept_descriptors.hpp). Takes ownership of fd,
  // except on out_of_memory: then fd stays open and still belongs to the caller.
  virtual status close(int fd) = 0;
  virtual result<file_info> describe(int fd) = 0;
  virtual result<int> descriptor_flags(int fd) = 0;  // F_GETFL
  virtual result<std::uint64_t> file_size(int fd) = 0;
  // Make one system call, retried on EINTR. May transfer fewer bytes than requested.
  virtual result<std::size_t> pread(int fd, void* target, std::size_t length, std::uint64_t offset) = 0;
  virtual result<std::size_t> pwrite(int fd, const void* source, std::size_t length, std::uint64_t offset) = 0;
  // Like pread() and pwrite() through the page cache, but the kernel drops the pages once they have been read, or written to the disk
  // (RWF_DONTCACHE, Linux 6.14). Errors: errc::unsupported if the kernel or the file system does not support this; then nothing was
  // transferred.
  virtual result<std::size_t> pread_uncached(int fd, void* target, std::size_t length, std::uint64_t offset) = 0;
  virtual result<std::size_t> pwrite_uncached(int fd, const void* source, std::size_t length, std::uint64_t offset) = 0;
  // Returns how many bytes of the range are in the page cache, in whole pages. Uses cachestat(2) (Linux 6.5), otherwise mincore on a
  // mapping. Both work only for callers that may write to the file; for others, a range of at least 1 MiB is estimated from samples: 0 and
  // length mean that all samples agree (sys/residency.hpp). Errors: errc::unsupported if nothing is known.
  virtual result<std::uint64_t> resident_bytes(int fd, std::uint64_t offset, std::uint64_t length) = 0;
  // Reads the range into the page cache (sys/cache_fill.hpp). Only a hint: a later read fetches anything that is missing.
  virtual status read_into_cache(int fd, std::uint64_t offset, std::uint64_t length) = 0;
  // Starts read-ahead of the range into the page cache without waiting. Only a hint.
  virtual void read_ahead(int /*fd*/, std::uint64_t /*offset*/, std::uint64_t /*length*/) noexcept {}
  // Returns the maximum number of bytes that the file system on a device (file_info::device) requests from its server in one read; 0:
  // unknown. Reads a file in /proc.
  virtual std::uint64_t most_read_at_once(std::uint64_t /*device*/) { return 0; }
  virtual status drop_cache(int fd, std::uint64_t offset, std::uint64_t length) = 0;  // POSIX_FADV_DONTNEED
  virtual status sync_data(int fd) = 0;
  virtual status truncate(int fd, std::uint64_t size_bytes) = 0;

  // --- memory
  // Maps with MAP_SHARED, PROT_READ and MAP_POPULATE. offset must be a multiple of the page size. The CUDA driver cannot register other
  // mappings: MAP_PRIVATE hangs, and writable mappings of ext4 files are rejected (driver 580).
  virtual result<void*> map_file(int fd, std::uint64_t offset, std::size_t length) = 0;
  // Maps zeroed anonymous memory, aligned to 2 MiB, with huge-page advice, populated, preferably on numa_node (-1: any node).
  virtual result<void*> map_memory(std::size_t length, int numa_node) = 0;
  virtual status unmap(void* base, std::size_t length) = 0;

  // Returns how much memory this process may use. Reads small files in /proc and the cgroup file system. Errors: unsupported if they do not
  // contain this.
  virtual result<memory_state> memory_now() = 0;

  // --- rings and the machine
  // Errors: unsupported or permission_denied if io_uring is missing, disabled or denied by seccomp.
  virtual result<std::unique_ptr<ring>> make_ring(unsigned entries) = 0;
  // Returns the calling thread's NUMA node; -1 if the machine has only one node or the kernel does not report it. Takes about 20 ns.
  virtual int current_node() noexcept { return -1; }
  // Returns the NUMA node of the page at an address; -1 as above, or if the page is not allocated yet. Makes a system call.
  virtual int node_of_memory(const void* /*address*/) noexcept { return -1; }
  virtual unsigned usable_cores() = 0;  // limited by the affinity mask and the cgroup quota; at least 1
  // Returns how much CPU time all processes have used on the machine's cores. Reads a file in /proc. This takes 20 us, or 1 ms with
  // hundreds of cores.
  virtual core_use core_use_now() noexcept { return {}; }
  virtual pci_device describe_pci(const std::string& address) = 0;  // see sys/pci.hpp
  virtual std::vector<std::string> pci_addresses() = 0;
  virtual bool path_exists(const std::string& path) = 0;

  // File systems (st_dev) that do not support uncached transfers. These are not tried again.
  [[nodiscard]] refusals& without_uncached() noexcept { return without_uncached_; }

 private:
  refusals without_uncached_;
};

// Returns the Linux implementation.
std::shared_ptr<kernel> make_kernel();

}  // namespace penstock::sys
