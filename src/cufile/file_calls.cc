// The exported calls that register files and memory, and that read and write.
#include <algorithm>
#include <cerrno>
#include <limits>
#include <vector>

#include "cufile/addresses.hpp"
#include "cufile/cufile.h"
#include "cufile/driver.hpp"
#include "cufile/errors.hpp"
#include "cufile/raw.hpp"

namespace {

using penstock::errc;
using penstock::io_request;
using penstock::io_result;
using penstock::status;
using penstock::cufile::answer;
using penstock::cufile::counted;
using penstock::cufile::counters;
using penstock::cufile::driver;
using penstock::cufile::errno_of;
using penstock::cufile::guarded;
using penstock::cufile::is_aligned;
using penstock::cufile::is_readable;
using penstock::cufile::is_writable;
using penstock::cufile::raw;

CUfileError_t register_file(CUfileHandle_t* handle, const CUfileDescr_t* descriptor) {
  if (!is_writable(handle) || !is_readable(descriptor)) return answer(CU_FILE_INVALID_VALUE);
  if (raw(descriptor->type) != CU_FILE_HANDLE_TYPE_OPAQUE_FD) return answer(CU_FILE_IO_NOT_SUPPORTED);
  auto& library = driver::current();
  if (const auto opened = library.open_if_closed(); opened.err != CU_FILE_SUCCESS) return opened;
  return library.register_file(descriptor->handle.fd, handle);
}

CUfileError_t register_buffer(const void* base, std::size_t length) {
  if (base == nullptr || length == 0) return answer(CU_FILE_INVALID_VALUE);
  auto& library = driver::current();
  if (const auto opened = library.open_if_closed(); opened.err != CU_FILE_SUCCESS) return opened;
  return library.register_buffer(base, length);
}

ssize_t failed(int error) {
  errno = error;
  return -1;
}

ssize_t told(const io_result& outcome) { return outcome.ok() ? static_cast<ssize_t>(outcome.bytes_done) : failed(errno_of(outcome.error)); }

struct range {
  void* base;
  std::size_t size;
  off_t file_offset;
  off_t memory_offset;
};

// Returns the errno for arguments that are invalid for every file; 0 if they are valid.
int fault_of(const driver& library, const range& asked, bool is_write) {
  constexpr auto most = static_cast<std::size_t>(std::numeric_limits<ssize_t>::max());
  if (asked.base == nullptr) return EINVAL;
  if (asked.file_offset < 0) return CU_FILE_INVALID_VALUE;
  if (asked.memory_offset < 0) return CU_FILE_INTERNAL_ERROR;
  if (asked.size > most) return EINVAL;
  if (const auto fault = library.memory().fault({asked.base, asked.memory_offset, asked.size}, is_write); fault != CU_FILE_SUCCESS)
    return fault;
  if (library.refuses(asked.base)) return CU_FILE_CUDA_MEMORY_TYPE_INVALID;
  return 0;
}

status refused_arguments() { return {errc::invalid_argument, "refused"}; }

ssize_t transfer(CUfileHandle_t handle, const range& asked, bool is_write) {
  auto& library = driver::current();
  const auto used = library.find_file(handle);
  if (!used) return failed(CU_FILE_HANDLE_NOT_REGISTERED);
  const bool counting = library.stats().on();
  const auto began = counting ? counters::clock::now() : counters::clock::time_point();
  if (const int fault = fault_of(library, asked, is_write); fault != 0) {
    if (counting) library.stats().count_transfer({.is_write = is_write}, {0, refused_arguments()}, began);
    return failed(fault);
  }
  auto* const memory = static_cast<std::byte*>(asked.base) + asked.memory_offset;
  const bool aligned = is_aligned(memory, asked.size, asked.file_offset);
  const auto options = library.options(asked.size, is_write, aligned);
  const auto outcome = is_write ? used->target->write(memory, asked.size, asked.file_offset, options)
                                : used->target->read(memory, asked.size, asked.file_offset, options);
  if (counting) library.stats().count_transfer({library.stats().gpu_of(library.owner(), memory), is_write, aligned}, outcome, began);
  library.log_failure(is_write ? "cuFileWrite" : "cuFileRead", outcome.error);
  return told(outcome);
}

// Transfers one range of the file to or from several memory ranges; the pieces run as a batch. Counts bytes up to the first incomplete
// piece.
ssize_t transfer_pieces(CUfileHandle_t handle, const CUfileIOVec_t* pieces, std::size_t count, off_t file_offset, unsigned flags,
                        bool is_write) {
  constexpr std::size_t most_pieces = 1024;  // IOV_MAX
  auto& library = driver::current();
  const auto used = library.find_file(handle);
  if (!used) return failed(CU_FILE_HANDLE_NOT_REGISTERED);
  if (flags != 0 || file_offset < 0) return failed(CU_FILE_INVALID_VALUE);
  if (count > most_pieces || (count > 0 && !is_readable(pieces, count * sizeof *pieces))) return failed(EINVAL);
  std::vector<io_request> requests;
  std::size_t total = 0;
  for (std::size_t i = 0; i < count; ++i) {
    if (pieces[i].len == 0) continue;
    if (pieces[i].base == nullptr || __builtin_add_overflow(total, pieces[i].len, &total) ||
        total > static_cast<std::size_t>(std::numeric_limits<off_t>::max() - file_offset)) {
      return failed(EINVAL);
    }
    if (const auto fault = library.memory().fault({pieces[i].base, 0, pieces[i].len}, is_write); fault != CU_FILE_SUCCESS)
      return failed(fault);
    if (library.refuses(pieces[i].base)) return failed(CU_FILE_CUDA_MEMORY_TYPE_INVALID);
    requests.push_back(
        {used->target.get(), pieces[i].base, pieces[i].len, file_offset + static_cast<off_t>(total - pieces[i].len), is_write});
  }
  const auto began = counters::clock::now();
  io_result outcome;
  const bool aligned =
      std::ranges::all_of(requests, [](const io_request& each) { return is_aligned(each.memory, each.length, each.offset); });
  const auto ended = library.owner().submit(requests, library.options(total, is_write, aligned)).wait();
  for (std::size_t i = 0; i < ended.size(); ++i) {
    outcome.bytes_done += ended[i].bytes_done;
    outcome.direct_bytes += ended[i].direct_bytes;
    outcome.error = ended[i].error;
    if (!ended[i].ok() || ended[i].bytes_done < requests[i].length) break;
  }
  if (!requests.empty()) {
    const int gpu = library.stats().gpu_of(library.owner(), requests.front().memory);
    library.stats().count_transfer({gpu, is_write, aligned}, outcome, began);
    library.stats().count_vector(is_write, outcome, began);
  }
  library.log_failure(is_write ? "cuFileWritev" : "cuFileReadv", outcome.error);
  // As with readv(2), bytes moved before an error take precedence over the error.
  if (outcome.bytes_done > 0) return static_cast<ssize_t>(outcome.bytes_done);
  return told(outcome);
}

template <class Call>
ssize_t guarded_transfer(Call call) noexcept {
  try {
    return call();
  } catch (const std::bad_alloc&) {
    return failed(ENOMEM);
  } catch (const std::exception&) {
    return failed(CU_FILE_INTERNAL_ERROR);
  }
}

}  // namespace

