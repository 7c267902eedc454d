// The table of paths and their declarations. A path has a number (path_kind) and a name. Immutable once created.
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
  // Contains the library's own paths, followed by further ones, whose numbers come next.
  explicit path_table(std::span<const declaration* const> further = {});

  // Returns the number of path numbers in use. 0 is path_kind::automatic.
  [[nodiscard]] std::size_t count() const noexcept { return declared_.size() + 1; }
  [[nodiscard]] bool has(path_kind kind) const noexcept { return kind != path_kind::automatic && static_cast<std::size_t>(kind) < count(); }
  // kind must be a path in this table.
  [[nodiscard]] const declaration& of(path_kind kind) const noexcept { return *declared_[static_cast<std::size_t>(kind) - 1]; }
  // Returns "automatic", or "unknown" for a number that is not a path.
  [[nodiscard]] std::string_view name(path_kind kind) const noexcept;
  // The inverse of name(). Error: invalid_argument, which lists the valid names.
  [[nodiscard]] result<path_kind> parse(std::string_view word) const;
  // Returns the paths in the order in which they are queried.
  [[nodiscard]] std::span<const path_kind> by_rank() const noexcept { return by_rank_; }
  // Returns the path that accepts every request for device memory, or for host memory.
  [[nodiscard]] path_kind base(bool on_device) const noexcept { return base_[on_device ? 1 : 0]; }
  // Returns the paths on which a waiting caller may transfer such a request itself, in the order in which they are queried.
  [[nodiscard]] std::span<const path_kind> of_callers(bool on_device) const noexcept { return of_callers_[on_device ? 1 : 0]; }
  // Returns the first GPU-direct path.
  [[nodiscard]] path_kind gpu_direct() const noexcept { return gpu_direct_; }
  // Returns the path that takes over if this one cannot continue; automatic: none.
  [[nodiscard]] path_kind successor(path_kind kind) const noexcept;

  // Creates one object per path, indexed by path_kind (automatic is null).
  [[nodiscard]] std::vector<std::unique_ptr<data_path>> make(const services& with) const;

 private:
  std::vector<const declaration*> declared_;
  std::vector<path_kind> by_rank_;
  std::vector<path_kind> of_callers_[2];
  path_kind base_[2] = {path_kind::automatic, path_kind::automatic};
  path_kind gpu_direct_ = path_kind::automatic;
};

// The table without further paths.
const path_table& built_in_paths();

}  // namespace penstock::path
