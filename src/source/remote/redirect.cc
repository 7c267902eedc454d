#include "source/remote/redirect.hpp"

#include <algorithm>
#include <array>

#include <fmt/format.h>

namespace penstock::source::remote {

namespace {

// Of the machine itself, or of its cloud: nothing that a server may send anybody to.
bool keeps_credentials(std::string_view host) noexcept {
  constexpr std::array<std::string_view, 3> names{"metadata.google.internal", "metadata", "instance-data"};
  return host.starts_with("169.254.") || host.starts_with("fe8") || host.starts_with("fe9") || host.starts_with("fea") ||
         host.starts_with("feb") || host.starts_with("fd00:ec2:") || host.starts_with("::ffff:169.254.") ||
         std::find(names.begin(), names.end(), host) != names.end();
}

status refuse(std::string_view why) { return {errc::invalid_argument, std::string(why)}; }

}  // namespace

result<url> redirect_target(const url& from, std::string_view location) {
  if (location.empty()) return refuse("it names none");
  const bool of_same_server = location.starts_with('/') && !location.starts_with("//");
  const auto text = of_same_server               ? (from.tls ? "https://" : "http://") + from.authority() + std::string(location)
                    : location.starts_with("//") ? (from.tls ? "https:" : "http:") + std::string(location)
                                                 : std::string(location);
  auto to = parse_http_url(text);
  if (!to) return refuse("it is no URL that can be followed");
  if (from.tls && !to->tls) return refuse(fmt::format("it leads from https to http, to {}", to->host));
  if (!of_same_server && keeps_credentials(to->host)) return refuse(fmt::format("{} is where machines keep credentials", to->host));
  return to;
}

}  // namespace penstock::source::remote
