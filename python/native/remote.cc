#include "remote.hpp"

#include <nanobind/stl/string.h>

#include <array>
#include <string>
#include <string_view>
#include <utility>

#include "arguments.hpp"
#include "errors.hpp"

namespace penstock::python {

namespace {

[[noreturn]] void wrong_type(std::string_view name, const char* wanted, nb::handle value) {
  throw nb::type_error(("storage_options[\"" + std::string(name) + "\"] must be " + wanted + ", not " + type_of(value)).c_str());
}

std::string text_of(std::string_view name, nb::handle value) {
  if (value.is_none()) return {};
  if (!PyUnicode_Check(value.ptr())) wrong_type(name, "a str", value);
  return nb::cast<std::string>(value);
}

bool switch_of(std::string_view name, nb::handle value) {
  if (!PyBool_Check(value.ptr())) wrong_type(name, "a bool", value);
  return value.ptr() == Py_True;
}

remote_kind kind_of(nb::handle value) {
  constexpr std::array<std::pair<std::string_view, remote_kind>, 6> words{{{"auto", remote_kind::automatic},
                                                                           {"http", remote_kind::http},
                                                                           {"s3", remote_kind::s3},
                                                                           {"s3_public", remote_kind::s3_public},
                                                                           {"s3_presigned", remote_kind::s3_presigned},
                                                                           {"webhdfs", remote_kind::webhdfs}}};
  const auto text = text_of("kind", value);
  for (const auto& [word, kind] : words) {
    if (text == word) return kind;
  }
  raise_invalid("storage_options[\"kind\"] is \"" + text + "\"; it is one of auto, http, s3, s3_public, s3_presigned, webhdfs");
}

// Strings and lists have places, not names.
bool is_mapping(nb::handle value) { return PyMapping_Check(value.ptr()) && nb::hasattr(value, "items"); }

// Name and value of each item of a mapping.
template <class Take>
void for_each_item(nb::handle mapping, const char* what, Take take) {
  for (const auto item : nb::cast<nb::list>(nb::module_::import_("builtins").attr("list")(mapping.attr("items")()))) {
    const auto pair = nb::cast<nb::tuple>(item);
    take(text_of(what, pair[0]), pair[1]);
  }
}

std::vector<remote_header> headers_of(nb::handle value) {
  if (!is_mapping(value)) wrong_type("headers", "a mapping", value);
  std::vector<remote_header> made;
  for_each_item(value, "headers", [&](std::string name, nb::handle text) { made.push_back({std::move(name), text_of("headers", text)}); });
  return made;
}

void take(std::string_view name, nb::handle value, remote_options& to) {
  const std::array<std::pair<std::string_view, std::string*>, 7> texts{{{"region", &to.region},
                                                                        {"endpoint", &to.endpoint},
                                                                        {"profile", &to.profile},
                                                                        {"access_key_id", &to.access_key_id},
                                                                        {"secret_access_key", &to.secret_access_key},
                                                                        {"session_token", &to.session_token},
                                                                        {"user", &to.user}}};
  for (const auto& [known, text] : texts) {
    if (name == known) {
      *text = text_of(name, value);
      return;
    }
  }
  if (name == "kind") {
    to.kind = kind_of(value);
  } else if (name == "size") {
    if (!value.is_none()) to.size = unsigned_integer(value, "storage_options[\"size\"]");
  } else if (name == "anonymous") {
    to.anonymous = switch_of(name, value);
  } else if (name == "allow_credential_process") {
    to.allow_credential_process = switch_of(name, value);
  } else if (name == "headers") {
    to.headers = headers_of(value);
  } else {
    raise_invalid("storage_options has no \"" + std::string(name) +
                  "\"; there are kind, size, region, endpoint, profile, access_key_id, secret_access_key, session_token, anonymous, "
                  "allow_credential_process, user, headers");
  }
}

}  // namespace

remote_options parse_storage_options(nb::handle options) {
  remote_options made;
  if (options.is_none()) return made;
  if (!is_mapping(options))
    throw nb::type_error(("storage_options must be a mapping, not " + type_of(options)).c_str());
  for_each_item(options, "a name", [&](const std::string& name, nb::handle value) { take(name, value, made); });
  return made;
}

}  // namespace penstock::python
