#include "cli/models/convert_selection.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <map>
#include <optional>
#include <span>

#include "cli/common/sizes.hpp"

namespace penstock::cli {
namespace {

using key_span = std::span<const std::string>;

status not_selected(std::string message) { return {errc::invalid_argument, std::move(message)}; }

// Returns the first names and the number of remaining ones.
std::string list_of(const std::vector<std::string>& names) {
  constexpr std::size_t most = 10;
  const auto shown = std::span(names).first(std::min(names.size(), most));
  const std::string rest = names.size() > most ? fmt::format(" and {} more", names.size() - most) : "";
  return fmt::format("{}{}", fmt::join(shown, ", "), rest);
}

std::string called(std::string_view name) { return fmt::format("\"{}\"", name); }

// Returns the keys relative to the dict; nullopt if they are outside it.
std::optional<key_span> inside(key_span keys, const std::string& dict) {
  if (dict.empty()) return keys;
  std::string name;
  for (std::size_t i = 0; i + 1 < keys.size(); ++i) {
    name += (i > 0 ? "." : "") + keys[i];
    if (name == dict) return keys.subspan(i + 1);
  }
  return std::nullopt;
}

// Lists dicts with the number of tensors in each.
std::string dicts_of(const std::map<std::string, std::size_t>& dicts) {
  std::vector<std::string> words;
  for (const auto& [name, count] : dicts) words.push_back(fmt::format("{} ({})", called(name), counted(count, "tensor")));
  return list_of(words);
}

std::map<std::string, std::size_t> outer_dicts(const torch_checkpoint& from) {
  std::map<std::string, std::size_t> dicts;
  for (const checkpoint_tensor& each : from.tensors) {
    if (each.keys.size() > 1) ++dicts[each.keys.front()];
  }
  return dicts;
}

class selector {
 public:
  selector(const torch_checkpoint& from, const selection_options& wanted) : from_(from), wanted_(wanted) {}

  result<tensor_selection> select() {
    if (status error = check_root(); !error.ok()) return error;
    for (const checkpoint_tensor& each : from_.tensors) take(each);
    for (const checkpoint_entry& each : from_.others) take(each);
    if (status error = check_choice(); !error.ok()) return error;
    if (status error = check_tensors(); !error.ok()) return error;
    tell_views();
    return std::move(made_);
  }

 private:
  [[nodiscard]] status check_root() const {
    if (!from_.tensors.empty() && from_.tensors.front().keys.empty())
      return not_selected("the checkpoint is a single tensor without a name");
    if (!from_.others.empty() && from_.others.front().keys.empty() && from_.others.front().kind != "dict")
      return not_selected(fmt::format("the checkpoint is a {}, not a dict of tensors", from_.others.front().kind));
    return {};
  }

  void take(const checkpoint_tensor& each) {
    const auto keys = inside(each.keys, wanted_.key);
    if (!keys) return;
    found_ = true;
    if (keys->size() > 1 && !wanted_.flatten) {
      ++nested_[keys->front()];
    } else {
      made_.tensors.push_back({fmt::format("{}", fmt::join(*keys, ".")), &each});
    }
  }
  void take(const checkpoint_entry& each) {
    const auto keys = inside(each.keys, wanted_.key);
    if (!keys || keys->empty()) return;
    found_ = true;
    made_.left_out.push_back(fmt::format("{} ({})", called(fmt::format("{}", fmt::join(*keys, "."))), each.kind));
  }

  [[nodiscard]] status check_choice() const {
    if (!wanted_.key.empty() && !found_) {
      const auto dicts = outer_dicts(from_);
      return not_selected(
          fmt::format("the checkpoint contains no dict {}; found: {}", called(wanted_.key), dicts.empty() ? "none" : dicts_of(dicts)));
    }
    std::string wrong;
    if (!nested_.empty()) {
      wrong = fmt::format("found nested dicts of tensors: {}. Use --key NAME to select one, or --flatten to join their names with dots",
                          dicts_of(nested_));
    }
    if (!made_.left_out.empty() && !wanted_.tensors_only) {
      wrong += fmt::format("{}found entries that are not tensors: {}. Use --tensors-only to skip them", wrong.empty() ? "" : ". Also ",
                           list_of(made_.left_out));
    }
    return wrong.empty() ? status() : not_selected(wrong);
  }

  [[nodiscard]] status check_tensors() const {
    for (const selected_tensor& each : made_.tensors) {
      const std::string name = fmt::format("tensor {}", called(each.name));
      if (!each.tensor->problem.ok()) return each.tensor->problem.with_context(name);
      if (each.tensor->bytes > each.tensor->storage_bytes) {
        return {errc::unsupported, fmt::format("{}: it repeats the elements of its storage: {} of {} (a view made by expand())", name,
                                               format_size(each.tensor->bytes), format_size(each.tensor->storage_bytes))};
      }
    }
    return {};
  }

  void tell_views() {
    std::map<std::string_view, std::size_t> users;
    for (const selected_tensor& each : made_.tensors) ++users[each.tensor->storage];
    for (const selected_tensor& each : made_.tensors) {
      if (!each.tensor->contiguous) made_.strided.push_back(each.name);
      if (users[each.tensor->storage] > 1) made_.shared.push_back(each.name);
    }
  }

  const torch_checkpoint& from_;
  const selection_options& wanted_;
  tensor_selection made_;
  std::map<std::string, std::size_t> nested_;
  bool found_ = false;
};

}  // namespace

result<tensor_selection> select_tensors(const torch_checkpoint& from, const selection_options& wanted) {
  return selector(from, wanted).select();
}

}  // namespace penstock::cli
