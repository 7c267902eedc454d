// What becomes of an allocation that fails: errc::out_of_memory, told without allocating. Exceptions end here, and nowhere above.
#pragma once

#include <new>
#include <stdexcept>
#include <utility>

#include "penstock/status.hpp"

namespace penstock {

// Made when the library is loaded; copying it allocates nothing.
const status& no_memory() noexcept;

// Has libstdc++ keep room for the exceptions of this thread. It would make it when the thread first throws, which is when memory has run
// out, and where libstdc++ was loaded at run time glibc ends the process then. False: there is no memory, and this thread must not throw.
bool prepare_to_throw() noexcept;

// What step returns, or what instead returns where step ran out of memory, or where it may not begin because it could not throw. A length
// that no container can have counts as that.
template <class Step, class Instead>
auto or_without_memory(Step&& step, Instead&& instead) -> decltype(step()) {
  if (!prepare_to_throw()) return instead();
  try {
    return step();
  } catch (const std::bad_alloc&) {
    return instead();
  } catch (const std::length_error&) {
    return instead();
  }
}

// The same for steps that return a status or a result.
template <class Step>
auto or_no_memory(Step&& step) -> decltype(step()) {
  return or_without_memory(std::forward<Step>(step), []() -> decltype(step()) { return no_memory(); });
}

}  // namespace penstock
