#include "failing_new.hpp"

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)

#include <cstddef>
#include <cstdlib>
#include <new>

// In its own file, so that the compiler cannot inline one of a pair and not the other.
void* operator new(std::size_t bytes) {
  namespace own = penstock::testing::failing_new;
  ++own::count;
  if (own::allowed == 0) throw std::bad_alloc();
  if (own::allowed > 0) --own::allowed;
  if (void* made = std::malloc(bytes)) return made;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t /*bytes*/) noexcept { std::free(memory); }

#endif
