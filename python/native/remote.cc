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

using namespace nb::literals;

[[noreturn]] void wrong_type(std::string_view name, const char* wanted, nb::handle value) {
  throw nb::type_error(("storage_options[\"" + std::string(name) + "\"] must be " + wanted + ", not " + type_of(value)).c_str());
}

std::string text_of(std::string_view name, nb::handle value) {
  if (value.is_none()) return {};
  if (!PyUnicode_Check(value.ptr())) wrong_type(name, "a str", value);
  return nb::cast<std::string>(value);
}

// Returns a folder name, converted like file names; "" means none.
std::string folder_of(std::string_view name, nb::handle value) {
  const auto plain = nb::steal(PyOS_FSPath(value.ptr()));
  if (!plain.is_valid()) throw nb::python_error();
  if (PyBytes_Check(plain.ptr())) return {PyBytes_AsString(plain.ptr()), static_cast<std::size_t>(PyBytes_Size(plain.ptr()))};
  const auto text = text_of(name, plain);
  if (!text.empty() && !text.starts_with('/'))
    raise_invalid("storage_options[\"" + std::string(name) + "\"] is \"" + text + "\", which is not an absolute path");
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
  raise_invalid("storage_options[\"kind\"] is \"" + text + "\"; it must be one of auto, http, s3, s3_public, s3_presigned, webhdfs");
}

// Strings and lists have indexes, not names.
bool is_mapping(nb::handle value) { return PyMapping_Check(value.ptr()) && nb::hasattr(value, "items"); }

// Calls `take` with each item's name and value.
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
  if (count == 0 || count > 1000) raise_invalid("storage_options[\"attempts\"] must be from 1 to 1000");
  return static_cast<unsigned>(count);
}

std::vector<int> statuses_of(nb::handle value) {
  if (!PySequence_Check(value.ptr()) || PyUnicode_Check(value.ptr())) wrong_type("retried_statuses", "a sequence", value);
  std::vector<int> made;
  for (const auto each : nb::borrow<nb::sequence>(value)) {
    const auto status = unsigned_integer(each, "storage_options[\"retried_statuses\"]");
    if (status < 1000) made.push_back(static_cast<int>(status));  // no response has a larger status
  }
  return made;
}

// Handles the options for retries and timeouts. Returns false for other names.
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
    if (!nb::isinstance<noted_retries>(value)) wrong_type(name, "one of Penstock's own objects", value);
    to.retries = nb::cast<noted_retries&>(value).kept;
  } else {
    return false;
  }
  return true;
}

struct text_option {
  std::string_view name;
  std::string remote_options::*member;
};
constexpr std::array text_options{text_option{"region", &remote_options::region},
                                  text_option{"endpoint", &remote_options::endpoint},
                                  text_option{"profile", &remote_options::profile},
                                  text_option{"access_key_id", &remote_options::access_key_id},
                                  text_option{"secret_access_key", &remote_options::secret_access_key},
                                  text_option{"session_token", &remote_options::session_token},
                                  text_option{"addressing_style", &remote_options::addressing_style},
                                  text_option{"content_type", &remote_options::content_type},
                                  text_option{"server_side_encryption", &remote_options::server_side_encryption},
                                  text_option{"sse_kms_key_id", &remote_options::sse_kms_key_id},
                                  text_option{"storage_class", &remote_options::storage_class},
                                  text_option{"acl", &remote_options::acl},
                                  text_option{"user", &remote_options::user}};

struct switch_option {
  std::string_view name;
  bool remote_options::*member;
};
constexpr std::array switch_options{
    switch_option{"anonymous", &remote_options::anonymous}, switch_option{"overwrite", &remote_options::overwrite},
    switch_option{"use_ssl", &remote_options::use_ssl}, switch_option{"ranges_only", &remote_options::ranges_only},
    switch_option{"allow_credential_process", &remote_options::allow_credential_process}};

