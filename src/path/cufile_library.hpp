// NVIDIA's own libcufile, opened at run time by its full path, and only on a machine where it can be GPU-direct: with nvidia-fs
// loaded, or with the driver set up for P2PDMA. Its compatibility mode, which copies through host memory, is switched off, so that a
// file registers only where the GPU really is read and written by the drive. Untested on hardware with nvidia-fs or P2PDMA: what is
// known of libcufile's manners there comes from NVIDIA's GPUDirect Storage guides (CUDA 11.4 to 13.4).
// libcufile and its settings belong to the process: a program that also uses the same library itself finds compatibility mode off, and one
// that has opened it first, with that mode allowed, has no direct path here.
// Owned by the direct path of one engine. Thread-safe. Every member blocks, and needs the context of the device memory that it works
// on current on the calling thread (device::session::make_current).
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

// A file that libcufile serves: CUfileHandle_t.
using cufile_handle = void*;

// Device memory as libcufile is told of it: an offset from the base of what was registered; of other memory, 0 from its own address.
struct cufile_memory {
  std::byte* base = nullptr;
  std::uint64_t offset = 0;
};

class cufile_library {
 public:
  // Whether this machine could have GPUDirect at all, asked without loading anything; unsupported says what is missing.
  static status possible(sys::kernel& kernel);
  // Finds, loads and opens the library. file_name: its full name, or empty to search the usual places. Errors are sentences that say
  // why there is no GPU-direct path: unsupported, not_found, or what libcufile answered (domain cufile). Nothing is loaded where neither
  // nvidia-fs nor P2PDMA is there. Once loaded, the library stays in the process.
  // parameters: handed to it before it is opened.
  static result<std::unique_ptr<cufile_library>> load(sys::kernel& kernel, const std::string& file_name,
                                                      const cufile_parameters& parameters = {});
  cufile_library(const cufile_library&) = delete;
  cufile_library& operator=(const cufile_library&) = delete;
  // Closes the driver if load() opened it; every handle is deregistered by now. Once exit() has begun nothing of libcufile is called any
  // more, here and below (closed): its own objects may be gone.
  ~cufile_library();

  // Registers an open file; fd stays open until deregister_file. An error says that libcufile cannot serve this file GPU-direct.
  result<cufile_handle> register_file(int fd);
  void deregister_file(cufile_handle handle);

  // Registers device memory, which stays allocated until deregister_buffer: transfers of it then need not be prepared each time. An error
  // says why libcufile would not; transfers go without.
  status register_buffer(std::byte* base, std::uint64_t bytes);
  void deregister_buffer(std::byte* base);

  // Moves up to bytes between file_offset and device memory; memory stays valid until return. Returns how many were moved. Errors: what
  // libcufile answered (domain cufile), or errno.
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
