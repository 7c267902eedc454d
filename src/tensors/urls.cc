#include "tensors/urls.hpp"

#include <fmt/format.h>

#include "penstock/file_kinds.hpp"

namespace penstock::tensors {

namespace {

bool is_by_key(std::string_view url) { return url.size() > 2 && (url[0] == 's' || url[0] == 'S') && url[1] == '3'; }

std::string escaped(std::string_view name) {
  std::string made;
  for (const char each : name) {
    if (each == '%' || each == '?' || each == '#') {
      made += fmt::format("%{:02X}", static_cast<unsigned>(each));
    } else {
      made += each;
    }
  }
  return made;
}

}  // namespace

std::string_view without_query(std::string_view url) { return is_by_key(url) ? url : url.substr(0, url.find('?')); }

bool names_a_file(std::string_view url) {
  const file_kind* const kind = kind_by_ending(without_query(url));
  return kind != nullptr && kind->is_model;
}

std::string as_folder(std::string_view url) {
  const auto path = without_query(url);
  return fmt::format("{}{}{}", path, path.ends_with('/') ? "" : "/", url.substr(path.size()));
}

std::string folder_of_url(std::string_view url) {
  const auto path = without_query(url);
  return fmt::format("{}{}", path.substr(0, path.rfind('/') + 1), url.substr(path.size()));
}

std::string below(std::string_view folder, std::string_view name) {
  const auto path = without_query(folder);
  return fmt::format("{}{}{}", path, is_by_key(folder) ? std::string(name) : escaped(name), folder.substr(path.size()));
}

}  // namespace penstock::tensors
