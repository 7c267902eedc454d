#include "remote/net/url.hpp"

#include <arpa/inet.h>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cassert>
#include <charconv>
#include <utility>

#include "base/printable.hpp"

namespace penstock::source::remote {

namespace {

constexpr std::size_t most_shown_bytes = 300;
constexpr std::size_t most_scheme_bytes = 32;
constexpr std::size_t most_host_bytes = 253;
constexpr std::uint16_t http_port = 80;
constexpr std::uint16_t https_port = 443;
constexpr std::string_view amazon_suffix = ".amazonaws.com";
constexpr std::string_view country_suffix = ".cn";

bool is_small_letter(char c) { return c >= 'a' && c <= 'z'; }
bool is_url_digit(char c) { return c >= '0' && c <= '9'; }
char in_small(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }
bool is_alphanumeric(char c) { return is_small_letter(in_small(c)) || is_url_digit(c); }
bool is_unreserved(char c) { return is_alphanumeric(c) || c == '-' || c == '.' || c == '_' || c == '~'; }
// Returns true for characters allowed in a path or query: RFC 3986's unreserved characters and sub-delims, and others that need no
// encoding.
bool may_stand_in_url(char c) { return is_unreserved(c) || std::string_view("!$&'()*+,;=:@/?").find(c) != std::string_view::npos; }
bool is_control(char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; }

int hex_value(char c) {
  if (is_url_digit(c)) return c - '0';
  const char small = in_small(c);
  return small >= 'a' && small <= 'f' ? small - 'a' + 10 : -1;
}

bool is_escape(std::string_view text) { return text.size() >= 3 && text[0] == '%' && hex_value(text[1]) >= 0 && hex_value(text[2]) >= 0; }

void append_escaped(char byte, std::string& to) { fmt::format_to(std::back_inserter(to), "%{:02X}", static_cast<unsigned char>(byte)); }

status bad_url(std::string_view text, std::string_view why) {
  return {errc::invalid_argument, fmt::format("URL {}: {}", shown_text(text), why)};
}

bool is_scheme(std::string_view text) {
  const auto may_be = [](char c) { return is_alphanumeric(c) || c == '+' || c == '-' || c == '.'; };
  return !text.empty() && is_small_letter(in_small(text.front())) && std::ranges::all_of(text, may_be);
}

// Returns the text before "://", in lower case; empty if there is none.
std::string scheme_of(std::string_view text) {
  const auto end = text.substr(0, most_scheme_bytes).find("://");
  return end == std::string_view::npos || !is_scheme(text.substr(0, end)) ? std::string() : in_small_letters(text.substr(0, end));
}

constexpr std::array<std::string_view, 2> schemes_of_google{"gs", "gcs"};
bool is_scheme_of_google(std::string_view scheme) { return std::ranges::find(schemes_of_google, scheme) != schemes_of_google.end(); }
constexpr std::array<std::string_view, 3> schemes_of_s3{"s3", "s3a", "s3n"};
bool is_scheme_of_s3(std::string_view scheme) { return std::ranges::find(schemes_of_s3, scheme) != schemes_of_s3.end(); }

// Returns the scheme of a text such as s3:/bucket/key, which pathlib.Path makes from s3://bucket/key; empty for all other texts.
std::string_view scheme_with_one_slash(std::string_view text) {
  for (const std::string_view scheme : {"s3", "s3a", "s3n", "hf", "gs", "gcs", "http", "https"}) {
    const bool begins = text.starts_with(scheme) && text.substr(scheme.size()).starts_with(":/");
    if (begins && !text.substr(scheme.size()).starts_with("://")) return scheme;
  }
  return {};
}

status unsupported_scheme(std::string_view text, std::string_view scheme) {
  struct hint {
    std::string_view scheme;
    std::string_view words;
  };
  constexpr std::string_view of_azure = "; use the https:// URL of the blob, with its SAS";
  constexpr std::array hints{
      hint{"az", of_azure},
      hint{"azure", of_azure},
      hint{"abfs", of_azure},
      hint{"abfss", of_azure},
      hint{"adl", of_azure},
      hint{"wasb", of_azure},
      hint{"wasbs", of_azure},
      hint{"hdfs", "; use WebHDFS: http://HOST:PORT/webhdfs/v1/PATH"},
      hint{"oss", "; use s3://BUCKET/KEY, and set the endpoint of the S3 interface"},
      hint{"r2", "; use s3://BUCKET/KEY, and set the endpoint of the S3 interface"},
  };
  const auto* const found = std::ranges::find(hints, scheme, &hint::scheme);
  return {errc::unsupported,
          fmt::format("{}: the scheme {}:// is not supported{}. Supported schemes are http://, https://, s3://, gs://, hf:// and file://",
                      shown_text(text), scheme, found == hints.end() ? "" : found->words)};
}

// Encodes bytes that a URL may not contain, and keeps existing escapes.
std::string made_fit(std::string_view text) {
  std::string made;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (may_stand_in_url(text[i]) || is_escape(text.substr(i))) {
      made.push_back(text[i]);
    } else {
      append_escaped(text[i], made);
    }
  }
  return made;
}

bool is_host_name(std::string_view host) {
  if (host.empty() || host.size() > most_host_bytes) return false;
  for (std::size_t begin = 0; begin <= host.size();) {
    const auto label = host.substr(begin, host.find('.', begin) - begin);
    if (label.empty() || label.size() > 63) return false;
    if (!std::ranges::all_of(label, [](char c) { return is_alphanumeric(c) || c == '-' || c == '_'; })) return false;
    begin += label.size() + 1;
  }
  return true;
}

bool is_ipv6(const std::string& host) {
  in6_addr ignored{};
  return inet_pton(AF_INET6, host.c_str(), &ignored) == 1;
}

// Removes the host from the start of an authority. Returns false if it is missing or invalid.
bool take_host(std::string_view& authority, std::string& to) {
  if (!authority.starts_with('[')) {
    to = in_small_letters(authority.substr(0, authority.find(':')));
    authority.remove_prefix(to.size());
    return is_host_name(to);
  }
  const auto end = authority.find(']');
  if (end == std::string_view::npos) return false;
  to = in_small_letters(authority.substr(1, end - 1));
  authority.remove_prefix(end + 1);
  return is_ipv6(to);
}

// Parses a colon and a number, a colon, or nothing.
bool take_port(std::string_view rest, std::uint16_t& port) {
  if (rest.empty() || rest == ":") return true;
  if (rest.front() != ':') return false;
  const auto [end, problem] = std::from_chars(rest.data() + 1, rest.data() + rest.size(), port);
  return problem == std::errc() && end == rest.data() + rest.size() && port != 0;
}

status check_text(std::string_view text) {
  if (text.size() > most_url_bytes) return bad_url(text, fmt::format("it is longer than {} bytes", most_url_bytes));
  if (std::ranges::any_of(text, is_control)) return bad_url(text, "it contains a control character");
  return {};
}

// --- Amazon's hosts
struct amazon_host {
  std::string bucket;  // empty: path style
  std::string region;  // empty: the global endpoint
};

// Removes and returns the last label of a name.
std::string_view take_label(std::string_view& name) {
  const auto dot = name.rfind('.');
  const auto label = dot == std::string_view::npos ? name : name.substr(dot + 1);
  name = dot == std::string_view::npos ? std::string_view() : name.substr(0, dot);
  return label;
}

// Parses [bucket.]s3.region, [bucket.]s3 and [bucket.]s3-region, each with the suffix; before a region also s3-fips, s3-accesspoint for an
// access point, and dualstack. Rejects website hosts, which are not S3 API endpoints. Transfer acceleration hosts have no region.
std::optional<amazon_host> read_amazon_host(std::string_view host) {
  if (host.ends_with(country_suffix)) host.remove_suffix(country_suffix.size());
  if (!host.ends_with(amazon_suffix)) return std::nullopt;
  host.remove_suffix(amazon_suffix.size());
  amazon_host found;
  const auto last = take_label(host);
  if (last.starts_with("s3-website")) return std::nullopt;
  if (last.starts_with("s3-") && last.size() > 3) {
    if (last != "s3-accelerate") found.region = last.substr(3);
  } else if (last != "s3") {
    found.region = last;
    auto service = take_label(host);
    if (service == "dualstack") service = take_label(host);
    constexpr std::array<std::string_view, 4> services{"s3", "s3-fips", "s3-accesspoint", "s3-accesspoint-fips"};
    if (std::ranges::find(services, service) == services.end()) return std::nullopt;
  }
  found.bucket = host;
  return found;
}

struct amazon_object {
  s3_object object;
  bool is_virtual = false;  // the bucket is part of the host name
};

// Returns the object that an Amazon URL refers to, with its key still encoded; nullopt if there is none.
std::optional<amazon_object> read_amazon_object(const url& of) {
  auto host = read_amazon_host(of.host);
  if (!host) return std::nullopt;
  std::string_view path(of.path);
  path.remove_prefix(1);
  const bool is_virtual = !host->bucket.empty();
  if (!is_virtual) {
    host->bucket = path.substr(0, path.find('/'));
    path.remove_prefix(std::min(host->bucket.size() + 1, path.size()));
  }
  if (host->bucket.empty() || path.empty()) return std::nullopt;
  return amazon_object{{.bucket = std::move(host->bucket), .key = std::string(path), .region = std::move(host->region), .at_google = false},
                       is_virtual};
}

// Decodes and re-encodes the key, so that its escapes are the ones that are signed.
status settle_object(remote_url& one, bool is_virtual) {
  auto key = percent_decoded(one.object.key);
  assert(key && "a % that does not start an escape is encoded when the URL is parsed");
  if (auto problem = check_key(*key); !problem.ok()) return problem;
  one.object.key = std::move(*key);
  if (auto problem = check_bucket(one.object.bucket, false); !problem.ok()) return problem;
  one.address.path = is_virtual ? "/" : fmt::format("/{}/", one.object.bucket);
  one.address.path += percent_encoded(one.object.key, true);
  return {};
}

bool is_webhdfs(const url& address) {
  constexpr std::string_view prefix = "/webhdfs/v1/";
  return address.path.size() > prefix.size() && in_small_letters(address.path.substr(0, prefix.size())) == prefix;
}

// Returns true if a parsed URL contains host:port.
bool names_port(std::string_view text) {
  text.remove_prefix(text.find("://") + 3);
  const auto authority = text.substr(0, text.find_first_of("/?#"));
  return !authority.empty() && is_url_digit(authority.back()) && authority.rfind(':') != std::string_view::npos &&
         authority.rfind(':') + 1 > authority.rfind(']') + 1;
}

struct access_point {
  std::string region;
  std::string label;  // NAME-ACCOUNT in its host name
};

// Parses arn:aws:s3:REGION:ACCOUNT:accesspoint/NAME, with a colon or slash before the name. Errors: text only.
result<access_point> parse_access_point(std::string_view arn) {
  std::array<std::string_view, 5> fields;  // arn, partition, service, region, account
  for (auto& each : fields) {
    each = arn.substr(0, arn.find(':'));
    arn.remove_prefix(std::min(each.size() + 1, arn.size()));
  }
  const auto [word, partition, service, region, account] = fields;
  const auto refused = [](std::string_view why) { return status(errc::unsupported, std::string(why)); };
  constexpr std::string_view kind = "accesspoint";
  if (service != "s3") return refused("the only supported ARNs are those of S3 buckets and access points");
  if (!arn.starts_with(kind) || arn.size() < kind.size() + 2)
    return refused("an ARN must have the form arn:aws:s3:::BUCKET/KEY or arn:aws:s3:REGION:ACCOUNT:accesspoint/NAME/KEY");
  if (region.empty()) return refused("multi-region access points require version 4A signatures, which are not supported");
  const auto name = arn.substr(kind.size() + 1);
  const auto is_letter = [](char c) { return is_small_letter(c) || is_url_digit(c) || c == '-'; };
  const bool is_account = account.size() == 12 && std::ranges::all_of(account, is_url_digit);
  const bool is_name = !name.empty() && name.size() <= 50 && std::ranges::all_of(name, is_letter) && name.front() != '-';
  if (!is_region(region) || !is_account || !is_name)
    return refused("the region, account or name in its ARN is not valid for an access point");
  return access_point{std::string(region), fmt::format("{}-{}", name, account)};
}

// Returns NAME of arn:aws:s3:::NAME; any other bucket unchanged.
std::string name_of_bucket(const std::string& bucket) { return bucket.starts_with("arn:") ? bucket.substr(bucket.rfind(':') + 1) : bucket; }

// Removes the bucket or access point, and the slash after it, from the start.
result<s3_object> take_arn(std::string_view& rest) {
  s3_object made;
  made.bucket = rest.substr(0, rest.find('/'));
  if (!made.by_access_point()) {
    rest.remove_prefix(std::min(made.bucket.size() + 1, rest.size()));
    return made;
  }
  constexpr std::string_view kind = ":accesspoint/";
  const auto begin = rest.find(kind);
  const bool has_slash = begin != std::string_view::npos && begin < rest.find('/');
  const auto end = std::min(rest.find('/', has_slash ? begin + kind.size() : 0), rest.size());
  made.bucket = rest.substr(0, end);
  const auto point = parse_access_point(made.bucket);
  if (!point) return point.error();
  made.region = point->region;
  rest.remove_prefix(std::min(end + 1, rest.size()));
  return made;
}

// Parses the bucket and key, or key prefix, after s3:// or gs://. Control characters in a key are sent encoded.
result<s3_object> read_by_name(std::string_view text) {
  if (text.size() > most_url_bytes) return bad_url(text, fmt::format("it is longer than {} bytes", most_url_bytes));
  auto rest = text.substr(text.find("://") + 3);
  const bool at_google = is_scheme_of_google(scheme_of(text));
  if (rest.starts_with("arn:") && !at_google) {
    auto named = take_arn(rest);
    if (!named) return status(named.error().code(), fmt::format("URL {}: {}", shown_text(text), named.error().message()));
    named->key = rest;
    if (named->by_access_point()) return named;
    if (auto problem = check_bucket(name_of_bucket(named->bucket), false); !problem.ok()) return bad_url(text, problem.message());
    return named;
  }
  const auto slash = std::min(rest.find('/'), rest.size());
  s3_object made{.bucket = std::string(rest.substr(0, slash)),
                 .key = std::string(rest.substr(std::min(slash + 1, rest.size()))),
                 .region = {},
                 .at_google = at_google};
  if (made.bucket.find_first_of("@:") != std::string::npos)
    return bad_url(text, "the bucket name contains an invalid character; do not put credentials in a URL");
  if (auto problem = check_bucket(made.bucket, false); !problem.ok()) return bad_url(text, problem.message());
  return made;
}

result<remote_url> parse_by_name(std::string_view text) {
  auto object = read_by_name(text);
  if (!object) return object.error();
  if (auto problem = check_key(object->key); !problem.ok()) return bad_url(text, problem.message());
  remote_url made;
  made.kind = url_kind::s3;
  made.by_name = true;
  made.object = *std::move(object);
  return made;
}

// Returns true for d.d.d.d, which is not a valid bucket name.
bool looks_like_ipv4(std::string_view name) {
  return std::ranges::count(name, '.') == 3 && std::ranges::all_of(name, [](char c) { return is_url_digit(c) || c == '.'; });
}

// key: percent-encoded.
result<url> address_at_endpoint(const std::string& bucket, const std::string& key, const s3_place& place) {
  url made = *place.endpoint;
  made.query = {};
  while (made.path.ends_with('/')) made.path.pop_back();
  if (place.style != addressing::virtual_host) {
    made.path += fmt::format("/{}/{}", bucket, key);
    return made;
  }
  made.host = fmt::format("{}.{}", in_small_letters(bucket), made.host);
  if (is_ipv6(place.endpoint->host) || looks_like_ipv4(place.endpoint->host) || !is_host_name(made.host)) {
    return status(errc::invalid_argument,
                  fmt::format("the addressing style is virtual, but {} is not a host name: use the path style", shown_text(made.host)));
  }
  made.path += fmt::format("/{}", key);
  return made;
}

// Returns an Amazon host name, starting with the service name.
std::string amazon_host_of(std::string_view service, const s3_place& place) {
  return fmt::format("{}{}.{}{}{}{}", service, place.fips ? "-fips" : "", place.dualstack ? "dualstack." : "", place.region, amazon_suffix,
                     place.region.starts_with("cn-") ? country_suffix : "");
}

url address_of_amazon(std::string host, std::string path, bool tls) {
  return {.tls = tls, .host = std::move(host), .port = tls ? https_port : http_port, .path = std::move(path), .query = {}};
}

// key: percent-encoded.
result<url> address_of_access_point(const std::string& arn, const std::string& key, s3_place place) {
  const auto point = parse_access_point(arn);
  if (!point) return point.error();
  place.style = addressing::virtual_host;
  if (place.endpoint) {
    auto made = address_at_endpoint(point->label, key, place);
    if (made) return made;
    return status(errc::invalid_argument,
                  fmt::format("the address of an access point is {}.ENDPOINT, but the endpoint's host is not a host name: {}", point->label,
                              place.endpoint->shown()));
  }
  place.region = point->region;
  return address_of_amazon(fmt::format("{}.{}", point->label, amazon_host_of("s3-accesspoint", place)), fmt::format("/{}", key), place.tls);
}

// S3 Express buckets have their own endpoints and signatures.
bool is_directory_bucket(std::string_view bucket) { return bucket.ends_with("--x-s3") || bucket.ends_with("--xa-s3"); }

}  // namespace

