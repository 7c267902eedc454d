// Tensors of a message that a device of this process copies from memory that it can reach: the sender's device memory, or bytes within the
// announcement.
#pragma once

#include <memory>
#include <vector>

#include "channel/carrier.hpp"
#include "channel/stream_turn.hpp"
#include "staging/feeder.hpp"

namespace penstock::channel {

class device_copies final : public delivery {
 public:
  // over: the pipe's connection, for polling.
  device_copies(const tools& with, const connection& over, incoming& of) noexcept : with_(with), over_(over), message_(of) {}

  // Adds the part of a tensor that begins at offset. kept: released when all parts have arrived.
  void add(std::size_t tensor, std::uint64_t offset, std::uint64_t bytes, const void* source, std::shared_ptr<const void> kept = nullptr);
  [[nodiscard]] std::uint64_t parts() const noexcept override { return copies_.size(); }
  [[nodiscard]] std::uint64_t parts_on_streams() const noexcept override { return message_.on_streams ? copies_.size() : 0; }
  void start() noexcept override;
  void let_go() noexcept override { copies_.clear(); }

 private:
  struct copy {
    incoming* of = nullptr;
    std::shared_ptr<const void> kept;
    staging::link* via = nullptr;
    device::stream on = nullptr;  // the stream of the target
    staging::copy_task task;
  };
  void put_onto_streams() noexcept;
  void mark_ends() noexcept;

  const tools& with_;
  const connection& over_;
  incoming& message_;
  std::vector<copy> copies_;
  stream_turn passed_;  // reached when the copies on the targets' streams are done
};

}  // namespace penstock::channel
