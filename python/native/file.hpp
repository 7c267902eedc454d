// penstock.open() and penstock.File.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <memory>
#include <penstock/penstock.hpp>
#include <string>
#include <string_view>
#include <utility>

#include "futures.hpp"

namespace penstock::python {

namespace nb = nanobind;

// penstock.File. Requests also hold the underlying file.
struct python_file {
  std::shared_ptr<file> target;
  nb::object name;
  std::string mode;
  bool closed = false;
  std::uint64_t position = 0;        // for read(), readinto() and write(), which continue where the last call stopped
  mutable memory_place last_memory;  // the last request's, for explain(). Needs the GIL
  void remember(const held_memory& memory) const { last_memory = memory.place(); }

  python_file(file opened, nb::object named, std::string how)
      : python_file(std::make_shared<file>(std::move(opened)), std::move(named), std::move(how)) {}
  python_file(std::shared_ptr<file> shared, nb::object named, std::string how)
      : target(std::move(shared)), name(std::move(named)), mode(std::move(how)) {}
  python_file(python_file&&) noexcept = default;
  python_file& operator=(python_file&&) = delete;
  ~python_file() {
    if (target != nullptr && !closed) release_file(target);  // a closed file needs no work outside the GIL
  }
};

// Returns the kernel's path for a str, bytes, or os.PathLike. Raises TypeError.
std::string path_text(nb::handle path);
// The reverse: returns a str, as from os.fsdecode().
nb::object path_object(std::string_view path);
// Returns the current size. Raises penstock.Error.
std::uint64_t size_of(const python_file& self);

void add_files(nb::module_& module);

}  // namespace penstock::python