std::string s3_object::name_of(std::string_view any_key) const {
  return fmt::format("{}://{}/{}", at_google ? "gs" : "s3", bucket, any_key);
}

std::string in_small_letters(std::string_view text) {
  std::string made(text);
  std::ranges::transform(made, made.begin(), in_small);
  return made;
}

std::string url::authority() const {
  const std::string name = host.find(':') == std::string::npos ? host : fmt::format("[{}]", host);
  return port == (tls ? https_port : http_port) ? name : fmt::format("{}:{}", name, port);
}

std::string url::unredacted_target() const { return query.empty() ? path : fmt::format("{}?{}", path, query.unredacted()); }
std::string url::unredacted() const { return fmt::format("{}://{}{}", tls ? "https" : "http", authority(), unredacted_target()); }
std::string url::shown() const { return fmt::format("{}://{}{}", tls ? "https" : "http", authority(), path); }
bool url::same_origin(const url& other) const { return tls == other.tls && host == other.host && port == other.port; }

bool is_url(std::string_view text) {
  const auto scheme = scheme_of(text);
  return scheme.empty() ? !scheme_with_one_slash(text).empty() : scheme != "file";
}

std::string file_path_of(std::string_view text) {
  if (scheme_of(text) != "file") return std::string(text);
  auto rest = text.substr(text.find("://") + 3);
  if (rest.starts_with("localhost/")) rest.remove_prefix(std::string_view("localhost").size());
  return percent_decoded(rest).value_or(std::string(rest));
}

