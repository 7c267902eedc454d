#include "cufile/errors.hpp"

#include <cerrno>

namespace penstock::cufile {

namespace {

CUfileOpError code_of(errc code) noexcept {
  switch (code) {
    case errc::ok:
      return CU_FILE_SUCCESS;
    case errc::invalid_argument:
      return CU_FILE_INVALID_VALUE;
    case errc::bad_memory:
      return CU_FILE_CUDA_POINTER_INVALID;
    case errc::permission_denied:
      return CU_FILE_PERMISSION_DENIED;
    case errc::not_a_file:
      return CU_FILE_INVALID_FILE_TYPE;
    case errc::io:
    case errc::no_space:
      return CU_FILE_IO_ERROR;
    case errc::out_of_memory:
      return CU_FILE_NOMEM_ERROR;
    case errc::closed:
      return CU_FILE_HANDLE_NOT_REGISTERED;
    case errc::unsupported:
      return CU_FILE_IO_NOT_SUPPORTED;
    case errc::not_found:
      return CU_FILE_DEVICE_NOT_FOUND;
    case errc::forked:
      return CU_FILE_DRIVER_NOT_INITIALIZED;
    case errc::device:
      return CU_FILE_CUDA_DRIVER_ERROR;
    case errc::would_block:
    case errc::cancelled:
    case errc::timed_out:
    case errc::internal:
      break;
  }
  return CU_FILE_INTERNAL_ERROR;
}

}  // namespace

CUfileError_t answer(const status& outcome) noexcept {
  if (outcome.domain() == error_domain::cuda && outcome.code() == errc::device) {
    return {CU_FILE_CUDA_DRIVER_ERROR, static_cast<CUresult>(outcome.native())};
  }
  return answer(code_of(outcome.code()));
}

int errno_of(const status& outcome) noexcept {
  // Return cuFile's code for I/O that the descriptor's access mode does not allow, and its errno for a range past an allocation.
  if (outcome.code() == errc::permission_denied) return CU_FILE_INVALID_FILE_OPEN_FLAG;
  if (outcome.code() == errc::bad_memory) return EIO;
  if (outcome.domain() == error_domain::os && outcome.native() > 0) return outcome.native();
  if (outcome.code() == errc::cancelled) return ECANCELED;
  if (outcome.code() == errc::timed_out) return ETIMEDOUT;
  return code_of(outcome.code());
}

}  // namespace penstock::cufile
