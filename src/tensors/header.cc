#include <algorithm>
#include <cassert>
#include <functional>
#include <iterator>
#include <utility>

#include "penstock/tensors.hpp"

namespace penstock {

tensor_header::tensor_header(std::vector<tensor_facts> tensors, std::optional<tensor_metadata> metadata, std::uint64_t data_offset)
    : tensors_(std::move(tensors)), metadata_(std::move(metadata)), data_offset_(data_offset) {
  // Sorted hashes instead of a hash table: names crafted to collide then cost only one comparison each.
  by_name_.reserve(tensors_.size());
  for (std::size_t i = 0; i < tensors_.size(); ++i) by_name_.push_back({std::hash<std::string_view>()(tensors_[i].name), i});
  std::ranges::sort(by_name_, [&](const entry& a, const entry& b) {
    return a.hash != b.hash ? a.hash < b.hash : tensors_[a.place].name < tensors_[b.place].name;
  });
}

const tensor_facts* tensor_header::find(std::string_view name) const noexcept {
  const std::size_t hash = std::hash<std::string_view>()(name);
  const auto found = std::ranges::lower_bound(by_name_, std::pair(hash, name), std::ranges::less(), [&](const entry& each) {
    return std::pair(each.hash, std::string_view(tensors_[each.place].name));
  });
  if (found == by_name_.end() || tensors_[found->place].name != name) return nullptr;
  return &tensors_[found->place];
}

std::optional<std::size_t> tensor_header::repeated_name() const noexcept {
  const auto same = [&](const entry& a, const entry& b) { return a.hash == b.hash && tensors_[a.place].name == tensors_[b.place].name; };
  const auto found = std::ranges::adjacent_find(by_name_, same);
  if (found == by_name_.end()) return std::nullopt;
  return found->place;
}

tensor_header tensor_header::only(std::span<const std::string_view> sorted_names) const {
  std::vector<tensor_facts> kept;
  std::ranges::copy_if(tensors_, std::back_inserter(kept),
                       [&](const tensor_facts& each) { return std::ranges::binary_search(sorted_names, std::string_view(each.name)); });
  return {std::move(kept), metadata_, data_offset_};
}

}  // namespace penstock
