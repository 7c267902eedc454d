#include "base/no_memory.hpp"

#include <cxxabi.h>

#include <array>
#include <cstddef>
#include <cstdlib>

namespace penstock {

namespace {

[[gnu::tls_model("initial-exec")]] thread_local bool is_prepared = false;  // NOLINT(cppcoreguidelines-avoid-non-const-global-variables)

// What the loader allocates for the variables of a library in this thread, and for its table of them, is small. Blocks of these sizes that
// are freed stay in the thread's own cache of malloc, where no other thread can take them.
constexpr std::size_t smallest_block = 16;
constexpr std::size_t largest_block = 1024;

// For a table that is larger than these blocks. Other threads may take it before the loader does.
constexpr std::size_t rarely_needed = std::size_t{1} << 20;

bool fill_cache_of_thread() noexcept {
  std::array<void*, largest_block / smallest_block> blocks{};
  void* volatile const spare = std::malloc(rarely_needed);
  std::free(spare);
  bool filled = spare != nullptr;
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    // volatile: a compiler may leave out what is freed unused.
    void* volatile const made = std::malloc((i + 1) * smallest_block);
    blocks[i] = made;
    filled = filled && made != nullptr;
  }
  for (void* each : blocks) std::free(each);
  return filled;
}

}  // namespace

bool prepare_to_throw() noexcept {
  if (is_prepared) return true;
  if (!fill_cache_of_thread()) return false;
  // volatile: a compiler may leave out the call, which is declared to have no effect.
  [[maybe_unused]] void* volatile const kept = abi::__cxa_get_globals();
  is_prepared = true;
  return true;
}

}  // namespace penstock
