// The channels, each in a file of its own.
#pragma once

#include "channel/channel.hpp"

namespace penstock::channel {

const channel& xth();    // between pipes of one process: one copy by the receiver's threads
const channel& cma();    // between processes of one host: the receiver reads the sender's memory (process_vm_readv)
const channel& basic();  // over the pipe's own connection: always

}  // namespace penstock::channel