std::optional<result<std::string>> hub_address(std::string_view text, std::string_view endpoint) {
  if (scheme_of(text) != "hf") return std::nullopt;
  auto rest = text.substr(text.find("://") + 3);
  std::string_view kind;
  for (const std::string_view each : {"datasets/", "spaces/"}) {
    if (rest.starts_with(each)) kind = each;
  }
  rest.remove_prefix(kind.size());
  if (kind.empty() && rest.starts_with("models/")) rest.remove_prefix(std::string_view("models/").size());
  const auto owner = rest.find('/');
  const auto name = owner == std::string_view::npos ? owner : rest.find('/', owner + 1);
  if (owner == 0 || name == std::string_view::npos || name == owner + 1 || name + 1 == rest.size())
    return bad_url(text, "a Hugging Face Hub URL must have the form hf://OWNER/NAME/PATH or hf://datasets/OWNER/NAME@REVISION/PATH");
  const auto repository = rest.substr(0, name);
  const auto at = repository.find('@');
  // The Hub's library decodes %2F in a revision to a slash.
  const auto revision = at == std::string_view::npos ? std::string("main") : percent_decoded(repository.substr(at + 1)).value_or("");
  if (revision.empty()) return bad_url(text, "its revision is empty");
  while (endpoint.ends_with('/')) endpoint.remove_suffix(1);
  return fmt::format("{}/{}{}/resolve/{}/{}", endpoint, kind, percent_encoded(repository.substr(0, at), true),
                     percent_encoded(revision, false), percent_encoded(rest.substr(name + 1), true));
}

