#include "cli/load_pass.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <map>
#include <span>
#include <utility>

#include "bench/machine.hpp"
#include "bench/meter.hpp"
#include "bench/sample_data.hpp"
#include "bench/verify.hpp"
#include "cli/interrupt.hpp"
#include "cli/progress.hpp"
#include "cli/sizes.hpp"
#include "cli/transfer_memory.hpp"

namespace penstock::cli {
namespace {

// A request is no longer than this, so that the places of a model are spread over what carries them, and progress shows.
constexpr std::uint64_t most_read_bytes = std::uint64_t{32} << 20;
// Where each tensor begins in memory, as in what load_file gives.
constexpr std::uint64_t tensor_alignment = 256;

struct load_piece {
  const model_file* from;
  const model_tensor* tensor;
  std::uint64_t offset;  // in the file
  std::uint64_t length;
  std::uint64_t place;  // in the memory of a device
};

struct load_layout {
  std::vector<load_piece> pieces;
  std::uint64_t bytes = 0;  // that a device needs
};

load_layout layout_of(const std::vector<model_file>& files) {
  load_layout made;
  for (const model_file& from : files) {
    for (const model_tensor& tensor : from.tensors) {
      for (std::uint64_t done = 0; done < tensor.bytes; done += most_read_bytes) {
        const std::uint64_t length = std::min(most_read_bytes, tensor.bytes - done);
        made.pieces.push_back({&from, &tensor, tensor.offset + done, length, made.bytes + done});
      }
      made.bytes += (tensor.bytes + tensor_alignment - 1) / tensor_alignment * tensor_alignment;
    }
  }
  return made;
}

// When the last request of each device has ended: told by any thread, asked when all have ended.
class device_clocks {
 public:
  explicit device_clocks(std::size_t devices) : ended_ns_(devices) {}
  void tell(std::size_t device) {
    const std::int64_t now = elapsed_ns();
    std::int64_t before = ended_ns_[device].load(std::memory_order_relaxed);
    while (before < now && !ended_ns_[device].compare_exchange_weak(before, now, std::memory_order_relaxed)) {
    }
  }
  [[nodiscard]] double seconds(std::size_t device) const { return static_cast<double>(ended_ns_[device].load()) / 1e9; }

 private:
  using clock = std::chrono::steady_clock;
  [[nodiscard]] std::int64_t elapsed_ns() const {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(clock::now() - start_).count();
  }
  clock::time_point start_ = clock::now();
  std::vector<std::atomic<std::int64_t>> ended_ns_;
};

class loader {
 public:
  loader(const engine& owner, const load_request& wanted) : owner_(owner), wanted_(wanted) {}

  load_pass run() {
    told_.error = load();
    return std::move(told_);
  }

 private:
  status load() {
    if (status error = open(); !error.ok()) return error;
    if (status error = check_room(); !error.ok()) return error;
    if (status error = allocate(); !error.ok()) return error;
    if (status error = explain(); !error.ok()) return error;
    if (wanted_.verify) {
      if (status error = clear(); !error.ok()) return error;
    }
    if (status error = read(); !error.ok()) return error;
    return wanted_.verify ? verify() : status();
  }

  status open() {
    const bench::stopwatch watch;
    auto files = open_model(owner_, wanted_.files);
    if (!files) return files.error();
    files_ = *std::move(files);
    layout_ = layout_of(files_);
    told_.open_seconds = watch.seconds();
    for (const model_file& each : files_) {
      told_.files.push_back({each.path, each.kind, each.file_bytes, each.tensor_bytes(), each.tensors.size(), std::nullopt});
      told_.bytes += each.tensor_bytes();
      told_.tensors += each.tensors.size();
    }
    return {};
  }

  // What a device has, or of the host what is not in use: its memory is taken page by page, so too much of it shows late and ends others.
  [[nodiscard]] std::uint64_t room_of(const device_info& device) const {
    if (!device.name.starts_with(host_memory)) return device.memory_bytes;
    return std::min(device.memory_bytes, bench::available_memory().value_or(device.memory_bytes));
  }
  [[nodiscard]] status check_room() const {
    std::map<std::string, std::uint64_t> needed;
    for (const device_info& each : wanted_.devices) {
      needed[each.name] += layout_.bytes;
      const std::uint64_t room = room_of(each);
      if (needed[each.name] <= room || room == 0) continue;
      return {errc::out_of_memory, fmt::format("the model does not fit into {}: it needs {}, and there is {}", each.name,
                                               format_size(needed[each.name]), format_size(room))};
    }
    return {};
  }

  status allocate() {
    const bench::stopwatch watch;
    for (const device_info& each : wanted_.devices) {
      auto memory = owner_.allocate(each.name, std::max<std::uint64_t>(layout_.bytes, 1));
      if (!memory) return memory.error().with_context(fmt::format("{} for the model in {}", format_size(layout_.bytes), each.name));
      memory_.push_back(*std::move(memory));
    }
    told_.allocate_seconds = watch.seconds();
    return {};
  }

