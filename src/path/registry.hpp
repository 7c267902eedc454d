// Which paths there are, and what they declare. A path is known by its number (path_kind) and by its name. Never changes once made.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "path/data_path.hpp"
#include "penstock/options.hpp"
#include "penstock/status.hpp"

namespace penstock::path {

class path_table {
 public:
  // The library's own paths, and further ones behind them: their numbers follow.
  explicit path_table(std::span<const declaration* const> further = {});

  // Numbers in use; 0 is path_kind::automatic.
  [[nodiscard]] std::size_t count() const noexcept { return declared_.size() + 1; }
  [[nodiscard]] bool has(path_kind kind) const noexcept { return kind != path_kind::automatic && static_cast<std::size_t>(kind) < count(); }
  // Of a path that there is.
  [[nodiscard]] const declaration& of(path_kind kind) const noexcept { return *declared_[static_cast<std::size_t>(kind) - 1]; }
  // "automatic" and "unknown" are what is no path.
  [[nodiscard]] std::string_view name(path_kind kind) const noexcept;
  // Inverse of name(). Errors: invalid_argument, which names the right words.
  [[nodiscard]] result<path_kind> parse(std::string_view word) const;
  // In the order in which they are asked.
  [[nodiscard]] std::span<const path_kind> by_rank() const noexcept { return by_rank_; }
  // What carries everything in memory of devices, or of the host.
  [[nodiscard]] path_kind base(bool on_device) const noexcept { return base_[on_device ? 1 : 0]; }
  // Those that a caller who waits may carry such a request by himself with, in the order in which they are asked.
  [[nodiscard]] std::span<const path_kind> of_callers(bool on_device) const noexcept { return of_callers_[on_device ? 1 : 0]; }
  // The first that is GPU-direct.
  [[nodiscard]] path_kind gpu_direct() const noexcept { return gpu_direct_; }
  // Who goes on where a path cannot; automatic: nobody.
  [[nodiscard]] path_kind successor(path_kind kind) const noexcept;

  // One of each, indexed by path_kind (automatic is null).
  [[nodiscard]] std::vector<std::unique_ptr<data_path>> make(const services& with) const;

 private:
  std::vector<const declaration*> declared_;
  std::vector<path_kind> by_rank_;
  std::vector<path_kind> of_callers_[2];
  path_kind base_[2] = {path_kind::automatic, path_kind::automatic};
  path_kind gpu_direct_ = path_kind::automatic;
};

// Without further ones.
const path_table& built_in_paths();

}  // namespace penstock::path
