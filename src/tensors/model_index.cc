#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "base/json_reader.hpp"
#include "base/no_memory.hpp"
#include "penstock/model.hpp"
#include "tensors/checks.hpp"
#include "tensors/urls.hpp"

namespace penstock {

namespace {

using tensors::tensor_called;

constexpr std::string_view weights_key = "weight_map";
constexpr std::string_view no_weights = "the index has no \"weight_map\" that maps tensors to files";

status no_index(std::string message) { return {errc::invalid_argument, std::move(message)}; }

// Returns true if the name stays inside the index's folder.
bool is_below(std::string_view name) {
  if (name.empty() || name.front() == '/' || name.find('\0') != std::string_view::npos) return false;
  for (std::size_t begin = 0; begin <= name.size();) {
    const std::size_t end = std::min(name.find('/', begin), name.size());
    if (name.substr(begin, end - begin) == "..") return false;
    begin = end + 1;
  }
  return true;
}

class index_reader {
 public:
  explicit index_reader(std::string_view text) : json_(text, "the index") {}

  result<std::vector<indexed_tensor>> read() {
    const bool is_object = json_.next() == '{';
    const bool done = is_object ? json_.object([&](std::string_view key) { return read_member(key); }) : json_.skip(most_model_index_depth);
    if (!problem_.ok()) return problem_;
    if (!done || !json_.end()) return json_.problem().with_context("the index is not valid JSON");
    if (!has_weights_) return no_index(std::string(no_weights));
    if (status error = check(); !error.ok()) return error;
    return std::move(found_);
  }

 private:
  bool read_member(std::string_view key) {
    if (key != weights_key) return json_.skip(most_model_index_depth - 1);
    if (has_weights_) return refuse("\"weight_map\" appears twice in the index");
    has_weights_ = true;
    if (json_.next() != '{') return refuse(no_weights);
    return json_.object([&](std::string_view tensor) {
      std::string name(tensor);
      std::string_view shard;
      if (json_.next() != '"') return refuse(no_weights);
      if (!json_.string(shard)) return false;
      found_.push_back({std::move(name), std::string(shard)});
      return true;
    });
  }
  // Rejects JSON that is not an index.
  bool refuse(std::string_view what) {
    problem_ = no_index(std::string(what));
    return false;
  }
  [[nodiscard]] status check() const {
    std::vector<std::string_view> names;
    names.reserve(found_.size());
    for (const indexed_tensor& each : found_) {
      names.emplace_back(each.tensor);
      if (is_below(each.file)) continue;
      return no_index(fmt::format("the index assigns {} to {}, which is not a file in the index's folder", tensor_called(each.tensor),
                                  tensors::quoted(each.file)));
    }
    if (const auto twice = tensors::repeated(std::move(names)))
      return no_index(fmt::format("{} appears twice in the index", tensor_called(*twice)));
    return {};
  }

  json_reader json_;
  std::vector<indexed_tensor> found_;
  bool has_weights_ = false;
  status problem_;
};

result<std::vector<indexed_tensor>> read_index(const file& from) {
  const auto size = from.size();
  if (!size) return size.error();
  if (*size > most_model_index_bytes) return no_index(fmt::format("{} is larger than {} bytes", from.path(), most_model_index_bytes));
  std::string text(*size, '\0');
  const io_result done = from.read(text.data(), text.size(), 0);
  if (!done.ok()) return done.error;
  auto index = index_reader(std::string_view(text).substr(0, done.bytes_done)).read();
  if (!index) return index.error().with_context(from.path());
  return index;
}

}  // namespace

result<std::vector<indexed_tensor>> parse_model_index(std::string_view json) {
  return or_no_memory([&] { return index_reader(json).read(); });
}

result<std::vector<indexed_tensor>> read_model_index(const file& from) {
  return or_no_memory([&] { return read_index(from); });
}

bool is_model_index(std::string_view path) noexcept { return (is_url(path) ? tensors::without_query(path) : path).ends_with(".json"); }

}  // namespace penstock
