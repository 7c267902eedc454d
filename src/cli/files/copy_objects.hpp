// Copies many objects from a server. Small objects are copied in parallel, because each copy waits for a response. Large objects, which
// already have many pieces in flight, are copied one at a time.
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
  std::string folder;  // its folder, relative to the tree
};

struct object_copy {
  remote_object from;
  object_target to;
};

// to: the tree to write below. told: called with each result, one at a time, on any thread. Stops early after an interrupt.
void copy_objects(const engine& owner, std::span<const object_copy> all, const folder_tree& to, const copy_options& how,
                  const std::function<void(const object_copy&, const result<copied_file>&)>& told);

}  // namespace penstock::cli
