// Server responses, in one piece and in two: any bytes are parsed within bounds and with the same result, and no chunk is longer than the
// received bytes.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "remote/net/response_head.hpp"

namespace {

void require(bool holds) {
  if (!holds) std::abort();
}

void take_chunks(std::string_view rest) {
  penstock::source::remote::chunked_body chunks;
  while (!chunks.ended()) {
    const auto next = chunks.next(rest);
    if (!next) return;
    require(next->skip <= rest.size() && next->body <= rest.size() - next->skip);
    rest.remove_prefix(next->skip);
    if (next->body == 0) return;
    chunks.took(next->body);
    rest.remove_prefix(next->body);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace penstock::source::remote;
  const std::string_view come(reinterpret_cast<const char*>(data), size);
  response_head whole;
  const auto length = parse_head(come, whole);
  require(!length || *length <= size);
  response_head begun;
  const auto half = parse_head(come.substr(0, size / 2), begun);
  if (half && *half > 0) require(length && *length == *half && begun.status == whole.status && begun.length == whole.length);
  if (const auto range = parse_content_range(whole.range))
    require(range->first <= range->last && (!range->total || range->last < *range->total));
  (void)parse_unsatisfied_range(whole.range);
  take_chunks(length && *length > 0 ? come.substr(*length) : come);
  return 0;
}
