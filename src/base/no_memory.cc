#include "base/no_memory.hpp"

#include <cxxabi.h>

#include <array>
#include <cstdlib>

namespace penstock {

namespace {

[[gnu::tls_model("initial-exec")]] thread_local bool is_prepared = false;  // NOLINT(cppcoreguidelines-avoid-non-const-global-variables)

// Far more than glibc needs for a library's variables, because other threads may allocate memory between the check and the use.
constexpr std::size_t more_than_enough = std::size_t{1} << 20;

// glibc keeps small freed pieces for the thread that freed them, so no other thread takes them between the check and the use. libstdc++'s
// variables fit into one of these.
constexpr std::array<std::size_t, 8> small_pieces = {16, 32, 48, 64, 80, 96, 112, 128};

// volatile: otherwise the compiler may remove allocations that are not used.
bool is_there_memory() noexcept {
  std::array<void* volatile, small_pieces.size() + 1> spare{};
  for (std::size_t i = 0; i < small_pieces.size(); ++i) spare[i] = std::malloc(small_pieces[i]);
  spare.back() = std::malloc(more_than_enough);
  bool all = true;
  for (void* each : spare) {
    all = all && each != nullptr;
    std::free(each);
  }
  return all;
}

}  // namespace

bool prepare_to_throw() noexcept {
  if (is_prepared) return true;
  if (!is_there_memory()) return false;
  // volatile: otherwise the compiler may remove the call, which is declared to have no side effects.
  [[maybe_unused]] void* volatile const kept = abi::__cxa_get_globals();
  is_prepared = true;
  return true;
}

}  // namespace penstock
