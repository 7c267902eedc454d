#include "tensors/stand_in.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "tensors/gguf_reader.hpp"

namespace penstock::tensors {

namespace {

struct kind_by_magic {
  std::string_view magic, name, advice;
};
constexpr std::string_view load_checkpoint = ": penstock.torch.load reads it, and `penstock convert` converts it to a safetensors file";
constexpr std::array<kind_by_magic, 11> kinds{{
    {"PK\3\4", "a zip archive, such as a torch.save checkpoint", load_checkpoint},
    {"\x80\2\x8a\nl\xfc\x9c\x46\xf9\x20", "a checkpoint of PyTorch 1.5 or older", ": load it with PyTorch and save it again"},
    {"\x80\2", "a Python pickle", ": a pickle can run arbitrary code, so Penstock does not read it"},
    {"\x80\3", "a Python pickle", ": a pickle can run arbitrary code, so Penstock does not read it"},
    {"\x80\4\x95", "a Python pickle", ": a pickle can run arbitrary code, so Penstock does not read it"},
    {"\x80\5\x95", "a Python pickle", ": a pickle can run arbitrary code, so Penstock does not read it"},
    {"\x1f\x8b\b", "compressed by gzip", ": decompress it first"},
    {"\x28\xb5\x2f\xfd", "compressed by zstd", ": decompress it first"},
    {"BZh", "compressed by bzip2", ": decompress it first"},
    {"\x93NUMPY", "a NumPy array (.npy)", ": penstock.load reads it"},
    {"\x89HDF\r\n", "an HDF5 file", ""},
}};

status stand_in(std::string message) { return {errc::invalid_argument, std::move(message)}; }

bool begins_with_words(std::string_view text, std::string_view small_letters) {
  const auto same = [](char letter, char found) { return letter == (found >= 'A' && found <= 'Z' ? found + ('a' - 'A') : found); };
  return text.size() >= small_letters.size() && std::equal(small_letters.begin(), small_letters.end(), text.begin(), same);
}

}  // namespace

status read_beginning(const file& from, std::string& to, std::uint64_t bytes) {
  const std::size_t had = to.size();
  to.resize(bytes);
  const io_result done = from.read(to.data() + had, bytes - had, static_cast<std::int64_t>(had));
  to.resize(had + done.bytes_done);
  return done.error;
}

std::optional<status> known_stand_in(const std::string& path, std::string_view beginning, std::string_view wanted) {
  if (beginning.starts_with("version https://git-lfs.github.com/spec/"))
    return stand_in(fmt::format("{} is a git-lfs pointer, not the file itself: run `git lfs pull`", path));
  if (beginning.starts_with(gguf_magic) && wanted != "GGUF") return stand_in(fmt::format("{} is a GGUF file, not a {} file", path, wanted));
  // The header length of a corrupt safetensors file may happen to start with a brace or with the first two bytes of a pickle.
  const bool may_be_length = beginning.substr(std::min<std::size_t>(beginning.size(), 4), 4) == std::string_view("\0\0\0\0", 4);
  for (const kind_by_magic& each : kinds) {
    if (beginning.starts_with(each.magic) && (each.magic.size() > 2 || !may_be_length))
      return stand_in(fmt::format("{} is {}, not a {} file{}", path, each.name, wanted, each.advice));
  }
  beginning.remove_prefix(std::min(beginning.find_first_not_of(" \t\r\n"), beginning.size()));
  if (begins_with_words(beginning, "<!doctype html") || begins_with_words(beginning, "<html"))
    return stand_in(fmt::format("{} is an HTML page, not a {} file: was the download refused?", path, wanted));
  if (!may_be_length && (beginning.starts_with('{') || beginning.starts_with('[')))
    return stand_in(fmt::format(
        "{} is JSON text, not a {} file: was the download refused, or is it an index (whose name must end in .json)?", path, wanted));
  return std::nullopt;
}

}  // namespace penstock::tensors
