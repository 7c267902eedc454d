// Models: the files that one consists of, the tensors in them, and where each goes in memory. A model is a safetensors file, several of
// them, or the files that an index (model.safetensors.index.json) names; or a GGUF file, with those that go with it. Checkpoints of
// torch.save count as models of their storages.
//
//   auto model  = penstock::model::open(*engine, {"folder"});
//   auto layout = penstock::lay_out(*model);
//   auto memory = engine->allocate("cuda:0", layout->bytes);
//   void* const there = memory->data();
//   auto error  = penstock::load_model(*engine, *layout, {&there, 1});  // layout->tensors tells where each tensor is now
//
// You can also take each step alone: find files, read indexes, and make the requests of a batch.
// Values; what is const may be used from any thread. Where memory runs out the result is errc::out_of_memory.
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

// --- which files. Names of files are in the kernel's encoding.

// The names that a model has in a folder: that of an index, else that of its one file. The rule of the safetensors library.
inline constexpr std::string_view model_index_name = "model.safetensors.index.json";
inline constexpr std::string_view model_file_name = "model.safetensors";

// An index is not longer than this, and its JSON is not nested deeper.
inline constexpr std::uint64_t most_model_index_bytes = 100'000'000;
inline constexpr int most_model_index_depth = 64;

// One member of an index: a tensor, and the file that it is in, by its name from the folder of the index.
struct indexed_tensor {
  std::string tensor;
  std::string file;
  friend bool operator==(const indexed_tensor&, const indexed_tensor&) = default;
};

// The members of an index, in its order. json: its whole text. A file may lie in a folder below that of the index. Errors: invalid_argument
// (no JSON, no "weight_map" of tensors and files, a tensor that comes twice, or a file whose name is empty, absolute, or has ".." or a NUL
// in it).
PENSTOCK_API result<std::vector<indexed_tensor>> parse_model_index(std::string_view json);
// Reads an index. Blocks. Errors: of parse_model_index and file::read; invalid_argument where it is too long. The message names the file.
PENSTOCK_API result<std::vector<indexed_tensor>> read_model_index(const file& from);
// Whether a path is taken for an index: it ends with ".json".
PENSTOCK_API bool is_model_index(std::string_view path) noexcept;
// The file that a path stands for: a folder stands for model_index_name in it, else for model_file_name; any other path for itself. Asks
// the file system. Errors: not_found, naming both, where a folder has neither.
PENSTOCK_API result<std::string> find_model(const std::string& path);
// The same, also of a URL: one that ends with "/", or whose last part has no ending that files of tensors have (".safetensors", ".json",
// ".gguf", ".bin", ".pt", ".pth", ".ckpt"), stands for model_index_name below it where its server has that, else for model_file_name. how:
// of URLs. Errors: also those of engine::open_remote, but for not_found of the index.
PENSTOCK_API result<std::string> find_model(const engine& with, const std::string& path, const remote_options& how = {});

// The files of a model, by name, and the tensors that its indexes promise in them.
struct model_paths {
  struct promise {
    std::string tensor;
    std::size_t file = 0;  // its place in files
  };
  std::vector<std::string> files;  // each once
  std::vector<promise> promises;   // in the order of the index
};

// The files of an index at index_path, sorted. Asks no file system. Of an index at a URL they lie below its last "/", and have its query.
PENSTOCK_API result<model_paths> shards_of(std::span<const indexed_tensor> index, std::string_view index_path);
// Ok where every file is there. Asks the file system, and no server: URLs pass. Errors: not_found, naming up to 20 that are not.
PENSTOCK_API status check_shards(const model_paths& paths, std::string_view index_path);
// An index decides which tensors of a file belong to the model: of each of paths.files the names that it puts there, sorted, which point
// into paths. A file without any was named by no index, and all of its tensors belong to the model.
PENSTOCK_API std::vector<std::vector<std::string_view>> names_by_index(const model_paths& paths);
// Ok if no tensor of the model is in two files, and every promise is kept. names: those of the tensors in each of paths.files; what an
// index does not put into its file is left out. Errors: invalid_argument, naming up to 20 tensors that are in two files, or if names and
// paths do not go together; not_found, naming the files and up to 20 tensors that each of them lacks.
PENSTOCK_API status check_tensors(const model_paths& paths, std::span<const std::vector<std::string_view>> names);

// --- what is in them

enum class model_file_kind : std::uint8_t { safetensors, checkpoint, gguf };
// "safetensors", "checkpoint", "gguf".
PENSTOCK_API std::string_view to_string(model_file_kind kind) noexcept;

struct model_file {
  std::string path;
  file source;
  std::uint64_t file_bytes = 0;
  // For a checkpoint it lists the storages, by their names in the archive and as bytes (U8), since several tensors may share one;
  // read_torch_checkpoint(source) tells the tensors. For a GGUF file it is gguf_header::tensors, with quantised tensors as bytes. Of both
  // they are sorted by offset, and other bytes may lie between them. If an index names the file, only the tensors that it puts there.
  tensor_header header;
  model_file_kind kind = model_file_kind::safetensors;
  std::vector<gguf_unknown_tensor> unknown;                                // of a GGUF file; these cannot be loaded, and are not in header
  [[nodiscard]] PENSTOCK_API std::uint64_t tensor_bytes() const noexcept;  // without the header
};

