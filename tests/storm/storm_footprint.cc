#include "storm/storm_footprint.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <iterator>
#include <memory>
#include <span>
#include <system_error>

#include "storm/storm_mappings.hpp"

namespace penstock::testing {
namespace {

using namespace std::chrono_literals;

// On a machine that others use the first engines of a storm may take half a minute to come, with fewer descriptors until then.
constexpr std::size_t fewest_samples = 120;

constexpr std::array figures{&footprint::resident_bytes, &footprint::descriptors, &footprint::slab_bytes, &footprint::malloc_bytes,
                             &footprint::other_bytes};

std::uint64_t resident_bytes_now() {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen("/proc/self/statm", "re"), std::fclose);
  unsigned long long pages = 0;
  if (file == nullptr || std::fscanf(file.get(), "%*u %llu", &pages) != 1) {
    ADD_FAILURE() << "/proc/self/statm does not say how much memory is resident";
    return 0;
  }
  return pages * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
}

std::uint64_t descriptors_now() {
  std::error_code error;
  std::uint64_t count = 0;
  for (std::filesystem::directory_iterator each("/proc/self/fd", error), end; !error && each != end; each.increment(error)) ++count;
  if (error) ADD_FAILURE() << "/proc/self/fd: " << error.message();
  return count > 0 ? count - 1 : 0;  // one is that of the folder itself
}

std::uint64_t median(std::span<const footprint> samples, std::uint64_t footprint::*figure) {
  std::vector<std::uint64_t> values;
  for (const auto& each : samples) values.push_back(each.*figure);
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::ranges::nth_element(values, middle);
  return *middle;
}

footprint median_of(std::span<const footprint> samples) {
  footprint made;
  for (const auto figure : figures) made.*figure = median(samples, figure);
  return made;
}

resident_kinds kinds_of(const footprint& sample) {
  return {{"slabs", sample.slab_bytes}, {"malloc", sample.malloc_bytes}, {"other", sample.other_bytes}};
}

}  // namespace

footprint footprint_now() {
  auto kinds = resident_kinds_now();
  return {resident_bytes_now(), descriptors_now(), kinds["slabs"], kinds["malloc"], kinds["other"]};
}

std::uint64_t heap_bytes_in_use() {
  const auto told = ::mallinfo2();
  return told.uordblks + told.hblkhd;
}

footprint_series::footprint_series(std::chrono::seconds length)
    : warm_(clock::now() + std::max<clock::duration>(10s, length / 10)), due_(clock::now()) {}

void footprint_series::look() {
  const auto now = clock::now();
  if (now < due_) return;
  due_ = now + 1s;
  const auto sample = footprint_now();
  raise_highest(sample);
  if (now >= warm_) note(sample);
}

void footprint_series::note(const footprint& sample) {
  raise_highest(sample);
  samples_.push_back(sample);
}

void footprint_series::raise_highest(const footprint& sample) {
  for (const auto figure : figures) highest_.*figure = std::max(highest_.*figure, sample.*figure);
}

std::optional<std::array<footprint, 3>> footprint_series::thirds() const {
  if (samples_.size() < fewest_samples) return std::nullopt;
  const std::span all(samples_);
  const auto third = all.size() / 3;
  return std::array{median_of(all.first(third)), median_of(all.subspan(third, all.size() - 2 * third)), median_of(all.last(third))};
}

std::optional<std::string> footprint_series::descriptor_growth(std::uint64_t allowed) const {
  const auto medians = thirds();
  if (!medians) return std::nullopt;
  const auto first = medians->front().descriptors;
  const auto last = medians->back().descriptors;
  if (last <= first + allowed) return std::nullopt;
  return fmt::format("open descriptors grew from {} to {} (medians of the first and the last third), and {} more are allowed", first, last,
                     allowed);
}

std::optional<std::string> footprint_series::memory_growth(std::uint64_t allowed_bytes) const {
  const auto medians = thirds();
  if (!medians) return std::nullopt;
  const auto first = medians->front().malloc_bytes + medians->front().other_bytes;
  const auto last = medians->back().malloc_bytes + medians->back().other_bytes;
  if (last <= first + allowed_bytes) return std::nullopt;
  return fmt::format("memory that is no slab grew from {} to {} bytes (medians of the first and the last third), and {} more are allowed",
                     first, last, allowed_bytes);
}

std::optional<std::string> footprint_series::resident_change() const {
  const auto medians = thirds();
  if (!medians) return std::nullopt;
  const auto changes = changes_of_kinds(kinds_of(medians->front()), kinds_of(medians->back()));
  return fmt::format("resident memory went from {} to {} bytes (medians of the first and the last third){}{}",
                     medians->front().resident_bytes, medians->back().resident_bytes, changes.empty() ? "" : ": ", changes);
}

}  // namespace penstock::testing
