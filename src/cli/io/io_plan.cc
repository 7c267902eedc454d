#include "cli/io/io_plan.hpp"

#include <fmt/format.h>

#include "cli/common/sizes.hpp"

namespace penstock::cli {
namespace {

constexpr std::array<std::string_view, transfer_types> transfer_names{"GPUD",           "CPUONLY",    "CPU_GPU",   "CPU_ASYNC_GPU",
                                                                      "CPU_CACHED_GPU", "GPUD_ASYNC", "GPU_BATCH", "GPU_BATCH_STREAM"};

constexpr std::array<std::string_view, transfer_types> transfer_meanings{
    "blocking requests on device memory, by the fastest available path",
    "blocking requests on host memory, which are read through the page cache",
    "blocking requests on host memory, each followed (for a write: preceded) by a copy to the device",
    "the same with several requests in flight, so that copies and requests overlap",
    "like 2, but writes also go through the page cache",
    "requests in the order of a device stream",
    "batches of requests on device memory",
    "batches in the order of a device stream"};

constexpr std::array<std::string_view, io_types> io_names{"READ", "WRITE", "RANDREAD", "RANDWRITE"};

}  // namespace

std::string_view name_of(transfer_type type) { return transfer_names[static_cast<std::size_t>(type)]; }
std::string_view name_of(io_type type) { return io_names[static_cast<std::size_t>(type)]; }
std::string_view meaning_of(transfer_type type) { return transfer_meanings[static_cast<std::size_t>(type)]; }

result<io_sizes> parse_io_sizes(std::string_view text) {
  std::vector<std::uint64_t> found;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(':', begin), text.size());
    auto bytes = parse_gdsio_size(text.substr(begin, end - begin));
    if (!bytes) return bytes.error();
    found.push_back(*bytes);
    begin = end + 1;
  }
  const bool one = found.size() == 1;
  if (!one && found.size() != 3) return status(errc::invalid_argument, fmt::format("\"{}\": expected SIZE or LEAST:MOST:STEP", text));
  const io_sizes sizes{found[0], one ? found[0] : found[1], one ? 0 : found[2]};
  if (sizes.least == 0) return status(errc::invalid_argument, fmt::format("\"{}\": the request size must not be 0", text));
  if (sizes.most < sizes.least) return status(errc::invalid_argument, fmt::format("\"{}\": the maximum is less than the minimum", text));
  if (sizes.most > sizes.least && sizes.step == 0)
    return status(errc::invalid_argument, fmt::format("\"{}\": the step must not be 0", text));
  return sizes;
}

result<io_type> parse_io_type(std::string_view text) {
  constexpr std::array<std::string_view, io_types> words{"read", "write", "randread", "randwrite"};
  for (unsigned i = 0; i < io_types; ++i) {
    if (text == words[i] || text == std::to_string(i)) return static_cast<io_type>(i);
  }
  if (text == "seqread") return io_type::read;
  if (text == "seqwrite") return io_type::write;
  return status(errc::invalid_argument, fmt::format("\"{}\" is not one of 0 (read), 1 (write), 2 (randread), 3 (randwrite)", text));
}

}  // namespace penstock::cli
