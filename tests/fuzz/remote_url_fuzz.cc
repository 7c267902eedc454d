// Feeds any bytes to the URL parser. An accepted URL is valid in a request line and in a header, names no host other than the visible one,
// and parses to the same URL again; error messages are printable. Built with clang's -fsanitize=fuzzer, or with replay_main.cc for a
// replay.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "remote/net/url.hpp"

using namespace penstock;
using namespace penstock::source::remote;

namespace {

void require(bool truth) {
  if (!truth) std::abort();
}

void check_sendable(const url& address) {
  const auto is_plain = [](char c) { return c > ' ' && c < 0x7f; };
  require(!address.host.empty() && address.port != 0 && address.path.starts_with('/'));
  require(std::ranges::all_of(address.authority(), is_plain) && std::ranges::all_of(address.unredacted_target(), is_plain));
  require(address.authority().find_first_of("/?#@\\") == std::string::npos);
  require(address.unredacted_target().find('#') == std::string::npos);
  require(address.shown().find('?') == std::string::npos);
}

void check_by_name(const remote_url& taken) {
  const auto region = s3_address(taken.object, {.region = "eu-west-1", .endpoint = {}});
  if (region.ok()) {
    check_sendable(*region);
    const bool is_there = region->host.ends_with("s3.eu-west-1.amazonaws.com") ||
                          (taken.object.by_access_point() && region->host.find(".s3-accesspoint.") != std::string::npos);
    require(is_there && percent_decoded(region->path)->ends_with(taken.object.key));
  }
  const auto own = s3_address(taken.object, {.region = {}, .endpoint = *parse_http_url("http://endpoint:9000/base")});
  require(own.ok() && own->authority().ends_with("endpoint:9000") && own->path.starts_with("/base/"));
  check_sendable(*own);
}

void check_refusal(const status& refused) {
  require(refused.code() == errc::invalid_argument || refused.code() == errc::unsupported);
  require(!refused.message().empty());
  for (const char c : refused.message()) require(static_cast<unsigned char>(c) >= ' ');
}

void check_again(const url& address) {
  if (address.unredacted().size() > most_url_bytes) return;  // with what was encoded
  const auto again = parse_http_url(address.unredacted());
  require(again.ok() && *again == address);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto decoded = percent_decoded(text);
  require(!decoded || percent_decoded(percent_encoded(*decoded, true)) == *decoded);
  const auto taken = parse_remote_url(text);
  if (!taken.ok()) {
    check_refusal(taken.error());
    return 0;
  }
  require(is_url(text) && fits(*taken, taken->kind));
  if (taken->by_name) {
    check_by_name(*taken);
    return 0;
  }
  check_sendable(taken->address);
  check_again(taken->address);
  return 0;
}
