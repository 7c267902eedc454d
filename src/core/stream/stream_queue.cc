#include "core/stream/stream_queue.hpp"

#include <fmt/format.h>

#include "base/no_memory.hpp"
#include "core/mount.hpp"
#include "core/request/blocking.hpp"
#include "core/stream/stream_operation.hpp"

namespace penstock::core {

namespace {

// Checks the engine's options, because a stream-ordered request has none.
status check_path(const runtime& with) {
  const auto forced = with.forced_path({}, true);
  if (forced == path_kind::automatic || forced == with.paths().base(true)) return {};
  return {errc::unsupported, fmt::format("path {} was requested, but stream-ordered requests are always staged", to_string(forced))};
}

// Runs the request on the calling thread once the stream is idle. is_told: ended has been called, and only the bytes are missing.
status run_now(runtime& with, file_core& file, const stream_request& what, bool is_write, bool is_told) {
  const std::int64_t skip = memory_offset_of(what);
  io_result outcome;
  if (skip < 0) {
    outcome.error = {errc::invalid_argument, "negative memory offset"};
  } else {
    outcome = run(with, file,
                  {static_cast<std::byte*>(what.memory) + skip, *what.length, static_cast<std::uint64_t>(*what.offset), is_write}, {});
  }
  if (is_told) return outcome.error;
  const std::int64_t count = outcome.ok() ? static_cast<std::int64_t>(outcome.bytes_done) : -1;
  if (what.bytes_done != nullptr) {
    if (auto told = with.memory().copy(what.bytes_done, &count, sizeof(count)); !told.ok()) return told;
  }
  if (what.ended) what.ended(outcome);
  return {};
}

}  // namespace

status queue_on_stream(const std::shared_ptr<runtime>& with, const std::shared_ptr<file_core>& file, const stream_request& what,
                       bool is_write) {
  if (what.memory == nullptr) return {errc::bad_memory, "null pointer"};
  if (what.length == nullptr || what.offset == nullptr) return {errc::invalid_argument, "length and offset pointers must not be null"};
  if (with->forked()) return {errc::forked, "the engine belongs to the parent process"};
  seen_allocation seen;
  const auto place = with->memory().place_of(what.memory, 1, &seen);
  if (!place) return place.error();
  if (!place->on_device()) return {errc::unsupported, "a stream-ordered request needs memory on the stream's device"};
  if (auto problem = check_path(*with); !problem.ok()) return problem;
  if (auto problem = file->mount().lanes().ready(); !problem.ok()) return problem;
  if (auto problem = file->mount().stream_lanes().ready(); !problem.ok()) return problem;
  admission admitted;  // its range is known when the stream reaches it
  constexpr auto not_known = ~std::uint64_t{0};
  if (auto refused = admitted.enter(*with, *file, {nullptr, *what.length, not_known, is_write}, file); !refused.ok()) return refused;
  admitted.place_at(*place);
  admitted.decide({}, asker::stream);
  (void)file->source().descriptors();  // opens them now, while the stream is not blocked

  if (file->is_limited()) file->charge(*what.length);

  auto* made = new stream_operation(with, std::move(admitted), what);
  auto outcome = or_no_memory([&] {
    made->show_as(with->shown_range(is_write ? "stream write" : "stream read", *what.length, file->name()));
    return made->prepare(*place, seen);
  });
  if (outcome.ok()) outcome = or_no_memory([&] { return made->put_onto(place->via->session()); });
  const auto left = outcome.ok() ? stream_operation::given_up{} : made->give_up(place->via->session());
  made->release();
  if (left.is_told && !left.lacks_bytes) return {};  // ended has reported the result
  // As a last resort, the host waits, to preserve the order.
  if (!outcome.ok() && left.has_passed) {
    with->stats().count_fallback(with->paths().base(true), outcome.message());
    outcome = or_no_memory([&] { return run_now(*with, *file, what, is_write, left.is_told); });
  }
  return outcome.ok() ? outcome : outcome.with_context("stream-ordered request");
}

}  // namespace penstock::core
