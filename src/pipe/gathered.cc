#include "pipe/gathered.hpp"

#include <utility>

#include <fmt/format.h>

namespace penstock::pipes {

result<incoming_target> gathered::add(const incoming_target& target, const std::string& name) {
  if (target.length > most_bytes - bytes_) {
    return status(
        errc::unsupported,
        fmt::format("receiving this tensor in stream order needs a staging buffer in host memory, limited to {} bytes per message",
                    most_bytes));
  }
  auto made = std::make_unique<source::awaited_memory>(name, target.length);
  auto* const memory = made.get();
  auto source = with_.runtime->open(std::move(made));
  auto ended = [this](const status& outcome) { one_ended(outcome); };
  entries_.push_back({memory, std::make_unique<channel::stream_read>(with_, std::move(source), target, std::move(ended))});
  bytes_ += target.length;
  return incoming_target{memory->memory(), target.length};
}

void gathered::put_onto_streams() noexcept {
  left_.fetch_add(entries_.size());
  for (auto& each : entries_) each.read->begin();
  one_ended({});
}

void gathered::come(const status& outcome, std::function<void(const status&)> then) noexcept {
  outcome_ = outcome;
  if (!outcome.ok() && !has_failed_.exchange(true)) error_ = outcome;  // takes precedence over the errors of the reads
  then_ = std::move(then);
  arrival_.of = this;
  if (!with_.staging->pullers().push(arrival_.list, arrival_).ok()) (void)arrival_.run();
}

bool gathered::arrival::run() {
  for (auto& each : of->entries_) each.memory->come(of->outcome_);
  of->one_ended(of->outcome_);
  return true;
}

void gathered::one_ended(const status& outcome) noexcept {
  if (!outcome.ok() && !has_failed_.exchange(true)) error_ = outcome;
  if (left_.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  const auto then = std::move(then_);
  const auto error = error_;
  then(error);
}

}  // namespace penstock::pipes
