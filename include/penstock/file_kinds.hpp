// The kinds of files that Penstock recognizes by their content. A new kind is one line of the table in src/tensors/file_kinds.cc and, if
// penstock.load() loads it, one line in python/penstock/_files/kinds.py. Free functions; thread-safe unless stated otherwise.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "penstock/engine.hpp"
#include "penstock/status.hpp"

namespace penstock {

// A file is of this kind if it begins with one of `magics`, contains all `members`, and passes `check`. A condition that is empty is met.
struct file_kind {
  std::string_view word{};                                 // on the command line and in Python, such as "gguf"; variants of a kind share it
  std::string_view name{};                                 // in messages, with its article, such as "a GGUF file"
  std::vector<std::string_view> magics{};                  // the first bytes
  std::vector<std::string_view> members{};                 // of an archive, in any of its folders; one that starts with "." is an extension
  bool (*check)(const file&, std::string_view) = nullptr;  // of the file and its first 64 bytes
  bool is_model = false;                                   // model::open() reads it
  std::vector<std::string_view> endings{};                 // extensions of this kind only
  std::vector<std::string_view> shared_endings{};          // extensions that other formats use too
  std::string_view reader{};                               // the call that reads it; empty if only its bytes can be read
  std::string_view advice{};                               // what to do with such a file where a model should be
};

// Returns the table. The first kind that matches a file applies.
PENSTOCK_API std::span<const file_kind> file_kinds();
// Returns the kind of a file, or null if it is unknown. Blocks. Errors: those of file::read and file::size.
PENSTOCK_API result<const file_kind*> find_file_kind(const file& from);
// Returns the kind of model that a file contains by its first bytes, with one read: "gguf", "checkpoint" (any zip archive), or else
// "safetensors", whose reader rejects anything else.
PENSTOCK_API const file_kind& model_kind_of(const file& from);
// Returns the kind with this extension, in any case, or null.
PENSTOCK_API const file_kind* kind_by_ending(std::string_view name);

namespace detail {
// Adds a kind in front of the others. For tests; no other thread may use the table.
PENSTOCK_API void add_file_kind(file_kind kind);
}  // namespace detail

}  // namespace penstock
