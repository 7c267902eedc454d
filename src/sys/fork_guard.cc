#include "sys/fork_guard.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include "sys/page_size.hpp"

namespace penstock::sys {

fork_guard::fork_guard() : process_(getpid()) {
  void* page = mmap(nullptr, page_size(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) return;
  if (madvise(page, page_size(), MADV_WIPEONFORK) != 0) {
    munmap(page, page_size());
    return;
  }
  page_ = static_cast<volatile int*>(page);
  *page_ = 1;
}

fork_guard::~fork_guard() {
  if (page_ != nullptr) munmap(const_cast<int*>(page_), page_size());
}

bool fork_guard::forked() const noexcept { return page_ != nullptr ? *page_ == 0 : getpid() != process_; }

}  // namespace penstock::sys
