// Models: their files, their tensors, and where each tensor goes in memory. A model is one or more safetensors files, the files that an
// index (model.safetensors.index.json) names, or a GGUF file with its other parts. A torch.save checkpoint counts as a model of its
// storages.
//
//   auto model  = penstock::model::open(*engine, {"folder"});
//   auto layout = penstock::lay_out(*model);
//   auto memory = engine->allocate("cuda:0", layout->bytes);
//   void* const there = memory->data();
//   auto error  = penstock::load_model(*engine, *layout, {&there, 1});  // layout->tensors says where each tensor is now
//
// You can also take each step separately: find files, read indexes, and make the requests of a batch.
// Plain values; any thread may use const ones. If memory runs out, the result is errc::out_of_memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "penstock/engine.hpp"
#include "penstock/gguf.hpp"
#include "penstock/options.hpp"
#include "penstock/status.hpp"
#include "penstock/tensors.hpp"

namespace penstock {

// --- files of a model. File names are in the kernel's encoding.

// The names of a model's files in a folder: its index, otherwise its only file. This is the safetensors library's rule.
inline constexpr std::string_view model_index_name = "model.safetensors.index.json";
inline constexpr std::string_view model_file_name = "model.safetensors";

// Limits on the length of an index and the nesting of its JSON.
inline constexpr std::uint64_t most_model_index_bytes = 100'000'000;
inline constexpr int most_model_index_depth = 64;

// An entry of an index: a tensor, and its file relative to the folder of the index.
struct indexed_tensor {
  std::string tensor;
  std::string file;
  friend bool operator==(const indexed_tensor&, const indexed_tensor&) = default;
};

// Parses the entries of an index, in order. json: the whole text. Files may be in subfolders. Errors: invalid_argument (not JSON, no
// "weight_map" of tensors and files, a repeated tensor, or a file name that is empty, absolute, or contains ".." or a NUL).
PENSTOCK_API result<std::vector<indexed_tensor>> parse_model_index(std::string_view json);
// Reads an index. Blocks. Errors: those of parse_model_index and file::read; invalid_argument if it is too long. The message names the
// file.
PENSTOCK_API result<std::vector<indexed_tensor>> read_model_index(const file& from);
// True for a path that ends with ".json", which is treated as an index.
PENSTOCK_API bool is_model_index(std::string_view path) noexcept;
// The file that a path refers to: in a folder, model_index_name, otherwise model_file_name; any other path is the file itself. Asks the
// file system. Errors: not_found, naming both, if a folder has neither.
PENSTOCK_API result<std::string> find_model(const std::string& path);
// The same, also for URLs. A URL that ends with "/", or whose last component has no extension of a tensor file (".safetensors", ".json",
// ".gguf", ".bin", ".pt", ".pth", ".ckpt"), is treated as a folder. how: for URLs. Errors: also those of engine::open_remote, except
// not_found for the index.
PENSTOCK_API result<std::string> find_model(const engine& with, const std::string& path, const remote_options& how = {});

// The files of a model, and the tensors that its indexes promise in them.
struct model_paths {
  struct promise {
    std::string tensor;
    std::size_t file = 0;  // index in files
  };
  std::vector<std::string> files;  // each once
  std::vector<promise> promises;   // in the order of the index
};

// The files of an index at index_path, sorted. Does not ask the file system. For an index at a URL, they are below its last "/" and have
// its query.
PENSTOCK_API result<model_paths> shards_of(std::span<const indexed_tensor> index, std::string_view index_path);
// Ok if every file exists. Asks the file system but no server: URLs always pass. Errors: not_found, naming up to 20 missing files.
PENSTOCK_API status check_shards(const model_paths& paths, std::string_view index_path);
// An index decides which tensors of a file belong to the model. Returns for each of paths.files the names that the index assigns to it,
// sorted; they point into paths. An empty list means that no index named the file, and all its tensors belong to the model.
PENSTOCK_API std::vector<std::vector<std::string_view>> names_by_index(const model_paths& paths);
// Ok if no tensor of the model is in two files, and every promise is kept. names: the tensors in each of paths.files; those that an index
// does not assign to the file are ignored. Errors: invalid_argument, naming up to 20 tensors that are in two files, or if names and paths
// do not match; not_found, naming the files and up to 20 tensors that each lacks.
PENSTOCK_API status check_tensors(const model_paths& paths, std::span<const std::vector<std::string_view>> names);

// --- contents of the files

enum class model_file_kind : std::uint8_t { safetensors, checkpoint, gguf };
// The name of a format: "safetensors", "checkpoint", "gguf".
PENSTOCK_API std::string_view to_string(model_file_kind kind) noexcept;

struct model_file {
  std::string path;
  file source;
  std::uint64_t file_bytes = 0;
  // For a checkpoint: its storages as bytes (U8), by their names in the archive, since several tensors may share one;
  // read_torch_checkpoint(source) returns the tensors. For a GGUF file: gguf_header::tensors, with quantised tensors as bytes. Both are
  // sorted by offset and may have other bytes between tensors. If an index names the file, header has only the tensors that the index
  // assigns to it.
  tensor_header header;
  model_file_kind kind = model_file_kind::safetensors;
  std::vector<gguf_unknown_tensor> unknown;                                // for GGUF files; these cannot be loaded, and are not in header
  [[nodiscard]] PENSTOCK_API std::uint64_t tensor_bytes() const noexcept;  // without the header
};

// A tensor of a model. Valid as long as the model exists; the model may be moved.
struct model_tensor {
  const model_file* file = nullptr;
  const tensor_facts* facts = nullptr;
};

class PENSTOCK_API model {
 public:
  model() = default;  // no files
  // Opens all files and reads their headers. Blocks. paths: files, indexes and folders, each as find_model() accepts it, and GGUF files,
  // each with the other parts that gguf_files_of() finds; repeated files count once. how: for URLs. Errors: those of find_model,
  // read_model_index, check_shards, gguf_files_of, engine::open, read_safetensors, read_gguf, check_gguf_files, read_zip_directory and
  // check_tensors; invalid_argument for a checkpoint with compressed storages. The message names the file.
  static result<model> open(const engine& with, const std::vector<std::string>& paths, const remote_options& how = {});