struct choice_option {
  std::string_view name;
  std::optional<bool> remote_options::*member;
};
constexpr std::array choice_options{choice_option{"requester_pays", &remote_options::requester_pays},
                                    choice_option{"use_fips", &remote_options::use_fips},
                                    choice_option{"use_dualstack", &remote_options::use_dualstack}};

constexpr std::array other_options{"sse_customer_key", "kind",    "size",        "tags",      "headers",    "attempts",
                                   "retried_statuses", "timeout", "retry_pause", "cache_dir", "cache_bytes"};

// Common names used by fsspec (s3fs), its additional arguments, and object_store, in lower case, without the prefix aws_.
constexpr std::array<std::pair<std::string_view, std::string_view>, 40> other_names{{
    {"key", "access_key_id"},
    {"access_key", "access_key_id"},
    {"secret_key", "secret_access_key"},
    {"username", "access_key_id"},
    {"secret", "secret_access_key"},
    {"password", "secret_access_key"},
    {"token", "session_token"},
    {"anon", "anonymous"},
    {"skip_signature", "anonymous"},
    {"no_sign_request", "anonymous"},
    {"endpoint_url", "endpoint"},
    {"endpoint_override", "endpoint"},
    {"endpoint_url_s3", "endpoint"},
    {"region_name", "region"},
    {"default_region", "region"},
    {"profile_name", "profile"},
    {"request_payer", "requester_pays"},
    {"requestpayer", "requester_pays"},
    {"virtual_hosted_style_request", "addressing_style"},
    {"use_fips_endpoint", "use_fips"},
    {"use_dualstack_endpoint", "use_dualstack"},
    {"serversideencryption", "server_side_encryption"},
    {"sse", "server_side_encryption"},
    {"ssekmskeyid", "sse_kms_key_id"},
    {"ssecustomerkey", "sse_customer_key"},
    {"sse_customer_key_base64", "sse_customer_key"},
    {"storageclass", "storage_class"},
    {"contenttype", "content_type"},
    {"tagging", "tags"},
    {"max_attempts", "attempts"},
    {"read_timeout", "timeout"},
    {"request_timeout", "timeout"},
    {"extra_headers", "headers"},
    {"cache_directory", "cache_dir"},
    {"cache_storage", "cache_dir"},
    {"kms_key_id", "sse_kms_key_id"},
    {"encryption", "server_side_encryption"},
    {"s3_acl", "acl"},
    {"content-type", "content_type"},
    {"default_acl", "acl"},
}};

// AWS tool settings that botocore's Config also has, with their names in a profile.
constexpr std::array<std::pair<std::string_view, std::string_view>, 19> aws_names{{
    {"payload_signing_enabled", "payload_signing_enabled"},
    {"use_arn_region", "use_arn_region"},
    {"us_east_1_regional_endpoint", "us_east_1_regional_endpoint"},
    {"use_accelerate_endpoint", "use_accelerate_endpoint"},
    {"signature_version", "signature_version"},
    {"request_checksum_calculation", "request_checksum_calculation"},
    {"response_checksum_validation", "response_checksum_validation"},
    {"mode", "retry_mode"},
    {"retry_mode", "retry_mode"},
    {"defaults_mode", "defaults_mode"},
    {"auth_scheme_preference", "auth_scheme_preference"},
    {"sigv4a_signing_region_set", "sigv4a_signing_region_set"},
    {"s3_disable_express_session_auth", "s3_disable_express_session_auth"},
    {"ignore_configured_endpoint_urls", "ignore_configured_endpoint_urls"},
    {"user_agent_appid", "sdk_ua_app_id"},
    {"parameter_validation", "parameter_validation"},
    {"endpoint_discovery_enabled", "endpoint_discovery_enabled"},
    {"account_id_endpoint_mode", "account_id_endpoint_mode"},
    {"disable_request_compression", "disable_request_compression"},
}};

