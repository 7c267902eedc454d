// What the cuFile layer needs from the engine beyond the public API. Not for programs: any version may change it.
#pragma once

#include <cstdint>
#include <string>

#include "penstock/status.hpp"

namespace penstock {

struct adopt_options;
class engine;
class file;

namespace detail {

// Options that only cuFile requests use (io_options::cufile).
struct cufile_request {
  // True: a device memory transfer is GPU-direct through NVIDIA's library (the path `direct`), except for the unaligned edges of a write;
  // otherwise it fails with errc::unsupported. Overrides io_options::path. Stream-ordered requests ignore this.
  bool only_gpu_direct = false;
  // True: a write from device memory first waits, on the calling thread, for earlier work on its context's default stream.
  bool after_default_stream = false;
};

// Like engine::adopt(). If not_direct is not empty, the file is never GPU-direct, and messages give this clause as the reason.
PENSTOCK_API result<file> adopt(const engine& by, int descriptor, const adopt_options& options, const std::string& not_direct);

// Waits until the preparation that engine::prepare() started is complete, so that the CUDA context can be destroyed. Blocks for a few
// milliseconds.
PENSTOCK_API void await_preparation(const engine& of) noexcept;

enum class noted_call : std::uint8_t { handle_register = 0, buffer_register, batch_submit };
// Counts a call, in engine::stats().usage.
PENSTOCK_API void note_call(const engine& in, noted_call what, bool ok) noexcept;

}  // namespace detail
}  // namespace penstock
