#include "cli/files/verify_device.hpp"

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <span>

#include "bench/sample_data.hpp"
#include "cli/common/interrupt.hpp"
#include "cli/common/json.hpp"
#include "cli/common/plain_file.hpp"
#include "cli/common/say.hpp"
#include "cli/common/sizes.hpp"
#include "cli/common/transfer_memory.hpp"
#include "cli/common/usage.hpp"

namespace penstock::cli {
namespace {

constexpr std::uint64_t compared_at_once = std::uint64_t{1} << 20;

struct device_read {
  const engine& owner;
  const file& source;
  std::byte* memory;
  int plain;  // -1: an object on a server, which only the engine can read
  std::string path;

  // Reads the expected bytes into host memory.
  [[nodiscard]] status read_right(std::uint64_t offset, std::span<std::byte> into) const {
    if (plain >= 0) return read_plainly(plain, path, offset, into);
    const io_result done = source.read(into.data(), into.size(), static_cast<std::int64_t>(offset));
    if (!done.ok()) return done.error;
    return done.bytes_done == into.size() ? status() : status(errc::io, fmt::format("{} was truncated while being read", shown_name(path)));
  }

  // Reads the range and compares all of it.
  [[nodiscard]] status check(std::uint64_t offset, std::uint64_t length) const {
    // Clear the memory, so that data from the previous request cannot be mistaken for data from this one.
    if (status error = bench::clear_memory(owner, memory, length); !error.ok()) return error;
    const io_result done = source.read(memory, length, static_cast<std::int64_t>(offset));
    if (!done.ok()) return done.error;
    if (done.bytes_done < length) return {errc::io, fmt::format("{} was truncated while being read", path)};
    std::vector<std::byte> found(std::min(length, compared_at_once)), right(found.size());
    for (std::uint64_t at = 0; at < length; at += found.size()) {
      const std::uint64_t count = std::min<std::uint64_t>(found.size(), length - at);
      if (status error = owner.copy(found.data(), memory + at, count); !error.ok()) return error;
      if (status error = read_right(offset + at, std::span(right).first(count)); !error.ok()) return error;
      const auto differs = std::mismatch(found.begin(), found.begin() + static_cast<std::ptrdiff_t>(count), right.begin()).first;
      const auto place = static_cast<std::uint64_t>(differs - found.begin());
      if (place < count) return {errc::internal, fmt::format("WRONG BYTES at {} of {}", offset + at + place, path)};
    }
    return {};
  }
};

struct device_verdict {
  std::string device;
  std::uint64_t bytes = 0, at_once = 0;
  std::string path;
};

result<device_verdict> check_all(const engine& owner, const std::string& path, const device_check& wanted) {
  auto where = choose_device_of_d(owner, wanted.device);
  if (!where) return where.error();
  auto source = owner.open(path);
  if (!source) return source.error();
  auto size = source->size();
  if (!size) return size.error();
  const std::uint64_t there = *size - std::min(*size, wanted.offset);
  const std::uint64_t length = wanted.size.value_or(there);
  if (length > there || length == 0)
    return status(errc::invalid_argument, fmt::format("{} is {} long: it is too short to verify {} from offset {}", path,
                                                      format_size(*size), format_size(length), wanted.offset));
  device_verdict told{where->name, length, (length + wanted.requests - 1) / wanted.requests, {}};
  auto memory = owner.allocate(where->name, told.at_once + wanted.memory_offset);
  if (!memory) return memory.error();
  registration held;
  if (wanted.register_memory) {
    auto made = owner.register_memory(memory->data(), memory->size());
    if (!made) return made.error();
    held = *std::move(made);
  }
  const owned_fd plain(is_url(path) ? -1 : ::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (plain.get() < 0 && !is_url(path)) return status::from_errno(errno, fmt::format("open {}", path));
  const device_read reads{owner, *source, static_cast<std::byte*>(memory->data()) + wanted.memory_offset, plain.get(), path};
  for (std::uint64_t done = 0; done < length; done += told.at_once) {
    if (interrupted()) return status(errc::cancelled, "interrupted");
    const status error = reads.check(wanted.offset + done, std::min(told.at_once, length - done));
    if (!error.ok()) return error;
  }
  return told;
}

}  // namespace

CLI::Option* add_device_check_options(CLI::App& sub, std::string& file, device_check& wanted) {
  CLI::Option* const path = sub.add_option("-f", file, "Read this file into device memory and verify it")->type_name("FILE");
  const auto take_size = [](const char* name, auto& target) {
    return [name, &target](const std::string& text) {
      auto bytes = parse_gdsio_size(text);
      if (!bytes) throw CLI::ValidationError(name, std::string(bytes.error().message()));
      target = *bytes;
    };
  };
  const auto take_device = [&wanted](const std::string& text) { wanted.device = device_called(text); };
  sub.add_option_function<std::string>("-d", take_device, "GPU by number, or device by name (default: the first)")
      ->type_name("DEVICE")
      ->needs(path);
  sub.add_option_function<std::string>("-o", take_size("-o", wanted.offset), "Start at this offset")->type_name("SIZE")->needs(path);
  sub.add_option_function<std::string>("-s", take_size("-s", wanted.size), "Length to verify (default: to the end)")
      ->type_name("SIZE")
      ->needs(path);
  sub.add_option("-n", wanted.requests, "Number of requests (default 1)")->check(whole_number(1))->needs(path);
  sub.add_option_function<std::string>("-g", take_size("-g", wanted.memory_offset), "Offset in the device memory")
      ->type_name("SIZE")
      ->needs(path);
  sub.add_flag_callback(
         "-b", [&wanted] { wanted.register_memory = false; }, "Do not register the memory")
      ->needs(path);
  for (const char* name : {"-m", "-t", "-S"})
    sub.add_option_function<unsigned>(
           name, [](const unsigned&) {}, "Accepted for compatibility with gdsio_verify; has no effect")
        ->check(whole_number(0))
        ->needs(path);
  return path;
}

int check_by_device(const engine& owner, const std::string& path, const device_check& wanted, const output_options& output) {
  const std::string reason = why_no_gpu(owner);
  if (wanted.device.empty() && !reason.empty() && !output.quiet)
    complain("penstock: {}: the device is host:0, a simulated GPU in host memory\n", reason);
  const auto told = check_all(owner, path, wanted);
  if (output.json) {
    print_json(
        {{"file", path}, {"bytes", told ? told->bytes : 0}, {"device", told ? told->device : ""}, {"error", error_json(told.error())}});
    return told ? exit_success : exit_failure;
  }
  if (!told) return interrupted() ? exit_failure : fail(told.error());
  say("gpu index :{},file :{}, gpu buffer alignment :0, gpu buffer offset :{}, gpu devptr offset :0, file offset :{}, ",
      told->device.substr(told->device.find(':') + 1), path, wanted.memory_offset, wanted.offset);
  say("io_requested :{}, io_chunk_size :{}, bufregister :{}, sync :1, nr ios :{}, \nfsync :0, \nBatch mode: 0\n", told->bytes,
      told->at_once, wanted.register_memory, wanted.requests);
  say("Data Verification Success\n");
  return exit_success;
}

}  // namespace penstock::cli
