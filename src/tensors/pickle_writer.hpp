// Writes the pickle of a checkpoint: an OrderedDict of tensors, as torch.save does with protocol 2. A free function; safe from any thread.
#pragma once

#include <span>
#include <string>

#include "penstock/tensors.hpp"

namespace penstock::tensors {

// Each tensor has a storage of its own, whose key is its number. All have types that PyTorch has (name_of_type()).
std::string write_pickle(std::span<const tensor_facts> tensors, const tensor_metadata& metadata);

}  // namespace penstock::tensors