// Text that cannot be parsed may contain a password anywhere before an @; in that case nothing after the scheme is shown.
std::string shown_text(std::string_view text) {
  const auto scheme_end = text.find("://");
  if (text.find('@') != std::string_view::npos)
    return scheme_end == std::string_view::npos
               ? "..."
               : printable_text(fmt::format("{}...", text.substr(0, std::min(scheme_end + 3, most_shown_bytes))));
  text = text.substr(0, text.find_first_of("?#"));
  if (text.size() <= most_shown_bytes) return printable_text(std::string(text));
  return printable_text(std::string(text.substr(0, most_shown_bytes))) + "...";
}

result<url> parse_http_url(std::string_view text) {
  if (auto problem = check_text(text); !problem.ok()) return problem;
  const auto scheme = scheme_of(text);
  if (scheme != "http" && scheme != "https") return bad_url(text, "its scheme must be http or https");
  url made;
  made.tls = scheme == "https";
  made.port = made.tls ? https_port : http_port;
  auto rest = text.substr(scheme.size() + 3);
  rest = rest.substr(0, rest.find('#'));
  auto authority = rest.substr(0, rest.find_first_of("/?"));
  rest.remove_prefix(authority.size());
  if (authority.find('@') != std::string_view::npos) return bad_url(text, "a URL must not contain a user name or password");
  if (!take_host(authority, made.host)) return bad_url(text, "its host must be a name or an IP address");
  if (!take_port(authority, made.port)) return bad_url(text, "its port must be a number from 1 to 65535");
  const auto question = rest.find('?');
  if (question != std::string_view::npos) made.query = url_query(made_fit(rest.substr(question + 1)));
  made.path = made_fit(rest.substr(0, question));
  if (made.path.empty()) made.path = "/";
  return made;
}

