#include "kv/catalogue.hpp"

#include <algorithm>
#include <cassert>
#include <iterator>
#include <utility>

namespace penstock::kv {

const catalogue::entry* catalogue::find(std::string_view key) const {
  const auto found = by_key_.find(key);
  return found == by_key_.end() ? nullptr : &*found->second;
}

const catalogue::entry* catalogue::use(std::string_view key) {
  const auto found = by_key_.find(key);
  if (found == by_key_.end()) return nullptr;
  used_.splice(used_.end(), used_, found->second);
  return &*found->second;
}

std::vector<const catalogue::entry*> catalogue::least_used(std::uint64_t bytes) const {
  std::vector<const entry*> found;
  for (auto each = used_.begin(); each != used_.end() && bytes > 0; ++each) {
    if (each->readers_ > 0) continue;
    found.push_back(&*each);
    bytes -= std::min(bytes, each->facts_.place().length);
  }
  return found;
}

catalogue::entry* catalogue::begin_read(std::string_view key) {
  if (use(key) == nullptr) return nullptr;
  auto& found = used_.back();
  ++found.readers_;
  return &found;
}

catalogue::entry* catalogue::begin_read(prepared& from) noexcept {
  ++from.value().readers_;
  return &from.value();
}

void catalogue::end_read(entry* read) noexcept {
  assert(read->readers_ > 0);
  if (--read->readers_ > 0 || !read->dropped_) return;
  const auto at = std::find_if(leaving_.begin(), leaving_.end(), [&](const entry& each) { return &each == read; });
  if (writes_) {
    release(leaving_, at);
  } else {
    leaving_.erase(at);
  }
}

// Removes the entry, or keeps it for later if its extent is held back.
void catalogue::release(std::list<entry>& from, place at) noexcept {
  if (writes_ && at->facts_.sequence <= synced_) {
    kept_back_.splice(kept_back_.end(), from, at);
  } else {
    extents_.give(at->facts_.place());
    from.erase(at);
  }
}

void catalogue::remove(place at) noexcept {
  by_key_.erase(at->key_);
  bytes_ -= at->facts_.length;
  wasted_ -= at->facts_.place().length - at->facts_.length;
  record_bytes_ -= encoded_bytes(record_kind::value, at->key_.size());
  at->dropped_ = true;
  if (at->readers_ == 0) {
    release(used_, at);
  } else {
    if (!writes_) extents_.give(at->facts_.place());
    leaving_.splice(leaving_.end(), used_, at);
  }
}

void catalogue::make_room(std::size_t more) {
  const std::size_t needed = by_key_.size() + more + 1;
  if (static_cast<double>(needed) > by_key_.max_load_factor() * static_cast<double>(by_key_.bucket_count())) by_key_.reserve(2 * needed);
}

catalogue::prepared catalogue::prepare(std::string_view key, std::size_t more) {
  make_room(more);
  prepared made;
  made.made_.emplace_back().key_ = key;
  std::unordered_map<std::string_view, place> one;
  one.emplace(made.made_.front().key_, made.made_.begin());
  made.node_ = one.extract(one.begin());
  return made;
}

void catalogue::abandon(prepared given_up) noexcept {
  entry& value = given_up.value();
  value.facts_.sequence = ~std::uint64_t{0};  // never recorded, so never held back
  if (value.readers_ == 0) return extents_.give(value.facts_.place());
  value.dropped_ = true;
  leaving_.splice(leaving_.end(), given_up.made_);
}

void catalogue::put(prepared made, const value_facts& facts) noexcept {
  entry& stored = made.made_.front();
  stored.facts_ = facts;
  if (const auto old = by_key_.find(stored.key_); old != by_key_.end()) remove(old->second);
  used_.splice(used_.end(), made.made_);
  by_key_.insert(std::move(made.node_));
  bytes_ += facts.length;
  wasted_ += facts.place().length - facts.length;
  record_bytes_ += encoded_bytes(record_kind::value, stored.key_.size());
  last_sequence_ = std::max(last_sequence_, facts.sequence);
}

bool catalogue::drop(std::string_view key, std::uint64_t sequence) noexcept {
  const auto found = by_key_.find(key);
  if (found == by_key_.end() || found->second->facts_.sequence != sequence) return false;
  remove(found->second);
  return true;
}

void catalogue::drop_unsynced() {
  for (auto each = used_.begin(); each != used_.end();) {
    const auto next = std::next(each);
    if (each->facts_.sequence > synced_) remove(each);
    each = next;
  }
}

void catalogue::clear() {
  while (!used_.empty()) remove(used_.begin());
  extents_ = extents(extents_.capacity_bytes());
  synced_ = 0;
  boot_.clear();
}

void catalogue::free(std::size_t kept_back) noexcept {
  for (; kept_back > 0; --kept_back, kept_back_.pop_front()) extents_.give(kept_back_.front().facts_.place());
}

bool catalogue::apply(const record& told) {
  switch (told.kind) {
    case record_kind::value: {
      auto made = prepare(told.key);
      if (!extents_.take_at(told.facts.place())) return false;
      put(std::move(made), told.facts);
      return true;
    }
    case record_kind::dropped:
      drop(told.key, told.facts.sequence);
      return true;
    case record_kind::synced:
      synced(told.facts.sequence);
      return true;
    case record_kind::boot:
      boot_ = told.key;
      last_sequence_ = std::max(last_sequence_, told.facts.sequence);
      return true;
  }
  return false;
}

}  // namespace penstock::kv
