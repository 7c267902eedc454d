// Reactors for connections of which one alone keeps a thread busy. Thread-safe.
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
  // Each in turn; it is started when it is first needed. Errors: those of reactor::make, where there is none yet.
  result<std::shared_ptr<reactor>> next();

 private:
  const std::shared_ptr<sys::peer> door_;
  std::mutex lock_;  // guards what follows
  std::vector<std::shared_ptr<reactor>> made_;
  std::size_t turn_ = 0;
};

}  // namespace penstock::channel
