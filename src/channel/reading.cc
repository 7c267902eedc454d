#include "channel/reading.hpp"

#include <algorithm>
#include <mutex>
#include <utility>
#include <vector>

#include "base/no_memory.hpp"
#include "channel/stream_read.hpp"
#include "core/request/asynchronous.hpp"
#include "source/process_memory.hpp"
#include "staging/work.hpp"

namespace penstock::channel {

namespace {

constexpr std::uint64_t least_part = std::uint64_t{2} << 20;  // the minimum part of a tensor for one thread
constexpr std::uint64_t most_parts = 1024;
constexpr std::uint64_t read_by_caller = std::uint64_t{64} << 10;

}  // namespace

class reading::arriving final : public delivery {
 public:
  arriving(const tools& with, pid_t process, incoming& of) noexcept : with_(with), process_(process), message_(of) {}

  void add(std::size_t tensor) {
    if (message_.places[tensor].on_device()) {
      add_request(tensor);
    } else {
      cut(tensor);
    }
  }
  [[nodiscard]] std::uint64_t parts() const noexcept override { return parts_.size() + requests_.size() + on_streams_.size(); }
  [[nodiscard]] std::uint64_t parts_on_streams() const noexcept override { return on_streams_.size(); }
  void all_taken() override {
    for (std::size_t i = 0; i + 1 < parts_.size(); ++i) parts_[i].next_work = &parts_[i + 1];
  }

  void start() noexcept override {
    for (auto& each : on_streams_) each->begin();
    begin_requests();
    std::uint64_t bytes = 0;
    for (const auto& each : parts_) bytes += each.bytes;
    if (parts_.empty()) return;
    if (bytes > read_by_caller && with_.staging->pullers().push(list_, parts_.front(), parts_.back(), parts_.size()).ok()) return;
    for (auto& each : parts_) (void)each.run();
  }

  void stop() noexcept override {
    {
      const std::lock_guard guard(requests_lock_);
      for (auto& each : requests_) each.running.cancel();
    }
    while (with_.staging->pullers().withdraw(list_) != nullptr) message_.parts_ended(1);
  }

 private:
  // A part of a tensor that one thread reads.
  struct part final : staging::work {
    bool run() override {
      auto& message = of->message_;
      if (!message.stopping.load()) {
        const auto problem = or_no_memory([&] { return of->with_.door->read_memory(of->process_, address, target, bytes); });
        if (!problem.ok()) message.fail(problem);
      }
      message.parts_ended(1);
      return true;
    }
    arriving* of = nullptr;
    std::uint64_t address = 0;
    std::byte* target = nullptr;
    std::uint64_t bytes = 0;
  };
  // A tensor that the engine reads into device memory.
  struct request {
    std::shared_ptr<core::file_core> source;
    core::transfer what;
    penstock::operation running;
  };

  void cut(std::size_t tensor) {
    const auto& facts = message_.tensors[tensor];
    const auto each = std::max(least_part, message_.bytes / most_parts);
    for (std::uint64_t at = 0; at < facts.length; at += each) {
      auto& added = parts_.emplace_back();
      added.of = this;
      added.address = facts.address + at;
      added.target = static_cast<std::byte*>(message_.targets[tensor].memory) + at;
      added.bytes = std::min(each, facts.length - at);
    }
  }
  void add_request(std::size_t tensor) {
    const auto& facts = message_.tensors[tensor];
    auto memory = source::process_memory(with_.door, process_, facts.address, facts.length);
    if (message_.on_streams) {
      auto ended = [&message = message_](const status& outcome) {
        if (!outcome.ok()) message.fail(outcome);
        message.parts_passed(1);
      };
      auto source = with_.runtime->open(std::move(memory));
      on_streams_.push_back(std::make_unique<stream_read>(with_, std::move(source), message_.targets[tensor], std::move(ended)));
      return;
    }
    auto& added = requests_.emplace_back();
    added.source = with_.runtime->open(std::move(memory));
    added.what = {static_cast<std::byte*>(message_.targets[tensor].memory), facts.length, 0, false};
  }
  // Does not start any if the message was stopped.
  void begin_requests() noexcept {
    const std::lock_guard guard(requests_lock_);
    for (auto& each : requests_) {
      io_callback ended = [&message = message_](const io_result& outcome) {
        if (!outcome.ok()) message.fail(outcome.error);
        message.parts_ended(1);
      };
      const auto problem = or_no_memory([&]() -> status {
        if (message_.stopping.load()) return {errc::cancelled, "cancelled"};
        const auto base = with_.runtime->paths().base(true);
        each.running = penstock::operation(begin(*with_.runtime, each.source, each.what, {.path = base}, ended));
        return {};
      });
      if (problem.ok()) continue;
      message_.fail(problem);
      message_.parts_ended(1);
    }
  }

  const tools& with_;
  const pid_t process_;
  incoming& message_;
  std::vector<part> parts_;
  staging::work_list list_;
  std::mutex requests_lock_;  // guards the operations of the members below
  std::vector<request> requests_;
  std::vector<std::unique_ptr<stream_read>> on_streams_;
};

reading::arriving& reading::arriving_of(incoming& message) {
  const auto make = [&] { return std::make_unique<arriving>(with_, static_cast<pid_t>(owner_.peer().pid), message); };
  return message.delivery_of<arriving>(this, make);
}

delivery& reading::delivery_of(incoming& message) { return arriving_of(message); }

std::optional<std::string> reading::take(incoming& message, std::size_t tensor) {
  arriving_of(message).add(tensor);
  return std::nullopt;
}

}  // namespace penstock::channel
