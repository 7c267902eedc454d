#include "cli/common/inputs.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

namespace penstock::cli {
namespace {

namespace fs = std::filesystem;

void add_folder(const std::string& folder, std::vector<input>& to) {
  std::vector<std::string> found;
  std::error_code error;
  fs::recursive_directory_iterator each(folder, error);
  for (; !error && each != fs::recursive_directory_iterator(); each.increment(error)) {
    std::error_code ignored;
    if (each->is_regular_file(ignored)) found.push_back(each->path().string());
  }
  std::sort(found.begin(), found.end());
  for (std::string& name : found) to.push_back({std::move(name), {}});
  if (error) {
    to.push_back({folder, status::from_errno(error.value(), fmt::format("list {}", folder))});
  } else if (found.empty()) {
    to.push_back({folder, {errc::not_found, fmt::format("{} contains no files", folder)}});
  }
}

}  // namespace

std::vector<input> expand_folders(const std::vector<std::string>& names) {
  std::vector<input> inputs;
  for (const std::string& name : names) {
    std::error_code ignored;
    if (fs::is_directory(name, ignored)) {
      add_folder(name, inputs);
    } else {
      inputs.push_back({name, {}});
    }
  }
  return inputs;
}

}  // namespace penstock::cli
