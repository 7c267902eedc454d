// The values that streams will write, from the call of the put until its record is written. Not thread-safe.
#pragma once

#include <cstdint>
#include <string_view>
#include <unordered_map>

#include "kv/catalogue.hpp"

namespace penstock::kv {

struct coming_value {
  catalogue::prepared value;
  void* stream = nullptr;
  std::uint64_t number = 0;    // of its put, in call order
  bool is_queued = false;      // its writes are on the stream
  bool is_superseded = false;  // a later put of its key has been recorded
};

class coming_values {
 public:
  // value.value is prepared. The object must stay where it is until remove(). Throws bad_alloc.
  void add(coming_value& value) { by_key_.emplace(value.value.value().key(), &value); }
  void remove(const coming_value& value) noexcept {
    auto [each, end] = by_key_.equal_range(key_of(value));
    while (each != end && each->second != &value) ++each;
    if (each != end) by_key_.erase(each);
  }
  // Returns the value that a get on this stream reads, because it was queued before the get. Null: none.
  [[nodiscard]] coming_value* last_on(std::string_view key, const void* stream) noexcept {
    coming_value* last = nullptr;
    for (auto [each, end] = by_key_.equal_range(key); each != end; ++each) {
      auto* const value = each->second;
      if (value->stream != stream || !value->is_queued || value->is_superseded) continue;
      if (last == nullptr || value->number > last->number) last = value;
    }
    return last;
  }
  // Call when a put of the key has been recorded: puts called before it no longer take effect.
  void supersede(std::string_view key, std::uint64_t number) noexcept {
    for (auto [each, end] = by_key_.equal_range(key); each != end; ++each) {
      if (each->second->number < number) each->second->is_superseded = true;
    }
  }

 private:
  static std::string_view key_of(const coming_value& of) noexcept { return const_cast<coming_value&>(of).value.value().key(); }

  std::unordered_multimap<std::string_view, coming_value*> by_key_;
};

}  // namespace penstock::kv
