#include "base/key_path.hpp"

#include <algorithm>

namespace penstock {

std::string url_of_folder(std::string url) {
  if (!url.ends_with('/')) url += '/';
  return url;
}

// Listed URLs begin with s3:// or gs://, whatever the scheme of the folder's URL.
std::string_view key_below(std::string_view folder, std::string_view url) {
  const auto begin = folder.size() - folder.find("://") + std::string_view("s3").size();
  return url.substr(std::min(begin, url.size()));
}

result<key_path> path_of_key(std::string_view key) {
  bool is_inside = !key.starts_with('/') && key.find('\0') == std::string_view::npos;
  key_path made{{}, key.empty() || key.ends_with('/')};
  for (std::string_view rest = key; !rest.empty();) {
    const auto name = rest.substr(0, rest.find('/'));
    rest.remove_prefix(std::min(name.size() + 1, rest.size()));
    is_inside = is_inside && name != ".." && (name != "." || !rest.empty());
    if (name.empty() || name == ".") continue;
    if (!made.path.empty()) made.path += '/';
    made.path += name;
  }
  if (!is_inside) return status(errc::invalid_argument, "its key is not a relative path inside a folder");
  return made;
}

}  // namespace penstock
