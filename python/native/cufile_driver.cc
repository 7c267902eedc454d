#include "cufile_driver.hpp"

#include <fcntl.h>
#include <nanobind/stl/string_view.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "cufile/addresses.hpp"
#include "cufile/cufile.h"
#include "cufile/driver.hpp"
#include "cufile/errors.hpp"
#include "errors.hpp"
#include "file.hpp"
#include "gil.hpp"

namespace penstock::python {

namespace {

using namespace nb::literals;
using cufile::buffer_use;
using cufile::counted;
using cufile::counters;

const void* at(std::uint64_t address) { return reinterpret_cast<const void*>(address); }

cufile::driver& cufile_now() { return cufile::driver::current(); }

// The error numbers of cuFile and CUDA.
nb::tuple told(CUfileError_t outcome) { return nb::make_tuple(static_cast<int>(outcome.err), static_cast<int>(outcome.cu_err)); }

nb::tuple use_driver() {
  const auto outcome = [] {
    const without_gil unlocked;
    return cufile::guarded([] { return cufile_now().open_if_closed(); });
  }();
  return told(outcome);
}

CUfileHandle_t handle_at(std::uint64_t number) { return reinterpret_cast<CUfileHandle_t>(number); }

// Also returns the handle, and the reason if the file was refused. Not counted here: the caller counts it.
nb::tuple register_file(int descriptor) {
  CUfileHandle_t handle = nullptr;
  status reason;
  const auto outcome = [&] {
    const without_gil unlocked;
    return cufile::guarded([&] {
      if (const auto opened = cufile_now().open_if_closed(); opened.err != CU_FILE_SUCCESS) return opened;
      return cufile_now().register_file(descriptor, &handle, false, &reason);
    });
  }();
  return nb::make_tuple(static_cast<int>(outcome.err), static_cast<int>(outcome.cu_err), reinterpret_cast<std::uintptr_t>(handle),
                        reason.ok() ? nb::none() : make_error(reason));
}

bool deregister_file(std::uint64_t handle) {
  const without_gil unlocked;
  return cufile_now().release_file(handle_at(handle));
}

// Keeps the GIL, because it only looks up the handle.
bool is_file(std::uint64_t handle) { return static_cast<bool>(cufile_now().find_file(handle_at(handle))); }

// The File does not hold the registration, which would make deregistering it wait for Python's garbage collector: it shares the file, which
// the registration closes.
nb::object file_of(std::uint64_t handle) {
  std::shared_ptr<file> target;
  int flags = -1;
  if (const auto used = cufile_now().find_file(handle_at(handle))) {
    target = used->target;
    flags = ::fcntl(target->descriptor().value_or(-1), F_GETFL);
  }
  if (flags < 0) return nb::none();
  const int access = flags & O_ACCMODE;
  const char* const mode = access == O_RDONLY ? "r" : access == O_WRONLY ? "w" : "r+";
  auto name = path_object(target->path());
  return nb::make_tuple(nb::cast(python_file(std::move(target), std::move(name), mode)), flags);
}

// flags: from penstock.cufile, already validated.
nb::tuple register_one_way(std::uint64_t base, std::uint64_t length, unsigned flags) {
  const auto outcome = [&] {
    const without_gil unlocked;
    return cufile::guarded([&] {
      if (const auto opened = cufile_now().open_if_closed(); opened.err != CU_FILE_SUCCESS) return opened;
      return cufile_now().register_buffer(at(base), length, static_cast<buffer_use>(flags));
    });
  }();
  return told(outcome);
}
static_assert(static_cast<int>(buffer_use::reads_of_files) == 1 && static_cast<int>(buffer_use::writes_to_files) == 2);

// Keeps the GIL, because it checks only a few pages.
bool is_reachable(std::uint64_t address, std::uint64_t length, bool writable) {
  return writable ? cufile::is_writable(at(address), length) : cufile::is_readable(at(address), length);
}

// Keeps the GIL, because the lock is held only for a lookup.
int buffer_fault(std::uint64_t base, std::int64_t offset, std::uint64_t length, bool is_write) {
  return cufile_now().memory().fault({at(base), offset, length}, is_write);
}

// Counts a read or write that bypassed the C functions as those would count it.
void count_transfer(std::uint64_t address, bool is_write, std::uint64_t bytes_done, bool failed, std::int64_t took_ns, bool is_vector) {
  auto& statistics = cufile_now().stats();
  if (!statistics.on()) return;
  const without_gil unlocked;
  const auto engine = engine::shared();
  if (!engine) return;
  const io_result outcome{bytes_done, failed ? status(errc::io, "counted") : status()};
  const auto began = counters::clock::now() - std::chrono::nanoseconds(took_ns);
  statistics.count_transfer({.gpu = statistics.gpu_of(*engine, at(address)), .is_write = is_write}, outcome, began);
  if (is_vector) statistics.count_vector(is_write, outcome, began);
}

void count_call(std::string_view what, bool ok) {
  const auto kind = what == "handle_register"     ? counted::handle_register
                    : what == "handle_deregister" ? counted::handle_deregister
                    : what == "buf_register"      ? counted::buffer_register
                                                  : counted::buffer_deregister;
  (void)cufile_now().counted_as(kind, cufile::answer(ok ? CU_FILE_SUCCESS : CU_FILE_INTERNAL_ERROR));
}

}  // namespace

void add_cufile_driver(nb::module_& module) {
  module.def("_cufile_use", &use_driver, "Opens the cuFile driver if it is closed. Returns cuFile's and CUDA's error numbers.");
  module.def(
      "_cufile_opening", [] { return cufile_now().opening(); },
      "Returns a number unique to this opening of the driver; 0 while it is closed.");
  module.def("_cufile_register_file", &register_file, "descriptor"_a,
             "Registers a duplicate of the descriptor without counting it. Returns cuFile's and CUDA's error numbers, the handle, and the\n"
             "penstock.Error that explains a refusal, or None.");
  module.def("_cufile_release_file", &deregister_file, "handle"_a,
             "Deregisters a file without counting it, once its requests are complete. Returns False for any other number.");
  module.def("_cufile_is_file", &is_file, "handle"_a, "Returns whether this is the handle of a registered file.");
  module.def(
      "_cufile_file", &file_of, "handle"_a,
      "Returns a File over the registered file, and the flags that it was opened with; None for any other number. Once the file has\n"
      "been deregistered, requests on the File raise penstock.Error (closed).");
  module.def("_cufile_register_buffer", &register_one_way, "base"_a, "length"_a, "flags"_a,
             "Registers memory for both directions (0), for file reads (1) or for file writes (2), without counting it. Returns\n"
             "cuFile's and CUDA's error numbers.");
  module.def("_cufile_reachable", &is_reachable, "address"_a, "length"_a, "writable"_a,
             "Returns whether the range is memory of this process that can be read (or also written).");
  module.def("_cufile_buffer_fault", &buffer_fault, "base"_a, "offset"_a, "length"_a, "is_write"_a,
             "Returns cuFile's number for why registered memory may not be used in this way; 0 if it may.");
  module.def(
      "_cufile_counts", [] { return cufile_now().stats().on(); }, "Returns whether cuFile's statistics are on.");
  module.def("_cufile_count", &count_transfer, "address"_a, "is_write"_a, "bytes_done"_a, "failed"_a, "took_ns"_a, "is_vector"_a,
             "Counts a read or write of memory at an address in cuFile's statistics, if they are on.");
  module.def("_cufile_count_call", &count_call, "what"_a, "ok"_a,
             "Counts a call that bypassed the C interface: handle_register, handle_deregister, buf_register or buf_deregister.");
}

}  // namespace penstock::python
