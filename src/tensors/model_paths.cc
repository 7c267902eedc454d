#include "penstock/model.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <utility>

#include "base/no_memory.hpp"
#include "tensors/checks.hpp"
#include "tensors/urls.hpp"

namespace penstock {

namespace {

namespace fs = std::filesystem;
using tensors::quoted;

// For a URL, existence is checked when the file is opened.
bool is_there(const std::string& path) {
  std::error_code ignored;
  return is_url(path) || fs::exists(path, ignored);
}

// diffusers models, PEFT adapters and variants use other names. If there are several such files, only the caller can choose.
std::string what_is_there(const std::string& folder) {
  std::vector<std::string> indexes, files;
  std::error_code error;
  for (fs::directory_iterator each(folder, error), end; !error && each != end; each.increment(error)) {
    std::string name = each->path().filename().string();
    if (name.ends_with(".json") && name.find(".index.") != std::string::npos) {
      indexes.push_back(std::move(name));
    } else if (tensors::names_a_file(name) && !name.ends_with(".json")) {
      files.push_back(std::move(name));
    }
  }
  std::vector<std::string>& found = indexes.empty() ? files : indexes;
  if (found.empty()) return "";
  std::ranges::sort(found);
  const std::vector<std::string_view> names(found.begin(), found.end());
  return fmt::format("; it contains {}: specify {}", tensors::listed(names), found.size() == 1 ? "that file" : "one of these");
}

result<std::string> found_in(const std::string& path) {
  std::error_code ignored;
  if (!fs::is_directory(path, ignored)) return path;
  for (const std::string_view name : {model_index_name, model_file_name}) {
    if (std::string inside = fs::path(path) / name; is_there(inside)) return inside;
  }
  return status(errc::not_found,
                fmt::format("{}: the folder contains neither {} nor {}{}", path, model_index_name, model_file_name, what_is_there(path)));
}

// Finds the model at a URL that may refer to a folder. S3 reports access denied instead of not found to callers without permission to list
// the bucket.
result<std::string> found_at(const engine& with, const std::string& url, const remote_options& how) {
  if (tensors::names_a_file(url)) return url;
  const auto folder = tensors::as_folder(url);
  status denied;
  for (const std::string_view name : {model_index_name, model_file_name}) {
    auto inside = tensors::below(folder, name);
    const auto opened = with.open_remote(inside, how);
    if (opened) return inside;
    if (opened.error().code() == errc::permission_denied) {
      denied = opened.error();
    } else if (opened.error().code() != errc::not_found) {
      return opened.error();
    }
  }
  if (!denied.ok()) return denied;
  return status(errc::not_found,
                fmt::format("{}: the server has neither {} nor {} there", shown_name(url), model_index_name, model_file_name));
}

// --- the files listed in an index

model_paths paths_of(std::span<const indexed_tensor> index, std::string_view index_path) {
  const bool at_url = is_url(index_path);
  const std::string folder = at_url ? tensors::folder_of_url(index_path) : fs::path(index_path).parent_path().string();
  std::map<std::string_view, std::size_t> places;
  for (const indexed_tensor& each : index) places.emplace(each.file, 0);
  model_paths made;
  for (auto& [name, place] : places) {
    place = made.files.size();
    made.files.push_back(at_url ? tensors::below(folder, name) : (fs::path(folder) / name).string());
  }
  for (const indexed_tensor& each : index) made.promises.push_back({each.tensor, places.at(each.file)});
  return made;
}

status missing_shards(const model_paths& paths, std::string_view index_path) {
  std::vector<std::string_view> missing;
  for (const std::string& each : paths.files) {
    if (!is_there(each)) missing.emplace_back(each);
  }
  if (missing.empty()) return {};
  return {errc::not_found, fmt::format("{}: missing shards: {}", index_path, tensors::listed(missing))};
}

// --- tensors

struct named_tensor {
  std::string_view name;
  std::size_t file;
  std::size_t order;  // position among all tensors of the model
};
using all_names = std::span<const std::vector<std::string_view>>;

std::vector<std::vector<std::string_view>> sorted_promises(const model_paths& paths) {
  std::vector<std::vector<std::string_view>> made(paths.files.size());
  for (const model_paths::promise& each : paths.promises) made[each.file].emplace_back(each.tensor);
  for (auto& each : made) std::ranges::sort(each);
  return made;
}

// Returns the model's tensors, sorted by name and then by file. Unlike hashing, sorting is safe for names crafted to collide.
std::vector<named_tensor> sorted_names(const model_paths& paths, all_names names) {
  const auto promised = sorted_promises(paths);
  std::vector<named_tensor> all;
  for (std::size_t file = 0; file < names.size(); ++file) {
    for (const std::string_view name : names[file]) {
      if (promised[file].empty() || std::ranges::binary_search(promised[file], name)) all.push_back({name, file, all.size()});
    }
  }
  std::ranges::sort(all,
                    [](const named_tensor& a, const named_tensor& b) { return a.name != b.name ? a.name < b.name : a.order < b.order; });
  return all;
}

status check_doubles(const model_paths& paths, std::span<const named_tensor> all) {
  std::vector<std::pair<const named_tensor*, const named_tensor*>> doubles;
  for (std::size_t i = 1; i < all.size(); ++i) {
    if (all[i].name == all[i - 1].name && all[i].file != all[i - 1].file) doubles.emplace_back(&all[i - 1], &all[i]);
  }
  if (doubles.empty()) return {};
  std::ranges::sort(doubles, {}, [](const auto& each) { return each.second->order; });
  std::string told;
  for (const auto& [one, other] : std::span(doubles).first(std::min(doubles.size(), tensors::most_listed))) {
    told += fmt::format("{}{} in {} and {}", told.empty() ? "" : "; ", tensors::quoted(one->name), paths.files[one->file],
                        paths.files[other->file]);
  }
  if (doubles.size() > tensors::most_listed) told += fmt::format(" and {} more", doubles.size() - tensors::most_listed);
  return {errc::invalid_argument, fmt::format("these tensors are in two files: {}", told)};
}

status check_promises(const model_paths& paths, std::span<const named_tensor> all) {
  std::vector<std::vector<std::string_view>> lacking(paths.files.size());
  std::vector<std::size_t> files;  // files with missing tensors, in index order
  for (const model_paths::promise& each : paths.promises) {
    const auto same = std::ranges::equal_range(all, std::string_view(each.tensor), {}, &named_tensor::name);
    if (std::ranges::count(same, each.file, &named_tensor::file) > 0) continue;
    if (lacking[each.file].empty()) files.push_back(each.file);
    lacking[each.file].emplace_back(each.tensor);
  }
  if (files.empty()) return {};
  std::string told;
  for (const std::size_t each : files) {
    told += fmt::format("{}{} lacks {}", told.empty() ? "" : "; ", paths.files[each], tensors::listed(lacking[each]));
  }
  return {errc::not_found, fmt::format("tensors listed in the index are missing: {}", told)};
}

status check_all(const model_paths& paths, all_names names) {
  const auto is_outside = [&](const model_paths::promise& each) { return each.file >= paths.files.size(); };
  if (names.size() != paths.files.size() || std::ranges::any_of(paths.promises, is_outside))
    return {errc::invalid_argument,
            fmt::format("names needs one entry for each of the {} files, and each promise must refer to one of them", paths.files.size())};
  const auto all = sorted_names(paths, names);
  const status error = check_doubles(paths, all);
  return error.ok() ? check_promises(paths, all) : error;
}

}  // namespace

result<std::string> find_model(const std::string& path) {
  return or_no_memory([&] { return found_in(path); });
}

result<std::string> find_model(const engine& with, const std::string& path, const remote_options& how) {
  return or_no_memory([&] { return is_url(path) ? found_at(with, path, how) : found_in(path); });
}

result<model_paths> shards_of(std::span<const indexed_tensor> index, std::string_view index_path) {
  return or_no_memory([&]() -> result<model_paths> { return paths_of(index, index_path); });
}

status check_shards(const model_paths& paths, std::string_view index_path) {
  return or_no_memory([&] { return missing_shards(paths, index_path); });
}

std::vector<std::vector<std::string_view>> names_by_index(const model_paths& paths) { return sorted_promises(paths); }

status check_tensors(const model_paths& paths, std::span<const std::vector<std::string_view>> names) {
  return or_no_memory([&] { return check_all(paths, names); });
}

}  // namespace penstock
