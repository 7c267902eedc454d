// penstock inspect: lists the contents of tensor files.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <cstdio>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cli/common/command.hpp"
#include "cli/common/json.hpp"
#include "cli/common/say.hpp"
#include "cli/common/sizes.hpp"
#include "cli/common/usage.hpp"
#include "cli/models/gguf_words.hpp"

namespace penstock::cli {
namespace {

using nlohmann::json;

struct inspect_options {
  std::vector<std::string> paths;
  std::string order = "offset";
  bool totals = false;
  output_options output;
};

// A tensor, or a member of a zip file.
struct line {
  std::string name;
  std::string type;  // type of the elements; for a member, its compression
  std::optional<std::vector<std::uint64_t>> shape;
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
};

struct contents {
  std::string path;
  std::string kind;  // "safetensors", "gguf", "checkpoint" (torch.save), or "zip" (only the members are listed)
  std::uint64_t file_bytes = 0;
  std::optional<std::uint64_t> cached_bytes;
  std::uint64_t data_offset = 0;            // safetensors and GGUF only
  std::optional<tensor_metadata> metadata;  // safetensors and checkpoints only
  gguf_header gguf;                         // GGUF only; without its tensors
  std::vector<line> lines;
  std::vector<checkpoint_entry> others;  // entries of a checkpoint that are not tensors
  std::string unread;                    // for a zip file with a pickle, the reason why its tensors are not listed
};

struct type_total {
  std::uint64_t count = 0, bytes = 0;
};

// Returns the largest power of two that divides the offset, at most the page size.
std::uint64_t alignment_of(std::uint64_t offset) {
  constexpr int most = 12;
  return std::uint64_t{1} << std::min(most, std::countr_zero(offset | std::uint64_t{1} << most));
}

std::map<std::string, type_total> totals_of(const contents& of) {
  std::map<std::string, type_total> totals;
  for (const line& each : of.lines) {
    ++totals[each.type].count;
    totals[each.type].bytes += each.bytes;
  }
  return totals;
}

// --- reading

status list_tensors(const file& from, contents& to) {
  auto header = read_safetensors(from);
  if (!header) return header.error();
  to.kind = "safetensors";
  to.data_offset = header->data_offset();
  to.metadata = header->metadata();
  for (const tensor_facts& each : header->tensors()) {
    to.lines.push_back({each.name, std::string(to_string(each.type)), each.shape, each.offset, each.bytes});
  }
  return {};
}

status list_gguf(const file& from, contents& to) {
  auto header = read_gguf(from);
  if (!header) return header.error();
  to.kind = "gguf";
  to.data_offset = header->tensors.data_offset();
  for (std::size_t i = 0; i < header->elements.size(); ++i) {
    const tensor_facts& each = header->tensors.tensors()[i];
    to.lines.push_back({each.name, std::string(header->elements[i].type->name), header->elements[i].shape, each.offset, each.bytes});
  }
  to.gguf = *std::move(header);
  to.gguf.tensors = {};
  return {};
}

status list_members(const file& from, contents& to) {
  auto members = read_zip_directory(from);
  if (!members) return members.error();
  to.kind = "zip";
  for (const zip_member& each : *members) {
    to.lines.push_back({each.name, each.stored ? "stored" : "packed", std::nullopt, each.offset, each.packed_bytes});
  }
  return {};
}

status list_checkpoint(const file& from, contents& to) {
  auto found = read_torch_checkpoint(from);
  if (!found) return found.error();
  to.kind = "checkpoint";
  for (const checkpoint_tensor& each : found->tensors) {
    to.lines.push_back({each.name(), each.problem.ok() ? std::string(to_string(each.type)) : "?", each.shape, each.offset, each.bytes});
  }
  to.others = std::move(found->others);
  if (!found->metadata.empty()) to.metadata = std::move(found->metadata);
  return {};
}

// Lists the tensors of a checkpoint, or the members of any other zip file and of a checkpoint whose pickle cannot be read.
status list_zip(const file& from, contents& to) {
  const status problem = list_checkpoint(from, to);
  if (problem.ok()) return {};
  if (status error = list_members(from, to); !error.ok()) return error;
  if (std::ranges::any_of(to.lines, [](const line& each) { return each.name.ends_with("data.pkl"); })) to.unread = problem.message();
  return {};
}

status list(const file& from, contents& to) {
  const std::string_view word = model_kind_of(from).word;
  if (word == "gguf") return list_gguf(from, to);
  return word == "checkpoint" ? list_zip(from, to) : list_tensors(from, to);
}

result<contents> look_into(const engine& owner, const std::string& path) {
  const auto from = owner.open(path);
  if (!from) return from.error();
  contents found;
  found.path = shown_name(path);
  const auto size = from->size();
  if (!size) return size.error();
  found.file_bytes = *size;
  if (status error = list(*from, found); !error.ok()) return error;
  // Stays unknown if the kernel does not report it.
  if (const auto told = owner.explain(*from, "host", *size, 0); told) found.cached_bytes = told->cached_bytes;
  return found;
}

// Returns the names of tensors; members of a zip file are not tensors.
std::vector<std::string_view> names_of(const contents& found) {
  std::vector<std::string_view> names;
  if (found.kind == "zip") return names;
  for (const line& each : found.lines) names.emplace_back(each.name);
  return names;
}

result<model_paths> read_index(const engine& owner, const std::string& path) {
  const auto from = owner.open(path);
  if (!from) return from.error();
  const auto index = read_model_index(*from);
  if (!index) return index.error();
  return shards_of(*index, path);
}

// --- printing

void sort_lines(std::vector<line>& lines, const std::string& order) {
  const auto by = [&](const line& a, const line& b) {
    if (order == "name") return a.name < b.name;
    if (order == "bytes") return a.bytes != b.bytes ? a.bytes > b.bytes : a.offset < b.offset;
    return a.offset < b.offset;
  };
  std::ranges::stable_sort(lines, by);
}

json to_json(const gguf_unknown_tensor& of) { return {{"name", of.name}, {"type", of.type}, {"shape", of.shape}, {"offset", of.offset}}; }

json to_json(const contents& of, bool totals) {
  json document{{"file", of.path}, {"kind", of.kind}, {"bytes", of.file_bytes}, {"cached_bytes", nullptr}, {"error", nullptr}};
  if (of.cached_bytes) document["cached_bytes"] = *of.cached_bytes;
  if (of.kind == "safetensors") {
    document["data_offset"] = of.data_offset;
    document["metadata"] = nullptr;
    if (of.metadata) document["metadata"] = json::object();
    for (const auto& [key, value] : of.metadata.value_or(tensor_metadata())) document["metadata"][key] = value;
  }
  if (of.kind == "gguf") {
    document["version"] = of.gguf.version;
    document["alignment"] = of.gguf.alignment;
    document["data_offset"] = of.data_offset;
    document["metadata"] = json::object();
    for (const auto& [key, value] : of.gguf.metadata) document["metadata"][key] = as_json(value);
  }
  if (!of.gguf.unknown.empty()) document["unknown"] = json::array();
  for (const gguf_unknown_tensor& each : of.gguf.unknown) document["unknown"].push_back(to_json(each));
  if (of.kind == "checkpoint") {
    document["others"] = json::array();
    for (const checkpoint_entry& each : of.others)
      document["others"].push_back({{"name", fmt::format("{}", fmt::join(each.keys, "."))}, {"kind", each.kind}});
  }
  if (!of.unread.empty()) document["unread"] = of.unread;
  document["by_type"] = json::object();
  for (const auto& [type, total] : totals_of(of)) document["by_type"][type] = {{"count", total.count}, {"bytes", total.bytes}};
  if (totals) return document;
  json& list = document[of.kind == "zip" ? "members" : "tensors"] = json::array();
  for (const line& each : of.lines) {
    json entry{{"name", each.name},
               {"type", each.type},
               {"offset", each.offset},
               {"bytes", each.bytes},
               {"aligned_to", alignment_of(each.offset)}};
    if (each.shape) entry["shape"] = *each.shape;
    list.push_back(std::move(entry));
  }
  return document;
}

std::string cached_words(const contents& of) {
  if (!of.cached_bytes || of.file_bytes == 0) return "";
  return fmt::format(", {:.0f} % in the page cache", 100.0 * static_cast<double>(*of.cached_bytes) / static_cast<double>(of.file_bytes));
}

void print_contents(const contents& of, bool totals) {
  const char* what = of.kind == "zip" ? "member" : "tensor";
  say("{}: {}, {}, {}{}\n", of.path, of.kind, counted(of.lines.size(), what), format_size(of.file_bytes), cached_words(of));
  for (const auto& [key, value] : of.metadata.value_or(tensor_metadata())) say("  {} = {}\n", key, value);
  for (const auto& [key, value] : of.gguf.metadata) say("  {} = {}\n", key, in_words(value));
  for (const auto& [type, total] : totals_of(of))
    say("  {:<12} {:>7} {}{}, {}\n", type, total.count, what, total.count == 1 ? "" : "s", format_size(total.bytes));
  if (!of.unread.empty()) say("  cannot read its tensors: {}\n", of.unread);
  for (const gguf_unknown_tensor& each : of.gguf.unknown) {
    say("  not loadable: {} [{}] at {}, of type {}, which this version does not support\n", each.name,
        fmt::format("{}", fmt::join(each.shape, ", ")), each.offset, each.type);
  }
  if (totals) return;
  for (const checkpoint_entry& each : of.others) say("  not a tensor: {} ({})\n", fmt::format("{}", fmt::join(each.keys, ".")), each.kind);
  if (of.lines.empty()) return;
  say("  {:>15} {:>15} {:>7} {:<12} {}\n", "offset", "bytes", "aligned", "type", "name");
  for (const line& each : of.lines) {
    const std::string shape = each.shape ? fmt::format(" [{}]", fmt::join(*each.shape, ", ")) : "";
    say("  {:>15} {:>15} {:>7} {:<12} {}{}\n", each.offset, each.bytes, alignment_of(each.offset), each.type, each.name, shape);
  }
}

// Inspects the files of a command line, one at a time.
class inspection {
 public:
  inspection(const engine& owner, const inspect_options& wanted) : owner_(owner), wanted_(wanted) {}

