// Chooses which tensors of a checkpoint go into a safetensors file, and names them. A free function; thread-safe.
#pragma once

#include <string>
#include <vector>

#include "penstock/penstock.hpp"

namespace penstock::cli {

struct selection_options {
  std::string key;            // take only this dict; dots in the name select nested dicts
  bool flatten = false;       // join nested keys with dots
  bool tensors_only = false;  // skip values that are not tensors
};

struct selected_tensor {
  std::string name;
  const checkpoint_tensor* tensor = nullptr;  // points into the checkpoint
};

struct tensor_selection {
  std::vector<selected_tensor> tensors;
  std::vector<std::string> left_out;  // "epoch (int)"
  // Names of tensors that cannot be copied byte for byte.
  std::vector<std::string> strided;  // views whose elements are copied into contiguous order
  std::vector<std::string> shared;   // tensors that share storage with others; a safetensors file stores each separately
};

// from must outlive the result. Errors: invalid_argument (there is no dict of tensors, or you must choose between several; the message
// lists the dicts and other entries); unsupported, whose message contains the tensor (a type that safetensors does not support, values that
// are not in the file, or a view that repeats elements).
result<tensor_selection> select_tensors(const torch_checkpoint& from, const selection_options& wanted);

}  // namespace penstock::cli
