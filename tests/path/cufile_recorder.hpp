// A stand-in for NVIDIA's libcufile: a shared library of its own that moves bytes between files and device memory for real, with pread
// and pwrite and a copy function of the test, writes down each call, and fails as told.
// Built three times: whole, as of CUDA 11.4 (no parameters, old close), and with the mark of Penstock's own libcufile.
// For one test at a time; the calls of cuFile themselves are thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>

#include <sys/types.h>

namespace penstock::testing {

enum class cufile_call : std::uint8_t { open, close, register_file, deregister_file, register_buffer, deregister_buffer, read, write };

struct recorded_call {
  cufile_call call = cufile_call::open;
  int fd = -1;
  const void* memory = nullptr;
  std::uint64_t bytes = 0;
  std::int64_t file_offset = 0;
  std::int64_t memory_offset = 0;
  unsigned under_way = 0;  // transfers, when this was called
};

// What the stand-in shall do. Transfers are counted from 1; 0: none.
struct recorder_settings {
  void (*copy)(void* target, const void* source, std::size_t bytes) = nullptr;
  int open_code = 0;
  bool serves_files = true;              // GPU-direct; where not, files register in compatibility mode, or with code 5008
  bool compatibility_forced = false;     // by cufile.json
  std::uint32_t status_flags = 1U << 4;  // NVMe
  std::uint32_t control_flags = 0;
  const char* users_log_file = nullptr;  // CUFILE_LOGFILE_PATH
  int register_buffer_code = 0;
  unsigned fail_transfer = 0;
  ssize_t fail_result = -1;
  int fail_errno = 0;
  unsigned short_transfer = 0;
  std::size_t short_bytes = 0;
};

// The parameters as they stand.
struct recorder_state {
  int use_count = 0;
  unsigned under_way = 0;  // transfers
  bool compatibility_allowed = true;
  bool p2pdma = false;
  bool polls = false;
  std::size_t max_direct_io_kib = 0;
  char log_file[64] = "";
};

// What the program exits with when it calls the library after the library's destructors.
inline constexpr int called_too_late = 97;

extern "C" {
void recorder_reset();  // settings, state and calls
recorder_settings* recorder_change();
void recorder_set_copy(void (*copy)(void* target, const void* source, std::size_t bytes));
recorder_state recorder_look();
// Copies the first `capacity` calls to out; returns how many there are.
std::size_t recorder_calls(recorded_call* out, std::size_t capacity);
}

}  // namespace penstock::testing
