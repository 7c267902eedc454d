#include "core/stream/stream_block.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <vector>

namespace penstock::core {

namespace {

// The maximum number of segments in a table. The kernel gives each segment a block of threads; 256 of them keep PCIe busy.
constexpr std::uint64_t most_segments = 256;
constexpr std::uint64_t least_segment_bytes = 4096;

// Reading the next wave takes about as long as copying this one. (H100: 1 MiB takes 30 us to copy, a third of that to start the copy.)
std::uint64_t wave_in_turn(std::uint64_t request_bytes) {
  constexpr std::uint64_t least = std::uint64_t{1} << 20;
  return std::clamp(path::round_down(request_bytes / 4), least, 2 * least);
}

void store(std::uint32_t& word, std::uint32_t value) { std::atomic_ref(word).store(value, std::memory_order_release); }

}  // namespace

stream_memory::kind stream_block::kind_for(std::uint64_t bytes, bool aligned) noexcept {
  for (const auto each : {stream_memory::kind::small, stream_memory::kind::medium}) {
    if (bytes <= most_bytes(each, aligned)) return each;
  }
  return stream_memory::kind::large;
}

stream_block::stream_block(std::uint64_t most, const manner& how) noexcept
    : waits_for_end_(how.waits_for_end),
      size_(kind_for(most, how.aligned)),
      wave_bytes_(how.in_turn ? std::min(wave_in_turn(most), most_bytes(size_, how.aligned)) : most_bytes(size_, how.aligned)),
      waves_(std::max<std::uint64_t>((most + wave_bytes_ - 1) / wave_bytes_, 1)),
      segments_(std::clamp<std::uint64_t>(std::min(most, wave_bytes_) / least_segment_bytes, 1, most_segments)) {
  static_assert(sizeof(words) + stream_memory::slab_bytes(stream_memory::kind::small) / least_segment_bytes * sizeof(device::segment) <=
                stream_memory::block_bytes(stream_memory::kind::small));
  static_assert(sizeof(words) + most_segments * sizeof(device::segment) <= stream_memory::block_bytes(stream_memory::kind::medium));
  static_assert(sizeof(words) + waves_at_once * most_segments * sizeof(device::segment) <=
                stream_memory::block_bytes(stream_memory::kind::large));
}

// Writes no tables. They are written before the device reads them.
void stream_block::lie_in(std::byte* memory) noexcept {
  memory_ = memory;
  shared() = {};
}

status stream_block::put_wave(device::session& session, device::stream on, std::size_t index) const {
  auto& mine = shared();
  const auto before = static_cast<std::uint32_t>(index);
  const device::word_step told = index == 0 ? device::word_step{false, &mine.reached, 1} : device::word_step{false, &mine.copied, before};
  auto outcome = session.step_through(std::array{told, device::word_step{true, &mine.turn, before + 1}}, on);
  return outcome.ok() ? session.scatter(table(index), segments_, on) : outcome;
}

status stream_block::put_plain_wave(device::session& session, device::stream on, std::size_t index, const device::segment& whole) const {
  auto& mine = shared();
  const auto before = static_cast<std::uint32_t>(index);
  const std::array steps{device::word_step{false, &mine.copied, before}, device::word_step{true, &mine.turn, before + 1}};
  auto outcome = session.step_through(std::span(steps).subspan(index == 0 ? 1 : 0), on);
  return outcome.ok() ? session.copy(whole.target, whole.source, whole.bytes, on) : outcome;
}

status stream_block::put_end(device::session& session, device::stream on, std::int64_t* target) const {
  auto& mine = shared();
  std::vector<device::word_step> steps;
  if (waits_for_end_) steps = {{false, &mine.copied, static_cast<std::uint32_t>(waves_)}, {true, &mine.ended, 1}};
  if (target != nullptr) {
    mine.count_segment = {&mine.count, target, sizeof(std::int64_t)};
    auto outcome = steps.empty() ? status() : session.step_through(steps, on);
    if (outcome.ok()) outcome = session.scatter(&mine.count_segment, 1, on);
    if (!outcome.ok()) return outcome;
    steps = {{false, &mine.counted, 1}, {true, &mine.told, 1}};
  }
  steps.push_back({false, &mine.passed, 1});
  return session.step_through(steps, on);
}

void stream_block::let_copy(std::size_t index, const device::segment& whole) const noexcept {
  const std::uint64_t share = std::max(path::round_up((whole.bytes + segments_ - 1) / segments_), least_segment_bytes);
  const auto* const source = static_cast<const std::byte*>(whole.source);
  auto* const target = static_cast<std::byte*>(whole.target);
  for (std::size_t i = 0; i < segments_; ++i) {
    const std::uint64_t start = std::min(whole.bytes, i * share);
    table(index)[i] = {source + start, target + start, std::min(share, whole.bytes - start)};
  }
  let_copy_plainly(index);
}

void stream_block::let_copy_plainly(std::size_t index) const noexcept { store(shared().turn, static_cast<std::uint32_t>(index + 1)); }

// Tables that the device may be reading stay unchanged, because their slabs are kept until it has passed them.
void stream_block::let_pass(std::size_t copied) const noexcept {
  const std::size_t turn = std::atomic_ref(shared().turn).load(std::memory_order_relaxed);
  // Each wave from copied up to turn has its own table. The remaining tables belong to later waves.
  for (std::size_t wave = turn; wave < copied + tables(); ++wave) std::fill_n(table(wave), segments_, device::segment{nullptr, nullptr, 0});
  store(shared().turn, static_cast<std::uint32_t>(waves_));
  if (waits_for_end_) store(shared().ended, 1);
}

void stream_block::let_go_on() const noexcept { store(shared().told, 1); }

}  // namespace penstock::core
