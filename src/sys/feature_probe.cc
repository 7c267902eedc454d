#include "sys/feature_probe.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdint>

#include "sys/dma_buf.hpp"
#include "sys/kernel.hpp"

namespace penstock::sys {

namespace {

// The same on all architectures with unified numbering. Older headers lack these numbers.
constexpr long cachestat_number = 451;
constexpr long io_uring_setup_number = 425;

int close_and_tell(long fd) {
  if (fd < 0) return errno;
  ::close(static_cast<int>(fd));
  return 0;
}

// Tries the call on a new file that this process owns, because on other files it is allowed only for callers with write permission.
int probe_cachestat(long number) {
  struct {
    std::uint64_t offset = 0, length = 1;
  } range;
  std::array<std::uint64_t, 5> told{};
  const int fd = ::memfd_create("penstock-probe", MFD_CLOEXEC);
  if (fd < 0) return -1;
  const int error = ::syscall(number, fd, &range, told.data(), 0U) == 0 ? 0 : errno;
  ::close(fd);
  return error;
}

int probe_io_uring(long number) {
  std::array<std::uint32_t, 30> parameters{};  // struct io_uring_params
  return close_and_tell(::syscall(number, 1U, parameters.data()));
}

int probe_dma_buf() {
  const auto kernel = make_kernel();
  if (!kernel->make_ring(1)) return -1;
  const auto known = dma_bufs_known(*kernel);
  return known.ok() ? 0 : known.domain() == error_domain::os ? known.native() : -1;
}

int probe_vm_readv(long number) {
  char from = 'x';
  char to = 0;
  const iovec local{&to, 1};
  const iovec remote{&from, 1};
  return ::syscall(number, ::getpid(), &local, 1UL, &remote, 1UL, 0UL) == 1 ? 0 : errno;
}

}  // namespace

kernel_features probe_kernel(const call_numbers& calls) {
  kernel_features found;
  found.cachestat = probe_cachestat(calls.cachestat);
  found.io_uring = probe_io_uring(calls.io_uring_setup);
  found.memfd = close_and_tell(::syscall(calls.memfd_create, "penstock-probe", static_cast<unsigned>(MFD_CLOEXEC)));
  found.vm_readv = probe_vm_readv(calls.process_vm_readv);
  return found;
}

kernel_features probe_kernel() {
  auto found = probe_kernel({cachestat_number, io_uring_setup_number, SYS_memfd_create, SYS_process_vm_readv});
  found.dma_buf = probe_dma_buf();
  return found;
}

}  // namespace penstock::sys