  status explain() {
    for (std::size_t i = 0; i < files_.size(); ++i) {
      auto plan = owner_.explain(files_[i].source, wanted_.devices.front().name, files_[i].file_bytes, 0, false, wanted_.io);
      if (!plan) return plan.error();
      told_.files[i].cached_bytes = plan->cached_bytes;
      for (const plan_part& each : plan->parts) add_way(each);
      for (std::string& each : plan->remarks) {
        // That there is no GPU is told once, with the device.
        if (each != why_no_gpu(owner_) && !std::ranges::count(told_.remarks, each)) told_.remarks.push_back(std::move(each));
      }
    }
    std::ranges::stable_sort(told_.ways, std::ranges::greater(), &load_way::bytes);
    return {};
  }
  void add_way(const plan_part& part) {
    const auto same = [&](const load_way& each) { return each.path == part.path_name && each.reason == part.reason; };
    const auto found = std::ranges::find_if(told_.ways, same);
    if (found != told_.ways.end()) {
      found->bytes += part.length;
    } else {
      told_.ways.push_back({part.path_name, part.reason, part.length});
    }
  }

  // All devices in one batch, device after device: the file is read for the first, and each other one has its bytes from the one before it.
  [[nodiscard]] std::vector<io_request> requests() const {
    std::vector<io_request> made;
    made.reserve(layout_.pieces.size() * memory_.size());
    for (const device_buffer& memory : memory_) {
      for (const load_piece& piece : layout_.pieces) {
        io_request request;
        request.target = &piece.from->source;
        request.memory = static_cast<std::byte*>(memory.data()) + piece.place;
        request.length = piece.length;
        request.offset = static_cast<std::int64_t>(piece.offset);
        if (made.size() >= layout_.pieces.size()) request.copy_of = static_cast<std::uint32_t>(made.size() - layout_.pieces.size());
        made.push_back(request);
      }
    }
    return made;
  }

  status read() {
    const auto wanted = requests();
    device_clocks clocks(memory_.size());
    const std::size_t pieces = layout_.pieces.size();
    const engine_stats before = owner_.stats();
    const bench::stopwatch watch;
    auto work = owner_.submit(wanted, wanted_.io, {}, [&](std::size_t i, const io_result&) { clocks.tell(i / pieces); });
    wait(work, bench::carried_bytes(before));
    const auto results = work.wait();
    told_.read_seconds = watch.seconds();
    told_.read_cpu_seconds = watch.cpu_seconds();
    told_.path = bench::paths_between(before, owner_.stats());
    for (std::size_t i = 0; i < memory_.size(); ++i) {
      std::uint64_t bytes = 0;
      for (const io_result& each : std::span(results).subspan(i * pieces, pieces)) bytes += each.bytes_done;
      told_.devices.push_back({wanted_.devices[i].name, bytes, clocks.seconds(i), std::nullopt});
    }
    return first_error(results);
  }
  void wait(batch& work, std::uint64_t start) const {
    constexpr std::chrono::milliseconds tick{50};
    progress_bar bar("loading", files_.empty() ? "nothing" : files_.front().path, told_.bytes * memory_.size());
    while (!work.wait_for(tick)) {
      if (interrupted()) return work.cancel();
      bar.update(bench::carried_bytes(owner_.stats()) - start);
    }
  }
  [[nodiscard]] status first_error(const std::vector<io_result>& results) const {
    if (interrupted()) return {errc::cancelled, "interrupted"};
    for (std::size_t i = 0; i < results.size(); ++i) {
      const load_piece& piece = layout_.pieces[i % layout_.pieces.size()];
      const auto named = [&](const status& error) {
        const auto& device = wanted_.devices[i / layout_.pieces.size()].name;
        return error.with_context(fmt::format("{}: \"{}\" to {}", piece.from->path, piece.tensor->name, device));
      };
      if (!results[i].ok()) return named(results[i].error);
      if (results[i].bytes_done < piece.length) return named({errc::io, "the file became shorter"});
    }
    return {};
  }

  // --- verify

  // What was there before would pass for what the reading should bring.
  [[nodiscard]] status clear() const {
    for (const device_buffer& memory : memory_) {
      if (status error = bench::clear_memory(owner_, memory.data(), memory.size()); !error.ok()) return error;
    }
    return {};
  }
  status verify() {
    progress_bar bar("hashing", files_.empty() ? "nothing" : files_.front().path, told_.bytes * (1 + memory_.size()));
    const auto stop = bar.counting(bench::piece_bytes);
    bench::hasher right;
    for (const load_piece& each : layout_.pieces) {
      if (status error = bench::hash_file(right, each.from->path, each.offset, each.length, stop); !error.ok()) return error;
    }
    for (std::size_t i = 0; i < memory_.size(); ++i) {
      bench::hasher found;
      for (const load_piece& each : layout_.pieces) {
        const auto* const place = static_cast<const std::byte*>(memory_[i].data()) + each.place;
        if (status error = bench::hash_memory(found, owner_, place, each.length, stop); !error.ok()) return error;
      }
      told_.devices[i].equal = found.value() == right.value();
      if (!*told_.devices[i].equal)
        return {errc::internal, fmt::format("the bytes in the memory of {} differ from those of the files", told_.devices[i].name)};
    }
    return {};
  }

  const engine& owner_;
  const load_request& wanted_;
  load_pass told_;
  std::vector<model_file> files_;
  load_layout layout_;
  std::vector<device_buffer> memory_;
};

}  // namespace

load_pass load_once(const engine& owner, const load_request& wanted) { return loader(owner, wanted).run(); }

}  // namespace penstock::cli
