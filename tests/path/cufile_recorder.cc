// Compiled only into the stand-in libraries: see cufile_recorder.hpp. The functions have cuFile's names and layouts.
#include "path/cufile_recorder.hpp"

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <mutex>
#include <set>
#include <vector>

#include <unistd.h>

#define RECORDER_EXPORT extern "C" __attribute__((visibility("default")))

namespace penstock::testing {

namespace {

struct outcome {
  int code;
  int cuda_code;
};

struct description {
  int type;
  union {
    int fd;
    void* handle;
  };
  const void* operations;
};

struct properties {  // 56 bytes, as in CUDA 11.6 and later
  std::uint32_t major_version;
  std::uint32_t minor_version;
  std::uint64_t poll_threshold;
  std::uint64_t max_direct_io;
  std::uint32_t status_flags;
  std::uint32_t control_flags;
  std::array<std::uint32_t, 6> rest;
};
static_assert(sizeof(properties) == 56);

constexpr int not_initialized = 5001;
constexpr int io_not_supported = 5008;
constexpr int invalid_value = 5022;
constexpr int memory_already_registered = 5023;
constexpr int already_open = 5026;
constexpr int handle_not_registered = 5027;
constexpr int handle_already_registered = 5028;

struct recorder {
  std::mutex lock;
  recorder_settings settings;
  recorder_state state;
  std::vector<recorded_call> calls;
  std::set<int*> handles;  // each holds its descriptor
  std::set<const void*> buffers;
  unsigned transfers = 0;
};

// As the real one has objects that go with the program. Who calls it afterwards is told by the program's exit status.
bool is_gone = false;
struct end_of_program {
  ~end_of_program() { is_gone = true; }
} const at_exit;

recorder& the() {
  static auto* const only = new recorder;
  if (is_gone) _exit(called_too_late);
  return *only;
}

bool known(recorder& my, void* handle) { return my.handles.count(static_cast<int*>(handle)) != 0; }

struct transfer_end {
  ~transfer_end() {
    const std::lock_guard guard(the().lock);
    --the().state.under_way;
  }
};

// True: this transfer fails, with *result. It is under way until a transfer_end goes.
bool begin_transfer(const recorded_call& call, void* handle, ssize_t* result, std::size_t* limit) {
  auto& my = the();
  const std::lock_guard guard(my.lock);
  my.calls.push_back(call);
  my.calls.back().under_way = my.state.under_way++;
  ++my.transfers;
  if (!known(my, handle)) {
    errno = handle_not_registered;
    *result = -1;
    return true;
  }
  my.calls.back().fd = *static_cast<int*>(handle);
  if (my.transfers == my.settings.fail_transfer) {
    errno = my.settings.fail_errno;
    *result = my.settings.fail_result;
    return true;
  }
  *limit = my.transfers == my.settings.short_transfer ? my.settings.short_bytes : call.bytes;
  return false;
}

}  // namespace

RECORDER_EXPORT void recorder_reset() {
  auto& my = the();
  const std::lock_guard guard(my.lock);
  my.settings = {};
  my.state = {};
  my.calls.clear();
  for (const int* handle : my.handles) delete handle;
  my.handles.clear();
  my.buffers.clear();
  my.transfers = 0;
}

RECORDER_EXPORT recorder_settings* recorder_change() { return &the().settings; }

RECORDER_EXPORT void recorder_set_copy(void (*copy)(void* target, const void* source, std::size_t bytes)) { the().settings.copy = copy; }

RECORDER_EXPORT recorder_state recorder_look() {
  auto& my = the();
  const std::lock_guard guard(my.lock);
  return my.state;
}

RECORDER_EXPORT std::size_t recorder_calls(recorded_call* out, std::size_t capacity) {
  auto& my = the();
  const std::lock_guard guard(my.lock);
  for (std::size_t i = 0; i < my.calls.size() && i < capacity; ++i) out[i] = my.calls[i];
  return my.calls.size();
}

RECORDER_EXPORT outcome cuFileDriverOpen() {
  auto& my = the();
  const std::lock_guard guard(my.lock);
  my.calls.push_back({.call = cufile_call::open});
  if (my.settings.open_code != 0) {
    my.state.compatibility_allowed = true;  // a failed open forgets parameters, as 1.15.1 does
    return {my.settings.open_code, 0};
  }
  ++my.state.use_count;
  return {0, 0};
}

#ifdef CUFILE_RECORDER_EARLY
RECORDER_EXPORT outcome cuFileDriverClose() {
#else
RECORDER_EXPORT outcome cuFileDriverClose_v2() {
#endif
  auto& my = the();
  const std::lock_guard guard(my.lock);
  my.calls.push_back({.call = cufile_call::close});
  if (my.state.use_count == 0) return {not_initialized, 0};
  --my.state.use_count;
  return {0, 0};
}

#ifndef CUFILE_RECORDER_EARLY
RECORDER_EXPORT long cuFileUseCount() {
  const std::lock_guard guard(the().lock);
  return the().state.use_count;
}
#endif

RECORDER_EXPORT outcome cuFileDriverGetProperties(properties* out) {
  auto& my = the();
  const std::lock_guard guard(my.lock);
  *out = {};
  out->status_flags = my.settings.status_flags;
  out->control_flags = my.settings.control_flags;
  return {0, 0};
}

RECORDER_EXPORT outcome cuFileHandleRegister(void** handle, description* of) {
  auto& my = the();
  const std::lock_guard guard(my.lock);
  my.calls.push_back({.call = cufile_call::register_file, .fd = of->fd});
  if (of->type != 1 || of->operations != nullptr) return {io_not_supported, 0};
  if (!my.settings.serves_files && !my.state.compatibility_allowed) return {io_not_supported, 0};
  for (const int* other : my.handles) {
    if (*other == of->fd) return {handle_already_registered, 0};
  }
  *handle = *my.handles.insert(new int(of->fd)).first;
  return {0, 0};
}

RECORDER_EXPORT void cuFileHandleDeregister(void* handle) {
  auto& my = the();
  const std::lock_guard guard(my.lock);
  auto* mine = static_cast<int*>(handle);
  my.calls.push_back({.call = cufile_call::deregister_file, .fd = known(my, handle) ? *mine : -1});
  if (my.handles.erase(mine) != 0) delete mine;
}

RECORDER_EXPORT outcome cuFileBufRegister(const void* base, std::size_t length, int /*flags*/) {
  auto& my = the();
  const std::lock_guard guard(my.lock);
  my.calls.push_back({.call = cufile_call::register_buffer, .memory = base, .bytes = length, .under_way = my.state.under_way});
  if (my.settings.register_buffer_code != 0) return {my.settings.register_buffer_code, 0};
  return {my.buffers.insert(base).second ? 0 : memory_already_registered, 0};
}

RECORDER_EXPORT outcome cuFileBufDeregister(const void* base) {
  auto& my = the();
  const std::lock_guard guard(my.lock);
  my.calls.push_back({.call = cufile_call::deregister_buffer, .memory = base, .under_way = my.state.under_way});
  return {my.buffers.erase(base) == 1 ? 0 : invalid_value, 0};
}

RECORDER_EXPORT ssize_t cuFileRead(void* handle, void* base, std::size_t bytes, off_t file_offset, off_t memory_offset) {
  ssize_t result = 0;
  std::size_t limit = 0;
  const recorded_call call{
      .call = cufile_call::read, .memory = base, .bytes = bytes, .file_offset = file_offset, .memory_offset = memory_offset};
  const transfer_end end;
  if (begin_transfer(call, handle, &result, &limit)) return result;
  const std::unique_ptr<char[]> block(new char[limit]);
  const auto got = pread(*static_cast<int*>(handle), block.get(), limit, file_offset);
  if (got > 0) the().settings.copy(static_cast<char*>(base) + memory_offset, block.get(), static_cast<std::size_t>(got));
  return got;
}

RECORDER_EXPORT ssize_t cuFileWrite(void* handle, const void* base, std::size_t bytes, off_t file_offset, off_t memory_offset) {
  ssize_t result = 0;
  std::size_t limit = 0;
  const recorded_call call{
      .call = cufile_call::write, .memory = base, .bytes = bytes, .file_offset = file_offset, .memory_offset = memory_offset};
  const transfer_end end;
  if (begin_transfer(call, handle, &result, &limit)) return result;
  const std::unique_ptr<char[]> block(new char[limit]);
  the().settings.copy(block.get(), static_cast<const char*>(base) + memory_offset, limit);
  return pwrite(*static_cast<int*>(handle), block.get(), limit, file_offset);
}

#ifndef CUFILE_RECORDER_EARLY
RECORDER_EXPORT outcome cuFileSetParameterSizeT(int key, std::size_t value) {
  auto& my = the();
  const std::lock_guard guard(my.lock);
  if (my.state.use_count > 0) return {already_open, 0};
  if (key == 5) my.state.max_direct_io_kib = value;
  return {0, 0};
}

RECORDER_EXPORT outcome cuFileSetParameterBool(int key, bool value) {
  auto& my = the();
  const std::lock_guard guard(my.lock);
  if (my.state.use_count > 0) return {already_open, 0};
  if (key == 1) my.state.compatibility_allowed = value;
  if (key == 0) my.state.polls = value;
  if (key == 7) my.state.p2pdma = value;
  return {0, 0};
}

RECORDER_EXPORT outcome cuFileGetParameterBool(int key, bool* value) {
  auto& my = the();
  const std::lock_guard guard(my.lock);
  if (key != 1 && key != 2) return {invalid_value, 0};
  *value = key == 1 ? my.state.compatibility_allowed : my.settings.compatibility_forced;
  return {0, 0};
}

RECORDER_EXPORT outcome cuFileSetParameterString(int key, const char* value) {
  auto& my = the();
  const std::lock_guard guard(my.lock);
  if (key != 1) return {invalid_value, 0};
  std::snprintf(my.state.log_file, sizeof my.state.log_file, "%s", value);
  return {0, 0};
}

RECORDER_EXPORT outcome cuFileGetParameterString(int key, char* value, int length) {
  auto& my = the();
  const std::lock_guard guard(my.lock);
  if (key != 1 || my.settings.users_log_file == nullptr) return {invalid_value, 0};
  std::snprintf(value, static_cast<std::size_t>(length), "%s", my.settings.users_log_file);
  return {0, 0};
}
#endif

#ifdef CUFILE_RECORDER_OWN
RECORDER_EXPORT void penstock_cufile_marker() {}
#endif

}  // namespace penstock::testing