// A tensor of a model. Valid as long as the model is, which may be moved.
struct model_tensor {
  const model_file* file = nullptr;
  const tensor_facts* facts = nullptr;
};

class PENSTOCK_API model {
 public:
  model() = default;  // of no files
  // Opens all files and reads their headers. Blocks. paths: files, indexes, and folders, each as find_model() takes it, and GGUF files,
  // each for all that gguf_files_of() tells; what comes twice counts once. how: of URLs. Errors: of find_model, read_model_index,
  // check_shards, gguf_files_of, engine::open, read_safetensors, read_gguf, check_gguf_files, read_zip_directory and check_tensors;
  // invalid_argument for a checkpoint whose storages are packed. The message names the file.
  static result<model> open(const engine& with, const std::vector<std::string>& paths, const remote_options& how = {});

  [[nodiscard]] const std::vector<model_file>& files() const noexcept { return files_; }
  // Nothing where there is none of that name. Of storages of several checkpoints the first.
  [[nodiscard]] std::optional<model_tensor> find(std::string_view name) const noexcept;
  [[nodiscard]] std::size_t tensor_count() const noexcept;
  [[nodiscard]] std::uint64_t tensor_bytes() const noexcept;

 private:
  explicit model(std::vector<model_file> files) : files_(std::move(files)) {}
  std::vector<model_file> files_;
};

// --- parts of tensors

// One process, or device, of several that share a model.
struct model_rank {
  unsigned number = 0;
  unsigned count = 1;
};

// Part of a tensor: runs of equal length, at equal distances in the file, one after the other in memory.
struct tensor_part {
  std::vector<std::uint64_t> shape;
  std::uint64_t first = 0;      // where the first run begins, in bytes from the beginning of the tensor
  std::uint64_t run_bytes = 0;  // 0 where the part is empty
  std::uint64_t step = 0;       // bytes from the beginning of a run to that of the next
  std::uint64_t runs = 0;
  [[nodiscard]] std::uint64_t bytes() const noexcept { return run_bytes * runs; }
  friend bool operator==(const tensor_part&, const tensor_part&) = default;
};

// The part that a rank gets where a tensor is cut along a dimension into equal parts; a negative dimension counts from the last one.
// Errors: invalid_argument, naming the tensor (no such dimension or rank, a length that the ranks do not divide, parts that do not begin at
// bytes).
PENSTOCK_API result<tensor_part> part_of(const tensor_facts& tensor, int dimension, model_rank rank);

// --- where they go

// Where every tensor begins in memory: at a multiple of this, as cudaMalloc has it, which suits the widest accesses of a GPU.
inline constexpr std::uint64_t model_alignment = 256;
// A request is not longer, so that all lanes share the bytes of a model, and the bytes go on to further devices while more come.
inline constexpr std::uint64_t most_model_request_bytes = std::uint64_t{32} << 20;

struct placed_tensor {
  model_tensor tensor;
  tensor_part part;
  std::uint64_t place = 0;  // of its first byte, from the beginning of the memory
};

// What goes into one piece of memory, one tensor after the other. Valid as long as the model is.
struct model_layout {
  std::vector<placed_tensor> tensors;  // in the order of the files, and in each in that of their bytes
  std::uint64_t bytes = 0;             // that the memory needs
};

struct layout_options {
  std::uint64_t alignment = model_alignment;        // a power of two
  std::optional<std::vector<std::string>> names{};  // of the tensors wanted; nothing is all
  model_rank rank{};
  // Gives the dimension that a tensor is cut along for the ranks; nothing: each rank gets all of it. If the function is empty, none is cut.
  std::function<std::optional<int>(const tensor_facts&)> dimension{};
};

// Places the tensors of a model, or some of them, or a rank's parts. Errors: invalid_argument (alignment, and of part_of); not_found,
// naming up to 20 names that no file has.
PENSTOCK_API result<model_layout> lay_out(const model& from, const layout_options& options = {});

// --- reading

// A range of a file, and its place in memory.
struct model_range {
  model_tensor tensor;
  std::uint64_t offset = 0;  // in the file
  std::uint64_t length = 0;
  std::uint64_t place = 0;
};

// All bytes of a layout, in ranges of up to most_bytes (at least 1).
PENSTOCK_API result<std::vector<model_range>> ranges_of(const model_layout& layout, std::uint64_t most_bytes = most_model_request_bytes);
// The requests of one batch that reads them, for engine::submit(): into the first memory, then into each further one as copies of those for
// the one before (io_request::copy_of), so that the files are read once. Each memory has model_layout::bytes. Errors: invalid_argument
// (more requests than a batch can count).
PENSTOCK_API result<std::vector<io_request>> requests_of(std::span<const model_range> ranges, std::span<void* const> memory);
// Ok where the requests for one memory have read everything. Errors: the first failure, naming file and tensor; io where a file was cut
// after it was opened.
PENSTOCK_API status outcome_of(std::span<const model_range> ranges, std::span<const io_result> results);
// Reads a layout into memory of one device or several: the three above and submit() in one call. Blocks; memory is quiet on return. Errors:
// of these.
PENSTOCK_API status load_model(const engine& with, const model_layout& layout, std::span<void* const> memory,
                               const io_options& options = {});

}  // namespace penstock
