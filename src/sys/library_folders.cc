#include "sys/library_folders.hpp"

#include <fmt/format.h>

namespace penstock::sys {

std::vector<std::string> toolkit_folders(const std::string& toolkit, std::string_view architecture) {
  std::vector<std::string> folders{toolkit + "/lib64"};
  if (architecture == "aarch64") folders.push_back(toolkit + "/targets/sbsa-linux/lib");
  folders.push_back(fmt::format("{}/targets/{}-linux/lib", toolkit, architecture));
  return folders;
}

std::vector<std::string> distribution_folders(std::string_view architecture) {
  return {fmt::format("/usr/lib/{}-linux-gnu", architecture), "/usr/lib64"};
}

}  // namespace penstock::sys
