#include "cli/common/at_once.hpp"

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>

#include "base/crew.hpp"
#include "bench/machine.hpp"
#include "cli/common/interrupt.hpp"

namespace penstock::cli {

std::size_t steps_at_once(std::uint64_t bytes_each, std::size_t most) {
  constexpr std::uint64_t share = 4;
  const std::uint64_t fit = bench::available_memory().value_or(0) / share / std::max<std::uint64_t>(bytes_each, 1);
  return std::clamp<std::uint64_t>(fit, 1, most);
}

void run_at_once(std::size_t count, std::size_t threads, const std::function<void(std::size_t)>& step) {
  std::atomic<std::size_t> next{0};
  std::mutex lock;
  std::exception_ptr failure;  // the first one; guarded by lock
  const auto work = [&](bool /*is_caller*/) {
    const auto i = next++;
    if (i >= count || interrupted()) return false;
    try {
      step(i);
    } catch (...) {
      next = count;
      const std::lock_guard guard(lock);
      if (!failure) failure = std::current_exception();
    }
    return true;
  };
  run_in_crew(static_cast<unsigned>(std::min(threads, count)), work);
  if (failure) std::rethrow_exception(failure);
}

}  // namespace penstock::cli
