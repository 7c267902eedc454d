// Feeds any bytes to the parser of model indexes. An accepted index puts each tensor, once, into a file in its own folder. Built with
// clang's -fsanitize=fuzzer, or with replay_main.cc for a replay.
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <set>
#include <string>
#include <string_view>

#include "penstock/model.hpp"

using namespace penstock;

namespace {

void require(bool truth) {
  if (!truth) std::abort();
}

bool leads_out(const std::string& name) {
  const std::filesystem::path path(name);
  for (const auto& each : path) {
    if (each == "..") return true;
  }
  return path.is_absolute() || name.empty() || name.find('\0') != std::string::npos;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto index = parse_model_index(std::string_view(reinterpret_cast<const char*>(data), size));
  if (!index.ok()) {
    require(index.error().code() == errc::invalid_argument && !index.error().message().empty());
    for (const char c : index.error().message()) require(static_cast<unsigned char>(c) >= ' ');
    return 0;
  }
  std::set<std::string> tensors;
  for (const indexed_tensor& each : *index) require(!leads_out(each.file) && tensors.insert(each.tensor).second);
  const auto shards = shards_of(*index, "folder/model.safetensors.index.json");
  require(shards.ok() && shards->promises.size() == index->size());
  for (const model_paths::promise& each : shards->promises) require(shards->files.at(each.file).starts_with("folder/"));
  return 0;
}
