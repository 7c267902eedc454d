#include "cli/model_files.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <numeric>
#include <set>
#include <utility>

#include "cli/shard_index.hpp"

namespace penstock::cli {
namespace {

namespace fs = std::filesystem;

status wrong_model(const std::string& path, std::string_view what) { return {errc::invalid_argument, fmt::format("{}: {}", path, what)}; }

status take_tensors(model_file& to) {
  const auto header = read_safetensors(to.source);
  if (!header) return header.error();
  to.kind = "safetensors";
  for (const tensor_facts& each : header->tensors()) to.tensors.push_back({each.name, each.offset, each.bytes});
  return {};
}

// "archive/data/0" is a storage where the checkpoint's pickle is "archive/data.pkl".
status take_storages(model_file& to) {
  const auto members = read_zip_directory(to.source);
  if (!members) return members.error();
  constexpr std::string_view pickle = "data.pkl";
  const auto is_pickle = [&](const zip_member& each) { return each.name == pickle || each.name.ends_with(fmt::format("/{}", pickle)); };
  const auto found = std::ranges::find_if(*members, is_pickle);
  if (found == members->end()) return wrong_model(to.path, "a zip file, but no checkpoint of torch.save: it holds no data.pkl");
  const std::string beginning = found->name.substr(0, found->name.size() - pickle.size()) + "data/";
  to.kind = "checkpoint";
  for (const zip_member& each : *members) {
    if (!each.name.starts_with(beginning)) continue;
    if (!each.stored) return wrong_model(to.path, fmt::format("{} is packed, so its bytes are not in the file", each.name));
    to.tensors.push_back({each.name, each.offset, each.packed_bytes});
  }
  std::ranges::sort(to.tensors, {}, &model_tensor::offset);
  return {};
}

result<model_file> open_one(const engine& owner, const std::string& path) {
  auto source = owner.open(path);
  if (!source) return source.error();
  model_file made{path, {}, *std::move(source), 0, {}};
  const auto size = made.source.size();
  if (!size) return size.error();
  made.file_bytes = *size;
  const status error = is_zip(made.source) ? take_storages(made) : take_tensors(made);
  if (!error.ok()) return error;
  return made;
}

// Of the tensors, which in a checkpoint are not those of its storages.
result<std::set<std::string>> names_in(const model_file& from) {
  std::set<std::string> names;
  if (from.kind != "checkpoint") {
    for (const model_tensor& each : from.tensors) names.insert(each.name);
    return names;
  }
  const auto checkpoint = read_torch_checkpoint(from.source);
  if (!checkpoint) return checkpoint.error();
  for (const checkpoint_tensor& each : checkpoint->tensors) names.insert(each.name());
  return names;
}

// What a folder stands for; Python's load_file has the same rule and words.
result<std::string> model_in_folder(const std::string& folder) {
  constexpr const char* index = "model.safetensors.index.json";
  constexpr const char* single = "model.safetensors";
  for (const char* name : {index, single}) {
    std::error_code ignored;
    if (const fs::path path = fs::path(folder) / name; fs::exists(path, ignored)) return path.string();
  }
  return status(errc::not_found, fmt::format("{}: the folder has neither {} nor {}", folder, index, single));
}

class model_opener {
 public:
  explicit model_opener(const engine& owner) : owner_(owner) {}

  status add(const std::string& path) {
    std::error_code ignored;
    if (fs::is_directory(path, ignored)) return add_folder(path);
    return is_index(path) ? add_index(path) : add_file(path);
  }
  std::vector<model_file> take() { return std::move(files_); }

 private:
  status add_folder(const std::string& folder) {
    const auto name = model_in_folder(folder);
    if (!name) return name.error();
    return is_index(*name) ? add_index(*name) : add_file(*name);
  }
  status add_index(const std::string& path) {
    const auto index = read_index(owner_, path);
    if (!index) return index.error();
    for (const std::string& shard : index->shards) {
      const std::string name = (fs::path(path).parent_path() / shard).string();
      if (status error = add_file(name); !error.ok()) return error;
      const auto there = names_in(files_.back());
      if (!there) return there.error();
      if (status error = compare_with_index(name, *there, index->tensors.at(shard), path); !error.ok()) return error;
    }
    return {};
  }
  // A file that is named twice would be counted twice, which is nobody's model.
  status add_file(const std::string& path) {
    std::error_code ignored;
    if (!seen_.insert(fs::weakly_canonical(path, ignored).string()).second) return wrong_model(path, "it is named twice");
    auto made = open_one(owner_, path);
    if (!made) return made.error();
    files_.push_back(*std::move(made));
    return {};
  }

  const engine& owner_;
  std::vector<model_file> files_;
  std::set<std::string> seen_;
};

}  // namespace

std::uint64_t model_file::tensor_bytes() const {
  return std::accumulate(tensors.begin(), tensors.end(), std::uint64_t{0},
                         [](std::uint64_t sum, const model_tensor& each) { return sum + each.bytes; });
}

result<std::vector<model_file>> open_model(const engine& owner, const std::vector<std::string>& paths) {
  model_opener opener(owner);
  for (const std::string& path : paths) {
    if (status error = opener.add(path); !error.ok()) return error;
  }
  return opener.take();
}

}  // namespace penstock::cli
