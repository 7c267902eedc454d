#include "models.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <memory>
#include <optional>
#include <penstock/penstock.hpp>
#include <string>
#include <string_view>
#include <system_error>
#include <unordered_map>
#include <vector>

#include "arguments.hpp"
#include "device.hpp"
#include "errors.hpp"
#include "file.hpp"
#include "gil.hpp"
#include "options.hpp"
#include "ranges.hpp"
#include "remote.hpp"

namespace penstock::python {

namespace {

using namespace nb::literals;

nb::object tensor_word(std::string_view text) { return nb::str(text.data(), text.size()); }

std::string first_missing(const std::vector<std::string>& files) {
  const auto is_there = [](const std::string& path) {
    std::error_code ignored;
    return is_url(path) || std::filesystem::exists(path, ignored);
  };
  const auto found = std::ranges::find_if_not(files, is_there);
  return found == files.end() ? std::string() : *found;
}

nb::object found_model(nb::handle path, nb::handle storage_options) {
  const std::string name = path_text(path);
  const auto found = [&]() -> result<std::string> {
    if (!is_url(name)) {
      const without_gil unlocked;
      return find_model(name);
    }
    auto server = parse_storage_options(storage_options);
    const auto engine = shared_engine();
    without_gil_until_signal unlocked;
    server.stop_requested = [&unlocked] { return unlocked.is_interrupted(); };
    return find_model(engine, name, server);
  }();
  raise_if_interrupted();
  if (!found) raise(found.error(), {shown_name(name)});
  return path_object(*found);
}

nb::tuple shards_of_index(nb::bytes json, nb::handle path) {
  const std::string name = path_text(path);
  const auto index = parse_model_index({json.c_str(), json.size()});
  if (!index) raise(index.error().with_context(shown_name(name)), {shown_name(name)});
  const auto shards = shards_of(*index, name);
  if (!shards) raise(shards.error(), {shown_name(name)});
  if (const status error = check_shards(*shards, name); !error.ok()) raise(error, {shown_name(first_missing(shards->files))});
  nb::list files;
  for (const std::string& each : shards->files) files.append(path_object(each));
  nb::dict promised;
  for (const auto& [tensor, file] : shards->promises) promised[tensor_word(tensor)] = files[file];
  return nb::make_tuple(files, promised);
}

nb::list list_remote(nb::handle url, nb::handle storage_options, bool one_level) {
  const std::string name = path_text(url);
  auto server = parse_storage_options(storage_options);
  const auto engine = shared_engine();
  const auto found = [&] {
    without_gil_until_signal unlocked;
    server.stop_requested = [&unlocked] { return unlocked.is_interrupted(); };
    return engine.list_remote(name, server, one_level);
  }();
  raise_if_interrupted();
  if (!found) raise(found.error(), {shown_name(name)});
  nb::list made;
  for (const remote_object& each : *found) made.append(nb::make_tuple(each.url, each.size ? nb::cast(*each.size) : nb::none()));
  return made;
}

std::optional<file_kind> kind_of_file(const python_file& self) {
  const auto found = [&] {
    const without_gil unlocked;
    return find_file_kind(*self.target);
  }();
  if (!found) raise(found.error(), {path_text(self.name)});
  return *found == nullptr ? std::nullopt : std::optional(**found);
}

void add_file_kinds(nb::module_& module) {
  const auto words = [](const std::vector<std::string_view>& all) {
    nb::list made;
    for (const std::string_view each : all) made.append(tensor_word(each));
    return nb::tuple(made);
  };
  nb::class_<file_kind>(module, "FileKind")
      .def_prop_ro(
          "word", [](const file_kind& self) { return tensor_word(self.word); }, nb::sig("def word(self) -> str"))
      .def_prop_ro(
          "name", [](const file_kind& self) { return tensor_word(self.name); }, nb::sig("def name(self) -> str"))
      .def_prop_ro(
          "reader", [](const file_kind& self) { return tensor_word(self.reader); }, nb::sig("def reader(self) -> str"))
      .def_prop_ro(
          "endings", [words](const file_kind& self) { return words(self.endings); }, nb::sig("def endings(self) -> tuple[str, ...]"));
  module.def("file_kinds", [] { return std::vector(file_kinds().begin(), file_kinds().end()); });
  module.def("find_file_kind", &kind_of_file, "file"_a);
  // For tests. The words stay in memory.
  const auto add = [](std::string_view word, std::string_view name, std::string_view magic, std::string_view reader) {
    static std::deque<std::string> texts;
    const auto kept = [](std::string_view text) -> std::string_view { return texts.emplace_back(text); };
    detail::add_file_kind({.word = kept(word), .name = kept(name), .magics = {kept(magic)}, .reader = kept(reader)});
  };
  module.def("_add_file_kind", add, "word"_a, "name"_a, "magic"_a, "reader"_a);
}

std::string tensor_name(nb::handle tensor) {
  if (!nb::isinstance<nb::str>(tensor)) throw nb::type_error(("a tensor's name must be a str, not " + type_of(tensor)).c_str());
  return nb::cast<std::string>(tensor);
}

const tensor_header& header_of(nb::handle object) {
  if (!nb::isinstance<tensor_header>(object)) throw nb::type_error(("a header must be a TensorHeader, not " + type_of(object)).c_str());
  return nb::cast<const tensor_header&>(object);
}

// Returns the file of the first promised tensor that is missing.
std::string first_lacking(const model_paths& paths, nb::list headers) {
  const auto is_broken = [&](const model_paths::promise& each) { return header_of(headers[each.file]).find(each.tensor) == nullptr; };
  const auto broken = std::ranges::find_if(paths.promises, is_broken);
  return broken == paths.promises.end() ? std::string() : paths.files[broken->file];
}

void check_model(nb::list files, nb::list headers, nb::dict promised) {
  model_paths paths;
  std::vector<std::vector<std::string_view>> names;
  for (const nb::handle each : files) paths.files.push_back(path_text(each));
  for (const nb::handle each : headers) {
    std::vector<std::string_view>& mine = names.emplace_back();
    for (const tensor_facts& tensor : header_of(each).tensors()) mine.emplace_back(tensor.name);
  }
  std::unordered_map<std::string_view, std::size_t> places;
  for (std::size_t i = 0; i < paths.files.size(); ++i) places.emplace(paths.files[i], i);
  for (const auto& [tensor, file] : promised) {
    const auto place = places.find(path_text(file));
    paths.promises.push_back({tensor_name(tensor), place == places.end() ? paths.files.size() : place->second});
  }
  const status error = check_tensors(paths, names);
  if (error.ok()) return;
  raise(error, {error.code() == errc::not_found ? first_lacking(paths, headers) : std::string()});
}

// The requests in a flow share it.
struct python_flow {
  python_flow(std::uint64_t most_bytes, nb::handle links) {
    flow_options options;
    const nb::none none;
    options.io = request_options(none, none, none, links, none, none);
    if (most_bytes != 0) options.most_bytes = most_bytes;
    shared = std::make_shared<model_flow>(shared_engine(), options);
  }
  std::shared_ptr<model_flow> shared;
};

future add_to_flow(const python_flow& self, const python_file& from, nb::handle buffer, nb::handle offsets, nb::handle sizes,
                   nb::handle places) {
  future made(new flight(from.target));
  const held_memory& memory = made->keep(buffer, memory_use::target);
  from.remember(memory);
  std::vector<file_range> ranges;
  for (const io_request& each : parse_ranges(memory, *from.target, offsets, sizes, places, false)) {
    const auto place = static_cast<std::byte*>(each.memory) - memory.data();
    ranges.push_back({static_cast<std::uint64_t>(each.offset), each.length, static_cast<std::uint64_t>(place)});
  }
  void* const there = memory.data();
  made->start_in(self.shared, ranges, {&there, 1});
  return made;
}

}  // namespace

void add_models(nb::module_& module) {
  module.attr("MODEL_ALIGNMENT") = model_alignment;
  module.attr("MOST_MODEL_INDEX_BYTES") = most_model_index_bytes;
  module.attr("MOST_MODEL_REQUEST_BYTES") = most_model_request_bytes;
  module.def(
      "is_url", [](nb::handle path) { return is_url(path_text(path)); }, "path"_a,
      "Returns whether open() treats the path as the URL of an object on a server, not as a file name.");
  module.def(
      "shown_name", [](nb::handle name) { return path_object(shown_name(path_text(name))); }, "name"_a,
      "Returns the name used in messages: a URL without its query; a file name unchanged.");
  module.def(
      "file_path", [](nb::handle path) { return path_object(file_path(path_text(path))); }, "path"_a,
      "Returns the path in a file:// URL, and any other name unchanged.");
  module.def("find_model", &found_model, "path"_a, "storage_options"_a = nb::none(),
             "Returns the file that a path refers to: for a folder, or a URL of a folder, its index or single file. Raises\n"
             "penstock.NotFound; for URLs any penstock.Error.");
  module.def("list_remote", &list_remote, "url"_a, nb::kw_only(), "storage_options"_a = nb::none(), "one_level"_a = false,
             "Lists the objects whose URLs start with s3://BUCKET/PREFIX, sorted, each as (URL, bytes). one_level: URLs with a \"/\"\n"
             "after the prefix are truncated there and listed once, as (URL, None). Blocks. Raises penstock.Error; Unsupported for\n"
             "other servers, which cannot be listed.");
  module.def("shards_of_index", &shards_of_index, "json"_a, "path"_a,
             "Returns the files of an index, sorted, and which tensor it promises in which of them. Raises penstock.InvalidArgument\n"
             "for an invalid index, and penstock.NotFound for missing files.");
  module.def("check_model", &check_model, "files"_a, "headers"_a, "promised"_a,
             "Checks that no tensor is in two files, and that each is in the promised file. Raises penstock.InvalidArgument,\n"
             "penstock.NotFound.");
  add_file_kinds(module);
  nb::class_<python_flow>(module, "ReadFlow", "Reads that start in order, with a limit on the bytes in flight. most_bytes 0: 384 MiB.")
      .def(nb::init<std::uint64_t, nb::handle>(), "most_bytes"_a = 0, "links"_a = nb::none())
      .def("add", &add_to_flow, "file"_a, "buffer"_a, "offsets"_a, "sizes"_a, "buffer_offsets"_a,
           "Like File.pread_ranges(). A range that is longer than the limit is read alone.");
}

}  // namespace penstock::python
