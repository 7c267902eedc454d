#include "remote/credentials/profiles.hpp"

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "base/printable.hpp"

namespace penstock::source::remote {

namespace {

constexpr std::string_view blanks = " \t\r";

std::string_view trimmed(std::string_view text) {
  const auto begin = text.find_first_not_of(blanks);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(blanks) - begin + 1);
}

// Removes a comment, which must follow a blank.
std::string_view without_comment(std::string_view line) {
  for (std::size_t i = 1; i < line.size(); ++i) {
    if ((line[i] == '#' || line[i] == ';') && (line[i - 1] == ' ' || line[i - 1] == '\t')) return line.substr(0, i);
  }
  return line;
}

std::string_view without_quotes(std::string_view text) {
  const bool is_quoted = text.size() >= 2 && (text.front() == '"' || text.front() == '\'') && text.back() == text.front();
  return is_quoted ? text.substr(1, text.size() - 2) : text;
}

// Returns true for the profile's heading: [name] in credentials; [profile name], or [default], in the configuration.
bool is_heading_of(std::string_view line, profile_format format, std::string_view name) {
  line = trimmed(without_comment(line));
  if (line.size() < 2 || line.back() != ']') return false;
  line = trimmed(line.substr(1, line.size() - 2));
  if (format == profile_format::credentials) return without_quotes(line) == name;
  if (line == "default") return name == line;
  constexpr std::string_view word = "profile";
  if (!line.starts_with(word) || line.size() == word.size() || blanks.find(line[word.size()]) == std::string_view::npos) return false;
  return without_quotes(trimmed(line.substr(word.size()))) == name;
}

// Returns NAME for a heading [services NAME]; otherwise empty.
std::string services_of_heading(std::string_view line) {
  line = trimmed(without_comment(line));
  constexpr std::string_view begin = "[services";
  if (!line.starts_with(begin) || line.back() != ']') return {};
  line = line.substr(begin.size(), line.size() - begin.size() - 1);
  if (line.empty() || blanks.find(line.front()) == std::string_view::npos) return {};
  return std::string(without_quotes(trimmed(line)));
}

std::string small_key(std::string_view text) {
  std::string key(trimmed(text));
  std::ranges::transform(key, key.begin(), [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c | 0x20) : c; });
  return key;
}

struct named_text {
  std::string_view key;
  std::string profile::*member;
};
struct named_secret {
  std::string_view key;
  secret_text profile::*member;
};

constexpr std::array profile_texts{named_text{"aws_access_key_id", &profile::access_key_id},
                                   named_text{"credential_process", &profile::credential_process},
                                   named_text{"role_arn", &profile::role_arn}, named_text{"role_session_name", &profile::role_session_name},
                                   named_text{"web_identity_token_file", &profile::web_identity_token_file}};
constexpr std::array profile_secrets{named_secret{"aws_secret_access_key", &profile::secret_access_key},
                                     named_secret{"aws_session_token", &profile::session_token},
                                     named_secret{"aws_security_token", &profile::session_token}};  // the old name of aws_session_token

void take_setting(const std::string& key, std::string_view value, profile& to) {
  const auto* const text = std::ranges::find(profile_texts, std::string_view(key), &named_text::key);
  const auto* const secret = std::ranges::find(profile_secrets, std::string_view(key), &named_secret::key);
  if (text != profile_texts.end()) {
    to.*text->member = value;
  } else if (secret != profile_secrets.end()) {
    to.*secret->member = secret_text(value);
  } else if (!value.empty()) {
    to.settings[key] = value;
  }
  if (key == "source_profile" || key == "credential_source") to.needs_another = true;
  if (key == "sso_session" || key == "sso_start_url" || key == "login_session") to.signs_on = true;
}

// Takes keys that belong together only from the same file.
void add_what_is_missing(profile from, profile& to) {
  if (!to.access_key_id.empty() || !to.secret_access_key.empty()) {
    from.access_key_id.clear();
    from.secret_access_key = from.session_token = secret_text();
  }
  for (const auto& each : profile_texts) {
    if ((to.*each.member).empty()) to.*each.member = std::move(from.*each.member);
  }
  for (const auto& each : profile_secrets) {
    if ((to.*each.member).empty()) to.*each.member = std::move(from.*each.member);
  }
  to.needs_another |= from.needs_another;
  to.signs_on |= from.signs_on;
  to.service_endpoints.merge(from.service_endpoints);
  to.settings.merge(from.settings);
}

// Expands a leading ~/ to HOME; nullopt if HOME is not set.
std::optional<std::string> below_home(const variable_lookup& lookup, std::string name) {
  if (!name.starts_with("~/")) return name;
  const auto home = variable_set(lookup, "HOME");
  return home ? std::optional(*home + name.substr(1)) : std::nullopt;
}

// As with the AWS tools, a file that a variable refers to may be missing. A default file also counts as missing if HOME belongs to another
// user or is not a folder, which happens to programs in containers.
bool is_absent(const status& problem, bool is_named) {
  const bool is_out_of_reach = problem.code() == errc::permission_denied || problem.code() == errc::not_a_file;
  return problem.code() == errc::not_found || (is_out_of_reach && !is_named);
}

struct profile_file {
  const char* variable;
  const char* usual_name;
  profile_format format;
};
constexpr std::array profile_files{
    profile_file{"AWS_SHARED_CREDENTIALS_FILE", "~/.aws/credentials", profile_format::credentials},
    profile_file{"AWS_CONFIG_FILE", "~/.aws/config", profile_format::config},
};