std::string_view to_string(url_kind kind) noexcept {
  switch (kind) {
    case url_kind::s3:
      return "s3";
    case url_kind::s3_public:
      return "s3_public";
    case url_kind::s3_presigned:
      return "s3_presigned";
    case url_kind::webhdfs:
      return "webhdfs";
    case url_kind::http:
      return "http";
  }
  return "unknown";
}

std::string remote_url::shown() const { return by_name ? printable_text(object.name_of(object.key)) : address.shown(); }

result<remote_url> parse_remote_url(std::string_view text) {
  const auto scheme = scheme_of(text);
  if (is_scheme_of_s3(scheme) || is_scheme_of_google(scheme)) return parse_by_name(text);
  if (const auto cut = scheme_with_one_slash(text); !cut.empty())
    return bad_url(
        text,
        fmt::format("it has only one slash after its scheme; write {}://, and pass a str, because pathlib.Path removes a slash", cut));
  if (scheme.empty()) return bad_url(text, "its scheme must be http, https, s3, gs or hf");
  if (scheme == "hf")
    return status(errc::unsupported, fmt::format("{}: Hugging Face Hub files can be opened only for reading", shown_text(text)));
  if (scheme != "http" && scheme != "https") return unsupported_scheme(text, scheme);
  auto address = parse_http_url(text);
  if (!address) return address.error();
  remote_url made;
  made.address = std::move(*address);
  if (auto read = read_amazon_object(made.address)) {
    made.object = std::move(read->object);
    if (is_presigned(made.address)) {
      made.kind = url_kind::s3_presigned;  // signed as is, so the text stays unchanged
      made.object.key = percent_decoded(made.object.key).value_or("");
      return made;
    }
    made.kind = url_kind::s3;
    if (auto problem = settle_object(made, read->is_virtual); !problem.ok()) return bad_url(text, problem.message());
  } else if (is_webhdfs(made.address) && names_port(text)) {
    made.kind = url_kind::webhdfs;
  }
  return made;
}

