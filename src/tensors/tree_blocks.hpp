// Memory for the files of a tree: small files share blocks. Free functions.
#pragma once

#include <cstddef>
#include <memory>

#include "penstock/status.hpp"
#include "penstock/tree.hpp"

namespace penstock {

struct block_in_use {
  std::shared_ptr<tree_block> block;
  std::size_t used = 0;
};

// Chooses the memory of a file whose size is known: in the block `into`, in a new one that replaces it, or in a block of its own. Error:
// out_of_memory.
status find_room(tree_file& file, block_in_use& into);
// Allocates the file's pages.
void populate(const tree_file& file) noexcept;

}  // namespace penstock
