// The exported calls that run in CUDA stream order.
#include <atomic>
#include <memory>
#include <type_traits>

#include "cufile/addresses.hpp"
#include "cufile/cufile.h"
#include "cufile/driver.hpp"
#include "cufile/errors.hpp"

namespace {

using penstock::errc;
using penstock::error_domain;
using penstock::io_result;
using penstock::status;
using penstock::stream_request;
using penstock::cufile::answer;
using penstock::cufile::counters;
using penstock::cufile::driver;
using penstock::cufile::guarded;
using penstock::cufile::may_be_address;

static_assert(std::is_same_v<off_t, std::int64_t> && std::is_same_v<ssize_t, std::int64_t>, "pointers are passed through unchanged");

// Copies of the arguments that are promised not to change because the stream was registered with a fixed size or offset. They are copied at
// once, so that the caller's variables need not stay valid. If all are fixed, the engine copies them itself and reports the outcome early:
// as with NVIDIA's library, callers wait for the stream before they use the bytes.
struct snapshot {
  std::size_t size;
  off_t file_offset;
  off_t memory_offset;
};

// Returns the value for *bytes: a count, -1 for an I/O error, or a negated CU_FILE_ code for anything else.
ssize_t bytes_or_code(const io_result& outcome) {
  if (outcome.ok()) return static_cast<ssize_t>(outcome.bytes_done);
  if (outcome.error.domain() == error_domain::os) return -1;
  return -static_cast<ssize_t>(answer(outcome.error).err);
}

CUfileError_t refusal(const status& problem, const penstock::engine& owner) {
  if (problem.code() == errc::permission_denied) return answer(CU_FILE_INVALID_FILE_OPEN_FLAG);  // like cuFileRead's errno
  if (problem.code() != errc::unsupported) return answer(problem);
  const auto forced = owner.options().path;
  const bool by_path = forced != penstock::path_kind::automatic && forced != penstock::path_kind::staged;
  return answer(by_path ? CU_FILE_ASYNC_NOT_SUPPORTED : CU_FILE_CUDA_MEMORY_TYPE_INVALID);  // otherwise the memory is host memory
}

struct pointers {
  std::size_t* size;
  off_t* file_offset;
  off_t* memory_offset;
  ssize_t* bytes;
  [[nodiscard]] bool may_be_addresses() const {
    return may_be_address(size) && may_be_address(file_offset) && may_be_address(memory_offset) && may_be_address(bytes);
  }
};

CUfileError_t queue(CUfileHandle_t handle, void* base, const pointers& at, CUstream stream, bool is_write) {
  auto& library = driver::current();
  const auto used = library.find_file(handle);
  if (!used) return answer(CU_FILE_HANDLE_NOT_REGISTERED);
  if (base == nullptr || !at.may_be_addresses()) return answer(CU_FILE_INVALID_VALUE);
  if (!library.allows_streams()) return answer(CU_FILE_ASYNC_NOT_SUPPORTED);
  const unsigned flags = library.flags_of(stream);
  // Arguments that are not fixed are unknown until the stream reaches the operation.
  constexpr unsigned range = CU_FILE_STREAM_FIXED_BUF_OFFSET | CU_FILE_STREAM_FIXED_FILE_SIZE;
  if ((flags & range) == range && *at.memory_offset >= 0) {
    const auto fault = library.memory().fault({base, *at.memory_offset, *at.size}, is_write);
    if (fault != CU_FILE_SUCCESS) return answer(fault);
  }
  constexpr unsigned everything = range | CU_FILE_STREAM_FIXED_FILE_OFFSET;
  stream_request request;
  request.stream = stream;
  request.memory = base;
  request.constant_arguments = (flags & everything) == everything;
  request.told_early = request.constant_arguments;
  const auto fixed =
      request.constant_arguments ? nullptr : std::make_shared<snapshot>(snapshot{*at.size, *at.file_offset, *at.memory_offset});
  const auto is_kept = [&](unsigned flag) { return fixed != nullptr && (flags & flag) != 0; };
  request.length = is_kept(CU_FILE_STREAM_FIXED_FILE_SIZE) ? &fixed->size : at.size;
  request.offset = is_kept(CU_FILE_STREAM_FIXED_FILE_OFFSET) ? &fixed->file_offset : at.file_offset;
  request.memory_offset = is_kept(CU_FILE_STREAM_FIXED_BUF_OFFSET) ? &fixed->memory_offset : at.memory_offset;
  // The callback must not call the driver, so the GPU is looked up here.
  const int gpu = library.stats().gpu_of(library.owner(), base);
  const char* const name = is_write ? "cuFileWriteAsync" : "cuFileReadAsync";
  request.ended = [&library, name, fixed, gpu, bytes = at.bytes, is_write, began = counters::clock::now()](const io_result& outcome) {
    std::atomic_ref(*bytes).store(bytes_or_code(outcome), std::memory_order_release);  // the caller may poll it
    library.stats().count_transfer({gpu, is_write}, outcome, began);
    library.log_failure(name, outcome.error);
  };
  const auto queued = is_write ? used->target->write_on_stream(request) : used->target->read_on_stream(request);
  library.log_failure(name, queued);
  return queued.ok() ? answer(CU_FILE_SUCCESS) : refusal(queued, library.owner());
}

}  // namespace

CUfileError_t cuFileStreamRegister(CUstream stream, unsigned flags) {
  return guarded([&] {
    if (const auto opened = driver::current().open_if_closed(); opened.err != CU_FILE_SUCCESS) return opened;
    return driver::current().register_stream(stream, flags);
  });
}

CUfileError_t cuFileStreamDeregister(CUstream stream) {
  return guarded([&] { return driver::current().deregister_stream(stream); });
}

CUfileError_t cuFileReadAsync(CUfileHandle_t handle, void* base, size_t* size, off_t* file_offset, off_t* memory_offset, ssize_t* bytes,
                              CUstream stream) {
  return guarded([&] { return queue(handle, base, {size, file_offset, memory_offset, bytes}, stream, false); });
}

CUfileError_t cuFileWriteAsync(CUfileHandle_t handle, void* base, size_t* size, off_t* file_offset, off_t* memory_offset, ssize_t* bytes,
                               CUstream stream) {
  return guarded([&] { return queue(handle, base, {size, file_offset, memory_offset, bytes}, stream, true); });
}
