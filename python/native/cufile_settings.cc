#include "cufile_settings.hpp"

#include <string_view>

#include "cufile/driver.hpp"
#include "cufile/settings.hpp"
#include "errors.hpp"
#include "file.hpp"
#include "gil.hpp"

namespace penstock::python {

namespace {

// Returns the value of a key, if its kind can be queried; null otherwise.
nb::object value_of(const cufile::key& where, const cufile::settings& now) {
  const auto index = static_cast<std::size_t>(where.parameter);
  switch (where.kind) {
    case cufile::key_kind::size:
      return nb::int_(now.sizes[index]);
    case cufile::key_kind::flag:
      return nb::bool_(now.flags[index]);
    case cufile::key_kind::word:
      return path_object(now.words[index]);  // a file name, or text written by the user
    case cufile::key_kind::limit:
    case cufile::key_kind::list:
    case cufile::key_kind::table:
    case cufile::key_kind::slab_sizes:
    case cufile::key_kind::slab_counts:
    case cufile::key_kind::addresses:
    case cufile::key_kind::number:
      break;
  }
  return {};
}

// Returns the live values for an open driver, which cuFileSetParameter... may have set; otherwise those that opening it would use.
cufile::settings settings_now() {
  const without_gil unlocked;
  return cufile::driver::current().settings().values();
}

cufile::settings settings_to_come() {
  cufile::settings_book book;
  const auto opening = [&] {
    const without_gil unlocked;
    return book.open();
  }();
  raise_unless_ok(opening.problem);
  return book.values();
}

nb::dict cufile_settings() {
  const auto now = cufile::driver::current().is_open() ? settings_now() : settings_to_come();
  nb::dict told;
  for (const auto& where : cufile::all_keys()) {
    if (where.parameter < 0) continue;
    if (const nb::object value = value_of(where, now); value.is_valid()) told[path_object(where.name)] = value;
  }
  return told;
}

}  // namespace

void add_cufile_settings(nb::module_& module) {
  module.def("_cufile_settings", &cufile_settings,
             "Returns the settings of an open driver; otherwise those from cufile.json and the CUFILE_ environment variables, with\n"
             "cuFile's defaults for the rest, by key, such as \"properties.allow_compat_mode\". Raises penstock.Error if the specified\n"
             "file cannot be read or is not a cufile.json.");
}

}  // namespace penstock::python
