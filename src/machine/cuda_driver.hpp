// Checks whether CUDA's driver library starts, without creating a context. Thread-safe.
#pragma once

#include <string>
#include <vector>

namespace penstock::machine {

struct cuda_gpu {
  std::string address;         // as in /sys/bus/pci: "0000:12:00.0"
  std::string capability;      // "9.0"
  bool lends_dma_bufs = true;  // false: the driver reports that it cannot export dma-bufs
};

struct cuda_state {
  bool asked = false;
  int code = 0;         // result of cuInit; 0: CUDA starts
  std::string error;    // "CUDA_ERROR_NO_DEVICE (100)"; if code is -1, why the library cannot be loaded
  std::string version;  // highest CUDA version that the library supports: "13.0"
  std::vector<cuda_gpu> gpus;
};

// Loads a libcuda.so.1 and keeps it loaded.
cuda_state ask_cuda(const std::string& file);

}  // namespace penstock::machine
