#include "remote/net/redirect.hpp"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <string>

#include <fmt/format.h>

#include "sys/metadata_address.hpp"

namespace penstock::source::remote {

namespace {

// Parses addresses like the resolver, which also accepts single, octal and hexadecimal numbers.
bool keeps_credentials(const std::string& host) noexcept {
  if (sys::is_metadata_name(host)) return true;
  in6_addr six{};
  if (inet_pton(AF_INET6, host.c_str(), &six) == 1) return sys::is_metadata_address(six);
  in_addr four{};
  return inet_aton(host.c_str(), &four) != 0 && sys::is_metadata_address(four);
}

// Returns the scheme of an absolute URL: "http", "javascript". Empty: a relative reference.
std::string_view scheme_of_reference(std::string_view text) noexcept {
  const auto end = text.find_first_of(":/?#");
  return end == std::string_view::npos || text[end] != ':' ? std::string_view() : text.substr(0, end);
}

// RFC 3986, 5.2.4.
std::string without_dots(std::string_view path) {
  std::string made;
  while (!path.empty()) {
    const auto next = std::min(path.find('/', 1), path.size());
    const auto segment = path.substr(0, next);  // with its leading slash
    path.remove_prefix(next);
    if (segment == "/..") made.erase(std::min(made.rfind('/'), made.size()));
    if (segment != "/." && segment != "/..") made += segment;
    if ((segment == "/." || segment == "/..") && path.empty()) made += '/';
  }
  return made;
}

// Resolves a reference (RFC 3986, 5.2.2). Leaves absolute paths unchanged, because a key may contain dots.
std::string resolved(const url& from, std::string_view reference) {
  const std::string scheme = from.tls ? "https:" : "http:";
  if (reference.starts_with("//")) return scheme + std::string(reference);
  const auto server = fmt::format("{}//{}", scheme, from.authority());
  if (reference.starts_with('/')) return server + std::string(reference);
  if (reference.starts_with('#')) return server + from.unredacted_target();
  if (reference.starts_with('?')) return server + from.path + std::string(reference);
  const auto end = std::min(reference.find_first_of("?#"), reference.size());
  const auto folder = from.path.substr(0, from.path.rfind('/') + 1);
  return server + without_dots(folder + std::string(reference.substr(0, end))) + std::string(reference.substr(end));
}

status refuse(std::string_view why) { return {errc::invalid_argument, std::string(why)}; }

}  // namespace

result<url> redirect_target(const url& from, std::string_view location) {
  if (location.empty()) return refuse("it contains no address");
  const bool has_scheme = !scheme_of_reference(location).empty();
  auto to = parse_http_url(has_scheme ? std::string(location) : resolved(from, location));
  if (!to) return refuse("its target is not a valid URL");
  if (from.tls && !to->tls) return refuse(fmt::format("its target uses http instead of https, at {}", to->host));
  const bool names_server = has_scheme || location.starts_with("//");
  if (names_server && keeps_credentials(to->host)) return refuse(fmt::format("{} provides machine credentials", to->host));
  return to;
}

}  // namespace penstock::source::remote
