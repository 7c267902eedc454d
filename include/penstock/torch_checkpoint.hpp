// Checkpoints as torch.save writes them since PyTorch 1.6: a zip archive with a pickle, which names the tensors, and a member for the bytes
// of each storage. What is in one and where, and what such a file is made of. Neither Python nor PyTorch is needed.
//
//   auto checkpoint = penstock::read_torch_checkpoint(*file);
//   for (const auto& tensor : checkpoint->tensors) file->read(memory, tensor.bytes, tensor.offset);  // where it is contiguous
//
// Nothing that a pickle asks for is ever executed. It is read as data, by the few opcodes and names of which torch.save makes a dict of
// tensors (protocol 2); any other one is an error that names it.
// Values; what is const may be used from any thread. Where memory runs out the result is errc::out_of_memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "penstock/status.hpp"
#include "penstock/tensors.hpp"

namespace penstock {

// --- the archive

struct zip_member {
  std::string name;
  std::uint64_t bytes = 0;         // of what it holds
  std::uint64_t packed_bytes = 0;  // in the file
  std::uint64_t offset = 0;        // of these, in the file
  bool stored = false;             // as they are, not compressed
};

// Whether a file begins as a zip file does: with a member, or, where it is empty, with its end. Blocks.
PENSTOCK_API bool is_zip(const file& from);
// What is in a zip file (zip64 too, one volume), in the order of the file's own list. Blocks. Errors: invalid_argument for what is no zip
// file, or a damaged one, and those of file::read; the message names the file.
PENSTOCK_API result<std::vector<zip_member>> read_zip_directory(const file& from);

// --- reading

struct checkpoint_tensor {
  std::vector<std::string> keys;  // of the dicts that lead to it, the outermost first; none where the checkpoint is one tensor
  tensor_type type = tensor_type::u8;
  std::vector<std::uint64_t> shape;
  std::vector<std::uint64_t> strides;  // in elements
  std::string storage;                 // the archive's name of the member that its bytes are in; tensors may share one
  std::uint64_t storage_bytes = 0;
  std::uint64_t offset = 0;  // of its first element, in the file
  std::uint64_t bytes = 0;   // of all of its elements
  std::uint64_t extent = 0;  // from its first element to the end of its last one, in the file; bytes where it is contiguous
  bool contiguous = true;    // its elements lie one after the other, in the order of its shape
  status problem;            // ok, or why its values cannot be taken from the file (unsupported): type and bytes mean nothing then
  // The keys, joined by dots.
  [[nodiscard]] PENSTOCK_API std::string name() const;
};

// What else is in the dicts.
struct checkpoint_entry {
  std::vector<std::string> keys;
  std::string kind;  // "int", "str", "list of 3 values", ...; "dict" of one without members
};

struct torch_checkpoint {
  std::vector<checkpoint_tensor> tensors;  // in the order of the pickle
  std::vector<checkpoint_entry> others;
  tensor_metadata metadata;  // that make_torch_checkpoint() has put there
};

// A pickle is not longer than this, and dicts are not nested deeper.
inline constexpr std::uint64_t most_checkpoint_pickle_bytes = std::uint64_t{128} << 20;
inline constexpr int most_checkpoint_depth = 64;

// Reads the directory and the pickle of a checkpoint, and compares both: each tensor lies in its storage, each storage in the file. Blocks.
// Errors: invalid_argument (no checkpoint, a damaged one, or one whose pickle asks for more than tensors in dicts, numbers and text),
// unsupported (packed, or big-endian), and those of file::read; the message names the file, and the tensor or the byte of the pickle.
PENSTOCK_API result<torch_checkpoint> read_torch_checkpoint(const file& from);

// --- writing

// Bytes with a place in a file.
struct placed_bytes {
  std::uint64_t offset = 0;
  std::string bytes;
};

// What a checkpoint of some tensors is besides their bytes. torch.load(weights_only=True) reads it as an OrderedDict.
class PENSTOCK_API torch_checkpoint_image {
 public:
  struct record {
    std::string name;
    std::uint64_t bytes = 0, header_offset = 0, offset = 0;
    std::string content;  // of what is no tensor
    bool is_tensor = false;
  };
  explicit torch_checkpoint_image(std::vector<record> records) : records_(std::move(records)) {}
  // What stands before, between and behind the tensors' bytes. checksums: zip_crc32() of the bytes of each tensor, in the order in which
  // they lie in the file, one for each; without, there is none in the archive, which PyTorch does not mind and zip tools do.
  [[nodiscard]] result<std::vector<placed_bytes>> parts(std::span<const std::uint32_t> checksums) const;

 private:
  std::vector<record> records_;
};

// Each storage begins at a multiple of this, as torch.save has it.
inline constexpr std::uint64_t torch_storage_alignment = 64;

// A checkpoint of these tensors, each with a storage of its own, in their order; sets their offset and bytes. metadata: kept as an
// attribute of the dict, safetensors_metadata, where there is any. Nothing is changed on failure. Errors: invalid_argument (a name that
// comes twice or is no UTF-8; sizes beyond 2^63; tensors for more than the longest pickle that is read), unsupported (a type that PyTorch
// has not).
PENSTOCK_API result<torch_checkpoint_image> make_torch_checkpoint(std::vector<tensor_facts>& tensors, const tensor_metadata& metadata = {});

// The CRC-32 of zip, of bytes behind those that gave `before`.
PENSTOCK_API std::uint32_t zip_crc32(std::span<const std::byte> bytes, std::uint32_t before = 0) noexcept;

}  // namespace penstock
