// Turns failed allocations into errc::out_of_memory without allocating. Such exceptions do not propagate any further.
#pragma once

#include <new>
#include <stdexcept>
#include <utility>

#include "penstock/status.hpp"

namespace penstock {

// Returns the out_of_memory status, which is created when the library is loaded. Copying it does not allocate.
const status& no_memory() noexcept;

// Makes libstdc++ reserve its per-thread memory for exceptions. Otherwise that memory is allocated at the thread's first throw. If memory
// has run out by then, glibc aborts the process if libstdc++ was loaded at run time. Returns false if there is no memory; this thread must
// then not throw.
bool prepare_to_throw() noexcept;

// Returns step(), or instead() if step() runs out of memory or is not run because it could not throw. std::length_error is treated as
// running out of memory.
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
