// Models split into several GGUF files, with llama.cpp's file names.
#include <fmt/format.h>

#include <charconv>
#include <filesystem>
#include <utility>

#include "base/no_memory.hpp"
#include "penstock/engine.hpp"
#include "penstock/gguf.hpp"
#include "tensors/checks.hpp"
#include "tensors/urls.hpp"

namespace penstock {

namespace {

constexpr std::size_t split_digits = 5;
constexpr std::string_view split_word = "-of-", gguf_ending = ".gguf";
constexpr std::string_view split_number_key = "split.no", split_count_key = "split.count", split_tensors_key = "split.tensors.count";

// The parts of "name-00002-of-00003.gguf": the stem before the first "-0" and the two numbers. query: the URL's query; all files of a model
// share it.
struct split_name {
  std::string stem, query;
  unsigned number = 0, count = 0;
  [[nodiscard]] std::string file(unsigned of_number) const {
    return fmt::format("{}-{:05}{}{:05}{}{}", stem, of_number, split_word, count, gguf_ending, query);
  }
};

std::optional<unsigned> split_number(std::string_view text) {
  unsigned value = 0;
  const auto read = std::from_chars(text.data(), text.data() + text.size(), value);
  if (read.ec != std::errc() || read.ptr != text.data() + text.size()) return std::nullopt;
  return value;
}

std::optional<split_name> split_name_of(std::string_view whole) {
  const std::string_view path = is_url(whole) ? tensors::without_query(whole) : whole;
  constexpr std::size_t tail = 1 + split_digits + split_word.size() + split_digits + gguf_ending.size();
  if (path.size() < tail || !path.ends_with(gguf_ending)) return std::nullopt;
  const std::string_view text = path.substr(path.size() - tail, tail - gguf_ending.size());
  if (text[0] != '-' || text.substr(1 + split_digits, split_word.size()) != split_word) return std::nullopt;
  const auto number = split_number(text.substr(1, split_digits)), count = split_number(text.substr(1 + split_digits + split_word.size()));
  if (!number || !count || *number == 0 || *number > *count) return std::nullopt;
  return split_name{std::string(path.substr(0, path.size() - tail)), std::string(whole.substr(path.size())), *number, *count};
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
  return status(errc::not_found, fmt::format("{}: other shards of this model are missing: {}", path, tensors::listed(names)));
}

// Returns a whole number stored as any type, because the tools that split files write different types.
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

status not_whole(const std::string& path, const std::string& what) { return {errc::invalid_argument, fmt::format("{}: {}", path, what)}; }

// Returns the error for one file of a split model without the others.
status lone_part(const std::string& path, std::uint64_t number, std::uint64_t count) {
  return not_whole(
      path, fmt::format("the metadata says that this is file {} of {} of a model, but the other files cannot be found from its name. "
                        "Put the files in one folder and name them NAME-00001-of-{:05}.gguf and so on, as llama.cpp does",
                        number + 1, count, count));
}

status check_places(std::span<const std::string> paths, std::span<const gguf_header* const> headers) {
  for (std::size_t i = 0; i < headers.size(); ++i) {
    const auto number = whole_number(*headers[i], split_number_key);
    const std::uint64_t count = gguf_split_count(*headers[i]);
    if (count == 0 && headers.size() == 1) continue;  // not split, or merged later
    if (headers.size() == 1 && count > 1) return lone_part(paths[i], number.value_or(i), count);
    const std::uint64_t said = count == 0 ? headers.size() : count;
    if (said == headers.size() && number.value_or(i) == i) continue;
    return not_whole(paths[i], fmt::format("the metadata says that this is file {} of {} of a model, not {} of {}", number.value_or(i) + 1,
                                           said, i + 1, headers.size()));
  }
  return {};
}

// Each file may state the tensor count of the whole model. In a file that was merged or filtered later, that count is outdated.
status check_tensor_counts(std::span<const std::string> paths, std::span<const gguf_header* const> headers) {
  std::uint64_t found = 0;
  for (const gguf_header* each : headers) found += each->tensor_count();
  for (std::size_t i = 0; i < headers.size(); ++i) {
    const auto wanted = whole_number(*headers[i], split_tensors_key);
    if (!wanted || *wanted == found || (headers.size() == 1 && gguf_split_count(*headers[i]) == 0)) continue;
    return not_whole(paths[i], fmt::format("the metadata says that the model has {} tensors ({}), but its {} {}: the model is incomplete",
                                           *wanted, split_tensors_key, headers.size() == 1 ? "file has" : "files have", found));
  }
  return {};
}

status check_split_files(std::span<const std::string> paths, std::span<const gguf_header* const> headers) {
  if (paths.size() != headers.size())
    return {errc::invalid_argument, fmt::format("{} headers were given for {} files", headers.size(), paths.size())};
  const status error = check_places(paths, headers);
  return error.ok() ? check_tensor_counts(paths, headers) : error;
}

}  // namespace

result<std::vector<std::string>> gguf_files_of(const std::string& path) {
  return or_no_memory([&] { return split_files_of(path); });
}

std::uint64_t gguf_split_number(const gguf_header& header) noexcept { return whole_number(header, split_number_key).value_or(0); }

std::uint64_t gguf_split_count(const gguf_header& header) noexcept { return whole_number(header, split_count_key).value_or(0); }

status check_gguf_files(std::span<const std::string> paths, std::span<const gguf_header* const> headers) {
  return or_no_memory([&] { return check_split_files(paths, headers); });
}

}  // namespace penstock
