// Checkpoints written by torch.save since PyTorch 1.6: a zip archive with a pickle that lists the tensors, and one member per storage with
// its bytes. Reads and creates them; needs neither Python nor PyTorch.
//
//   auto checkpoint = penstock::read_torch_checkpoint(*file);
//   for (const auto& tensor : checkpoint->tensors) file->read(memory, tensor.bytes, tensor.offset);  // if it is contiguous
//
// Pickles are never executed. They are read as data, with the few opcodes and names that torch.save needs for a dict of tensors (protocols
// 2 to 5); any other opcode or name is an error, and the message includes it.
// Plain values; any thread may use const ones. If memory runs out, the result is errc::out_of_memory.
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
  std::uint64_t bytes = 0;         // size of the contents
  std::uint64_t packed_bytes = 0;  // size in the file
  std::uint64_t offset = 0;        // offset of the packed bytes in the file
  bool stored = false;             // stored without compression
};

// Returns true if a file starts like a zip file: with a member or, if the archive is empty, with its end record. Blocks.
PENSTOCK_API bool is_zip(const file& from);
// Returns the members of a zip file (including zip64; one volume), in directory order. Blocks. Errors: invalid_argument for a file that is
// not a zip file or is corrupt, and those of file::read; the message includes the file name.
PENSTOCK_API result<std::vector<zip_member>> read_zip_directory(const file& from);

// --- reading

struct checkpoint_tensor {
  std::vector<std::string> keys;  // keys of the dicts that lead to it, outermost first; empty if the checkpoint is a single tensor
  tensor_type type = tensor_type::u8;
  std::vector<std::uint64_t> shape;
  std::vector<std::uint64_t> strides;  // in elements
  std::string storage;                 // archive name of the member with its bytes; several tensors may share one
  std::uint64_t storage_bytes = 0;
  std::uint64_t offset = 0;  // offset of its first element in the file
  std::uint64_t bytes = 0;   // size of all its elements
  std::uint64_t extent = 0;  // bytes from its first element to the end of its last one, in the file; equals `bytes` if contiguous
  bool contiguous = true;    // its elements are adjacent and in C order
  status problem;            // ok, or why its values cannot be read (unsupported); type and bytes are then meaningless
  // Returns the keys, joined by dots.
  [[nodiscard]] PENSTOCK_API std::string name() const;
};

// Anything else in the dicts.
struct checkpoint_entry {
  std::vector<std::string> keys;
  std::string kind;  // "int", "str", "list of 3 values", ...; "dict" for an empty dict
};

struct torch_checkpoint {
  std::vector<checkpoint_tensor> tensors;  // in the order of the pickle
  std::vector<checkpoint_entry> others;
  tensor_metadata metadata;  // metadata that make_torch_checkpoint() stored
};

// Limits on the length of a pickle and the nesting of dicts.
inline constexpr std::uint64_t most_checkpoint_pickle_bytes = std::uint64_t{128} << 20;
inline constexpr int most_checkpoint_depth = 64;

// Reads a checkpoint's directory and pickle and compares them: each tensor must be within its storage, and each storage within the file.
// Blocks. Errors: invalid_argument (not a checkpoint, a corrupt one, or one whose pickle contains more than tensors in dicts, numbers and
// text), unsupported (compressed, or big-endian), and those of file::read; the message includes the file name, and the tensor or the byte
// offset in the pickle.
PENSTOCK_API result<torch_checkpoint> read_torch_checkpoint(const file& from);

// --- writing

// Bytes to write at an offset in the file.
struct placed_bytes {
  std::uint64_t offset = 0;
  std::string bytes;
};

// The parts of a checkpoint other than its tensors' bytes. torch.load(weights_only=True) reads it as an OrderedDict.
class PENSTOCK_API torch_checkpoint_image {
 public:
  struct record {
    std::string name;
    std::uint64_t bytes = 0, header_offset = 0, offset = 0;
    std::string content;  // bytes that do not belong to any tensor
    bool is_tensor = false;
  };
  explicit torch_checkpoint_image(std::vector<record> records) : records_(std::move(records)) {}
  // Returns the bytes before, between and after the tensors. checksums: the zip_crc32() of each tensor's bytes, in file order. Without them
  // the archive has no checksums, which PyTorch accepts but zip tools do not.
  [[nodiscard]] result<std::vector<placed_bytes>> parts(std::span<const std::uint32_t> checksums) const;

 private:
  std::vector<record> records_;
};

// Storages start at multiples of this, as in files written by torch.save.
inline constexpr std::uint64_t torch_storage_alignment = 64;

// Plans a checkpoint of these tensors, in order, each with its own storage; sets their offset and bytes. metadata, if not empty: stored as
// the dict's attribute safetensors_metadata. Changes nothing on failure. Errors: invalid_argument (a name that occurs twice or is not
// UTF-8; sizes above 2^63; too many tensors for the longest pickle that can be read), unsupported (a type that PyTorch lacks).
PENSTOCK_API result<torch_checkpoint_image> make_torch_checkpoint(std::vector<tensor_facts>& tensors, const tensor_metadata& metadata = {});

// Continues zip's CRC-32 `before` of preceding bytes with these bytes.
PENSTOCK_API std::uint32_t zip_crc32(std::span<const std::byte> bytes, std::uint32_t before = 0) noexcept;

}  // namespace penstock
