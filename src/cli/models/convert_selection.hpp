// Which tensors of a checkpoint become those of a safetensors file, and what they are called there. A free function; safe from any thread.
#pragma once

#include <string>
#include <vector>

#include "penstock/penstock.hpp"

namespace penstock::cli {

struct selection_options {
  std::string key;            // only what is in this dict; names with dots lead into dicts in dicts
  bool flatten = false;       // nested keys are joined by dots
  bool tensors_only = false;  // what is no tensor is left out
};

struct selected_tensor {
  std::string name;
  const checkpoint_tensor* tensor = nullptr;  // of the checkpoint
};

struct tensor_selection {
  std::vector<selected_tensor> tensors;
  std::vector<std::string> left_out;  // "epoch (int)"
  // Names of what is not copied as it lies there.
  std::vector<std::string> strided;  // views whose elements are brought into order
  std::vector<std::string> shared;   // over a storage that others have too: safetensors files have each tensor by itself
};

// from must outlive the result. Errors: invalid_argument (no dict of tensors, or a choice between several has to be made; the message names
// the dicts and what else is there), unsupported naming the tensor (a type that safetensors has not, values that are not in the file, or a
// view that repeats elements).
result<tensor_selection> select_tensors(const torch_checkpoint& from, const selection_options& wanted);

}  // namespace penstock::cli
