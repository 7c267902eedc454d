// One loading of a model into the memory of devices, from opening its files to the last byte. One thread; blocks for as long as that takes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "penstock/penstock.hpp"

namespace penstock::cli {

struct load_request {
  std::vector<std::string> files;    // files, indexes and folders
  std::vector<device_info> devices;  // each gets all of the model; one that comes twice gets it twice
  io_options io;
  bool verify = false;
};

struct loaded_file {
  std::string path, kind;
  std::uint64_t file_bytes = 0, tensor_bytes = 0;
  std::size_t tensors = 0;
  std::optional<std::uint64_t> cached_bytes;  // before it was read
};

// How a part of the files is read, and why.
struct load_way {
  std::string path, reason;
  std::uint64_t bytes = 0;
};

struct loaded_device {
  std::string name;
  std::uint64_t bytes = 0;
  double seconds = 0;         // from the beginning of the reading to the last byte of this device
  std::optional<bool> equal;  // with verify
};

struct load_pass {
  std::vector<loaded_file> files;
  std::vector<load_way> ways;  // of the first device, the longest first
  std::vector<std::string> remarks;
  std::vector<loaded_device> devices;
  std::uint64_t bytes = 0;  // of the model, once
  std::size_t tensors = 0;
  double open_seconds = 0;  // of the files and their headers
  double allocate_seconds = 0;
  double read_seconds = 0;      // of all devices
  double read_cpu_seconds = 0;  // likewise
  std::string path;             // that carried the bytes
  status error;                 // the rest is told as far as it is known
};

// Errors (in the result): those of model::open(); out_of_memory naming a device that the model does not fit into; of reading, naming file
// and tensor; cancelled after an interrupt; internal where the bytes differ.
load_pass load_once(const engine& owner, const load_request& wanted);

}  // namespace penstock::cli
