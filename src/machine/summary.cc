#include "machine/summary.hpp"

#include <algorithm>
#include <optional>
#include <vector>

#include <fmt/format.h>

namespace penstock::machine {

namespace {

// The fraction of a PCIe link's rate that large copies reach: 55 of 63 GB/s on an H100 and an H200 (docs/reference/benchmarks.md).
constexpr double reached_part = 0.87;

std::string host_speed(const platform_facts& known) {
  if (!known.cores) return "at the speed of memory copies";
  return fmt::format("at the speed of memory copies on {} {}", *known.cores, *known.cores == 1 ? "core" : "cores");
}

// Returns the finding that prevents the use of any GPU; null if there is none.
const finding* first_blocking(const findings& found) {
  const auto blocks = [](const finding& each) {
    const bool is_of_gpu = each.id.starts_with("gpu.") || each.id.starts_with("cuda.");
    return (each.verdict == verdict::broken && is_of_gpu) || each.id == "cuda.hidden";
  };
  const auto first = std::ranges::find_if(found.all(), blocks);
  return first == found.all().end() ? nullptr : &*first;
}

// An idle GPU lowers the rate of its link, but keeps its lanes.
std::optional<double> gigabytes_per_second(const pci_facts& gpu) {
  if (!gpu.now.known() || !gpu.most.known()) return std::nullopt;
  pci_link link{gpu.most.gigatransfers, std::min(gpu.now.lanes, gpu.most.lanes)};
  for (const auto& bridge : gpu.bridges) {
    if (bridge.most.known()) link.gigatransfers = std::min(link.gigatransfers, bridge.most.gigatransfers);
  }
  return link.gigabits() / 8 * reached_part;
}

std::vector<const pci_facts*> usable_gpus(const platform_facts& known, const findings& found) {
  std::vector<const pci_facts*> gpus;
  for (const auto& each : found.all()) {
    const auto* device = each.id == "gpu.found" ? known.device_at(each.subject) : nullptr;
    if (device != nullptr) gpus.push_back(device);
  }
  return gpus;
}

std::string speed_of(const std::vector<const pci_facts*>& gpus) {
  double least = 0, most = 0;
  for (const auto* each : gpus) {
    const auto speed = gigabytes_per_second(*each);
    if (!speed) return fmt::format("expect the speed of {} from the page cache", gpus.size() == 1 ? "its link" : "their links");
    least = least == 0 ? *speed : std::min(least, *speed);
    most = std::max(most, *speed);
  }
  const auto low = fmt::format("{:.0f}", least), high = fmt::format("{:.0f}", most);
  const auto figure = low == high ? low : fmt::format("{} to {}", low, high);
  return fmt::format("expect up to {} GB/s from the page cache into {} GPU (its PCIe link)", figure, gpus.size() == 1 ? "the" : "each");
}

// Describes the GPUs, or what Penstock uses instead.
std::string first_sentence(const platform_facts& known, const findings& found, bool all_is_fine) {
  if (known.is_wsl) return "Windows owns the GPU here (WSL): Penstock copies to it from host memory, without GPUDirect.";
  if (known.gpus.empty()) return fmt::format("No GPU found: Penstock uses host memory and host:0, {}.", host_speed(known));
  const auto gpus = usable_gpus(known, found);
  if (const auto* blocking = first_blocking(found); blocking != nullptr || gpus.empty()) {
    const auto reason = blocking != nullptr ? blocking->reason : std::string("NVIDIA's driver supports none");
    return fmt::format("No GPU can be used yet: {}. Until this is fixed, Penstock uses host memory and host:0.", reason);
  }
  const auto speed = speed_of(gpus);
  if (all_is_fine) return fmt::format("Everything that matters is fine: {}.", speed);
  return gpus.size() == 1 ? fmt::format("The GPU works: {}.", speed) : fmt::format("{} GPUs work: {}.", gpus.size(), speed);
}

// "nothing, if the staged path is enough": most machines are fine without it.
bool is_optional(const finding& each) { return each.remedy.starts_with("nothing"); }

bool slows(const finding& each) { return each.verdict == verdict::slow && !is_optional(each); }

std::string second_sentence(const findings& found) {
  std::vector<const finding*> slow, broken;
  const auto* blocking = first_blocking(found);  // the first sentence already reports it
  for (const auto& each : found.all()) {
    if (each.verdict == verdict::broken && &each != blocking) broken.push_back(&each);
    if (slows(each) && &each != blocking) slow.push_back(&each);
  }
  if (broken.size() == 1) return fmt::format(" {} broken: {}.", blocking == nullptr ? "One part is" : "Also", broken.front()->reason);
  if (broken.size() > 1) return fmt::format(" {} parts are broken: fix them first.", broken.size());
  if (slow.size() == 1) return fmt::format(" One change would make it faster: {}.", slow.front()->remedy);
  if (slow.size() > 1) return fmt::format(" {} changes would make it faster, for example: {}.", slow.size(), slow.front()->remedy);
  return {};
}

}  // namespace

std::string summary(const platform_facts& known, const findings& found) {
  const bool all_is_fine = found.count(verdict::broken) == 0 && std::ranges::none_of(found.all(), slows);
  return first_sentence(known, found, all_is_fine) + second_sentence(found);
}

}  // namespace penstock::machine
