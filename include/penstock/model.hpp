// Models: their files, their tensors, and each tensor's place in memory. A model is one or more safetensors files, the files listed in an
// index (model.safetensors.index.json), or a GGUF file with its other parts. A torch.save checkpoint is treated as a model whose tensors
// are its storages.
//
//   auto model  = penstock::model::open(*engine, {"folder"});
//   auto layout = penstock::lay_out(*model);
//   auto memory = engine->allocate("cuda:0", layout->bytes);
//   void* const there = memory->data();
//   auto error  = penstock::load_model(*engine, *layout, {&there, 1});  // layout->tensors says where each tensor is now
//
// You can also perform each step separately: find files, read indexes, and create the requests of a batch.
// Plain values; any thread may use const ones. If memory runs out, the result is errc::out_of_memory.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "penstock/engine.hpp"
#include "penstock/gguf.hpp"
#include "penstock/options.hpp"
#include "penstock/status.hpp"
#include "penstock/tensors.hpp"

namespace penstock {

// --- files of a model. File names are in the kernel's encoding.

// The file names that identify a model in a folder: the index or, if there is no index, a single file. This is the safetensors library's
// rule.
inline constexpr std::string_view model_index_name = "model.safetensors.index.json";
inline constexpr std::string_view model_file_name = "model.safetensors";

// Limits on the length of an index and the nesting of its JSON.
inline constexpr std::uint64_t most_model_index_bytes = 100'000'000;
inline constexpr int most_model_index_depth = 64;

// An entry of an index: a tensor, and its file relative to the index's folder.
struct indexed_tensor {
  std::string tensor;
  std::string file;
  friend bool operator==(const indexed_tensor&, const indexed_tensor&) = default;
};

// Parses the entries of an index, in order. json: the whole text. Files may be in subfolders. Errors: invalid_argument (not JSON, no
// "weight_map" of tensors and files, a repeated tensor, or a file name that is empty, absolute, or contains ".." or a NUL).
PENSTOCK_API result<std::vector<indexed_tensor>> parse_model_index(std::string_view json);
// Reads an index. Blocks. Errors: those of parse_model_index and file::read; invalid_argument if it is too long. The message includes the
// file name.
PENSTOCK_API result<std::vector<indexed_tensor>> read_model_index(const file& from);
// Returns true for a path that ends with ".json". Such a path is treated as an index.
PENSTOCK_API bool is_model_index(std::string_view path) noexcept;
// Returns the file that a path refers to: in a folder, model_index_name or, if that does not exist, model_file_name; any other path is the
// file itself. Queries the file system. Errors: not_found, with both names in the message, if a folder contains neither.
PENSTOCK_API result<std::string> find_model(const std::string& path);
// The same, but also for URLs. A URL that ends with "/", or whose last component does not have a tensor file extension (".safetensors",
// ".json", ".gguf", ".bin", ".pt", ".pth", ".ckpt"), is treated as a folder. how: for URLs. Additional errors: those of
// engine::open_remote, except not_found for the index.
PENSTOCK_API result<std::string> find_model(const engine& with, const std::string& path, const remote_options& how = {});

// The files of a model, and the tensors that they must contain according to its indexes.
struct model_paths {
  struct promise {
    std::string tensor;
    std::size_t file = 0;  // index in files
  };
  std::vector<std::string> files;  // each once
  std::vector<promise> promises;   // in the order of the index
};

// Returns the files listed in the index at index_path, sorted. Does not query the file system. For an index at a URL, the file URLs are
// relative to its last "/" and have its query.
PENSTOCK_API result<model_paths> shards_of(std::span<const indexed_tensor> index, std::string_view index_path);
// Returns ok if every file exists. Queries the file system but no server: URLs are assumed to exist. Errors: not_found; the message lists
// up to 20 missing files.
PENSTOCK_API status check_shards(const model_paths& paths, std::string_view index_path);
// An index determines which tensors of a file belong to the model. Returns for each of paths.files the names that the index assigns to it,
// sorted; the names point into paths. An empty list means that no index lists the file, so all its tensors belong to the model.
PENSTOCK_API std::vector<std::vector<std::string_view>> names_by_index(const model_paths& paths);
// Returns ok if no tensor of the model is in two files and every promised tensor is in its file. names: the tensors in each of paths.files;
// those that an index does not assign to the file are ignored. Errors: invalid_argument if tensors are in two files (the message lists up
// to 20), or if names and paths do not match; not_found if tensors are missing (the message lists the files and up to 20 missing tensors
// for each).
PENSTOCK_API status check_tensors(const model_paths& paths, std::span<const std::vector<std::string_view>> names);

// --- contents of the files

enum class model_file_kind : std::uint8_t { safetensors, checkpoint, gguf };
// Returns the name of a format: "safetensors", "checkpoint", "gguf".
PENSTOCK_API std::string_view to_string(model_file_kind kind) noexcept;

struct model_file {
  std::string path;
  file source;
  std::uint64_t file_bytes = 0;
  // For a checkpoint: its storages as bytes (U8), by their names in the archive, because several tensors may share one storage;
  // read_torch_checkpoint(source) returns the tensors. For a GGUF file: gguf_header::tensors, with quantised tensors as bytes. Both are
  // sorted by offset and may have other bytes between tensors. If an index lists the file, header contains only the tensors that the index
  // assigns to it.
  tensor_header header;
  model_file_kind kind = model_file_kind::safetensors;
  std::vector<gguf_unknown_tensor> unknown;                                // for GGUF files; these cannot be loaded and are not in header
  [[nodiscard]] PENSTOCK_API std::uint64_t tensor_bytes() const noexcept;  // excluding the header
};

// A tensor of a model. Valid as long as the model exists; the model may be moved.
struct model_tensor {
  const model_file* file = nullptr;
  const tensor_facts* facts = nullptr;
};

class PENSTOCK_API model {
 public:
  model() = default;  // no files
  // Opens all files and reads their headers. Blocks. paths: files, indexes and folders as accepted by find_model(), and GGUF files, each
  // together with the other parts found by gguf_files_of(); repeated files count once. how: for URLs. Errors: those of find_model,
  // read_model_index, check_shards, gguf_files_of, engine::open, read_safetensors, read_gguf, check_gguf_files, read_zip_directory and
  // check_tensors; invalid_argument for a checkpoint with compressed storages. The message includes the file name. Files on servers are
  // opened 16 at a time, on the calling thread and others that end before this returns; if several fail, the error is that of the first of
  // them in the order of files(). how.stop_requested is called on the calling thread only.
  static result<model> open(const engine& with, const std::vector<std::string>& paths, const remote_options& how = {});

