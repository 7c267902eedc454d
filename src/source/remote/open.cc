#include "source/remote/open.hpp"

#include <utility>

#include <fmt/format.h>

#include "source/remote/http.hpp"
#include "source/remote/object.hpp"
#include "source/remote/url.hpp"

namespace penstock::source::remote {

result<std::unique_ptr<source>> open(std::shared_ptr<network> by, const std::string& text, const remote_options& how) {
  auto parsed = parse_remote_url(text);
  if (!parsed) return parsed.error();
  std::vector<header> headers;
  for (const auto& each : how.headers) headers.push_back({each.name, each.value});
  auto facts = find_http_object(*by, parsed->address, headers, how.size);
  if (!facts) return facts.error();
  auto speaks = make_http_protocol(parsed->address, headers);
  return std::unique_ptr<source>(std::make_unique<object>(std::move(by), std::move(speaks), *std::move(facts)));
}

}  // namespace penstock::source::remote
