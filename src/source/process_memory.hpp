// Another process's memory on this host, addressed by offsets from its start. Read-only. The caller must ensure that the process keeps this
// memory.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>

#include "source/source.hpp"
#include "sys/peer.hpp"

namespace penstock::source {

std::unique_ptr<source> process_memory(std::shared_ptr<sys::peer> door, pid_t process, std::uint64_t address, std::uint64_t length);

}  // namespace penstock::source
