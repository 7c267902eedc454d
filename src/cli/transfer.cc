#include "cli/transfer.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "bench/meter.hpp"
#include "cli/interrupt.hpp"

namespace penstock::cli {
namespace {

constexpr std::uint64_t large_piece = std::uint64_t{1} << 30;
constexpr std::uint64_t small_piece = std::uint64_t{64} << 20;

bool is_host(const device_info& device) { return device.name.rfind("host:", 0) == 0; }

}  // namespace

result<device_info> choose_device(const engine& owner, const std::string& name) {
  const std::vector<device_info> devices = owner.devices();
  std::string names;
  for (const device_info& device : devices) {
    if (name.empty() || device.name == name) return device;
    names += (names.empty() ? "" : ", ") + device.name;
  }
  const std::string reason = why_no_gpu(owner);
  return status(errc::not_found,
                fmt::format("there is no device \"{}\"; there is: {}{}", name, names, reason.empty() ? "" : " (" + reason + ")"));
}

std::string describe_device(const device_info& device) { return fmt::format("{} ({})", device.name, device.description); }

std::string why_no_gpu(const engine& owner) {
  const status cuda = owner.cuda_status();
  return cuda.ok() ? std::string() : fmt::format("no GPU: {}", cuda.message());
}

io_result finish(operation work, const engine& owner, progress_bar& bar, std::uint64_t first_byte) {
  constexpr std::chrono::milliseconds tick{50};
  const std::uint64_t start = bench::carried_bytes(owner.stats());
  while (!work.wait_for(tick)) {
    if (interrupted()) {
      work.cancel();
      break;
    }
    bar.update(first_byte + bench::carried_bytes(owner.stats()) - start);
  }
  return work.wait();
}

std::uint64_t piece_for(const device_info& device, std::uint64_t length) {
  // The host device shares its memory with everything else on the machine.
  const std::uint64_t room = is_host(device) ? device.memory_bytes / 2 : device.memory_bytes / 10 * 9;
  return length <= room ? length : large_piece;
}

result<device_buffer> allocate_piece(const engine& owner, const device_info& device, std::uint64_t& piece) {
  auto memory = owner.allocate(device.name, piece);
  for (const std::uint64_t smaller : {large_piece, small_piece}) {
    if (memory || memory.error().code() != errc::out_of_memory || piece <= smaller) continue;
    piece = smaller;
    memory = owner.allocate(device.name, piece);
  }
  return memory;
}

}  // namespace penstock::cli
