// Which system calls this process may make, by making them on nothing that matters. Thread-safe; leaves nothing behind.
#pragma once

#include <string>

namespace penstock::sys {

// The errno of a call: 0 where it works, -1 where nobody has asked.
struct kernel_features {
  int cachestat = -1;
  int io_uring = -1;
  int memfd = -1;
  int vm_readv = -1;  // process_vm_readv, on this process itself: a profile denies it there too
  int dma_buf = -1;   // registering dma-bufs with an io_uring; not asked where there is none
};

kernel_features probe_kernel();
// The same with the numbers of other calls, for tests: one that does not exist answers ENOSYS.
struct call_numbers {
  long cachestat, io_uring_setup, memfd_create, process_vm_readv;
};
kernel_features probe_kernel(const call_numbers& calls);

}  // namespace penstock::sys