  void look_at(const std::string& path) {
    const auto found = find_model(owner_, path);
    if (!found) return failed(path, found.error());
    is_model_index(*found) ? look_at_index(*found) : look_at_files_of(*found);
  }

  int finish() {
    if (wanted_.output.json) print_json(documents_);
    return has_failed_ ? exit_failure : exit_success;
  }

 private:
  void look_at_index(const std::string& path) {
    auto shards = read_index(owner_, path);
    if (!shards) return failed(path, shards.error());
    if (!wanted_.output.json) say("{}: index of {}\n", shown_name(path), counted(shards->files.size(), "file"));
    std::vector<contents> all;
    for (const std::string& shard : shards->files) {
      if (interrupted()) return;
      if (auto found = tell(shard)) all.push_back(*std::move(found));
    }
    if (all.size() < shards->files.size()) return;  // the contents of some files are unknown
    std::vector<std::vector<std::string_view>> names;
    for (const contents& each : all) names.push_back(names_of(each));
    std::ranges::transform(all, shards->files.begin(), &contents::path);
    if (status error = check_tensors(*shards, names); !error.ok()) failed(path, error);
  }
  // Inspects a single file, or all GGUF files of a model.
  void look_at_files_of(const std::string& path) {
    auto files = gguf_files_of(path);
    if (!files) return failed(path, files.error());
    if (!wanted_.output.json && files->size() > 1) say("{}: model of {}\n", shown_name(path), counted(files->size(), "file"));
    std::vector<contents> all;
    for (const std::string& each : *files) {
      if (interrupted()) return;
      if (auto found = tell(each)) all.push_back(*std::move(found));
    }
    if (all.size() < files->size() || (all.size() == 1 && all[0].kind != "gguf")) return;
    std::vector<const gguf_header*> headers;
    std::vector<std::vector<std::string_view>> names;
    for (const contents& each : all) {
      headers.push_back(&each.gguf);
      names.push_back(names_of(each));
    }
    std::ranges::transform(all, files->begin(), &contents::path);
    if (status error = check_gguf_files(*files, headers); !error.ok()) failed(path, error);
    if (status error = check_tensors({*files, {}}, names); !error.ok()) failed(path, error);
  }
  std::optional<contents> tell(const std::string& path) {
    auto found = look_into(owner_, path);
    if (!found) {
      failed(path, found.error());
      return std::nullopt;
    }
    sort_lines(found->lines, wanted_.order);
    if (wanted_.output.json) {
      documents_.push_back(to_json(*found, wanted_.totals));
    } else {
      print_contents(*found, wanted_.totals);
    }
    if (!found->unread.empty()) check_whole(path);
    return *std::move(found);
  }
  // Checks a checkpoint whose pickle cannot be read for missing storages.
  void check_whole(const std::string& path) {
    const auto opened = model::open(owner_, {path});
    if (!opened && opened.error().code() == errc::invalid_argument) failed(path, opened.error());
  }
  // Also adds the error to the document, among the files.
  void failed(const std::string& path, const status& error) {
    has_failed_ = true;
    documents_.push_back({{"file", shown_name(path)}, {"error", error_json(error)}});
    (void)fail(error);
  }

