#include "cli/common/transfer_memory.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "bench/machine.hpp"
#include "cli/common/sizes.hpp"

namespace penstock::cli {
namespace {

constexpr std::uint64_t large_piece = std::uint64_t{1} << 30;
constexpr std::uint64_t small_piece = std::uint64_t{64} << 20;
constexpr std::size_t block_bytes = 4096;  // the alignment that direct I/O needs

}  // namespace

std::string device_called(const std::string& word) {
  const bool is_number = !word.empty() && word.find_first_not_of("0123456789") == std::string::npos;
  if (is_number) return "cuda:" + word;
  if (word == "cuda") return "cuda:0";
  return word == "cpu" || word == host_memory ? "host:0" : word;
}

std::string why_no_gpu(const engine& owner) {
  const status cuda = owner.cuda_status();
  return cuda.ok() ? std::string() : fmt::format("no GPU: {}", cuda.message());
}

result<device_info> choose_device(const engine& owner, const std::string& word) {
  const std::string name = device_called(word);
  for (const device_info& device : owner.devices()) {
    if (name.empty() || device.name == name) return device;
  }
  const status why = owner.allocate(word, 1).error();  // the error lists the devices
  return why.ok() ? status(errc::not_found, fmt::format("\"{}\" is not a device name; run `penstock devices` to list them", word)) : why;
}

result<device_info> choose_device_of_d(const engine& owner, const std::string& name) {
  auto found = choose_device(owner, name);
  const bool wants_gpu = device_called(name).starts_with("cuda:");
  if (found || !wants_gpu || why_no_gpu(owner).empty()) return found;
  return status(found.error().code(), fmt::format("{}. Omit -d, or use -d host:0", found.error().message()));
}

result<device_info> choose_memory(const engine& owner, const std::string& name) {
  if (name != host_memory && name != "cpu") return choose_device(owner, name);
  device_info plain;
  plain.name = host_memory;
  plain.description = "host memory";
  for (const device_info& device : owner.devices()) {
    if (device.name.starts_with("host:")) plain.memory_bytes = device.memory_bytes;
  }
  return plain;
}

std::string describe_device(const device_info& device) { return fmt::format("{} ({})", device.name, device.description); }

void transfer_memory::freer::operator()(void* memory) const noexcept { std::free(memory); }

// Returns length if it fits, otherwise at most 1 GiB, depending on the free memory.
std::uint64_t transfer_memory::most_at_once(std::uint64_t length) const {
  // Host memory is shared with everything else on the machine.
  const bool on_host = where_.name.starts_with(host_memory) || where_.shares_host_memory;
  const std::uint64_t memory_bytes = on_host ? bench::available_memory().value_or(where_.memory_bytes) : where_.memory_bytes;
  const std::uint64_t room = on_host ? std::min(where_.memory_bytes, memory_bytes) / 2 : memory_bytes / 10 * 9;
  return length <= room ? length : std::clamp(room, small_piece / 4, large_piece) / block_bytes * block_bytes;
}

status transfer_memory::allocate(std::uint64_t bytes) {
  if (where_.name != host_memory) {
    on_device_ = {};
    auto made = owner_.allocate(where_.name, bytes);
    if (!made) return made.error();
    on_device_ = *std::move(made);
    return {};
  }
  on_host_.reset();
  const std::uint64_t whole_blocks = (bytes + block_bytes - 1) / block_bytes * block_bytes;
  on_host_.reset(std::aligned_alloc(block_bytes, whole_blocks));
  if (on_host_ == nullptr) return {errc::out_of_memory, fmt::format("not enough memory for {}", format_size(bytes))};
  std::memset(on_host_.get(), 0, whole_blocks);  // fault the pages in now, so that the first measurement does not include page faults
  return {};
}

status transfer_memory::make_room(std::uint64_t length) {
  const std::uint64_t wanted = std::max<std::uint64_t>(1, most_at_once(length));
  if (size_ >= wanted || least_) return {};
  status error;
  for (std::uint64_t bytes : {wanted, large_piece, small_piece}) {
    if (bytes > wanted) continue;
    size_ = 0;
    error = allocate(bytes);
    if (error.ok()) {
      size_ = bytes;
      least_ = bytes < wanted;
    }
    if (error.ok() || error.code() != errc::out_of_memory) return error;
  }
  return error;
}

}  // namespace penstock::cli
