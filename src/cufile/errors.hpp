// Translates errors for cuFile callers. Most calls return a CUfileError_t. cuFileRead and related calls return -1 and set errno to a system
// error or one of the CU_FILE_ codes, like NVIDIA's library. (NVIDIA's reference says that they return the negated code; clients handle
// both.)
#pragma once

#include <exception>
#include <new>

#include "cufile/cufile.h"
#include "penstock/status.hpp"

namespace penstock::cufile {

inline CUfileError_t answer(CUfileOpError code) noexcept { return {code, static_cast<CUresult>(0)}; }

// Returns the code for an engine error, with CUDA's own number if CUDA reported the error.
CUfileError_t answer(const status& outcome) noexcept;

// Returns the errno for a failed transfer: the system's error number if the system reported the error, otherwise a CU_FILE_ code or a plain
// errno.
int errno_of(const status& outcome) noexcept;

// Runs call and returns its result. Catches all exceptions, because none may propagate into a C caller.
template <class Call>
CUfileError_t guarded(Call call) noexcept {
  try {
    return call();
  } catch (const std::bad_alloc&) {
    return answer(CU_FILE_NOMEM_ERROR);
  } catch (const std::exception&) {
    return answer(CU_FILE_INTERNAL_ERROR);
  }
}

}  // namespace penstock::cufile
