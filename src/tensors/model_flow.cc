#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/no_memory.hpp"
#include "penstock/model.hpp"
#include "tensors/flow.hpp"

namespace penstock {

namespace {

bool share_memory(const model_layout& layout) {
  std::vector<std::pair<std::uint64_t, std::uint64_t>> spans;  // first byte, and the end
  for (const placed_tensor& each : layout.tensors) {
    if (each.part.bytes() > 0) spans.emplace_back(each.place, each.place + each.part.bytes());
  }
  std::ranges::sort(spans);
  const auto overlap = [](const auto& one, const auto& next) { return next.first < one.second; };
  return std::ranges::adjacent_find(spans, overlap) != spans.end();
}

// Returns true if the load was cancelled.
bool follow(tensors::flow& work, const load_watch& watch) {
  constexpr std::chrono::milliseconds tick{50};
  bool is_cancelled = false;
  while (!is_cancelled && !work.wait_for(tick)) is_cancelled = !watch.proceed(work.progress());
  if (is_cancelled) work.cancel();
  (void)work.wait();
  (void)watch.proceed(work.progress());
  return is_cancelled;
}

status load(const engine& with, const model_layout& layout, std::span<void* const> memory, const io_options& options,
            const load_watch& watch) {
  if (!watch.names.empty() && watch.names.size() != memory.size())
    return {errc::invalid_argument, fmt::format("{} names were given for {} memories", watch.names.size(), memory.size())};
  if (share_memory(layout)) return {errc::invalid_argument, "the tensors of the layout share memory: read them with model_flow"};
  tensors::flow work(with, {options, 0});
  if (status error = work.add(layout, memory); !error.ok()) return error;
  const bool is_cancelled = watch.proceed && follow(work, watch);
  const auto [error, number] = work.wait();
  if (!error.ok() && is_cancelled) return {errc::cancelled, "the load was cancelled"};
  return watch.names.empty() ? error : error.with_context("to " + watch.names[number]);
}

// Returns step(), or an error in a forked child, where the lock may be held forever.
template <class Step>
auto or_forked(const tensors::flow& of, Step step) -> decltype(step()) {
  if (of.forked()) return status(errc::forked, "the reads belong to the parent process");
  return or_no_memory(step);
}

}  // namespace

status load_model(const engine& with, const model_layout& layout, std::span<void* const> memory, const io_options& options,
                  const load_watch& watch) {
  return or_no_memory([&] { return load(with, layout, memory, options, watch); });
}

model_flow::model_flow(const engine& with, const flow_options& options) : core_(std::make_unique<tensors::flow>(with, options)) {}
model_flow::model_flow(model_flow&&) noexcept = default;
model_flow::~model_flow() {
  if (core_ != nullptr && core_->forked()) (void)core_.release();  // its reads end in the parent process
}

status model_flow::add(const model_layout& layout, std::span<void* const> memory) {
  return or_forked(*core_, [&] { return core_->add(layout, memory); });
}
result<std::size_t> model_flow::add(const file& from, std::span<const file_range> ranges, std::span<void* const> memory,
                                    io_callback ended) {
  return or_forked(*core_, [&] { return core_->add(from, ranges, memory, std::move(ended)); });
}
std::size_t model_flow::size() const noexcept { return core_->forked() ? 0 : core_->size(); }
status model_flow::take(std::size_t item) {
  return or_forked(*core_, [&] { return core_->take(item).error; });
}
void model_flow::drop(std::size_t item) noexcept {
  if (!core_->forked()) core_->drop(item);
}
status model_flow::wait() {
  return or_forked(*core_, [&] { return core_->wait().error; });
}
bool model_flow::wait_for(std::chrono::nanoseconds timeout) { return !core_->forked() && core_->wait_for(timeout); }
bool model_flow::wait_for(std::size_t item, std::chrono::nanoseconds timeout) { return !core_->forked() && core_->wait_for(item, timeout); }
result<std::vector<io_result>> model_flow::results(std::size_t item) {
  return or_forked(*core_, [&] { return core_->results(item); });
}
std::vector<load_progress> model_flow::progress() const { return core_->forked() ? std::vector<load_progress>() : core_->progress(); }
void model_flow::cancel() noexcept {
  if (!core_->forked()) core_->cancel();
}

}  // namespace penstock
