// Reads all files of a folder and its subfolders into memory with one call, for example a cache of compiled kernels.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "penstock/engine.hpp"
#include "penstock/options.hpp"
#include "penstock/status.hpp"

namespace penstock {

struct tree_options {
  std::uint64_t max_bytes = std::uint64_t{16} << 30;  // of all files together
  std::size_t max_files = 1'000'000;
  unsigned max_threads = 0;              // 0: chosen while reading
  std::function<bool()> stop_requested;  // may be empty; called on the calling thread only
};

// Memory for many files.
struct tree_block {
  std::unique_ptr<std::byte, void (*)(void*)> memory;
  std::size_t bytes = 0;
};

struct tree_file {
  std::string path;  // relative to the folder, with "/" between names
  std::shared_ptr<const tree_block> block;
  std::size_t offset = 0;  // in the block
  std::size_t bytes = 0;
};

// Returns the regular files, sorted by path. Blocks. Follows the folder's own path, and links inside the folder to files inside it. Errors,
// which name the file: os errors (for example, it vanished or you may not read it); not_a_file (a FIFO, a socket, a device, or a link that
// leads out of the folder or to a folder); invalid_argument (more bytes or files than the options allow); io (it changed while it was
// read); cancelled.
PENSTOCK_API result<std::vector<tree_file>> read_tree(const std::string& folder, const tree_options& options = {});

// Does the same for the objects below a URL (s3://BUCKET or s3://BUCKET/FOLDER, also gs://), or for a folder. Empty objects whose keys end
// with "/" mark folders and are left out. Each of the others takes one request. how: its member stop_requested is ignored. Errors
// name the object: those of engine::list_remote() and file::read(); not_found (there are no objects); invalid_argument (a key that leads
// out of the folder, two keys with the same path, a limit); io (the object changed since it was listed).
PENSTOCK_API result<std::vector<tree_file>> read_tree(const engine& by, const std::string& folder, const remote_options& how,
                                                      const tree_options& options = {});

}  // namespace penstock
