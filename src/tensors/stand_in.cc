#include "tensors/stand_in.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "tensors/gguf_reader.hpp"

namespace penstock::tensors {

namespace {

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
  beginning.remove_prefix(std::min(beginning.find_first_not_of(" \t\r\n"), beginning.size()));
  if (begins_with_words(beginning, "<!doctype html") || begins_with_words(beginning, "<html"))
    return stand_in(fmt::format("{} is an HTML page, not a {} file: was the download refused?", path, wanted));
  return std::nullopt;
}

}  // namespace penstock::tensors
