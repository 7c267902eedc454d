#include "base/no_memory.hpp"

#include <cxxabi.h>

#include <cstdlib>

namespace penstock {

namespace {

[[gnu::tls_model("initial-exec")]] thread_local bool is_prepared = false;  // NOLINT(cppcoreguidelines-avoid-non-const-global-variables)

// Far more than glibc needs for a library's variables, because other threads may allocate memory between the check and the use.
constexpr std::size_t more_than_enough = std::size_t{1} << 20;

}  // namespace

bool prepare_to_throw() noexcept {
  if (is_prepared) return true;
  // volatile: otherwise the compiler may remove this unused allocation and the call below, which is declared to have no side effects.
  void* volatile const spare = std::malloc(more_than_enough);
  if (spare == nullptr) return false;
  std::free(spare);
  [[maybe_unused]] void* volatile const kept = abi::__cxa_get_globals();
  is_prepared = true;
  return true;
}

}  // namespace penstock
