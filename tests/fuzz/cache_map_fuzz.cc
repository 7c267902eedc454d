// Heads of maps in a node cache: whatever is in the folder, accepted values are within bounds, and are written as they were read.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>
#include <vector>

#include "remote/cache/cache_map.hpp"

namespace {

void require_in_cache_map(bool holds) {
  if (!holds) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace penstock::source::remote;
  const auto come = std::as_bytes(std::span(data, size));
  if (size != cache_head_bytes) require_in_cache_map(!decode_cache_head(come));
  // As long as a head is, and with a sum that is right, so that what lies behind it is looked at too.
  cache_head_text text{};
  std::memcpy(text.data(), data, std::min(size, text.size()));
  for (const bool mends : {false, true}) {
    if (mends) mend_cache_head(text);
    const auto head = decode_cache_head(text);
    if (!head) continue;
    require_in_cache_map(head->size > 0 && head->size <= most_cached_object_bytes);
    for (const auto* each : {&head->identity, &head->shown, &head->version, &head->boot})
      require_in_cache_map(each->size() <= most_cache_text_bytes);
    const auto again = decode_cache_head(encode(*head));
    require_in_cache_map(again && again->names_same(*head) && again->boot == head->boot && again->shown == head->shown &&
                         again->is_sealed == head->is_sealed && again->data_inode == head->data_inode);
  }
  return 0;
}
