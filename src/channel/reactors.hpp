// Additional reactors for connections that keep a whole thread busy. Thread-safe.
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <vector>

#include "channel/reactor.hpp"
#include "penstock/status.hpp"
#include "sys/peer.hpp"

namespace penstock::channel {

class reactors {
 public:
  explicit reactors(std::shared_ptr<sys::peer> door) : door_(std::move(door)) {}
  // Returns the reactors round-robin, each started on first use. Errors: those of reactor::make, if none has started yet.
  result<std::shared_ptr<reactor>> next();

 private:
  const std::shared_ptr<sys::peer> door_;
  std::mutex lock_;  // guards the members below
  std::vector<std::shared_ptr<reactor>> made_;
  std::size_t turn_ = 0;
};

}  // namespace penstock::channel
