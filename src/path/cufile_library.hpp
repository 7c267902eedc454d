// NVIDIA's libcufile, opened at run time by its full path, and only on a machine that could use GPUDirect: with nvidia-fs loaded, or with
// the driver set up for P2PDMA. Its compatibility mode, which copies through host memory, is switched off, so that a file can be registered
// only if the drive can reach the GPU directly. Untested on hardware with nvidia-fs or P2PDMA: its behaviour there is taken from NVIDIA's
// GPUDirect Storage guides (CUDA 11.4 to 13.4).
// libcufile and its settings belong to the process. If the program uses the same library, it finds compatibility mode switched off. If it
// opened the library first, with that mode allowed, the direct path is unavailable here.
// Owned by the direct path of one engine. Thread-safe. Every member blocks, and requires that the context of its device memory is current
// on the calling thread (device::session::make_current).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "penstock/options.hpp"
#include "penstock/status.hpp"
#include "sys/kernel.hpp"

namespace penstock::path {

struct cufile_functions;

// A file registered with libcufile: CUfileHandle_t.
using cufile_handle = void*;

// Device memory as passed to libcufile: an offset from the base of a registration, or offset 0 from the memory's own address.
struct cufile_memory {
  std::byte* base = nullptr;
  std::uint64_t offset = 0;
};

class cufile_library {
 public:
  // Returns ok if this machine could have GPUDirect, without loading anything. Otherwise returns unsupported, which says what is missing.
  static status possible(sys::kernel& kernel);
  // Finds, loads and opens the library. file_name: its full name, or empty to search the standard places. parameters: set before the
  // library is opened. If neither nvidia-fs nor P2PDMA is available, nothing is loaded. Once loaded, the library stays in the process.
  // The error is a sentence that says why there is no GPU-direct path: unsupported, not_found, or libcufile's error (domain cufile).
  static result<std::unique_ptr<cufile_library>> load(sys::kernel& kernel, const std::string& file_name,
                                                      const cufile_parameters& parameters = {});
  cufile_library(const cufile_library&) = delete;
  cufile_library& operator=(const cufile_library&) = delete;
  // Closes the driver if load() opened it. Every handle must have been deregistered. Once exit() has started, neither this nor the members
  // below call libcufile (closed), because its own objects may already be destroyed.
  ~cufile_library();
  // Closes the driver now. Every handle must have been deregistered; the members below must not be used again. Errors: unsupported if the
  // program itself has opened the library, so that it stays open; libcufile's.
  status close();

  // Registers an open file; fd must stay open until deregister_file. Returns an error if libcufile cannot serve this file GPU-direct.
  result<cufile_handle> register_file(int fd);
  void deregister_file(cufile_handle handle);

  // Registers device memory, which must stay allocated until deregister_buffer(). Transfers to and from it then need no preparation each
  // time. The error says why libcufile refused; transfers still work without a registration.
  status register_buffer(std::byte* base, std::uint64_t bytes);
  void deregister_buffer(std::byte* base);

  // Transfers up to `bytes` between file_offset and device memory, which must stay valid until the call returns. Returns the number of
  // bytes transferred. Errors: libcufile's (domain cufile), or errno.
  result<std::size_t> read(cufile_handle handle, const cufile_memory& target, std::size_t bytes, std::uint64_t file_offset);
  result<std::size_t> write(cufile_handle handle, const cufile_memory& source, std::size_t bytes, std::uint64_t file_offset);

 private:
  explicit cufile_library(std::unique_ptr<cufile_functions> functions);
  void set(const cufile_parameters& parameters);
  status start(bool p2pdma, const std::string& file_name);
  status forbid_compatibility_mode(const std::string& file_name);

  std::unique_ptr<cufile_functions> functions_;
  bool opened_ = false;
};

}  // namespace penstock::path
