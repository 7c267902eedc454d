#include "tensors/file_kinds.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "base/json_reader.hpp"
#include "base/no_memory.hpp"
#include "penstock/model.hpp"
#include "tensors/zip_names.hpp"

namespace penstock {

namespace {

using namespace std::string_view_literals;

constexpr std::size_t beginning_bytes = 64;

char small(char letter) { return letter >= 'A' && letter <= 'Z' ? static_cast<char>(letter + ('a' - 'A')) : letter; }

bool ends_with(std::string_view name, std::string_view small_letters) {
  return name.size() >= small_letters.size() &&
         std::ranges::equal(name.substr(name.size() - small_letters.size()), small_letters, {}, small);
}

std::string_view without_space(std::string_view text) { return text.substr(std::min(text.find_first_not_of(" \t\r\n"), text.size())); }

// Returns one byte of a file; 0 if it cannot be read.
char byte_at(const file& from, std::uint64_t offset) {
  char byte = 0;
  (void)from.read(&byte, 1, static_cast<std::int64_t>(offset));
  return byte;
}

// --- checks

// The header must fit into the file and look like JSON.
bool is_safetensors(const file& from, std::string_view beginning) {
  const std::string_view first = beginning.substr(std::min(beginning.size(), safetensors_length_bytes), 2);
  if (first != "{\"" && first != "{}") return false;
  const auto size = from.size();
  const auto bytes = safetensors_header_bytes(beginning, size ? *size : 0);
  const char last = bytes ? byte_at(from, safetensors_length_bytes + *bytes - 1) : '\0';
  return last == '}' || last == ' ';
}

bool is_index(const file& from, std::string_view beginning) {
  const auto size = from.size();
  if (!without_space(beginning).starts_with('{') || !size || *size > most_model_index_bytes) return false;
  std::string text;
  if (!tensors::read_beginning(from, text, *size).ok()) return false;
  json_reader json(text, "the index");
  bool has_weights = false;
  const bool is_whole = json.object([&](std::string_view key) {
    has_weights = has_weights || (key == "weight_map" && json.next() == '{');
    return json.skip(most_model_index_depth - 1);
  });
  return is_whole && json.end() && has_weights;
}

// numpy.savez() without arrays creates an empty archive.
bool is_named_npz(const file& from, std::string_view) { return ends_with(from.path(), ".npz"); }

bool is_pickle(const file& from, std::string_view beginning) {
  const bool has_frame = beginning.starts_with("\x80\4\x95") || beginning.starts_with("\x80\5\x95");
  const bool is_older = (beginning.starts_with("\x80\2") || beginning.starts_with("\x80\3")) && beginning.size() > 2 &&
                        "}](cKX"sv.find(beginning[2]) != std::string_view::npos;
  const auto size = has_frame || is_older ? from.size() : result<std::uint64_t>(0);
  return size && *size > 0 && byte_at(from, *size - 1) == '.';
}

bool is_html(const file&, std::string_view beginning) {
  const auto begins_with = [text = without_space(beginning)](std::string_view small_letters) {
    return std::ranges::equal(text.substr(0, small_letters.size()), small_letters, {}, small);
  };
  return begins_with("<!doctype html") || begins_with("<html");
}

// The header length of a corrupt safetensors file may start with a brace.
bool is_json(const file&, std::string_view beginning) {
  const std::string_view text = without_space(beginning);
  return (text.starts_with('{') || text.starts_with('[')) &&
         beginning.substr(std::min<std::size_t>(beginning.size(), 4), 4) != "\0\0\0\0"sv;
}

bool begins_like(const file_kind& kind, std::string_view beginning) {
  const auto begins = [&](std::string_view magic) { return beginning.starts_with(magic); };
  return kind.magics.empty() || std::ranges::any_of(kind.magics, begins);
}

bool is_named(std::string_view member, std::string_view pattern) {
  return pattern.starts_with('.') ? member.ends_with(pattern) : member.substr(member.rfind('/') + 1) == pattern;
}

// Reads each part of a file only when a kind asks for it.
class recognition {
 public:
  explicit recognition(const file& from) : from_(from) {}

  result<const file_kind*> find(std::span<const file_kind> among) {
    if (status error = tensors::read_beginning(from_, beginning_, beginning_bytes); !error.ok()) return error;
    const auto found = std::ranges::find_if(among, [&](const file_kind& each) { return matches(each); });
    if (!error_.ok()) return error_;
    return found == among.end() ? nullptr : &*found;
  }

 private:
  bool matches(const file_kind& kind) {
    if (!begins_like(kind, beginning_) || !error_.ok()) return false;
    const auto has = [&](std::string_view pattern) {
      return std::ranges::any_of(members(), [&](const std::string& each) { return is_named(each, pattern); });
    };
    return std::ranges::all_of(kind.members, has) && (kind.check == nullptr || kind.check(from_, beginning_));
  }
  const std::vector<std::string>& members() {
    if (!members_) {
      auto names = tensors::zip_member_names(from_);
      error_ = names.error();
      members_ = names ? *std::move(names) : std::vector<std::string>();
    }
    return *members_;
  }

