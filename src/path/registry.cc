#include "path/data_path.hpp"

namespace penstock::path {

std::vector<std::unique_ptr<data_path>> make_paths(const services& with, const std::string& cufile_library) {
  std::vector<std::unique_ptr<data_path>> paths(path_kind_count);
  const auto add = [&](std::unique_ptr<data_path> made) { paths[static_cast<std::size_t>(made->kind())] = std::move(made); };
  add(make_posix(with));
  add(make_staged(with));
  add(make_mapped(with));
  add(make_direct(with, cufile_library));
  return paths;
}

}  // namespace penstock::path
