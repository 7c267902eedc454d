// How outcomes are told to cuFile's callers. Two conventions: most calls return a CUfileError_t; cuFileRead and its kin return -1 with
// errno set, where errno is either a system error or one of the CU_FILE_ codes (as NVIDIA's library does, unlike its reference, which says
// that the code is returned negated: clients handle both).
#pragma once

#include <exception>
#include <new>

#include "cufile/cufile.h"
#include "penstock/status.hpp"

namespace penstock::cufile {

inline CUfileError_t answer(CUfileOpError code) noexcept { return {code, static_cast<CUresult>(0)}; }

// The code that fits an error of the engine, with CUDA's own number beside it where CUDA reported it.
CUfileError_t answer(const status& outcome) noexcept;

// What errno is set to for a failed transfer: the system's number where the system reported it, else a CU_FILE_ code or a plain errno.
int errno_of(const status& outcome) noexcept;

// Runs call and returns its answer. Exceptions end here: none may pass through a C caller.
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