  [[nodiscard]] const std::vector<model_file>& files() const noexcept { return files_; }
  // nullopt if there is no tensor of that name. If storages in several checkpoints have the name, the first one.
  [[nodiscard]] std::optional<model_tensor> find(std::string_view name) const noexcept;
  [[nodiscard]] std::size_t tensor_count() const noexcept;
  [[nodiscard]] std::uint64_t tensor_bytes() const noexcept;

 private:
  explicit model(std::vector<model_file> files) : files_(std::move(files)) {}
  std::vector<model_file> files_;
};

// --- parts of tensors

// One of several processes or devices that share a model.
struct model_rank {
  unsigned number = 0;
  unsigned count = 1;
};

// A part of a tensor: runs of equal length, at equal distances in the file and adjacent in memory.
struct tensor_part {
  std::vector<std::uint64_t> shape;
  std::uint64_t first = 0;      // offset of the first run from the beginning of the tensor, in bytes
  std::uint64_t run_bytes = 0;  // 0 for an empty part
  std::uint64_t step = 0;       // bytes from the start of a run to the start of the next
  std::uint64_t runs = 0;
  [[nodiscard]] std::uint64_t bytes() const noexcept { return run_bytes * runs; }
  friend bool operator==(const tensor_part&, const tensor_part&) = default;
};

// The part of a rank if a tensor is cut along a dimension into equal parts; negative dimensions count from the last. Errors:
// invalid_argument, naming the tensor (no such dimension or rank, a length that is not divisible among the ranks, parts that do not begin
// at whole bytes).
PENSTOCK_API result<tensor_part> part_of(const tensor_facts& tensor, int dimension, model_rank rank);

// --- places in memory

// Tensors begin at multiples of this in memory, as with cudaMalloc; it suits the widest accesses of a GPU.
inline constexpr std::uint64_t model_alignment = 256;
// The longest request, so that all lanes share a model's bytes, and bytes are passed on to other devices while more arrive.
inline constexpr std::uint64_t most_model_request_bytes = std::uint64_t{32} << 20;

struct placed_tensor {
  model_tensor tensor;
  tensor_part part;
  std::uint64_t place = 0;  // of its first byte, from the start of the memory
};

// The contents of one piece of memory, one tensor after another. Valid as long as the model exists.
struct model_layout {
  std::vector<placed_tensor> tensors;  // in the order of the files, and within a file by offset
  std::uint64_t bytes = 0;             // bytes that the memory needs
};

struct layout_options {
  std::uint64_t alignment = model_alignment;        // a power of two
  std::optional<std::vector<std::string>> names{};  // tensors to load; nullopt: all
  model_rank rank{};
  // Returns the dimension along which the ranks cut a tensor; nullopt: each rank gets all of it. If the function is empty, no tensor is
  // cut.
  std::function<std::optional<int>(const tensor_facts&)> dimension{};
};

// Places the tensors of a model, some of them, or a rank's parts. Errors: invalid_argument (alignment; those of part_of); not_found, naming
// up to 20 names that no file has.
PENSTOCK_API result<model_layout> lay_out(const model& from, const layout_options& options = {});

// --- reading

// A range of a file, and its place in memory.
struct model_range {
  model_tensor tensor;
  std::uint64_t offset = 0;  // in the file
  std::uint64_t length = 0;
  std::uint64_t place = 0;
};

// All bytes of a layout, in ranges of at most most_bytes (at least 1).
PENSTOCK_API result<std::vector<model_range>> ranges_of(const model_layout& layout, std::uint64_t most_bytes = most_model_request_bytes);
// The requests of one batch that reads these ranges, for engine::submit(): into the first memory, then into each other one as copies of the
// requests for the previous one (io_request::copy_of), so that the files are read once. Each memory has model_layout::bytes bytes. Errors:
// invalid_argument (more requests than a batch can have).
PENSTOCK_API result<std::vector<io_request>> requests_of(std::span<const model_range> ranges, std::span<void* const> memory);
// Ok if the requests for one memory have read everything. Errors: the first failure, naming file and tensor; io if a file was truncated
// after it was opened.
PENSTOCK_API status outcome_of(std::span<const model_range> ranges, std::span<const io_result> results);
// Reads a layout into memory of one or several devices: the three functions above and submit() in one call. Blocks; the memory is not
// accessed after it returns. Errors: those of these functions.
PENSTOCK_API status load_model(const engine& with, const model_layout& layout, std::span<void* const> memory,
                               const io_options& options = {});

}  // namespace penstock