  const file& from_;
  std::string beginning_;
  std::optional<std::vector<std::string>> members_;
  status error_;
};

// --- the table

std::vector<file_kind>& table() {
  const std::vector<std::string_view> zip{"PK\3\4", "PK\5\6"};
  constexpr auto decompress = ": decompress it first", load = ": penstock.load reads it";
  // clang-format off
  static std::vector<file_kind> kinds{
      {.word = "safetensors", .name = "a safetensors file", .check = is_safetensors, .is_model = true, .endings = {".safetensors"},
       .reader = "penstock.safetensors.load_file()"},
      {.word = "index", .name = "the index of a model", .check = is_index, .is_model = true, .endings = {".index.json"},
       .shared_endings = {".json"}, .reader = "penstock.safetensors.load_file()", .advice = ": the name of an index must end in .json"},
      {.word = "gguf", .name = "a GGUF file", .magics = {"GGUF"}, .is_model = true, .endings = {".gguf"}, .reader = "penstock.gguf.open()"},
      {.word = "npy", .name = "a NumPy array (.npy)", .magics = {"\x93NUMPY"}, .endings = {".npy"}, .reader = "numpy.load()", .advice = load},
      {.word = "npz", .name = "an archive of NumPy arrays (.npz)", .magics = zip, .members = {".npy"}, .endings = {".npz"},
       .reader = "numpy.load()", .advice = load},
      {.word = "torchscript", .name = "a TorchScript archive", .magics = zip, .members = {"data.pkl", "constants.pkl"},
       .reader = "torch.jit.load()"},
      {.word = "exported", .name = "an exported PyTorch program", .magics = zip, .members = {"archive_format", "archive_version"},
       .reader = "torch.export.load()"},
      {.word = "checkpoint", .name = "a torch.save checkpoint", .magics = zip, .members = {"data.pkl"}, .is_model = true,
       .endings = {".pt", ".pth", ".ckpt"}, .shared_endings = {".bin"}, .reader = "penstock.torch.load()",
       .advice = ": penstock.torch.load reads it, and `penstock convert` converts it to a safetensors file"},
      {.word = "checkpoint", .name = "a checkpoint of PyTorch 1.5 or older", .magics = {"\x80\2\x8a\n\x6c\xfc\x9c"},
       .reader = "penstock.torch.load()", .advice = ": load it with PyTorch and save it again"},
      {.word = "npz", .name = "an archive of NumPy arrays (.npz)", .magics = zip, .check = is_named_npz, .reader = "numpy.load()"},
      {.word = "zip", .name = "a zip archive, such as a torch.save checkpoint", .magics = zip, .shared_endings = {".zip"}},
      {.word = "pickle", .name = "a Python pickle", .check = is_pickle, .shared_endings = {".pkl", ".pickle"},
       .reader = "pickle.load(), only if you trust the file, because a pickle can run any code",
       .advice = ": a pickle can run arbitrary code, so Penstock does not read it"},
      {.word = "hdf5", .name = "an HDF5 file", .magics = {"\x89HDF\r\n\x1a\n"}, .shared_endings = {".h5", ".hdf5", ".keras"},
       .reader = "h5py.File()"},
      {.word = "git-lfs", .name = "a git-lfs pointer, not the file itself", .magics = {"version https://git-lfs.github.com/spec/"},
       .reader = "`git lfs pull`, which replaces it", .advice = ": run `git lfs pull`"},
      {.word = "gzip", .name = "compressed by gzip", .magics = {"\x1f\x8b\b"}, .advice = decompress},
      {.word = "zstd", .name = "compressed by zstd", .magics = {"\x28\xb5\x2f\xfd"}, .advice = decompress},
      {.word = "bzip2", .name = "compressed by bzip2", .magics = {"BZh"}, .advice = decompress},
      {.word = "html", .name = "an HTML page", .check = is_html, .advice = ": was the download refused?"},
      {.word = "json", .name = "JSON text", .check = is_json,
       .advice = ": was the download refused, or is it an index (whose name must end in .json)?"},
  };
  // clang-format on
  return kinds;
}

const file_kind* kind_called(std::string_view word) { return &*std::ranges::find(table(), word, &file_kind::word); }

}  // namespace

std::span<const file_kind> file_kinds() { return table(); }

result<const file_kind*> find_file_kind(const file& from) {
  return or_no_memory([&] { return recognition(from).find(table()); });
}

const file_kind& model_kind_of(const file& from) {
  std::array<char, 8> first{};
  const io_result done = from.read(first.data(), first.size(), 0);
  const std::string_view beginning(first.data(), done.bytes_done);
  const auto is_like = [&](const file_kind& each) { return each.is_model && !each.magics.empty() && begins_like(each, beginning); };
  const auto found = std::ranges::find_if(table(), is_like);
  return found == table().end() ? *kind_called("safetensors") : *found;
}

const file_kind* kind_by_ending(std::string_view name) {
  const auto has = [&](std::string_view ending) { return ends_with(name, ending); };
  const auto found = std::ranges::find_if(table(), [&](const file_kind& each) {
    return std::ranges::any_of(each.endings, has) || std::ranges::any_of(each.shared_endings, has);
  });
  return found == table().end() ? nullptr : &*found;
}

void detail::add_file_kind(file_kind kind) { table().insert(table().begin(), std::move(kind)); }

namespace tensors {

status read_beginning(const file& from, std::string& to, std::uint64_t bytes) {
  const std::size_t had = to.size();
  to.resize(bytes);
  const io_result done = from.read(to.data() + had, bytes - had, static_cast<std::int64_t>(had));
  to.resize(had + done.bytes_done);
  return done.error;
}

std::optional<status> known_stand_in(const file& from, std::string_view wanted) {
  const auto kind = find_file_kind(from);
  if (!kind || *kind == nullptr || (*kind)->word == wanted) return std::nullopt;
  const auto& [name, advice] = std::pair((*kind)->name, (*kind)->advice);
  const bool is_complete = name.find(", not ") != std::string_view::npos;
  const std::string contrast = is_complete ? "" : fmt::format(", not {}", kind_called(wanted)->name);
  return status(errc::invalid_argument, fmt::format("{} is {}{}{}", from.path(), name, contrast, advice));
}

}  // namespace tensors

}  // namespace penstock
