#include "penstock/model.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <numeric>
#include <optional>
#include <unordered_set>
#include <utility>

#include "base/no_memory.hpp"
#include "penstock/file_kinds.hpp"
#include "penstock/gguf.hpp"
#include "penstock/torch_checkpoint.hpp"
#include "tensors/at_once.hpp"
#include "tensors/checkpoint_contents.hpp"
#include "tensors/checks.hpp"

namespace penstock {

namespace {

result<file> open_any(const engine& with, const std::string& path, const remote_options& how) {
  return is_url(path) ? with.open_remote(path, how) : with.open(path);
}

// --- finding the files

class path_collector {
 public:
  path_collector(const engine& with, const remote_options& how) : with_(with), how_(how) {}

  status add(const std::string& path) {
    const auto found = find_model(with_, path, how_);
    if (!found) return found.error();
    if (!is_model_index(*found)) return add_files_of(*found);
    const auto from = open_any(with_, *found, how_);
    if (!from) return from.error();
    const auto index = read_model_index(*from);
    if (!index) return index.error();
    auto shards = shards_of(*index, *found);
    if (!shards) return shards.error();
    if (status error = check_shards(*shards, *found); !error.ok()) return error;
    std::vector<std::size_t> places;
    for (const std::string& each : shards->files) places.push_back(place_of(each));
    for (model_paths::promise& each : shards->promises) found_.promises.push_back({std::move(each.tensor), places[each.file]});
    return {};
  }
  model_paths take() { return std::move(found_); }
  // For each model split into several GGUF files: the indexes of its files.
  [[nodiscard]] const std::vector<std::vector<std::size_t>>& splits() const { return splits_; }

 private:
  status add_files_of(const std::string& path) {
    const auto files = gguf_files_of(path);
    if (!files) return files.error();
    std::vector<std::size_t> places;
    for (const std::string& each : *files) places.push_back(place_of(each));
    if (places.size() > 1) splits_.push_back(std::move(places));
    return {};
  }
  std::size_t place_of(const std::string& file) {
    const auto [known, is_new] = places_.emplace(file, found_.files.size());
    if (is_new) found_.files.push_back(file);
    return known->second;
  }

  const engine& with_;
  const remote_options& how_;
  std::map<std::string, std::size_t> places_;
  model_paths found_;
  std::vector<std::vector<std::size_t>> splits_;
};

// --- reading the files

// "archive/data/0" is a storage if the checkpoint's pickle is "archive/data.pkl".
result<tensor_header> storages_in(const file& from) {
  const auto members = read_zip_directory(from);
  if (!members) return members.error();
  const auto folder = tensors::checkpoint_folder(*members);
  if (!folder) return folder.error().with_context(from.path());
  if (status error = tensors::check_storages(from, *members, *folder); !error.ok()) return error.with_context(from.path());
  const std::string beginning = *folder + "data/";
  std::vector<tensor_facts> storages;
  for (const zip_member& each : *members) {
    if (!each.name.starts_with(beginning)) continue;
    if (!each.stored) {
      return status(errc::invalid_argument,
                    fmt::format("{}: {} is compressed and cannot be read directly", from.path(), tensors::quoted(each.name)));
    }
    storages.push_back({each.name, tensor_type::u8, {each.packed_bytes}, each.offset, each.packed_bytes});
  }
  std::ranges::sort(storages, {}, &tensor_facts::offset);
  return tensor_header(std::move(storages), std::nullopt, 0);
}

struct opened_file {
  model_file file;
  gguf_header gguf;  // for a GGUF file; without the tensors
};

result<opened_file> open_one(const engine& with, const std::string& path, const remote_options& how) {
  auto source = open_any(with, path, how);
  if (!source) return source.error();
  const auto size = source->size();
  if (!size) return size.error();
  const std::string_view word = model_kind_of(*source).word;
  if (word == "gguf") {
    auto gguf = read_gguf(*source);
    if (!gguf) return gguf.error();
    tensor_header header = std::exchange(gguf->tensors, {});
    model_file made{shown_name(path), *std::move(source), *size, std::move(header), model_file_kind::gguf, gguf->unknown};
    return opened_file{std::move(made), *std::move(gguf)};
  }
  const auto kind = word == "checkpoint" ? model_file_kind::checkpoint : model_file_kind::safetensors;
  auto header = kind == model_file_kind::checkpoint ? storages_in(*source) : read_safetensors(*source);
  if (!header) return header.error();
  return opened_file{{shown_name(path), *std::move(source), *size, *std::move(header), kind, {}}, {}};
}

// Opens the files in order or, if several are on servers, many at once, because each open waits for responses.
result<std::vector<opened_file>> open_each(const engine& with, const std::vector<std::string>& paths, const remote_options& how) {
  std::vector<std::optional<opened_file>> opened(paths.size());
  const auto open = [&](std::size_t i, const remote_options& with_options) -> status {
    auto made = open_one(with, paths[i], with_options);
    if (made) opened[i] = *std::move(made);
    return made.error();
  };
  const auto open_stoppable = [&](std::size_t i, const tensors::stop_function& stop) {
    remote_options mine = how;
    mine.stop_requested = stop;
    return open(i, mine);
  };
  if (std::ranges::count_if(paths, [](const std::string& each) { return is_url(each); }) > 1) {
    if (status error = tensors::run_at_once(paths.size(), how.stop_requested, open_stoppable); !error.ok()) return error;
  } else {
    for (std::size_t i = 0; i < paths.size(); ++i) {
      if (status error = open(i, how); !error.ok()) return error;
    }
  }
  std::vector<opened_file> all;
  all.reserve(paths.size());
  for (std::optional<opened_file>& each : opened) all.push_back(*std::move(each));
  return all;
}

// Returns the files that claim to be part of a split model but whose names do not lead to the other files. Together they may be the whole
// model.
std::vector<std::size_t> lone_parts(const std::vector<std::vector<std::size_t>>& splits, const std::vector<gguf_header>& headers) {
  std::unordered_set<std::size_t> with_others;
  for (const auto& each : splits) with_others.insert(each.begin(), each.end());
  std::vector<std::size_t> lone;
  for (std::size_t i = 0; i < headers.size(); ++i) {
    if (gguf_split_count(headers[i]) > 0 && !with_others.contains(i)) lone.push_back(i);
  }
  std::ranges::stable_sort(lone, {}, [&](std::size_t each) { return gguf_split_number(headers[each]); });
  return lone;
}

status check_split(const std::vector<std::size_t>& places, const std::vector<model_file>& files, const std::vector<gguf_header>& headers) {
  std::vector<std::string> paths;
  std::vector<const gguf_header*> mine;
  for (const std::size_t each : places) {
    paths.push_back(files[each].path);
    mine.push_back(&headers[each]);
  }
  return check_gguf_files(paths, mine);
}

// Reads a checkpoint's pickle only if an index lists its tensors; loading just the storages does not need it.
class name_lists {
 public:
  status add(const model_file& from, bool is_promised) {
    std::vector<std::string_view>& names = all_.emplace_back();
    if (from.kind != model_file_kind::checkpoint) {
      for (const tensor_facts& each : from.header.tensors()) names.emplace_back(each.name);
    } else if (is_promised) {
      const auto checkpoint = read_torch_checkpoint(from.source);
      if (!checkpoint) return checkpoint.error();
      std::vector<std::string>& kept = kept_.emplace_back();
      for (const checkpoint_tensor& each : checkpoint->tensors) kept.push_back(each.name());
      names.assign(kept.begin(), kept.end());
    }
    return {};
  }
  [[nodiscard]] std::span<const std::vector<std::string_view>> all() const { return all_; }

