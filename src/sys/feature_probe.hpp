// Finds out which system calls this process may make by invoking them without side effects. Thread-safe.
#pragma once

#include <string>

namespace penstock::sys {

// The errno of each call; 0 if it works, -1 if it was not tried.
struct kernel_features {
  int cachestat = -1;
  int io_uring = -1;
  int memfd = -1;
  int vm_readv = -1;  // process_vm_readv, tried on this process itself: a profile denies that too
  int dma_buf = -1;   // registering dma-bufs with an io_uring; not tried without io_uring
};

kernel_features probe_kernel();
// The same with other call numbers, for tests: an unassigned number returns ENOSYS.
struct call_numbers {
  long cachestat, io_uring_setup, memfd_create, process_vm_readv;
};
kernel_features probe_kernel(const call_numbers& calls);

}  // namespace penstock::sys
