#include "kv/extents.hpp"

#include <cassert>
#include <iterator>

#include "base/checked.hpp"
#include "base/no_memory.hpp"

namespace penstock::kv {

extents::extents(std::uint64_t capacity_bytes) : capacity_(capacity_bytes) { add({0, capacity_bytes}); }

void extents::add(const extent& hole) noexcept {
  if (hole.length == 0) return;
  or_without_memory(
      [&] {
        by_length_.emplace(hole.length, hole.offset);
        by_offset_.emplace(hole.offset, hole.length);
        free_ += hole.length;
      },
      [&] {
        by_length_.erase({hole.length, hole.offset});
        has_lost_ = true;
      });
}

extents::places::iterator extents::remove(places::iterator hole) {
  by_length_.erase({hole->second, hole->first});
  free_ -= hole->second;
  return by_offset_.erase(hole);
}

// Takes the part out of the hole; what remains before and after it stays free.
void extents::cut(places::iterator hole, const extent& part) {
  const extent whole{hole->first, hole->second};
  remove(hole);
  add({whole.offset, part.offset - whole.offset});
  add({part.offset + part.length, whole.offset + whole.length - part.offset - part.length});
}

std::optional<extent> extents::take(std::uint64_t length) {
  const auto found = by_length_.lower_bound({length, 0});
  if (found == by_length_.end()) return std::nullopt;
  const extent taken{found->second, length};
  cut(by_offset_.find(taken.offset), taken);
  return taken;
}

bool extents::take_at(const extent& wanted) {
  const auto end = checked_add(wanted.offset, wanted.length);
  auto after = by_offset_.upper_bound(wanted.offset);
  if (!end || wanted.length == 0 || after == by_offset_.begin()) return false;
  const auto hole = std::prev(after);
  if (*end > hole->first + hole->second) return false;
  cut(hole, wanted);
  return true;
}

void extents::give(const extent& taken) noexcept {
  extent hole = taken;
  auto after = by_offset_.lower_bound(taken.offset);
  assert(after == by_offset_.end() || after->first >= taken.offset + taken.length);
  if (after != by_offset_.end() && after->first == taken.offset + taken.length) {
    hole.length += after->second;
    after = remove(after);
  }
  if (after != by_offset_.begin()) {
    const auto before = std::prev(after);
    assert(before->first + before->second <= taken.offset);
    if (before->first + before->second == taken.offset) {
      hole = {before->first, before->second + hole.length};
      remove(before);
    }
  }
  add(hole);
}

void extents::grow(std::uint64_t capacity_bytes) {
  assert(capacity_bytes >= capacity_);
  const extent further{capacity_, capacity_bytes - capacity_};
  capacity_ = capacity_bytes;
  if (further.length > 0) give(further);
}

}  // namespace penstock::kv
