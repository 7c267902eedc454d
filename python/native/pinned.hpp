// penstock.PinnedRange: a pinned range of a file.
#pragma once

#include <nanobind/nanobind.h>

#include <penstock/penstock.hpp>
#include <utility>

namespace penstock::python {

namespace nb = nanobind;

class pinned_file_memory {
 public:
  explicit pinned_file_memory(pinned_range made) : range_(std::move(made)) {}
  pinned_file_memory(pinned_file_memory&&) noexcept = default;
  pinned_file_memory& operator=(pinned_file_memory&&) = delete;
  ~pinned_file_memory();

  [[nodiscard]] std::uint64_t size() const { return range_.size(); }
  // None while the range is pinned.
  [[nodiscard]] nb::object problem() const;
  void release();

 private:
  pinned_range range_;
  bool released_ = false;
};

void add_pinned(nb::module_& module);

}  // namespace penstock::python
