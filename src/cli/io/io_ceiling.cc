#include "cli/io/io_ceiling.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "bench/ceilings.hpp"
#include "bench/page_cache.hpp"
#include "bench/sample_data.hpp"
#include "cli/common/interrupt.hpp"

namespace penstock::cli {
namespace {

constexpr std::uint64_t most_bytes = std::uint64_t{1} << 30;
constexpr std::uint64_t small = 4096;

io_ceiling named(const char* what, const bench::ceiling& found) { return {fmt::format("{}, {}", what, found.how), found.value}; }

// Measures the slower of the page cache and, if the bytes go to a device, the link.
result<io_ceiling> cached(bench::ceiling_meter& meter, bool to_device, const std::string& path, std::uint64_t bytes) {
  auto copies = meter.cached_read(path, bytes);
  if (!copies) return copies.error();
  io_ceiling out = named("page cache", *copies);
  if (!to_device) return out;
  auto link = meter.link();
  if (!link) return link.error();
  if (link->to_device_gbs < out.gbs) out = {"link to the device", link->to_device_gbs};
  return out;
}

result<io_ceiling> written(bench::ceiling_meter& meter, const io_plan& plan, const std::string& path, std::uint64_t bytes) {
  const std::string folder = std::filesystem::path(path).parent_path().string();
  auto scratch = bench::sample_file::create_temporary(folder.empty() ? "." : folder, bytes, 1, interrupted);
  if (!scratch) return scratch.error();
  const bool direct = writes_direct(plan);
  auto found = direct ? meter.direct_write(scratch->path(), bytes) : meter.cached_write(scratch->path(), bytes);
  if (!found) return found.error();
  return named(direct ? "disk" : "page cache", *found);
}

}  // namespace

result<io_ceiling> measure_ceiling(const io_plan& plan, const std::string& device, const std::string& path, std::uint64_t bytes, bool hot) {
  bench::ceiling_meter meter(device);
  bytes = std::min(bytes, most_bytes);
  if (is_write(plan.io)) return written(meter, plan, path, bytes);
  if (hot) return cached(meter, plan.transfer != transfer_type::cpu_only, path, bytes);
  // Drop the pages that the run left in the page cache. They would not slow the drive down, but direct reads would drop them one at a time.
  if (status error = bench::drop_cached(path, 0, bytes); !error.ok()) return error;
  if (is_random(plan.io) && plan.sizes.most <= small) {
    auto reads = meter.random_read(path, bytes / small);
    if (!reads) return reads.error();
    return io_ceiling{fmt::format("disk, {}", reads->how), reads->value * small / 1e9};
  }
  auto found = meter.direct_read(path, bytes);
  if (!found) return found.error();
  return named("disk", *found);
}

}  // namespace penstock::cli