CUfileError_t cuFileHandleRegister(CUfileHandle_t* handle, CUfileDescr_t* descriptor) {
  return guarded([&] { return driver::current().counted_as(counted::handle_register, register_file(handle, descriptor)); });
}

void cuFileHandleDeregister(CUfileHandle_t handle) {
  (void)guarded([&] {
    driver::current().deregister_file(handle);
    return answer(CU_FILE_SUCCESS);
  });
}

CUfileError_t cuFileBufRegister(const void* base, size_t length, int /*flags*/) {
  return guarded([&] { return driver::current().counted_as(counted::buffer_register, register_buffer(base, length)); });
}

CUfileError_t cuFileBufDeregister(const void* base) {
  return guarded([&] { return driver::current().counted_as(counted::buffer_deregister, driver::current().deregister_buffer(base)); });
}

ssize_t cuFileRead(CUfileHandle_t handle, void* base, size_t size, off_t file_offset, off_t memory_offset) {
  return guarded_transfer([&] { return transfer(handle, {base, size, file_offset, memory_offset}, false); });
}

ssize_t cuFileWrite(CUfileHandle_t handle, const void* base, size_t size, off_t file_offset, off_t memory_offset) {
  // The memory is only read; ranges for both directions share one type.
  return guarded_transfer([&] { return transfer(handle, {const_cast<void*>(base), size, file_offset, memory_offset}, true); });
}

ssize_t cuFileReadv(CUfileHandle_t handle, const CUfileIOVec_t* pieces, size_t count, off_t file_offset, unsigned flags) {
  return guarded_transfer([&] { return transfer_pieces(handle, pieces, count, file_offset, flags, false); });
}

ssize_t cuFileWritev(CUfileHandle_t handle, const CUfileIOVec_t* pieces, size_t count, off_t file_offset, unsigned flags) {
  return guarded_transfer([&] { return transfer_pieces(handle, pieces, count, file_offset, flags, true); });
}
