// Feeds any bytes to the parsers of S3's XML responses. Whatever the input, the text shown for an error is bounded and printable, and
// listed objects have valid keys. Built with clang's -fsanitize=fuzzer, or with replay_main.cc for a replay.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "remote/net/s3_error.hpp"
#include "remote/net/url.hpp"
#include "remote/net/xml_scanner.hpp"

using namespace penstock;
using namespace penstock::source::remote;

namespace {

void require(bool truth) {
  if (!truth) std::abort();
}

void check_events(std::string_view text) {
  xml_scanner xml(text);
  std::size_t depth = 0;
  auto event = xml.next();
  for (; event == xml_event::begin || event == xml_event::end; event = xml.next()) {
    if (event == xml_event::begin) ++depth;
    require(depth == xml.depth() && depth > 0 && depth <= xml_scanner::most_depth);
    require(event == xml_event::end || xml.text().empty());
    if (event == xml_event::end) --depth;
  }
  require(event == xml_event::broken || depth == 0);
  require(xml.next() == event);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view body(reinterpret_cast<const char*>(data), size);
  check_events(body);
  const auto error = parse_s3_error(body);
  const auto shown = shown_error(500, error);
  require(shown.size() < 1000);
  for (const char c : shown) require(static_cast<unsigned char>(c) >= ' ');
  require(error.region.empty() || is_region(error.region));
  const auto list = parse_object_list(body);
  if (!list.ok()) {
    require(list.error().code() == errc::io);
    return 0;
  }
  require(list->objects.size() <= most_listed_objects);
  for (const auto& one : list->objects) require(check_key(one.key).ok());
  return 0;
}
