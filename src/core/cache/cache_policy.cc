#include "core/cache/cache_policy.hpp"

#include <algorithm>

namespace penstock::core {

namespace {

bool has_room(const sys::memory_state& memory, std::uint64_t file_bytes) noexcept {
  const auto spared = memory.total_bytes / spared_share_of_memory;
  return file_bytes <= memory.available_bytes - std::min(memory.available_bytes, spared);
}

}  // namespace

cold_way choose_cold_way(const cache_question& asked) noexcept {
  if (asked.asked == cache_use::fill) return {.keeps = true, .why = plan_reason::kept_as_asked};
  if (asked.shared_memory) return {.why = plan_reason::bypass_shared_memory};
  if (asked.asked == cache_use::bypass) return {.why = plan_reason::bypass_as_asked};
  if (asked.lent_past_cache) return {.why = plan_reason::bypass_as_lent};
  if (asked.answers == staging::answer_times::verdict::late) return {.why = plan_reason::bypass_late};
  if (asked.answers == staging::answer_times::verdict::unknown) {
    return {.why = plan_reason::bypass_untimed, .most_bytes = staging::answer_times::untimed_bytes};
  }
  if (!asked.in_order && asked.request_bytes < std::min(least_kept_request_bytes, asked.file_bytes)) {
    return {.why = plan_reason::bypass_at_random};
  }
  if (!asked.memory) return {.why = plan_reason::bypass_memory_unknown};
  if (!has_room(*asked.memory, asked.file_bytes)) return {.why = plan_reason::bypass_no_room};
  if (asked.speeds == cold_speeds::verdict::bypass) return {.why = plan_reason::bypass_faster};
  if (asked.speeds == cold_speeds::verdict::try_direct_now) {
    return {.why = plan_reason::bypass_tried, .most_bytes = cold_speeds::planned_unknown_bytes};
  }
  if (asked.speeds == cold_speeds::verdict::unknown) {
    return {.keeps = true, .why = plan_reason::kept, .most_bytes = cold_speeds::planned_unknown_bytes};
  }
  const bool tries = asked.speeds == cold_speeds::verdict::try_direct && asked.request_bytes >= cold_speeds::least_trying_request_bytes;
  return {.keeps = true, .why = plan_reason::kept, .tried_bytes = tries ? cold_speeds::tried_bytes : 0};
}

}  // namespace penstock::core
