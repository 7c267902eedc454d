// Converts files of tensors between formats. A file appears under its name only once it is complete. One thread; blocks on file I/O.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli/models/convert_selection.hpp"
#include "penstock/penstock.hpp"

namespace penstock::cli {

struct converted_file {
  std::string kind;  // format of the result: "safetensors" or "checkpoint"
  std::size_t tensors = 0;
  std::uint64_t bytes = 0;  // size of the tensors
  double seconds = 0;
  // As in tensor_selection.
  std::vector<std::string> left_out, strided, shared;
};

// Converts a torch.save checkpoint to a safetensors file, or a safetensors file to a checkpoint, through a few buffers. Leaves `to`
// unchanged on failure. Errors: those of reading both formats, select_tensors(), make_safetensors() and make_torch_checkpoint(), whose
// messages contain the file and the tensor; invalid_argument (both names refer to one file; the extension of `to` belongs to another
// format; options for checkpoints only); those of pending_file; os errors; cancelled after an interrupt.
result<converted_file> convert_file(const engine& owner, const std::string& from, const std::string& to, const selection_options& wanted);

}  // namespace penstock::cli
