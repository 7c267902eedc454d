// The channels, each in a file of its own.
#pragma once

#include "channel/channel.hpp"

namespace penstock::channel {

const channel& xth();         // from host memory, between pipes of one process: one copy by the receiver's threads
const channel& cma();         // likewise between processes of one host: the receiver reads the sender's memory (process_vm_readv)
const channel& cuda_xth();    // between devices in one process: one copy by the receiver's device
const channel& cuda_ipc();    // between devices of processes of one host: one copy by the receiver's device
const channel& ucx();         // between host memory of any two hosts, over UCX, where there is RDMA or where it is named
const channel& cuda_gdr();    // likewise from or to memory of GPUs, which the network card reaches by itself (GPUDirect RDMA)
const channel& mpt();         // over several connections between the same ends, from and to memory of any kind
const channel& basic();       // over the pipe's own connection: always
const channel& cuda_basic();  // likewise, from or to memory of devices: always

}  // namespace penstock::channel