result<s3_object> parse_s3_prefix(std::string_view text) {
  const auto scheme = scheme_of(text);
  if (!is_scheme_of_s3(scheme) && !is_scheme_of_google(scheme)) return bad_url(text, "only s3://BUCKET/ and gs://BUCKET/ can be listed");
  auto made = read_by_name(text);
  if (made && !made->key.empty()) {
    if (auto problem = check_key(made->key); !problem.ok()) return bad_url(text, problem.message());
  }
  return made;
}

bool fits(const remote_url& one, url_kind kind) {
  switch (kind) {
    case url_kind::s3:
    case url_kind::s3_public:
      return one.kind == url_kind::s3;
    case url_kind::s3_presigned:
    case url_kind::webhdfs:
      return one.kind == kind;
    case url_kind::http:
      return !one.by_name;
  }
  return false;
}

std::optional<url_kind> first_fitting(const remote_url& one, std::span<const url_kind> kinds) {
  for (const url_kind kind : kinds) {
    if (fits(one, kind)) return kind;
  }
  return std::nullopt;
}

bool is_presigned(const url& one) {
  return query_value(one.query.unredacted(), "X-Amz-Algorithm") && query_value(one.query.unredacted(), "X-Amz-Signature");
}

result<url> s3_address(const s3_object& object, const s3_place& place) {
  if (auto problem = check_key(object.key); !problem.ok()) return problem;
  const auto key = percent_encoded(object.key, true);
  if (object.by_access_point()) return address_of_access_point(object.bucket, key, place);
  const auto bucket = name_of_bucket(object.bucket);
  if (auto problem = check_bucket(bucket, !place.endpoint); !problem.ok()) return problem;
  if (place.endpoint) return address_at_endpoint(bucket, key, place);
  if (is_directory_bucket(bucket))
    return status(errc::unsupported, fmt::format("'{}' is a directory bucket (S3 Express), which is not supported", bucket));
  if (!is_region(place.region)) {
    return status(errc::invalid_argument, fmt::format("'{}' is not an AWS region; for a server other than Amazon's, also set an endpoint "
                                                      "(AWS_ENDPOINT_URL_S3, or the option endpoint)",
                                                      shown_text(place.region)));
  }
  const bool has_dot = bucket.find('.') != std::string::npos;
  const bool is_virtual = place.style == addressing::virtual_host || (place.style == addressing::automatic && !has_dot);
  const auto host = amazon_host_of("s3", place);
  return is_virtual ? address_of_amazon(fmt::format("{}.{}", bucket, host), fmt::format("/{}", key), place.tls)
                    : address_of_amazon(host, fmt::format("/{}/{}", bucket, key), place.tls);
}

