// What CUDA's driver library answers when a program starts it. It makes no context. Thread-safe.
#pragma once

#include <string>
#include <vector>

namespace penstock::machine {

struct cuda_gpu {
  std::string address;         // as in /sys/bus/pci: "0000:12:00.0"
  std::string capability;      // "9.0"
  bool lends_dma_bufs = true;  // false: the driver says that it does not
};

struct cuda_state {
  bool asked = false;
  int code = 0;         // of cuInit; 0: CUDA starts
  std::string error;    // "CUDA_ERROR_NO_DEVICE (100)"; or why the library cannot be loaded, with a code of -1
  std::string version;  // of CUDA, that the library serves: "13.0"
  std::vector<cuda_gpu> gpus;
};

// file: a libcuda.so.1. It stays loaded.
cuda_state ask_cuda(const std::string& file);

}  // namespace penstock::machine
