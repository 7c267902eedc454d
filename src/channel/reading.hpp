// The carrier for tensors that this process reads from the sender's host memory (process_vm_readv). Pipe threads read into host memory;
// engine requests read into device memory.
#pragma once

#include <memory>

#include "channel/carrier.hpp"

namespace penstock::channel {

class reading final : public carrier {
 public:
  using carrier::carrier;
  std::optional<std::string> take(incoming& message, std::size_t tensor) override;
  delivery& delivery_of(incoming& message) override;

 private:
  class arriving;
  arriving& arriving_of(incoming& message);
};

}  // namespace penstock::channel
