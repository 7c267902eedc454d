// A latency histogram whose buckets are 1/64 of their value wide. One thread per object.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <cstdint>

namespace penstock::cli {

class latency_counts {
 public:
  void add(std::chrono::nanoseconds time, std::uint64_t times = 1) {
    const auto ns = static_cast<std::uint64_t>(std::max<std::int64_t>(time.count(), 0));
    counts_[index_of(ns)] += times;
    total_ += times;
    sum_ns_ += static_cast<double>(ns) * static_cast<double>(times);
  }
  void add(const latency_counts& other) {
    for (std::size_t i = 0; i < counts_.size(); ++i) counts_[i] += other.counts_[i];
    total_ += other.total_;
    sum_ns_ += other.sum_ns_;
  }
  [[nodiscard]] std::uint64_t total() const { return total_; }
  [[nodiscard]] double mean_us() const { return total_ == 0 ? 0 : sum_ns_ / static_cast<double>(total_) / 1e3; }
  // Returns the time within which this fraction (0 to 1) of the requests completed, accurate to 1/64; 0 without requests.
  [[nodiscard]] double percentile_us(double part) const {
    const auto wanted = static_cast<std::uint64_t>(part * static_cast<double>(total_));
    std::uint64_t seen = 0;
    for (std::size_t i = 0; i < counts_.size(); ++i) {
      seen += counts_[i];
      if (seen > wanted || (seen == total_ && seen > 0)) return static_cast<double>(most_of(i)) / 1e3;
    }
    return 0;
  }

 private:
  static constexpr unsigned bits = 6;
  static constexpr std::uint64_t fine = std::uint64_t{1} << bits;
  // One bucket per nanosecond below 64 ns, then 64 per power of two.
  static std::size_t index_of(std::uint64_t ns) {
    if (ns < fine) return static_cast<std::size_t>(ns);
    const unsigned shift = static_cast<unsigned>(std::bit_width(ns)) - 1 - bits;
    return static_cast<std::size_t>((shift + 1) * fine + ((ns >> shift) - fine));
  }
  static std::uint64_t most_of(std::size_t index) {
    if (index < fine) return index;
    const unsigned shift = static_cast<unsigned>(index / fine) - 1;
    return ((index % fine + fine + 1) << shift) - 1;
  }
  std::array<std::uint64_t, (64 - bits + 1) * fine> counts_{};
  std::uint64_t total_ = 0;
  double sum_ns_ = 0;
};

}  // namespace penstock::cli
