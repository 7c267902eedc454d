#include "cli/models/load_pass.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <span>
#include <utility>

#include "bench/machine.hpp"
#include "bench/meter.hpp"
#include "bench/sample_data.hpp"
#include "bench/verify.hpp"
#include "cli/common/hash_source.hpp"
#include "cli/common/interrupt.hpp"
#include "cli/common/progress.hpp"
#include "cli/common/sizes.hpp"
#include "cli/common/transfer_memory.hpp"

namespace penstock::cli {
namespace {

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
    auto opened = model::open(owner_, wanted_.files);
    if (!opened) return opened.error();
    model_ = *std::move(opened);
    auto layout = lay_out(model_);
    if (!layout) return layout.error();
    layout_ = *std::move(layout);
    told_.open_seconds = watch.seconds();
    for (const model_file& each : model_.files()) {
      told_.files.push_back(
          {each.path, std::string(to_string(each.kind)), each.file_bytes, each.tensor_bytes(), each.header.tensors().size(), std::nullopt});
      for (const gguf_unknown_tensor& tensor : each.unknown) {
        told_.remarks.push_back(fmt::format("{}: tensor {} has type {}, which this version does not support; it is not loaded", each.path,
                                            tensor.name, tensor.type));
      }
    }
    told_.bytes = model_.tensor_bytes();
    told_.tensors = model_.tensor_count();
    return {};
  }

  // Returns the memory of a device or, for the host, its unused memory: pages are allocated on first use, so overcommitment is detected
  // late and gets other processes killed. The same applies to devices that share host memory, whose drivers count the page cache as used
  // memory.
  [[nodiscard]] std::uint64_t room_of(const device_info& device) const {
    if (!device.name.starts_with(host_memory) && !device.shares_host_memory) return device.memory_bytes;
    return std::min(device.memory_bytes, bench::available_memory().value_or(device.memory_bytes));
  }
  [[nodiscard]] status check_room() const {
    std::map<std::string, std::uint64_t> needed;
    for (const device_info& each : wanted_.devices) {
      needed[each.name] += layout_.bytes;
      const std::uint64_t room = room_of(each);
      if (needed[each.name] <= room || room == 0) continue;
      return {errc::out_of_memory, fmt::format("the model does not fit into {}: it needs {}, but only {} is available", each.name,
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
    for (std::size_t i = 0; i < model_.files().size(); ++i) {
      const model_file& from = model_.files()[i];
      auto plan = owner_.explain(from.source, wanted_.devices.front().name, from.file_bytes, 0, false, wanted_.io);
      if (!plan) return plan.error();
      told_.files[i].cached_bytes = plan->cached_bytes;
      for (const plan_part& each : plan->parts) add_way(each);
      for (std::string& each : plan->remarks) {
        // The missing GPU is reported once, with the device.
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

  status read() {
    std::vector<void*> places;
    for (const device_buffer& each : memory_) places.push_back(each.data());
    const engine_stats before = owner_.stats();
    const std::uint64_t wanted_bytes = told_.bytes * memory_.size();
    progress_bar bar("loading", first_path(), wanted_bytes);
    load_watch watch;
    for (const device_info& each : wanted_.devices) watch.names.push_back(each.name);
    watch.proceed = [&, start = bench::carried_bytes(before)](std::span<const load_progress> arrived) {
      told_.devices.clear();
      for (std::size_t i = 0; i < arrived.size(); ++i) {
        const std::chrono::duration<double> seconds = arrived[i].time;
        told_.devices.push_back({wanted_.devices[i].name, arrived[i].bytes, seconds.count(), std::nullopt});
      }
      const std::uint64_t carried = bench::carried_bytes(owner_.stats()) - start;
      if (carried < wanted_bytes) bar.update(carried);
      return !interrupted();
    };
    const bench::stopwatch time;
    const status error = load_model(owner_, layout_, places, wanted_.io, watch);
    told_.read_seconds = time.seconds();
    told_.read_cpu_seconds = time.cpu_seconds();
    told_.path = bench::paths_between(before, owner_.stats());
    return interrupted() ? status(errc::cancelled, "interrupted") : error;
  }
  [[nodiscard]] std::string first_path() const { return model_.files().empty() ? "nothing" : model_.files().front().path; }

  // --- verify

  // Clears the memory, so that old data cannot be mistaken for data that was read.
  [[nodiscard]] status clear() const {
    for (const device_buffer& memory : memory_) {
      if (status error = bench::clear_memory(owner_, memory.data(), memory.size()); !error.ok()) return error;
    }
    return {};
  }
  status verify() {
    const auto ranges = ranges_of(layout_);
    if (!ranges) return ranges.error();
    progress_bar bar("hashing", first_path(), told_.bytes * (1 + memory_.size()));
    const auto stop = bar.counting(bench::piece_bytes);
    bench::hasher right;
    for (const model_range& each : *ranges) {
      if (status error = hash_source(right, each.tensor.file->source, each.offset, each.length, stop); !error.ok()) return error;
    }
    for (std::size_t i = 0; i < memory_.size(); ++i) {
      bench::hasher found;
      for (const model_range& each : *ranges) {
        const auto* const place = static_cast<const std::byte*>(memory_[i].data()) + each.place;
        if (status error = bench::hash_memory(found, owner_, place, each.length, stop); !error.ok()) return error;
      }
      told_.devices[i].equal = found.value() == right.value();
      if (!*told_.devices[i].equal)
        return {errc::internal, fmt::format("the bytes in the memory of {} differ from those in the files", told_.devices[i].name)};
    }
    return {};
  }

  const engine& owner_;
  const load_request& wanted_;
  load_pass told_;
  model model_;
  model_layout layout_;  // of each device's memory
  std::vector<device_buffer> memory_;
};

}  // namespace

load_pass load_once(const engine& owner, const load_request& wanted) { return loader(owner, wanted).run(); }

}  // namespace penstock::cli
