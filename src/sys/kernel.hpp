// The only door to the operating system. Everything above asks this interface, so tests can make any call fail, fall short
// or come late. One object per engine, shared by its threads: every call is thread-safe unless it says otherwise.
// A failed call returns the errno of that very call as a status whose message names the call and its arguments.
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

// What direct I/O is done in: multiples of it satisfy every drive and file system that Penstock uses past the page cache, since sectors
// have 512 or 4096 bytes, whatever a page has (sys/page_size). A file that demands more is read through the page cache.
inline constexpr std::uint32_t direct_alignment = 4096;

enum class file_type : std::uint8_t { regular, block_device, other };

struct file_info {
  file_type type = file_type::other;
  std::uint64_t size_bytes = 0;  // of a block device too
  std::uint64_t device = 0;      // st_dev and st_ino: together they name the file
  std::uint64_t inode = 0;
  std::int64_t modified_ns = 0;        // its contents, since 1970
  std::int64_t changed_ns = 0;         // anything of it
  std::uint64_t block_device = 0;      // st_rdev, of a block device
  std::uint64_t filesystem_magic = 0;  // f_type of statfs(2)
  bool from_server = false;            // a server brings its bytes, over a network or out of another process (FUSE), and may answer late
  // What O_DIRECT demands (statx STATX_DIOALIGN, Linux 6.1); 0: not supported. direct_alignment where the kernel does
  // not say.
  std::uint32_t direct_memory_alignment = 0;
  std::uint32_t direct_offset_alignment = 0;
};

struct ring_completion {
  std::uint64_t token = 0;
  std::int32_t result = 0;  // bytes, or -errno
};

// One io_uring. For one thread at a time, but for interrupt().
class ring {
 public:
  virtual ~ring() = default;
  // Makes [base, base+length) usable as fixed buffer `slot` (0..15), in place of what it held, which no piece in flight uses; null and 0:
  // nothing any more. Refused under a small RLIMIT_MEMLOCK: go on without.
  virtual status register_buffer(unsigned slot, void* base, std::size_t length) = 0;
  // Makes a dma-buf usable as fixed buffer `slot`, in place of what it held, which no piece in flight uses: for requests of the file behind
  // `file` alone, a descriptor opened with O_DIRECT. In such a request the address is an offset in the dma-buf. Both descriptors stay open
  // until the slot holds something else. It has most_dma_buf_bytes at most (sys/dma_buf.hpp). Completions may be -EAGAIN for no reason that
  // the caller knows of. Errors: unsupported or invalid_argument where the kernel, the file system or the drive has no such way.
  virtual status register_dma_buf(unsigned /*slot*/, int /*dma_buf*/, int /*file*/) {
    return {errc::unsupported, "this ring registers no dma-bufs"};
  }
  // The slot holds nothing any more. No piece in flight uses it.
  virtual status forget_dma_buf(unsigned /*slot*/) { return {errc::unsupported, "this ring registers no dma-bufs"}; }
  // Queues a read or write. buffer_slot -1: not registered. False when the submission queue is full: submit() first.
  virtual bool queue_read(int fd, void* target, std::uint32_t length, std::uint64_t offset, std::uint64_t token, int buffer_slot) = 0;
  virtual bool queue_write(int fd, const void* source, std::uint32_t length, std::uint64_t offset, std::uint64_t token,
                           int buffer_slot) = 0;
  // Hands queued requests to the kernel. EINTR, EAGAIN and EBUSY are retried inside, a bounded number of times.
  virtual status submit() = 0;
  // Submits what is queued and takes completions, at least one if wait is set (and something is in flight). Returns how many.
  virtual result<std::size_t> reap(std::span<ring_completion> out, bool wait) = 0;
  // Makes a reap() that waits, or else the next one that would, return at once, maybe with nothing. On any thread.
  virtual void interrupt() noexcept = 0;
};

class kernel {
 public:
  virtual ~kernel() = default;

