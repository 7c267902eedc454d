// The resources that an engine's pipes share to move tensors: threads, and pinned memory that device tensors pass through. Thread-safe.
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

// Lists the requests in flight on a pipe. Any thread.
class under_way_teller {
 public:
  virtual void add_under_way(std::vector<request_info>& to) = 0;

 protected:
  ~under_way_teller() = default;
};

class pipe_staging final : public core::beside_files {
 public:
  explicit pipe_staging(core::runtime& with);
  // Returns the pipe_staging of an engine, created for its first pipe.
  static pipe_staging& of(core::runtime& with);

  // The lanes that move the tensors, and the pinned memory that device tensors pass through.
  [[nodiscard]] staging::lanes& pullers() noexcept { return pullers_; }
  // The lane that maps memory posted by peers. It has its own thread, because mapping may take milliseconds.
  [[nodiscard]] staging::lanes& mapper() noexcept { return mapper_; }
  [[nodiscard]] staging::landing& sending() noexcept { return sending_; }
  [[nodiscard]] staging::landing& receiving() noexcept { return receiving_; }
  // The memory budget shared by all inboxes.
  [[nodiscard]] staging::pinned_budget& inboxes() noexcept { return inboxes_; }

  void rest() override {
    pullers_.rest();
    mapper_.rest();
  }
  std::size_t trim() override { return sending_.trim() + receiving_.trim(); }
  [[nodiscard]] pinned pinned_now() const override;

  // Registers a pipe of the engine until it is removed.
  void add(const std::shared_ptr<under_way_teller>& pipe);
  void remove(under_way_teller& pipe) noexcept;
  void add_under_way(std::vector<request_info>& to) override;

 private:
  staging::landing sending_;
  staging::landing receiving_;
  staging::pinned_budget inboxes_;
  staging::lanes pullers_;  // destroyed before the memory that it works on
  staging::lanes mapper_;
  std::mutex lock_;  // guards the members below
  std::map<const under_way_teller*, std::weak_ptr<under_way_teller>> pipes_;
};

// Returns how long a thread that waits for the peer spins before it sleeps. A message takes only a few microseconds if no thread has to be
// woken.
std::chrono::microseconds pipe_spin(const core::runtime& with) noexcept;

}  // namespace penstock::channel
