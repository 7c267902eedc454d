// Paths of listed objects below a folder. The keys come from a server, so they must not lead out of the folder. Pure functions.
#pragma once

#include <string>
#include <string_view>

#include "penstock/status.hpp"

namespace penstock {

struct key_path {
  std::string path;        // relative, without empty components and "."; empty: the folder itself
  bool is_folder = false;  // the key ends with "/", like those of empty objects that mark folders
};

// Returns the URL with a "/" at its end, so that engine::list_remote() lists what is below it.
std::string url_of_folder(std::string url);
// Returns the part of a listed object's URL that follows the folder. folder: the result of url_of_folder().
std::string_view key_below(std::string_view folder, std::string_view url);
// Error: invalid_argument (an absolute key, or one with ".." or a null byte).
result<key_path> path_of_key(std::string_view key);

}  // namespace penstock