  const engine& owner_;
  const inspect_options& wanted_;
  json documents_ = json::array();
  bool has_failed_ = false;
};

int inspect(const inspect_options& wanted) {
  auto owner = make_engine();
  if (!owner) return fail(owner.error());
  inspection work(*owner, wanted);
  for (const std::string& path : wanted.paths) {
    if (interrupted()) return interrupted_exit_code();
    work.look_at(path);
  }
  return work.finish();
}

}  // namespace

void add_inspect(CLI::App& app, command& chosen) {
  auto wanted = std::make_shared<inspect_options>();
  CLI::App& sub = *app.add_subcommand("inspect", "Show the tensors in model files: types, shapes, bytes and offsets");
  sub.add_option("FILE", wanted->paths,
                 "safetensors files, GGUF files, torch.save checkpoints, indexes (.json) of such files, or folders with model.safetensors "
                 "or its index")
      ->required();
  sub.add_option("--sort", wanted->order, "Order of the tensors: offset (default), name, or bytes (largest first)")
      ->check(one_of({"offset", "name", "bytes"}));
  sub.add_flag("--totals", wanted->totals, "Print the totals only");
  add_output_options(sub, wanted->output);
  sub.callback([wanted, &chosen] { chosen.run = [wanted] { return inspect(*wanted); }; });
}

}  // namespace penstock::cli
