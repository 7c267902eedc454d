#include "cli/common/own_libraries.hpp"

#include <filesystem>

namespace penstock::cli {
namespace {

// Returns candidate folders relative to this command's folder: in the build folder, or, once installed, below lib/ next to bin/.
std::vector<std::filesystem::path> library_folders(const std::filesystem::path& command_folder) {
  std::vector<std::filesystem::path> folders{command_folder / "cufile"};
  const std::filesystem::path prefix = command_folder.parent_path();
  for (const char* lib : {"lib", "lib64"}) folders.push_back(prefix / lib / "penstock");
  // Debian's lib/x86_64-linux-gnu
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(prefix / "lib", ignored)) {
    if (entry.path().filename().string().find("-linux-") != std::string::npos) folders.push_back(entry.path() / "penstock");
  }
  return folders;
}

bool holds(const std::filesystem::path& folder, const char* name) {
  std::error_code ignored;
  return std::filesystem::exists(folder / name, ignored);
}

}  // namespace

own_libraries find_own_libraries(bool with_audit) {
  own_libraries found;
  std::error_code error;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) {
    found.error = "/proc/self/exe: " + error.message();
    return found;
  }
  for (const auto& folder : library_folders(self.parent_path())) {
    found.looked_in.push_back(folder.string());
    if (!holds(folder, library_name) || (with_audit && !holds(folder, audit_name))) continue;
    found.folder = folder.string();
    break;
  }
  return found;
}

}  // namespace penstock::cli
