#include "cli/common/figures.hpp"

#include <fmt/format.h>

#include "bench/meter.hpp"
#include "cli/common/json.hpp"
#include "cli/common/sizes.hpp"

namespace penstock::cli {
namespace {

constexpr std::uint64_t least_for_a_speed = std::uint64_t{1} << 20;

double cpu_per_gb(const figures& told) { return told.cpu_seconds * 1e9 / static_cast<double>(told.bytes); }

}  // namespace

std::string describe(const figures& told) {
  std::string text = fmt::format("{} in {:.3f} s", format_size(told.bytes), told.seconds);
  if (told.bytes >= least_for_a_speed) {
    text += fmt::format(", {:.2f} GB/s, {:.3f} CPU s/GB", bench::gigabytes_per_second(told.bytes, told.seconds), cpu_per_gb(told));
  }
  if (!told.path.empty()) text += fmt::format(", path {}", told.path);
  if (told.equal) text += *told.equal ? ", verified" : ", WRONG BYTES";
  return text;
}

nlohmann::json to_json(const std::string& file, const figures& told) {
  using nlohmann::json;
  const bool moved = told.bytes > 0 && told.seconds > 0;
  return {{"file", file},
          {"bytes", told.bytes},
          {"seconds", told.seconds},
          {"gb_per_s", moved ? json(bench::gigabytes_per_second(told.bytes, told.seconds)) : json(nullptr)},
          {"cpu_s_per_gb", moved ? json(cpu_per_gb(told)) : json(nullptr)},
          {"path", told.path},
          {"verified", told.equal ? json(*told.equal) : json(nullptr)},
          {"error", error_json(told.error)}};
}

}  // namespace penstock::cli
