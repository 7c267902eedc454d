#include "sys/fork_guard.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <new>

#include "sys/page_size.hpp"

namespace penstock::sys {

constinit std::atomic<fork_guard::number*> fork_guard::page_of_process{nullptr};

namespace {

constinit std::atomic<std::uint32_t> last_number{0};  // NOLINT(cppcoreguidelines-avoid-non-const-global-variables): of all ancestors too

}  // namespace

// Never unmapped.
fork_guard::number* fork_guard::shared_page() noexcept {
  auto* known = page_of_process.load(std::memory_order_acquire);
  if (known != nullptr) return known;
  void* const page = mmap(nullptr, page_size(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) return nullptr;
  auto* const made = new (page) number(0);
  if (madvise(page, page_size(), MADV_WIPEONFORK) == 0 && page_of_process.compare_exchange_strong(known, made)) return made;
  munmap(page, page_size());
  return known;
}

fork_guard::fork_guard() : page_(shared_page()), process_(getpid()) {
  auto* const page = page_of_process.load(std::memory_order_acquire);
  if (page_ == nullptr) return;
  mine_ = page->load();
  if (mine_ != 0) return;
  const auto next = last_number.fetch_add(1) + 1;
  if (page->compare_exchange_strong(mine_, next)) mine_ = next;
}

bool fork_guard::forked() const noexcept {
  return page_ != nullptr ? page_->load(std::memory_order_relaxed) != mine_ : getpid() != process_;
}

void fork_guard::renew() noexcept {
  if (auto* const page = page_of_process.load(); page != nullptr) (void)madvise(page, page_size(), MADV_WIPEONFORK);
}

}  // namespace penstock::sys
