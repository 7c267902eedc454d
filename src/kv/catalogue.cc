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
  const auto found = by_key_.find(key);
  if (found == by_key_.end()) return nullptr;
  used_.splice(used_.end(), used_, found->second);
  ++found->second->readers_;
  return &*found->second;
}

void catalogue::end_read(entry* read) {
  assert(read->readers_ > 0);
  if (--read->readers_ > 0 || !read->dropped_) return;
  if (writes_) release(read->facts_);
  leaving_.remove_if([&](const entry& each) { return &each == read; });
}

void catalogue::release(const value_facts& facts) {
  if (writes_ && facts.sequence <= synced_) {
    kept_back_.push_back(facts.place());
  } else {
    extents_.give(facts.place());
  }
}

void catalogue::remove(place at) {
  by_key_.erase(at->key_);
  bytes_ -= at->facts_.length;
  wasted_ -= at->facts_.place().length - at->facts_.length;
  record_bytes_ -= encoded_bytes(record_kind::value, at->key_.size());
  at->dropped_ = true;
  const bool read = at->readers_ > 0;
  if (!read || !writes_) release(at->facts_);
  if (read) {
    leaving_.splice(leaving_.end(), used_, at);
  } else {
    used_.erase(at);
  }
}

void catalogue::put(std::string_view key, const value_facts& facts) {
  entry& made = used_.emplace_back();
  made.key_ = key;
  made.facts_ = facts;
  if (const auto old = by_key_.find(key); old != by_key_.end()) remove(old->second);
  by_key_.emplace(made.key_, std::prev(used_.end()));
  bytes_ += facts.length;
  wasted_ += facts.place().length - facts.length;
  record_bytes_ += encoded_bytes(record_kind::value, key.size());
  last_sequence_ = std::max(last_sequence_, facts.sequence);
}

bool catalogue::drop(std::string_view key, std::uint64_t sequence) {
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
  synced_ = 0;
  boot_.clear();
}

void catalogue::free(const std::vector<extent>& kept_back) {
  for (const extent& each : kept_back) extents_.give(each);
  kept_back_.erase(kept_back_.begin(), kept_back_.begin() + static_cast<std::ptrdiff_t>(kept_back.size()));
}

bool catalogue::apply(const record& told) {
  switch (told.kind) {
    case record_kind::value:
      if (!extents_.take_at(told.facts.place())) return false;
      put(told.key, told.facts);
      return true;
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