status add_file(sys::kernel& kernel, const variable_lookup& lookup, const profile_file& one, found_profile& to) {
  const auto named = variable_set(lookup, one.variable);
  const auto name = below_home(lookup, named.value_or(one.usual_name));
  to.looked_at += fmt::format("{}{}", to.looked_at.empty() ? "" : " and ", printable_text(name.value_or(one.usual_name)));
  if (!name) {
    to.looked_at += " (HOME is not set)";
    return {};
  }
  auto text = read_small_file(kernel, *name, most_profile_bytes);
  if (!text && is_absent(text.error(), named.has_value())) {
    to.looked_at += text.error().code() == errc::not_found ? " (not found)" : " (not accessible)";
    return {};
  }
  if (!text) return text.error();
  to.is_there |= read_profile(*text, one.format, to.name, to.values);
  wipe(*text);
  return {};
}

}  // namespace

std::optional<std::string> variable_set(const variable_lookup& lookup, std::string_view name) {
  auto value = lookup(name);
  return value && value->empty() ? std::nullopt : std::move(value);
}

bool read_profile(std::string_view file, profile_format format, std::string_view name, profile& to) {
  if (file.starts_with("\xef\xbb\xbf")) file.remove_prefix(3);
  profile read;
  bool is_in_it = false, was_there = false;
  std::string services;  // the services section of the current line
  std::string group;     // the setting that indented lines belong to: "s3"
  while (!file.empty()) {
    const auto line = file.substr(0, file.find('\n'));
    file.remove_prefix(std::min(line.size() + 1, file.size()));
    const auto begin = line.find_first_not_of(blanks);
    if (begin == std::string_view::npos || line[begin] == '#' || line[begin] == ';') continue;
    if (line.front() == '[') {
      is_in_it = is_heading_of(line, format, name);
      was_there |= is_in_it;
      services = services_of_heading(line);
      group.clear();
      continue;
    }
    const auto equals = line.find('=');
    if ((!is_in_it && services.empty()) || equals == std::string_view::npos) continue;
    const auto key = small_key(line.substr(0, equals));
    const auto value = trimmed(without_comment(line.substr(equals + 1)));
    if (begin == 0) group = value.empty() ? key : std::string();
    if (is_in_it && begin == 0) take_setting(key, value, read);
    if (is_in_it && begin > 0 && !group.empty()) take_setting(fmt::format("{}.{}", group, key), value, read);
    if (!services.empty() && begin > 0 && key == "endpoint_url")
      read.service_endpoints.try_emplace(fmt::format("{}/{}", services, group), value);
  }
  add_what_is_missing(std::move(read), to);
  return was_there;
}

std::string profile::setting(std::string_view key) const {
  const auto found = settings.find(key);
  return found == settings.end() ? std::string() : found->second;
}

std::string profile::endpoint_of_service(const std::string& service) const {
  const auto services = setting("services");
  const auto found = service_endpoints.find(fmt::format("{}/{}", services, service));
  return services.empty() || found == service_endpoints.end() ? std::string() : found->second;
}

result<found_profile> find_profile(sys::kernel& kernel, const variable_lookup& lookup, std::string_view asked_for) {
  found_profile made;
  made.name = asked_for;
  for (const auto* variable : {"AWS_PROFILE", "AWS_DEFAULT_PROFILE"}) {
    if (made.name.empty()) made.name = variable_set(lookup, variable).value_or("");
  }
  made.is_asked_for = !made.name.empty();
  if (!made.is_asked_for) made.name = "default";
  for (const auto& one : profile_files) {
    if (auto problem = add_file(kernel, lookup, one, made); !problem.ok()) return problem;
  }
  const auto services = made.values.setting("services");
  const auto is_of_it = [&](const auto& each) { return each.first.starts_with(services + "/"); };
  if (!services.empty() && std::ranges::none_of(made.values.service_endpoints, is_of_it)) {
    return status(errc::not_found,
                  fmt::format("the profile '{}' sets services = {}, but {} contains no endpoint in a section [services {}]",
                              printable_text(made.name), printable_text(services), made.looked_at, printable_text(services)));
  }
  if (made.is_asked_for && !made.is_there)
    return status(errc::not_found, fmt::format("there is no profile '{}' in {}", printable_text(made.name), made.looked_at));
  return made;
}

result<std::string> read_small_file(sys::kernel& kernel, const std::string& path, std::size_t most_bytes) {
  const auto fd = kernel.open(path, O_RDONLY | O_NONBLOCK, 0);  // O_NONBLOCK: does not wait for the other end of a FIFO
  if (!fd) return fd.error();
  const auto refused = [&](status problem) {
    (void)kernel.close(*fd);  // an error is harmless: nothing was written
    return problem;
  };
  const auto facts = kernel.describe(*fd);
  if (!facts) return refused(facts.error());
  if (facts->type != sys::file_type::regular)
    return refused({errc::not_a_file, fmt::format("{} is not a regular file", printable_text(path))});
  constexpr std::size_t step = 4096;
  std::string text;
  text.reserve(std::min<std::size_t>(facts->size_bytes, most_bytes) + 2 * step);  // avoids reallocation, which would copy secrets
  for (;;) {
    const auto before = text.size();
    text.resize(before + step);
    const auto count = kernel.pread(*fd, text.data() + before, step, before);
    text.resize(before + count.value_or(0));
    if (!count) return refused(count.error());
    if (*count == 0) break;
    if (text.size() > most_bytes)
      return refused({errc::invalid_argument, fmt::format("{} is larger than {} bytes", printable_text(path), most_bytes)});
  }
  (void)kernel.close(*fd);
  return text;
}

}  // namespace penstock::source::remote
