// Turns failed allocations into errc::out_of_memory without allocating. Exceptions end here and go no further up.
#pragma once

#include <new>
#include <stdexcept>
#include <utility>

#include "penstock/status.hpp"

namespace penstock {

// Made when the library is loaded; copying it does not allocate.
const status& no_memory() noexcept;

// Makes libstdc++ reserve its per-thread memory for exceptions. Otherwise it allocates that memory when the thread first throws, when
// memory has run out, and glibc then ends the process if libstdc++ was loaded at run time. Returns false if there is no memory; this thread
// must then not throw.
bool prepare_to_throw() noexcept;

// Returns step(), or instead() if step runs out of memory or cannot start because it could not throw. std::length_error counts as running
// out of memory.
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