 private:
  std::vector<std::vector<std::string_view>> all_;
  std::vector<std::vector<std::string>> kept_;  // tensor names in checkpoints
};

// Drops tensors of a reused file that the index assigns to another file or does not list.
void leave_out_others(const model_paths& paths, std::vector<model_file>& files) {
  const auto wanted = names_by_index(paths);
  for (std::size_t i = 0; i < files.size(); ++i) {
    const bool has_others = !wanted[i].empty() && wanted[i].size() < files[i].header.tensors().size();
    if (has_others && files[i].kind != model_file_kind::checkpoint) files[i].header = files[i].header.only(wanted[i]);
  }
}

result<std::vector<model_file>> open_all(const engine& with, const std::vector<std::string>& paths, const remote_options& how) {
  path_collector collector(with, how);
  for (const std::string& each : paths) {
    if (status error = collector.add(each); !error.ok()) return error;
  }
  model_paths found = collector.take();
  std::vector<model_file> files;
  std::vector<gguf_header> headers;
  auto opened = open_each(with, found.files, how);
  if (!opened) return opened.error();
  for (opened_file& each : *opened) {
    files.push_back(std::move(each.file));
    headers.push_back(std::move(each.gguf));
  }
  for (std::size_t i = 0; i < files.size(); ++i) found.files[i] = files[i].path;  // the names to show in messages
  auto splits = collector.splits();
  if (auto lone = lone_parts(splits, headers); !lone.empty()) splits.push_back(std::move(lone));
  for (const auto& each : splits) {
    if (status error = check_split(each, files, headers); !error.ok()) return error;
  }
  std::unordered_set<std::size_t> promised;
  for (const model_paths::promise& each : found.promises) promised.insert(each.file);
  name_lists names;
  for (std::size_t i = 0; i < files.size(); ++i) {
    if (status error = names.add(files[i], promised.contains(i)); !error.ok()) return error;
  }
  if (status error = check_tensors(found, names.all()); !error.ok()) return error;
  leave_out_others(found, files);
  return files;
}

}  // namespace

std::string_view to_string(model_file_kind kind) noexcept {
  constexpr std::array<std::string_view, 3> names = {"safetensors", "checkpoint", "gguf"};
  return names.at(static_cast<std::size_t>(kind));
}

std::uint64_t model_file::tensor_bytes() const noexcept {
  const auto add = [](std::uint64_t sum, const tensor_facts& each) { return sum + each.bytes; };
  return std::accumulate(header.tensors().begin(), header.tensors().end(), std::uint64_t{0}, add);
}

result<model> model::open(const engine& with, const std::vector<std::string>& paths, const remote_options& how) {
  return or_no_memory([&]() -> result<model> {
    auto files = open_all(with, paths, how);
    if (!files) return files.error();
    return model(*std::move(files));
  });
}

std::optional<model_tensor> model::find(std::string_view name) const noexcept {
  for (const model_file& each : files_) {
    if (const tensor_facts* const facts = each.header.find(name); facts != nullptr) return model_tensor{&each, facts};
  }
  return std::nullopt;
}

std::size_t model::tensor_count() const noexcept {
  const auto add = [](std::size_t sum, const model_file& each) { return sum + each.header.tensors().size(); };
  return std::accumulate(files_.begin(), files_.end(), std::size_t{0}, add);
}

std::uint64_t model::tensor_bytes() const noexcept {
  const auto add = [](std::uint64_t sum, const model_file& each) { return sum + each.tensor_bytes(); };
  return std::accumulate(files_.begin(), files_.end(), std::uint64_t{0}, add);
}

}  // namespace penstock
