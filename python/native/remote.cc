#include "remote.hpp"

#include <nanobind/stl/string.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdint>
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

// A folder by its name, as files are named; "" is none.
std::string folder_of(std::string_view name, nb::handle value) {
  const auto plain = nb::steal(PyOS_FSPath(value.ptr()));
  if (!plain.is_valid()) throw nb::python_error();
  if (PyBytes_Check(plain.ptr())) return {PyBytes_AsString(plain.ptr()), static_cast<std::size_t>(PyBytes_Size(plain.ptr()))};
  const auto text = text_of(name, plain);
  if (!text.empty() && !text.starts_with('/'))
    raise_invalid("storage_options[\"" + std::string(name) + "\"] is \"" + text + "\", no absolute path");
  return text;
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

std::chrono::milliseconds time_of(std::string_view name, nb::handle value) {
  constexpr double longest = 1e9;
  const auto told = "storage_options[\"" + std::string(name) + "\"]";
  const double seconds = real_number(value, told.c_str());
  if (!(seconds > 0 && seconds < longest)) raise_invalid(told + " must be a positive number of seconds");
  return std::chrono::milliseconds(std::max<std::int64_t>(1, std::llround(seconds * 1000)));
}

unsigned attempts_of(nb::handle value) {
  const auto count = unsigned_integer(value, "storage_options[\"attempts\"]");
  if (count == 0 || count > 1000) raise_invalid("storage_options[\"attempts\"] is from 1 to 1000");
  return static_cast<unsigned>(count);
}

std::vector<int> statuses_of(nb::handle value) {
  if (!PySequence_Check(value.ptr()) || PyUnicode_Check(value.ptr())) wrong_type("retried_statuses", "a sequence", value);
  std::vector<int> made;
  for (const auto each : nb::borrow<nb::sequence>(value)) {
    const auto status = unsigned_integer(each, "storage_options[\"retried_statuses\"]");
    if (status < 1000) made.push_back(static_cast<int>(status));  // no answer has others
  }
  return made;
}

// The names of what bears with a server. False: it is none of them.
bool take_patience(std::string_view name, nb::handle value, remote_options& to) {
  if (name == "attempts") {
    to.attempts = attempts_of(value);
  } else if (name == "retried_statuses") {
    to.retried_statuses = statuses_of(value);
  } else if (name == "timeout") {
    to.timeout = time_of(name, value);
  } else if (name == "retry_pause") {
    to.retry_pause = time_of(name, value);
  } else if (name == "retries") {
    if (!nb::isinstance<noted_retries>(value)) wrong_type(name, "of Penstock's own", value);
    to.retries = nb::cast<noted_retries&>(value).kept;
  } else {
    return false;
  }
  return true;
}

void take(std::string_view name, nb::handle value, remote_options& to) {
  if (take_patience(name, value, to)) return;
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
  } else if (name == "cache_dir") {
    if (!value.is_none()) to.cache_dir = folder_of(name, value);
  } else if (name == "cache_bytes") {
    if (!value.is_none()) to.cache_bytes = unsigned_integer(value, "storage_options[\"cache_bytes\"]");
  } else if (name == "anonymous") {
    to.anonymous = switch_of(name, value);
  } else if (name == "overwrite") {
    to.overwrite = switch_of(name, value);
  } else if (name == "ranges_only") {
    to.ranges_only = switch_of(name, value);
  } else if (name == "allow_credential_process") {
    to.allow_credential_process = switch_of(name, value);
  } else if (name == "headers") {
    to.headers = headers_of(value);
  } else {
    raise_invalid(
        "storage_options has no \"" + std::string(name) +
        "\"; there are kind, size, region, endpoint, profile, access_key_id, secret_access_key, session_token, anonymous, "
        "allow_credential_process, user, headers, attempts, retried_statuses, timeout, retry_pause, cache_dir, cache_bytes, overwrite, "
        "ranges_only");
  }
}

// (status, in_time, pause in ms, attempt, attempts) of each.
nb::list take_retries(const noted_retries& self) {
  nb::list made;
  for (const auto& each : self.kept->take())
    made.append(nb::make_tuple(each.status, each.why != errc::timed_out, each.pause.count(), each.attempt, each.attempts));
  return made;
}

}  // namespace

void add_remote(nb::module_& module) {
  nb::class_<noted_retries>(module, "_RemoteRetries", "What is asked of a server again, for storage_options[\"retries\"].")
      .def(nb::init<>())
      .def(
          "take", &take_retries,
          "(status of HTTP or 0, whether it answered in time, pause in ms, attempt that failed, attempts) of each that was not taken yet.");
}

remote_options parse_storage_options(nb::handle options) {
  remote_options made;
  if (options.is_none()) return made;
  if (!is_mapping(options)) throw nb::type_error(("storage_options must be a mapping, not " + type_of(options)).c_str());
  for_each_item(options, "a name", [&](const std::string& name, nb::handle value) { take(name, value, made); });
  return made;
}

}  // namespace penstock::python