  [[nodiscard]] const std::vector<model_file>& files() const noexcept { return files_; }
  // Returns nullopt if no tensor has this name. If storages in several checkpoints have the name, returns the first one.
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
  friend bool operator==(model_rank, model_rank) = default;
};

// All elements of a dimension.
struct all_elements {
  friend bool operator==(all_elements, all_elements) = default;
};
// A range of a dimension, as in a Python slice: a negative first or end counts from the end, and positions outside the tensor are moved to
// its nearest end.
struct index_range {
  std::int64_t first = 0;
  std::optional<std::int64_t> end{};  // the position after the last element; nullopt: the length of the dimension
  std::int64_t step = 1;              // at least 1: elements cannot be reversed
  friend bool operator==(const index_range&, const index_range&) = default;
};
// The elements of a dimension that a part contains. A single index removes the dimension from the part's shape; if it is negative, it
// counts from the end. A rank's part is one of rank.count equal parts.
using dimension_selection = std::variant<all_elements, index_range, std::int64_t, model_rank>;
// A part of a tensor by dimension. Dimensions at the end that it does not list are taken completely, so {} is the whole tensor.
//
//   penstock::tensor_selection{penstock::index_range{0, 8}, -1, penstock::model_rank{1, 4}}
using tensor_selection = std::vector<dimension_selection>;

// A part of a tensor: runs of equal length, in file order, that are adjacent in memory. Their starts form a grid.
struct tensor_part {
  struct axis {
    std::uint64_t count = 1;
    std::uint64_t step = 0;  // in bytes
    friend bool operator==(const axis&, const axis&) = default;
  };
  std::vector<std::uint64_t> shape;
  std::uint64_t first = 0;      // offset of the first run from the start of the tensor, in bytes
  std::uint64_t run_bytes = 0;  // 0 for an empty part
  std::vector<axis> grid;       // the outermost axis first; empty: one run
  tensor_selection cut;         // the part of the array in memory, whose shape is `shape`, if gaps were read too; empty: all of it
  [[nodiscard]] PENSTOCK_API std::uint64_t runs() const noexcept;
  // Returns the offset of a run from the start of the tensor, in bytes. run must be less than runs().
  [[nodiscard]] PENSTOCK_API std::uint64_t start_of(std::uint64_t run) const noexcept;
  [[nodiscard]] std::uint64_t bytes() const noexcept { return run_bytes * runs(); }
  friend bool operator==(const tensor_part&, const tensor_part&) = default;
};

// The maximum number of runs in a part. Each run is a request of its own.
inline constexpr std::uint64_t most_part_runs = std::uint64_t{1} << 24;

// Returns a part of a tensor, in as few runs as possible. Errors: invalid_argument (an index, dimension or rank that does not exist, a step
// below 1, a length that is not divisible among the ranks, runs that do not start and end at byte boundaries, more than most_part_runs
// runs); the message includes the tensor's name.
PENSTOCK_API result<tensor_part> part_of(const tensor_facts& tensor, const tensor_selection& selection);

// Many short runs take longer than reading the gaps between them too, because each run is a request, and disks and the page cache read
// whole pages.
struct gap_options {
  std::uint64_t short_row_bytes = 4096;  // with a step, gaps are read if the elements of this dimension are shorter
  std::uint64_t short_run_bytes = 512;   // whole rows are read if runs are shorter than this, and
  std::uint64_t many_runs = 4096;        // there are more than this
  bool to_host = false;  // to host memory, where cutting is cheap, rows are also read if they are not much longer than the runs
};
// The same, but the part may have gaps: tensor_part::cut says what to take from it once it is in memory.
PENSTOCK_API result<tensor_part> part_of(const tensor_facts& tensor, const tensor_selection& selection, const gap_options& gaps);
// Returns a rank's part if a tensor is split along one dimension; negative dimensions count from the last.
PENSTOCK_API result<tensor_part> part_of(const tensor_facts& tensor, int dimension, model_rank rank);

// --- places in memory

// Tensors start at multiples of this in memory, as with cudaMalloc; it suits a GPU's widest accesses.
inline constexpr std::uint64_t model_alignment = 256;
// The maximum request length, chosen so that all lanes share a model's bytes, and bytes are copied to other devices while more arrive.
inline constexpr std::uint64_t most_model_request_bytes = std::uint64_t{32} << 20;

struct placed_tensor {
  model_tensor tensor;
  tensor_part part;
  std::uint64_t place = 0;  // offset of its first byte from the start of the memory
};

// The layout of one piece of memory, one tensor after another. Valid as long as the model exists.
struct model_layout {
  std::vector<placed_tensor> tensors;  // in file order, and within a file by offset
  std::uint64_t bytes = 0;             // required memory size in bytes
};

struct layout_options {
  std::uint64_t alignment = model_alignment;        // a power of two
  std::optional<std::vector<std::string>> names{};  // tensors to load; nullopt: all
  model_rank rank{};
  // Returns the dimension along which a tensor is split among the ranks; nullopt: each rank gets all of it. If the function is empty, no
  // tensor is split.
  std::function<std::optional<int>(const tensor_facts&)> dimension{};
  // Returns the part of a tensor to load. If the function is empty, dimension applies; they exclude each other.
  std::function<tensor_selection(const tensor_facts&)> selection{};
  // If not 0: the tensors share a memory of this size, or of the size of the largest tensor, and reuse its bytes in turn. For model_flow.
  std::uint64_t window_bytes = 0;
};

// Places all tensors of a model, some of them, or parts of them. Errors: invalid_argument (options; those of part_of); not_found; the
// message lists up to 20 names that are in none of the files.
PENSTOCK_API result<model_layout> lay_out(const model& from, const layout_options& options = {});

// --- reading

// A range of a file and its place in memory.
struct model_range {
  model_tensor tensor;
  std::uint64_t offset = 0;  // in the file
  std::uint64_t length = 0;
  std::uint64_t place = 0;
};

// Returns all bytes of a layout as ranges of at most most_bytes (which must be at least 1).
PENSTOCK_API result<std::vector<model_range>> ranges_of(const model_layout& layout, std::uint64_t most_bytes = most_model_request_bytes);
// Returns the requests of one batch that reads these ranges, for engine::submit(): into the first memory, then into each further one as
// copies of the requests for the previous one (io_request::copy_of), so that the files are read once. Each memory must have
// model_layout::bytes bytes. Errors: invalid_argument (too many requests for one batch).
PENSTOCK_API result<std::vector<io_request>> requests_of(std::span<const model_range> ranges, std::span<void* const> memory);
// Returns ok if the requests for one memory have read everything. Errors: the first failure, with file and tensor in the message; io if a
// file was truncated after it was opened.
PENSTOCK_API status outcome_of(std::span<const model_range> ranges, std::span<const io_result> results);
// Counts what has arrived in one memory during a load.
struct load_progress {
  std::uint64_t bytes = 0;           // of completed requests
  std::chrono::nanoseconds time{0};  // from the first request to the last that completed
};
// Watches a load, and can stop it.
struct load_watch {
  // Called about every 50 ms on the calling thread, and once after the last request has completed, with one entry per memory. If it
  // returns false, the load is cancelled. If empty, only errors end a load early.
  std::function<bool(std::span<const load_progress>)> proceed{};
  // Names of the memories, in order, for error messages. Either none or one per memory.
  std::vector<std::string> names{};
};
// Reads a layout into the memory of one or more devices: the three functions above and submit() in one call. Blocks; the memory is not
// accessed after it returns. You may load the same layout several times. Errors: those of these functions; cancelled after proceed returned
// false; invalid_argument if the number of names is wrong or the layout has a window.
PENSTOCK_API status load_model(const engine& with, const model_layout& layout, std::span<void* const> memory,
                               const io_options& options = {}, const load_watch& watch = {});

// --- reading in order, in bounded memory

namespace tensors {
class flow;
}

struct flow_options {
  io_options io{};
  // Limit on the bytes in flight. 0: all items are read in one batch. A range that is longer than the limit is read alone.
  std::uint64_t most_bytes = std::uint64_t{384} << 20;
};

// A range of a file, and its offset in memory.
struct file_range {
  std::uint64_t offset = 0;
  std::uint64_t length = 0;
  std::uint64_t place = 0;
};

// Reads items in order, ahead of the program that takes them, and in batches. An item is a tensor of a layout, or some ranges of a file.
// With layout_options::window_bytes, a whole model passes through a small memory: a tensor is read once the tensors that its bytes belonged
// to before have been dropped.
//
//   auto layout = penstock::lay_out(*model, {.window_bytes = 512 << 20});
//   auto memory = engine->allocate("cuda:0", layout->bytes);
//   void* const there = memory->data();
//   penstock::model_flow flow(*engine);
//   auto error = flow.add(*layout, {&there, 1});
//   for (std::size_t i = 0; error.ok() && i < layout->tensors.size(); ++i) {
//     error = flow.take(i);  // use the tensor at layout->tensors[i].place, then:
//     flow.drop(i);
//   }
//
// Items are numbered from 0 in the order in which they are added. Memory, files and the model must stay valid until the flow is destroyed
// or the items have ended. Thread-safe; starts no threads. If memory runs out, calls that return no status throw std::bad_alloc.
class PENSTOCK_API model_flow {
 public:
  explicit model_flow(const engine& with, const flow_options& options = {});
  model_flow(model_flow&&) noexcept;
  model_flow& operator=(model_flow&&) = delete;
  ~model_flow();  // cancels, and waits until no memory is in use