// Options of fsspec and object_store that have no effect here: caching, splitting of reads, and behavior that Penstock always has.
constexpr std::array without_meaning{"asynchronous",
                                     "loop",
                                     "default_block_size",
                                     "block_size",
                                     "default_cache_type",
                                     "cache_type",
                                     "default_fill_cache",
                                     "fill_cache",
                                     "use_listings_cache",
                                     "listings_expiry_time",
                                     "max_paths",
                                     "skip_instance_cache",
                                     "cache_regions",
                                     "max_concurrency",
                                     "fixed_upload_size",
                                     "version_aware",
                                     "batch_size",
                                     "connect_timeout",
                                     "max_pool_connections",
                                     "tcp_keepalive",
                                     "simple_links",
                                     "same_scheme",
                                     "size_policy",
                                     "encoded",
                                     "pool_idle_timeout",
                                     "http1_only"};

std::string in_small_letters(std::string_view text) {
  std::string made(text);
  std::transform(made.begin(), made.end(), made.begin(), [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c | 0x20) : c; });
  return made;
}

std::string without_prefix(std::string_view name) {
  auto made = in_small_letters(name);
  if (made.starts_with("aws_")) made.erase(0, 4);
  return made;
}

std::string known_name(std::string_view name) {
  auto made = without_prefix(name);
  for (const auto& [other, ours] : other_names) {
    if (made == other) return std::string(ours);
  }
  return made;
}

// Configurations contain text: "true", "1".
bool switch_or_text(std::string_view name, nb::handle value) {
  if (!PyUnicode_Check(value.ptr())) return switch_of(name, value);
  const auto text = in_small_letters(text_of(name, value));
  if (text == "true" || text == "1" || text == "requester") return true;
  if (text == "false" || text == "0" || text.empty()) return false;
  raise_invalid("storage_options[\"" + std::string(name) + "\"] is \"" + text + "\"; it must be true or false");
}

// A mapping, or S3's text form: "a=1&b=2".
std::vector<remote_header> tags_of(nb::handle value) {
  if (is_mapping(value)) {
    std::vector<remote_header> made;
    for_each_item(value, "tags", [&](std::string name, nb::handle text) { made.push_back({std::move(name), text_of("tags", text)}); });
    return made;
  }
  std::vector<remote_header> made;
  const auto pairs = nb::module_::import_("urllib.parse").attr("parse_qsl")(text_of("tags", value), "keep_blank_values"_a = true);
  for (const auto each : nb::cast<nb::list>(pairs)) {
    const auto pair = nb::cast<nb::tuple>(each);
    made.push_back({nb::cast<std::string>(pair[0]), nb::cast<std::string>(pair[1])});
  }
  return made;
}

// 32 bytes, or a str with their base64 form.
std::string key_of_customer(nb::handle value) {
  if (value.is_none()) return {};
  if (PyBytes_Check(value.ptr())) return {PyBytes_AsString(value.ptr()), static_cast<std::size_t>(PyBytes_Size(value.ptr()))};
  const auto text = text_of("sse_customer_key", value);
  constexpr std::size_t key_bytes = 32;
  if (text.empty() || text.size() == key_bytes) return text;
  try {
    const auto bytes = nb::module_::import_("base64").attr("b64decode")(value, "validate"_a = true);
    return {PyBytes_AsString(bytes.ptr()), static_cast<std::size_t>(PyBytes_Size(bytes.ptr()))};
  } catch (const nb::python_error&) {
    raise_invalid("storage_options[\"sse_customer_key\"] must be 32 bytes, or a str with base64 of 32 bytes");
  }
}

// Translates object_store's names into S3's.
std::string encryption_of(std::string_view name, nb::handle value) {
  const auto text = text_of(name, value);
  return text == "sse-kms" ? "aws:kms" : text == "dsse-kms" ? "aws:kms:dsse" : text == "sse-c" ? "" : text;
}