result<url> s3_bucket_address(const std::string& bucket, const s3_place& place) {
  auto made = s3_address({.bucket = bucket, .key = "k", .region = {}, .at_google = false}, place);
  if (made) made->path.pop_back();
  return made;
}

status check_bucket(std::string_view bucket, bool is_amazons) {
  const auto refused = [&](std::string_view why) {
    return status(errc::invalid_argument, fmt::format("'{}' is not a valid bucket name: {}", shown_text(bucket), why));
  };
  const auto least = is_amazons ? 3U : 1U, most = is_amazons ? 63U : 255U;
  if (bucket.size() < least || bucket.size() > most) return refused(fmt::format("it must be {} to {} characters long", least, most));
  const auto may_be = [&](char c) {
    return is_small_letter(c) || is_url_digit(c) || c == '.' || c == '-' || (!is_amazons && (is_alphanumeric(c) || c == '_'));
  };
  if (!std::ranges::all_of(bucket, may_be)) return refused("it contains an invalid character");
  if (bucket.find_first_not_of('.') == std::string_view::npos) return refused("it must not consist only of dots");
  if (!is_amazons) return {};
  if (!is_alphanumeric(bucket.front()) || !is_alphanumeric(bucket.back())) return refused("it must begin and end with a letter or digit");
  if (bucket.find("..") != std::string_view::npos) return refused("it must not contain two consecutive dots");
  if (looks_like_ipv4(bucket)) return refused("it must not look like an IP address");
  return {};
}