  // Adds each tensor of a layout as an item, and starts reading. Several memories receive the same bytes; the files are read once. Does not
  // wait for reads. Errors: invalid_argument (the flow already has items); cancelled after cancel(). In that case, nothing is added.
  status add(const model_layout& layout, std::span<void* const> memory);
  // Adds some ranges of a file as one item, and returns its number. ended: called once when the item has ended, like an io_callback.
  result<std::size_t> add(const file& from, std::span<const file_range> ranges, std::span<void* const> memory, io_callback ended = {});
  [[nodiscard]] std::size_t size() const noexcept;

  // Blocks until the item has been read. Call it any number of times. Errors: that of the first range that failed, with file and tensor in
  // the message; io if a file was truncated after it was opened; cancelled; would_block if earlier tensors in the same memory have not been
  // dropped; invalid_argument (no such item). Other items are not affected by an error.
  status take(std::size_t item);
  // Ends the use of an item's memory, so that later items are read into it. An item that has not been read is cancelled.
  void drop(std::size_t item) noexcept;
  // Blocks until all items have ended. Errors: the first of take() in the order of the items.
  status wait();
  // Returns true if all items, or one, have ended within the timeout.
  [[nodiscard]] bool wait_for(std::chrono::nanoseconds timeout);
  [[nodiscard]] bool wait_for(std::size_t item, std::chrono::nanoseconds timeout);
  // Returns the results of an item's ranges, for several memories the worst one. Blocks like take(). Errors: invalid_argument (no such
  // item).
  result<std::vector<io_result>> results(std::size_t item);
  // Returns what has arrived in each memory.
  [[nodiscard]] std::vector<load_progress> progress() const;
  // Cancels all items that have not been read. Does not wait.
  void cancel() noexcept;

 private:
  std::unique_ptr<tensors::flow> core_;
};

}  // namespace penstock
