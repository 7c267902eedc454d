// The files of a model, opened: which tensors are in them, and where. safetensors files, indexes with the files that they name, and
// checkpoints of torch.save whose storages are stored as they are. One thread; blocks where the files do.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "penstock/penstock.hpp"

namespace penstock::cli {

// A tensor; of a checkpoint a storage, which several tensors may share.
struct model_tensor {
  std::string name;
  std::uint64_t offset = 0;  // in the file
  std::uint64_t bytes = 0;
};

struct model_file {
  std::string path;
  std::string kind;  // "safetensors" or "checkpoint"
  file source;
  std::uint64_t file_bytes = 0;
  std::vector<model_tensor> tensors;  // in the order of the file
  [[nodiscard]] std::uint64_t tensor_bytes() const;
};

// Those of a command line: files, indexes (.json), and folders, which stand for the index in them or, where there is none, for all their
// *.safetensors. Errors: invalid_argument naming the file and what is wrong with it (no model, damaged, packed, no agreement with its
// index, a file that is named twice), and those of opening and reading.
result<std::vector<model_file>> open_model(const engine& owner, const std::vector<std::string>& paths);

}  // namespace penstock::cli