std::vector<std::string> all_names() {
  std::vector<std::string> names;
  for (const auto& each : text_options) names.emplace_back(each.name);
  for (const auto& each : switch_options) names.emplace_back(each.name);
  for (const auto& each : choice_options) names.emplace_back(each.name);
  names.insert(names.end(), other_options.begin(), other_options.end());
  std::sort(names.begin(), names.end());
  return names;
}

[[noreturn]] void raise_unknown(std::string_view name) {
  const auto names = all_names();
  nb::list words;
  std::string list;
  for (const auto& each : names) {
    words.append(nb::str(each.c_str()));
    list += (list.empty() ? "" : ", ") + each;
  }
  for (const auto& each : other_names) words.append(nb::str(std::string(each.first).c_str()));
  const auto near =
      nb::cast<nb::list>(nb::module_::import_("difflib").attr("get_close_matches")(nb::str(known_name(name).c_str()), words, 1));
  const auto meant = nb::len(near) == 0 ? std::string(".") : "; did you mean \"" + nb::cast<std::string>(near[0]) + "\"?";
  raise_invalid("storage_options has no option \"" + std::string(name) + "\"" + meant + " The options are " + list);
}

// The number of retries does not include the first attempt.
unsigned attempts_with_retries(std::string_view name, nb::handle value) {
  const auto count = unsigned_integer(value, ("storage_options[\"" + std::string(name) + "\"]").c_str());
  if (count > 999) raise_invalid("storage_options[\"" + std::string(name) + "\"] must be from 0 to 999");
  return static_cast<unsigned>(count) + 1;
}

// Options from other libraries that Penstock must honor or reject. Returns false for other names.
bool take_promise(std::string_view name, std::string_view group, nb::handle value, remote_options& to) {
  const auto refuse = [&](std::string_view why) { raise_invalid("storage_options: " + std::string(name) + ": " + std::string(why)); };
  if (name == "verify" || name == "allow_invalid_certificates") {
    const bool checks = name == "verify" ? value.ptr() != Py_False : !switch_or_text(name, value);
    if (!checks) refuse("server certificates are always verified");
    if (PyUnicode_Check(value.ptr()) && name == "verify")
      refuse("set the CA bundle with AWS_CA_BUNDLE, CURL_CA_BUNDLE or SSL_CERT_FILE instead");
  } else if (name == "trust_env") {
    if (!switch_or_text(name, value)) refuse("proxies are always taken from the environment");
  } else if (name == "allow_http") {
    if (!switch_or_text(name, value) && in_small_letters(to.endpoint).starts_with("http://")) refuse("the endpoint uses http://");
  } else if (name == "signature_version" && type_of(value).ends_with("UNSIGNED")) {
    to.anonymous = true;
  } else if (name == "unsigned_payload") {
    to.aws_settings.push_back({"payload_signing_enabled", switch_or_text(name, value) ? "false" : "true"});
  } else if (name == "max_retries" || (name == "max_attempts" && group == "retries")) {
    to.attempts = attempts_with_retries(name, value);
  } else if (name == "ssecustomeralgorithm" || name == "sse_customer_algorithm") {
    if (!value.is_none() && text_of(name, value) != "AES256") refuse("it must be AES256");
  } else if (name == "total_max_attempts") {
    to.attempts = attempts_of(value);
  } else {
    return false;
  }
  return true;
}

// Ignores None, like botocore.
bool take_aws_setting(std::string_view name, nb::handle value, remote_options& to) {
  const auto* const found = std::find_if(aws_names.begin(), aws_names.end(), [&](const auto& each) { return each.first == name; });
  if (found == aws_names.end()) return false;
  if (!value.is_none()) to.aws_settings.push_back({std::string(found->second), in_small_letters(nb::cast<std::string>(nb::str(value)))});
  return true;
}

void take(std::string_view given, nb::handle value, remote_options& to, std::string_view group = {});

