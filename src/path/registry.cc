#include "path/registry.hpp"

#include <algorithm>
#include <array>
#include <string>

// The paths, one per line. path_kind numbers them in this order.
// clang-format off
#define PENSTOCK_PATHS(declared) \
  declared(posix) \
  declared(staged) \
  declared(mapped) \
  declared(direct) \
  declared(dma_buf)
// clang-format on

namespace penstock {
namespace path {

#define PENSTOCK_DECLARE(name) extern const declaration declared_##name;
PENSTOCK_PATHS(PENSTOCK_DECLARE)

namespace {

#define PENSTOCK_ADDRESS(name) &declared_##name,
constexpr std::array built_in{PENSTOCK_PATHS(PENSTOCK_ADDRESS)};

std::string_view name_in(std::span<const declaration* const> paths, path_kind kind) noexcept {
  if (kind == path_kind::automatic) return "automatic";
  const auto index = static_cast<std::size_t>(kind) - 1;
  return index < paths.size() ? paths[index]->name : std::string_view("unknown");
}

}  // namespace

path_table::path_table(std::span<const declaration* const> further) : declared_(built_in.begin(), built_in.end()) {
  declared_.insert(declared_.end(), further.begin(), further.end());
  for (std::size_t i = 1; i < count(); ++i) by_rank_.push_back(static_cast<path_kind>(i));
  std::stable_sort(by_rank_.begin(), by_rank_.end(), [this](path_kind a, path_kind b) { return of(a).rank < of(b).rank; });
  for (const auto kind : by_rank_) {
    if (of(kind).gpu_direct && gpu_direct_ == path_kind::automatic) gpu_direct_ = kind;
    if (of(kind).most_carried_now > 0) of_callers_[of(kind).of_device ? 1 : 0].push_back(kind);
    auto& base = base_[of(kind).of_device ? 1 : 0];
    if (of(kind).carries == portion::everything && base == path_kind::automatic) base = kind;
  }
}

std::string_view path_table::name(path_kind kind) const noexcept { return name_in(declared_, kind); }

result<path_kind> path_table::parse(std::string_view word) const {
  std::string message = "path \"" + std::string(word) + "\" is not one of";
  for (std::size_t i = 0; i < count(); ++i) {
    const auto kind = static_cast<path_kind>(i);
    if (name(kind) == word || (kind == path_kind::automatic && word == "auto")) return kind;
    message.append(i == 0 ? " " : ", ").append(name(kind));
  }
  return status(errc::invalid_argument, std::move(message));
}

path_kind path_table::successor(path_kind kind) const noexcept {
  const auto next = std::find_if(by_rank_.begin(), by_rank_.end(), [&](path_kind each) { return of(each).name == of(kind).successor; });
  return next == by_rank_.end() ? path_kind::automatic : *next;
}

std::vector<std::unique_ptr<data_path>> path_table::make(const services& with) const {
  std::vector<std::unique_ptr<data_path>> paths(count());
  for (std::size_t i = 1; i < count(); ++i) {
    paths[i] = declared_[i - 1]->make(with);
    paths[i]->kind_ = static_cast<path_kind>(i);
  }
  return paths;
}

const path_table& built_in_paths() {
  static const path_table table;
  return table;
}

}  // namespace path

std::string_view to_string(path_kind path) noexcept { return path::name_in(path::built_in, path); }

std::vector<std::string_view> path_names() {
  std::vector<std::string_view> names{"automatic"};
  for (const auto* each : path::built_in) names.push_back(each->name);
  return names;
}

result<path_kind> parse_path_kind(std::string_view word) { return path::built_in_paths().parse(word); }

}  // namespace penstock
