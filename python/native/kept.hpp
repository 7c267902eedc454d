// penstock.KeptRange: a range of a file that is kept registered.
#pragma once

#include <nanobind/nanobind.h>

#include <penstock/penstock.hpp>
#include <utility>

namespace penstock::python {

namespace nb = nanobind;

class kept_memory {
 public:
  explicit kept_memory(kept_range made) : range_(std::move(made)) {}
  kept_memory(kept_memory&&) noexcept = default;
  kept_memory& operator=(kept_memory&&) = delete;
  ~kept_memory();

  [[nodiscard]] std::uint64_t size() const { return range_.size(); }
  // None as long as it is registered.
  [[nodiscard]] nb::object problem() const;
  void release();

 private:
  kept_range range_;
  bool released_ = false;
};

void add_kept(nb::module_& module);

}  // namespace penstock::python
