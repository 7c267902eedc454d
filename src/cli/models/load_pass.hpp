// Loads a model into device memory once, from opening its files to the last byte. One thread; blocks until the model is loaded.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "penstock/penstock.hpp"

namespace penstock::cli {

struct load_request {
  std::vector<std::string> files;    // files, indexes and folders
  std::vector<device_info> devices;  // each receives the whole model; a device listed twice receives it twice
  io_options io;
  bool verify = false;
};

struct loaded_file {
  std::string path, kind;
  std::uint64_t file_bytes = 0, tensor_bytes = 0;
  std::size_t tensors = 0;
  std::optional<std::uint64_t> cached_bytes;  // before the load
};

// The path that reads a part of the files, and the reason for it.
struct load_way {
  std::string path, reason;
  std::uint64_t bytes = 0;
};

struct loaded_device {
  std::string name;
  std::uint64_t bytes = 0;
  double seconds = 0;         // from the start of reading to the last byte for this device
  std::optional<bool> equal;  // with verify
};

struct load_pass {
  std::vector<loaded_file> files;
  std::vector<load_way> ways;  // for the first device, largest part first
  std::vector<std::string> remarks;
  std::vector<loaded_device> devices;
  std::uint64_t bytes = 0;  // size of the model; not multiplied by the number of devices
  std::size_t tensors = 0;
  double open_seconds = 0;  // time to open the files and read their headers
  double allocate_seconds = 0;
  double read_seconds = 0;      // for all devices
  double read_cpu_seconds = 0;  // for all devices
  std::string path;             // the path that transferred the bytes
  status error;                 // on error, the other fields contain what is known
};

// Errors (in the result): those of model::open(); out_of_memory (the message contains the device without room for the model); read errors
// (the message contains the file and the tensor); cancelled after an interrupt; internal if the bytes differ.
load_pass load_once(const engine& owner, const load_request& wanted);

}  // namespace penstock::cli
