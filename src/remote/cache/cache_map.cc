#include "remote/cache/cache_map.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cassert>
#include <cstring>

namespace penstock::source::remote {

namespace {

constexpr std::uint64_t cache_magic = 0x31656863616e7370;  // "psncache1" without its second c; the last digit is the format version
constexpr std::size_t sum_at = cache_head_bytes - sizeof(std::uint64_t);

// FNV-1a: distinguishes a completely written head from a partially written one, and from any other file.
std::uint64_t sum_of(std::span<const std::byte> text) noexcept {
  std::uint64_t sum = 0xcbf29ce484222325;
  for (const auto each : text) sum = (sum ^ static_cast<std::uint64_t>(each)) * 0x100000001b3;
  return sum;
}

constexpr std::uint64_t prime_1 = 0x9e3779b185ebca87;
constexpr std::uint64_t prime_2 = 0xc2b2ae3d27d4eb4f;
constexpr std::uint64_t prime_3 = 0x165667b19e3779f9;
constexpr std::uint64_t prime_4 = 0x85ebca77c2b2ae63;
constexpr std::uint64_t prime_5 = 0x27d4eb2f165667c5;

template <class Word>
std::uint64_t word_at(const std::byte* at) noexcept {
  static_assert(std::endian::native == std::endian::little);
  Word word = 0;
  std::memcpy(&word, at, sizeof word);
  return word;
}

std::uint64_t sum_round(std::uint64_t lane, std::uint64_t word) noexcept { return std::rotl(lane + word * prime_2, 31) * prime_1; }

class head_writer {
 public:
  explicit head_writer(cache_head_text& to) : to_(to) {}
  void number(std::uint64_t value) { put(&value, sizeof value); }
  void text(std::string_view value) {
    number(value.size());
    put(value.data(), value.size());
  }

 private:
  void put(const void* from, std::size_t bytes) {
    assert(at_ + bytes <= sum_at);
    std::memcpy(to_.data() + at_, from, bytes);
    at_ += bytes;
  }
  cache_head_text& to_;
  std::size_t at_ = 0;
};

class head_reader {
 public:
  explicit head_reader(std::span<const std::byte> from) : from_(from) {}
  std::uint64_t number() {
    std::uint64_t value = 0;
    take(&value, sizeof value);
    return value;
  }
  std::string text() {
    const auto bytes = number();
    if (bytes > most_cache_text_bytes || bytes > from_.size()) fits_ = false;
    if (!fits_) return {};
    std::string value(static_cast<std::size_t>(bytes), '\0');
    take(value.data(), value.size());
    return value;
  }
  [[nodiscard]] bool fits() const noexcept { return fits_; }

 private:
  void take(void* into, std::size_t bytes) {
    fits_ = fits_ && bytes <= from_.size();
    if (!fits_) return;
    if (bytes > 0) std::memcpy(into, from_.data(), bytes);
    from_ = from_.subspan(bytes);
  }
  std::span<const std::byte> from_;
  bool fits_ = true;
};

}  // namespace

std::uint64_t cache_sum_of(std::span<const std::byte> block) noexcept {
  const auto* at = block.data();
  const auto* const end = at + block.size();
  std::uint64_t sum = prime_5;
  if (block.size() >= 32) {
    std::array<std::uint64_t, 4> lanes{prime_1 + prime_2, prime_2, 0, std::uint64_t{0} - prime_1};
    for (; end - at >= 32; at += 32) {
      for (std::size_t i = 0; i < 4; ++i) lanes[i] = sum_round(lanes[i], word_at<std::uint64_t>(at + 8 * i));
    }
    sum = std::rotl(lanes[0], 1) + std::rotl(lanes[1], 7) + std::rotl(lanes[2], 12) + std::rotl(lanes[3], 18);
    for (const auto lane : lanes) sum = (sum ^ sum_round(0, lane)) * prime_1 + prime_4;
  }
  sum += block.size();
  for (; end - at >= 8; at += 8) sum = std::rotl(sum ^ sum_round(0, word_at<std::uint64_t>(at)), 27) * prime_1 + prime_4;
  for (; end - at >= 4; at += 4) sum = std::rotl(sum ^ word_at<std::uint32_t>(at) * prime_1, 23) * prime_2 + prime_3;
  for (; at != end; ++at) sum = std::rotl(sum ^ std::to_integer<std::uint64_t>(*at) * prime_5, 11) * prime_1;
  sum = (sum ^ sum >> 33) * prime_2;
  sum = (sum ^ sum >> 29) * prime_3;
  return sum ^ sum >> 32;
}

cache_head_text encode(const cache_map_head& head) {
  cache_head_text made{};
  head_writer to(made);
  to.number(cache_magic);
  to.number(cache_block_bytes);
  to.number(head.size);
  to.number(head.data_inode);
  to.number(head.is_sealed ? 1 : 0);
  to.text(head.boot);
  to.text(head.identity);
  to.text(head.version);
  to.text(std::string_view(head.shown).substr(0, most_cache_text_bytes));
  to.number(static_cast<std::uint64_t>(head.data_changed_ns));
  mend_cache_head(made);
  return made;
}

void mend_cache_head(cache_head_text& text) {
  const auto sum = sum_of(std::span(text).first(sum_at));
  std::memcpy(text.data() + sum_at, &sum, sizeof sum);
}

std::optional<cache_map_head> decode_cache_head(std::span<const std::byte> text) {
  if (text.size() != cache_head_bytes) return std::nullopt;
  std::uint64_t sum = 0;
  std::memcpy(&sum, text.data() + sum_at, sizeof sum);
  if (sum != sum_of(text.first(sum_at))) return std::nullopt;
  head_reader from(text.first(sum_at));
  if (from.number() != cache_magic || from.number() != cache_block_bytes) return std::nullopt;
  cache_map_head made;
  made.size = from.number();
  made.data_inode = from.number();
  made.is_sealed = from.number() == 1;
  made.boot = from.text();
  made.identity = from.text();
  made.version = from.text();
  made.shown = from.text();
  made.data_changed_ns = static_cast<std::int64_t>(from.number());
  if (!from.fits() || made.size == 0 || made.size > most_cached_object_bytes) return std::nullopt;
  return made;
}

}  // namespace penstock::source::remote
