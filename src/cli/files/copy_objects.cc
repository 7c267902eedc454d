#include "cli/files/copy_objects.hpp"

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#include "bench/machine.hpp"
#include "cli/common/interrupt.hpp"

namespace penstock::cli {
namespace {

constexpr std::size_t most_at_once = 64;

// Each small object is kept in memory as a whole; together they may use at most a quarter of the memory still available to this process or
// its container.
std::size_t threads_for(std::span<const object_copy* const> small) {
  constexpr std::uint64_t share = 4;
  std::uint64_t largest = 1;
  for (const object_copy* each : small) largest = std::max(largest, each->from.size.value_or(0));
  const std::uint64_t fit = bench::available_memory().value_or(0) / share / largest;
  return std::clamp<std::size_t>(fit, 1, std::min(most_at_once, small.size()));
}

}  // namespace

void copy_objects(const engine& owner, std::span<const object_copy> all, const folder_tree& to, const copy_options& how,
                  const std::function<void(const object_copy&, const result<copied_file>&)>& told) {
  std::mutex lock;
  const auto copy = [&](const object_copy& each) {
    auto folder = to.enter(each.to.folder);
    const auto copied = folder ? copy_object(owner, each.from, each.to.path, how, folder->get()) : result<copied_file>(folder.error());
    const std::lock_guard guard(lock);
    told(each, copied);
  };
  std::vector<const object_copy*> small, large;
  for (const object_copy& each : all) (each.from.size.value_or(small_object) < small_object ? small : large).push_back(&each);
  std::atomic<std::size_t> next{0};
  std::exception_ptr failure;  // thrown by told(), which may print
  const auto work = [&] {
    try {
      for (auto i = next++; i < small.size() && !interrupted(); i = next++) copy(*small[i]);
    } catch (...) {
      next = small.size();
      const std::lock_guard guard(lock);
      failure = std::current_exception();
    }
  };
  std::vector<std::thread> threads;
  try {
    const std::size_t most = small.empty() ? 0 : threads_for(small);
    while (threads.size() < most) threads.emplace_back(work);
  } catch (const std::system_error&) {  // continue with the threads that started
  }
  if (threads.empty()) work();
  for (std::thread& each : threads) each.join();
  if (failure) std::rethrow_exception(failure);
  for (const object_copy* const each : large) {
    if (interrupted()) return;
    copy(*each);
  }
}

}  // namespace penstock::cli
