#include "machine/library_facts.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "machine/platform_facts.hpp"
#include "sys/library_folders.hpp"

namespace penstock::machine {

namespace {

constexpr auto cufile_name = "libcufile.so.0";

// Looks for the name of a function that only Penstock's library exports.
bool is_ours(const tree& from, const std::string& file) {
  const auto image = from.read(file, std::size_t{32} << 20);
  return image && image->find("penstock_cufile_marker") != std::string::npos;
}

// Returns the library folders of NVIDIA's packages, newest toolkit first.
std::vector<std::string> usual_folders(const tree& from) {
  const auto told = architecture_of(from);
  const auto architecture = told.empty() ? std::string(sys::own_architecture) : told;
  auto folders = sys::toolkit_folders("/usr/local/cuda", architecture);
  const auto append = [&](const std::vector<std::string>& more) { folders.insert(folders.end(), more.begin(), more.end()); };
  auto toolkits = from.list("/usr/local");
  std::erase_if(toolkits, [](const std::string& name) { return !name.starts_with("cuda-"); });
  std::ranges::reverse(toolkits);
  for (const auto& name : toolkits) append(sys::toolkit_folders("/usr/local/" + name, architecture));
  append(sys::distribution_folders(architecture));
  return folders;
}

std::string find_nvidia_cufile(const tree& from, const library_facts& known) {
  if (known.loaded_cufile && !known.loaded_is_ours) return known.loaded_cufile->file;
  for (const auto& folder : usual_folders(from)) {
    const auto file = from.real(folder + "/" + cufile_name);
    if (!file.empty() && !is_ours(from, file)) return file;
  }
  return {};
}

}  // namespace

std::string version_in_name(const std::string& file) {
  const auto at = file.rfind(".so.");
  if (at == std::string::npos) return {};
  auto version = file.substr(at + 4);
  const bool numbers = version.find_first_not_of("0123456789.") == std::string::npos;
  return numbers && version.find('.') != std::string::npos ? version : std::string();
}

const setting_fact* settings_facts::find(std::string_view key) const {
  const auto found = std::ranges::find(values, key, &setting_fact::key);
  return found == values.end() ? nullptr : &*found;
}

library_facts gather_libraries(const tree& from) {
  const loader linker(from);
  library_facts found;
  found.cuda = linker.find("libcuda.so.1");
  found.visible_gpus = linker.variable("CUDA_VISIBLE_DEVICES");
  if (const auto wsl = from.real("/usr/lib/wsl/lib/libcuda.so.1"); !found.cuda && !wsl.empty()) found.cuda = {wsl, "WSL's folder"};
  found.ucx = linker.find("libucp.so.0");
  found.loaded_cufile = linker.find(cufile_name);
  found.loaded_is_ours = found.loaded_cufile && is_ours(from, found.loaded_cufile->file);
  found.nvidia_cufile = find_nvidia_cufile(from, found);
  for (const auto& each : linker.preloaded("libcufile")) {
    if (each.find('/') != std::string::npos && !from.exists(each)) found.missing_preloads.push_back(each);
  }
  return found;
}

}  // namespace penstock::machine
