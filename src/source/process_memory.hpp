// Memory of another process of this host, whose bytes have offsets from its beginning. Read only; of one process, the same memory for as
// long as somebody else vouches for.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>

#include "source/source.hpp"
#include "sys/peer.hpp"

namespace penstock::source {

std::unique_ptr<source> process_memory(std::shared_ptr<sys::peer> door, pid_t process, std::uint64_t address, std::uint64_t length);

}  // namespace penstock::source
