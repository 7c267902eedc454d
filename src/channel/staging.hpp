// What the pipes of an engine share to bring tensors: threads, and pinned memory that those of devices pass through. Thread-safe.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "core/runtime.hpp"
#include "staging/landing.hpp"
#include "staging/lanes.hpp"
#include "staging/slab_pool.hpp"

namespace penstock::channel {

// Tells what is under way on a pipe. Any thread.
class under_way_teller {
 public:
  virtual void add_under_way(std::vector<request_info>& to) = 0;

 protected:
  ~under_way_teller() = default;
};

class pipe_staging final : public core::beside_files {
 public:
  explicit pipe_staging(core::runtime& with);
  // The one of an engine, made for its first pipes.
  static pipe_staging& of(core::runtime& with);

  // Which bring the tensors, and where those of devices pass through.
  [[nodiscard]] staging::lanes& pullers() noexcept { return pullers_; }
  // Which maps what the other ends of pipes have posted: a thread of its own, since that may take milliseconds.
  [[nodiscard]] staging::lanes& mapper() noexcept { return mapper_; }
  [[nodiscard]] staging::landing& sending() noexcept { return sending_; }
  [[nodiscard]] staging::landing& receiving() noexcept { return receiving_; }
  // Of all inboxes.
  [[nodiscard]] staging::pinned_budget& inboxes() noexcept { return inboxes_; }

  std::size_t trim() override { return sending_.trim() + receiving_.trim(); }
  [[nodiscard]] pinned pinned_now() const override;

  // A pipe of the engine, until it is gone.
  void add(const std::shared_ptr<under_way_teller>& pipe);
  void remove(under_way_teller& pipe) noexcept;
  void add_under_way(std::vector<request_info>& to) override;

 private:
  staging::landing sending_;
  staging::landing receiving_;
  staging::pinned_budget inboxes_;
  staging::lanes pullers_;  // ends before the memory that it works on
  staging::lanes mapper_;
  std::mutex lock_;  // guards what follows
  std::map<const under_way_teller*, std::weak_ptr<under_way_teller>> pipes_;
};

// How long who waits for the other end does so without sleeping: a message comes in a few microseconds where nobody has to be woken.
std::chrono::microseconds pipe_spin(const core::runtime& with) noexcept;

}  // namespace penstock::channel