// For fsspec: client_kwargs, config_kwargs and s3_additional_kwargs contain options; "s3" is in config_kwargs.
bool take_group(std::string_view name, nb::handle value, remote_options& to) {
  constexpr std::array groups{"client_kwargs", "config_kwargs", "s3_additional_kwargs", "s3", "client_options", "retries"};
  if (std::find(groups.begin(), groups.end(), name) == groups.end() || !is_mapping(value)) return false;
  for_each_item(value, "a name", [&](const std::string& inner, nb::handle of) { take(inner, of, to, name); });
  return true;
}

void take(std::string_view given, nb::handle value, remote_options& to, std::string_view group) {
  if (take_group(given, value, to)) return;
  if (const auto small = without_prefix(given); take_promise(small, group, value, to) || take_aws_setting(small, value, to)) return;
  const auto name = known_name(given);
  if (take_patience(name, value, to)) return;
  for (const auto& [known, member] : text_options) {
    if (name != known) continue;
    const bool is_style = name == "addressing_style" && in_small_letters(given).find("virtual_hosted") != std::string::npos;
    if (name == "server_side_encryption") return void(to.*member = encryption_of(given, value));
    to.*member = is_style ? (switch_or_text(given, value) ? "virtual" : "path") : text_of(given, value);
    return;
  }
  for (const auto& [known, member] : switch_options) {
    if (name == known) return void(to.*member = switch_or_text(given, value));
  }
  for (const auto& [known, member] : choice_options) {
    if (name == known) return void(value.is_none() ? (to.*member).reset() : void(to.*member = switch_or_text(given, value)));
  }
  if (name == "kind") {
    to.kind = kind_of(value);
  } else if (name == "size") {
    if (!value.is_none()) to.size = unsigned_integer(value, "storage_options[\"size\"]");
  } else if (name == "cache_dir") {
    if (!value.is_none()) to.cache_dir = folder_of(name, value);
  } else if (name == "cache_bytes") {
    if (!value.is_none()) to.cache_bytes = unsigned_integer(value, "storage_options[\"cache_bytes\"]");
  } else if (name == "headers") {
    to.headers = headers_of(value);
  } else if (name == "sse_customer_key") {
    to.sse_customer_key = key_of_customer(value);
  } else if (name == "tags") {
    to.tags = tags_of(value);
  } else if (std::find(without_meaning.begin(), without_meaning.end(), name) == without_meaning.end()) {
    raise_unknown(given);
  }
}

// One tuple per retry: (status, in_time, pause in ms, attempt, attempts).
nb::list take_retries(const noted_retries& self) {
  nb::list made;
  for (const auto& each : self.kept->take())
    made.append(nb::make_tuple(each.status, each.why != errc::timed_out, each.pause.count(), each.attempt, each.attempts));
  return made;
}

}  // namespace

void raise_not_a_url(const std::string& name) {
  raise_invalid("storage_options applies only to URLs, and " + shown_name(name) + " is not a URL");
}

void add_remote(nb::module_& module) {
  nb::class_<noted_retries>(module, "_RemoteRetries", "Records retried requests, for storage_options[\"retries\"].")
      .def(nb::init<>())
      .def("take", &take_retries,
           "Returns (HTTP status or 0, whether it responded in time, pause in ms, failed attempt, attempts) for each retry not\n"
           "returned before.");
}

remote_options parse_storage_options(nb::handle options) {
  remote_options made;
  if (options.is_none()) return made;
  if (!is_mapping(options)) throw nb::type_error(("storage_options must be a mapping, not " + type_of(options)).c_str());
  nb::object allows_http;  // handled last, because it depends on the endpoint
  for_each_item(options, "a name", [&](const std::string& name, nb::handle value) {
    if (without_prefix(name) == "allow_http") {
      allows_http = nb::borrow(value);
    } else {
      take(name, value, made);
    }
  });
  if (allows_http.is_valid()) take("allow_http", allows_http, made);
  return made;
}

}  // namespace penstock::python
