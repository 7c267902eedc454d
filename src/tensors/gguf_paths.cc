// Models in several GGUF files, by the names that llama.cpp gives these.
#include <fmt/format.h>

#include <charconv>
#include <filesystem>
#include <utility>

#include "base/no_memory.hpp"
#include "penstock/engine.hpp"
#include "penstock/gguf.hpp"
#include "tensors/checks.hpp"

namespace penstock {

namespace {

constexpr std::size_t split_digits = 5;
constexpr std::string_view split_word = "-of-", gguf_ending = ".gguf";

// "name-00002-of-00003.gguf": what stands before the first "-0", and the two numbers.
struct split_name {
  std::string stem;
  unsigned number = 0, count = 0;
  [[nodiscard]] std::string file(unsigned of_number) const {
    return fmt::format("{}-{:05}{}{:05}{}", stem, of_number, split_word, count, gguf_ending);
  }
};

std::optional<unsigned> split_number(std::string_view text) {
  unsigned value = 0;
  const auto read = std::from_chars(text.data(), text.data() + text.size(), value);
  if (read.ec != std::errc() || read.ptr != text.data() + text.size()) return std::nullopt;
  return value;
}

std::optional<split_name> split_name_of(std::string_view path) {
  constexpr std::size_t tail = 1 + split_digits + split_word.size() + split_digits + gguf_ending.size();
  if (path.size() < tail || !path.ends_with(gguf_ending)) return std::nullopt;
  const std::string_view text = path.substr(path.size() - tail, tail - gguf_ending.size());
  if (text[0] != '-' || text.substr(1 + split_digits, split_word.size()) != split_word) return std::nullopt;
  const auto number = split_number(text.substr(1, split_digits)), count = split_number(text.substr(1 + split_digits + split_word.size()));
  if (!number || !count || *number == 0 || *number > *count) return std::nullopt;
  return split_name{std::string(path.substr(0, path.size() - tail)), *number, *count};
}

result<std::vector<std::string>> split_files_of(const std::string& path) {
  const auto name = split_name_of(path);
  if (!name) return std::vector{path};
  std::vector<std::string> files, missing;
  for (unsigned i = 1; i <= name->count; ++i) {
    files.push_back(name->file(i));
    std::error_code ignored;
    if (!is_url(path) && !std::filesystem::exists(files.back(), ignored)) missing.push_back(files.back());
  }
  if (missing.empty()) return files;
  const std::vector<std::string_view> names(missing.begin(), missing.end());
  return status(errc::not_found, fmt::format("{}: files of the same model that are not there: {}", path, tensors::listed(names)));
}

// A whole number of any type, as the tools that split files differ in which they write.
std::optional<std::uint64_t> whole_number(const gguf_header& header, std::string_view key) {
  const gguf_value* const told = header.find(key);
  if (told == nullptr) return std::nullopt;
  return std::visit(
      [](const auto& value) -> std::optional<std::uint64_t> {
        if constexpr (std::is_integral_v<std::decay_t<decltype(value)>>) return static_cast<std::uint64_t>(value);
        return std::nullopt;
      },
      *told);
}

status check_split_files(std::span<const std::string> paths, std::span<const gguf_header* const> headers) {
  if (paths.size() != headers.size()) return {errc::invalid_argument, fmt::format("{} headers of {} files", headers.size(), paths.size())};
  for (std::size_t i = 0; i < headers.size(); ++i) {
    const auto number = whole_number(*headers[i], "split.no"), count = whole_number(*headers[i], "split.count");
    if (count.value_or(headers.size()) == headers.size() && number.value_or(i) == i) continue;
    if (count.value_or(0) == 0 && headers.size() == 1) continue;  // joined again
    return {errc::invalid_argument, fmt::format("{}: its metadata says that it is file {} of {} of a model, and not {} of {}", paths[i],
                                                number.value_or(i) + 1, count.value_or(headers.size()), i + 1, headers.size())};
  }
  return {};
}

}  // namespace

result<std::vector<std::string>> gguf_files_of(const std::string& path) {
  return or_no_memory([&] { return split_files_of(path); });
}

status check_gguf_files(std::span<const std::string> paths, std::span<const gguf_header* const> headers) {
  return or_no_memory([&] { return check_split_files(paths, headers); });
}

}  // namespace penstock
