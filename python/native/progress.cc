#include "progress.hpp"

#include <algorithm>
#include <chrono>
#include <deque>

#include "arguments.hpp"
#include "errors.hpp"
#include "gil.hpp"

namespace penstock::python {

namespace {

using namespace std::chrono_literals;

// For a request that reports progress: two pieces of this size are in flight, and one call per piece costs almost nothing.
constexpr std::uint64_t piece_bytes = std::uint64_t{128} << 20;
constexpr std::size_t pieces_under_way = 2;

// A piece in flight. On destruction, cancels it and waits for it before the memory is released.
class piece {
 public:
  piece(const blocking_request& of, std::uint64_t start, std::uint64_t length, const io_options& options) : length_(length) {
    const without_gil unlocked;
    const auto offset = of.offset + static_cast<std::int64_t>(start);
    running_ = of.is_write ? of.target.write_async(of.memory + start, length, offset, options)
                           : of.target.read_async(of.memory + start, length, offset, options);
  }
  piece(const piece&) = delete;
  piece& operator=(const piece&) = delete;
  ~piece() {
    if (ended_) return;
    const without_gil unlocked;
    running_.cancel();
    (void)running_.wait();
  }
  // Raises the exception of a signal handler.
  io_result wait() {
    for (;;) {
      {
        const without_gil unlocked;
        if (running_.wait_for(interrupt_interval)) {
          ended_ = true;
          return running_.wait();
        }
      }
      if (interrupted()) throw nb::python_error();
    }
  }
  [[nodiscard]] std::uint64_t length() const noexcept { return length_; }

 private:
  const std::uint64_t length_;
  operation running_;
  bool ended_ = false;
};

io_result run_plain(const blocking_request& of, const io_options& options) {
  if (of.length > uninterrupted_bytes) return piece(of, 0, of.length, options).wait();
  const without_gil unlocked;
  return of.is_write ? of.target.write(of.memory, of.length, of.offset, options) : of.target.read(of.memory, of.length, of.offset, options);
}

io_result run_in_pieces(const blocking_request& of, const io_options& options, nb::handle tell) {
  std::deque<piece> pieces;
  std::uint64_t begun = 0;
  io_result total;
  while (begun < of.length || !pieces.empty()) {
    while (begun < of.length && pieces.size() < pieces_under_way) {
      const auto length = std::min(piece_bytes, of.length - begun);
      pieces.emplace_back(of, begun, length, options);
      begun += length;
    }
    const auto outcome = pieces.front().wait();
    const bool whole = outcome.ok() && outcome.bytes_done == pieces.front().length();
    pieces.pop_front();
    total.bytes_done += outcome.bytes_done;
    total.error = outcome.error;
    if (outcome.bytes_done > 0) tell(outcome.bytes_done);
    if (!whole) break;  // end of file, or an error
  }
  return total;
}

}  // namespace

io_result run_blocking(const blocking_request& request, const io_options& options, nb::handle progress) {
  if (progress.is_none()) return run_plain(request, options);
  const nb::object update = nb::hasattr(progress, "update") ? nb::object(progress.attr("update")) : nb::borrow(progress);
  if (PyCallable_Check(update.ptr()) == 0) {
    throw nb::type_error(("progress must be a callable, or an object with update(), not " + type_of(progress)).c_str());
  }
  if (request.length == 0) return run_plain(request, options);
  return run_in_pieces(request, options, update);
}

}  // namespace penstock::python
