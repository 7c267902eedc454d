// Running one operation to its end, or to the user's interrupt. One thread.
#pragma once

#include <cstdint>
#include <string>

#include "cli/progress.hpp"
#include "penstock/penstock.hpp"

namespace penstock::cli {

// The device of that name, or the engine's first for an empty name. Errors: not_found, naming the devices there are.
result<device_info> choose_device(const engine& owner, const std::string& name);

// "cuda:0 (NVIDIA H200)".
std::string describe_device(const device_info& device);
// One line that says why there is no GPU among the devices; empty when there is one.
std::string why_no_gpu(const engine& owner);

// Waits for the operation, moves the bar on from first_byte, and cancels the operation upon an interrupt.
io_result finish(operation work, const engine& owner, progress_bar& bar, std::uint64_t first_byte);

// The largest piece of a file of this length that one transfer should move: all of it where the device has the memory, else 1 GiB.
std::uint64_t piece_for(const device_info& device, std::uint64_t length);
// Device memory for pieces of up to piece bytes; piece is cut to 1 GiB, then 64 MiB, where the device has too little free.
result<device_buffer> allocate_piece(const engine& owner, const device_info& device, std::uint64_t& piece);

}  // namespace penstock::cli
