// Copies of many objects of a server: small ones many at once, since each waits for an answer; large ones, of which many pieces are under
// way anyhow, one after the other.
#pragma once

#include <functional>
#include <span>
#include <string>

#include "cli/files/copy_file.hpp"
#include "cli/files/folder_tree.hpp"
#include "penstock/penstock.hpp"

namespace penstock::cli {

struct object_target {
  std::string path;    // for messages
  std::string folder;  // of it, below the tree
};

struct object_copy {
  remote_object from;
  object_target to;
};

// to: what is written is below it. told: each outcome, one at a time, on any thread. Ends early, without the rest, once the user has
// interrupted it.
void copy_objects(const engine& owner, std::span<const object_copy> all, const folder_tree& to, const copy_options& how,
                  const std::function<void(const object_copy&, const result<copied_file>&)>& told);

}  // namespace penstock::cli