status check_key(std::string_view key) {
  if (key.empty()) return {errc::invalid_argument, "it contains no object key"};
  if (key.size() > most_key_bytes) return {errc::invalid_argument, fmt::format("its key is longer than {} bytes", most_key_bytes)};
  if (!is_utf8(key)) return {errc::invalid_argument, "its key is not valid UTF-8"};
  if (key.find('\0') != std::string_view::npos) return {errc::invalid_argument, "its key contains a null byte"};
  return {};
}

bool is_region(std::string_view text) {
  const auto may_be = [](char c) { return is_small_letter(c) || is_url_digit(c) || c == '-'; };
  return !text.empty() && text.size() <= 63 && std::ranges::all_of(text, may_be) && text.front() != '-' && text.back() != '-';
}

bool is_region_name(std::string_view text) {
  const auto may_be = [](char c) { return is_alphanumeric(c) || c == '-' || c == '_' || c == '.'; };
  return !text.empty() && text.size() <= 63 && std::ranges::all_of(text, may_be);
}

bool is_fips_host(std::string_view host) {
  return host.find("s3-fips") != std::string_view::npos || host.find("-fips.") != std::string_view::npos;
}

std::string percent_encoded(std::string_view bytes, bool keep_slash) {
  std::string made;
  made.reserve(bytes.size());
  for (const char c : bytes) {
    if (is_unreserved(c) || (keep_slash && c == '/')) {
      made.push_back(c);
    } else {
      append_escaped(c, made);
    }
  }
  return made;
}

std::optional<std::string> percent_decoded(std::string_view text) {
  std::string made;
  made.reserve(text.size());
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      made.push_back(text[i]);
    } else {
      if (!is_escape(text.substr(i))) return std::nullopt;
      made.push_back(static_cast<char>(hex_value(text[i + 1]) * 16 + hex_value(text[i + 2])));
      i += 2;
    }
  }
  return made;
}

std::optional<std::string_view> query_value(std::string_view query, std::string_view name) {
  while (!query.empty()) {
    const auto one = query.substr(0, query.find('&'));
    query.remove_prefix(std::min(one.size() + 1, query.size()));
    if (one.substr(0, one.find('=')) != name) continue;
    return one.size() == name.size() ? std::string_view() : one.substr(name.size() + 1);
  }
  return std::nullopt;
}

}  // namespace penstock::source::remote