  // --- files. flags as for open(2); O_CLOEXEC is added. A regular file that another process holds a lease on is waited for, also under
  // O_NONBLOCK, which then only keeps an open from waiting for the other end of a FIFO.
  virtual result<int> open(const std::string& path, int flags, unsigned mode) = 0;
  // Opens the file behind fd anew, with other flags, through /proc/self/fd. would_block where fd itself holds a lease that this would
  // break.
  virtual result<int> reopen(int fd, int flags) = 0;
  // A second descriptor of the same open file, with O_CLOEXEC: closing fd leaves it open. Its number is above those of the standard
  // streams.
  virtual result<int> duplicate(int fd) = 0;
  // fd is the kernel's from then on. Where closing it would drop record locks of this process, it is kept open (see
  // sys/kept_descriptors.hpp). out_of_memory: it cannot be kept, and stays open and the caller's.
  virtual status close(int fd) = 0;
  virtual result<file_info> describe(int fd) = 0;
  virtual result<int> descriptor_flags(int fd) = 0;  // F_GETFL
  virtual result<std::uint64_t> file_size(int fd) = 0;
  // One system call each, EINTR retried: may be short.
  virtual result<std::size_t> pread(int fd, void* target, std::size_t length, std::uint64_t offset) = 0;
  virtual result<std::size_t> pwrite(int fd, const void* source, std::size_t length, std::uint64_t offset) = 0;
  // The same through the page cache, in which what they bring does not stay: it goes once it has been read, or is on the disk
  // (RWF_DONTCACHE, Linux 6.14). errc::unsupported where the kernel or the file system has no such way, and then nothing has moved.
  virtual result<std::size_t> pread_uncached(int fd, void* target, std::size_t length, std::uint64_t offset) = 0;
  virtual result<std::size_t> pwrite_uncached(int fd, const void* source, std::size_t length, std::uint64_t offset) = 0;
  // Bytes of the range in the page cache, to the page. cachestat(2) (Linux 6.5), else mincore on a mapping. Both tell only who may write
  // the file; to others a range of at least 1 MiB is estimated from samples: 0 and length say that all of them agree (sys/residency.hpp).
  // errc::unsupported where nothing is known.
  virtual result<std::uint64_t> resident_bytes(int fd, std::uint64_t offset, std::uint64_t length) = 0;
  // A hint (sys/cache_fill.hpp): what it does not bring, a read does.
  virtual status read_into_cache(int fd, std::uint64_t offset, std::uint64_t length) = 0;
  // Has the kernel begin to read the range into the page cache; does not wait for it. A hint.
  virtual void read_ahead(int /*fd*/, std::uint64_t /*offset*/, std::uint64_t /*length*/) noexcept {}
  // The most bytes that the file system of a device (file_info::device) asks its server for in one read; 0: not known. Reads a file of
  // /proc.
  virtual std::uint64_t most_read_at_once(std::uint64_t /*device*/) { return 0; }
  virtual status drop_cache(int fd, std::uint64_t offset, std::uint64_t length) = 0;  // POSIX_FADV_DONTNEED
  virtual status sync_data(int fd) = 0;
  virtual status truncate(int fd, std::uint64_t size_bytes) = 0;

  // --- memory
  // MAP_SHARED, PROT_READ, MAP_POPULATE. offset is a multiple of the page size. Anything else cannot be registered with the CUDA driver:
  // MAP_PRIVATE hangs and a writable mapping of ext4 is refused (driver 580).
  virtual result<void*> map_file(int fd, std::uint64_t offset, std::size_t length) = 0;
  // Zeroed anonymous memory, aligned to 2 MiB and advised huge, touched, preferably on numa_node (-1: anywhere).
  virtual result<void*> map_memory(std::size_t length, int numa_node) = 0;
  virtual status unmap(void* base, std::size_t length) = 0;

  // How much memory there is for this process. Reads small files of /proc and of the cgroups. unsupported where they do not say.
  virtual result<memory_state> memory_now() = 0;

  // --- rings and the machine
  // errc::unsupported or permission_denied where io_uring is missing, disabled or denied by seccomp.
  virtual result<std::unique_ptr<ring>> make_ring(unsigned entries) = 0;
  // The NUMA node that the calling thread runs on; -1 where the machine has only one, or the kernel does not say. Some 20 ns.
  virtual int current_node() noexcept { return -1; }
  // The node that the page of an address lies on; -1 likewise, and where it lies on none yet. Asks the kernel.
  virtual int node_of_memory(const void* /*address*/) noexcept { return -1; }
  virtual unsigned usable_cores() = 0;  // affinity mask and cgroup quota, at least 1
  // What all processes have used the machine's cores for. Reads a file of /proc, which takes 20 us, or 1 ms where there are hundreds of
  // cores.
  virtual core_use core_use_now() noexcept { return {}; }
  virtual pci_device describe_pci(const std::string& address) = 0;  // see sys/pci.hpp
  virtual std::vector<std::string> pci_addresses() = 0;
  virtual bool path_exists(const std::string& path) = 0;

  // File systems (st_dev) that have refused such a call: they are not asked again.
  [[nodiscard]] refusals& without_uncached() noexcept { return without_uncached_; }

 private:
  refusals without_uncached_;
};

// The real one.
std::shared_ptr<kernel> make_kernel();

}  // namespace penstock::sys
