// Writes a checkpoint's pickle: an OrderedDict of tensors, as torch.save does with protocol 2. A free function; thread-safe.
#pragma once

#include <span>
#include <string>

#include "penstock/tensors.hpp"

namespace penstock::tensors {

// Each tensor gets its own storage, whose key is the tensor's index. All tensors must have types that PyTorch supports (name_of_type()).
std::string write_pickle(std::span<const tensor_facts> tensors, const tensor_metadata& metadata);

}  // namespace penstock::tensors
