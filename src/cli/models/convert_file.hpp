// Files of tensors made from files of the other format: whole under their name, or not there at all. One thread; blocks where the files do.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli/models/convert_selection.hpp"
#include "penstock/penstock.hpp"

namespace penstock::cli {

struct converted_file {
  std::string kind;  // of what was made: "safetensors" or "checkpoint"
  std::size_t tensors = 0;
  std::uint64_t bytes = 0;  // of the tensors
  double seconds = 0;
  // As in tensor_selection.
  std::vector<std::string> left_out, strided, shared;
};

// A checkpoint of torch.save becomes a safetensors file, and that a checkpoint; the bytes pass through a few buffers. What was at `to` is
// as it was where this fails. Errors: those of reading both formats, select_tensors(), make_safetensors() and make_torch_checkpoint(),
// which name the file and the tensor; invalid_argument (both names mean one file; a name that says another format; options that are for
// checkpoints only); of pending_file; os errors; cancelled after an interrupt.
result<converted_file> convert_file(const engine& owner, const std::string& from, const std::string& to, const selection_options& wanted);

}  // namespace penstock::cli
