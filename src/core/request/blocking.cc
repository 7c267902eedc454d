#include "core/request/blocking.hpp"

#include <algorithm>
#include <chrono>
#include <functional>
#include <utility>

#include "base/no_memory.hpp"
#include "core/mount.hpp"
#include "core/request/ahead_call.hpp"
#include "core/request/request.hpp"
#include "core/request/usage.hpp"

namespace penstock::core {

namespace {

using namespace std::chrono_literals;

// Calls up to this length are split across lanes that are still awake, and the caller helps.
constexpr std::uint64_t helped_request_bytes = std::uint64_t{16} << 20;
constexpr std::uint64_t spun_request_bytes = std::uint64_t{64} << 20;

// Counts a request in flight.
struct in_use {
  std::atomic<unsigned>* count;
  explicit in_use(std::atomic<unsigned>* counter) : count(counter) {
    if (count != nullptr) count->fetch_add(1);
  }
  in_use(const in_use&) = delete;
  in_use& operator=(const in_use&) = delete;
  ~in_use() {
    if (count != nullptr) count->fetch_sub(1);
  }
};

// Continues a request that the caller's path has not completed.
io_result go_on_by_base(runtime& with, path_kind left, path::small_transfer rest, io_result so_far) {
  with.stats().count_fallback(left, so_far.error.message());
  const auto began = now_ns();
  auto& base = with.path(with.paths().base(true));
  rest.memory += so_far.bytes_done;
  rest.offset += so_far.bytes_done;
  rest.length -= so_far.bytes_done;
  auto outcome = base.carry_now(rest);
  if (!outcome.ok()) outcome.error = outcome.error.with_context(base.name());
  with.stats().count_piece(base.kind(), rest.is_write, outcome.bytes_done, {began, now_ns()}, !outcome.ok());
  outcome.bytes_done += so_far.bytes_done;
  outcome.direct_bytes = so_far.bytes_done;
  return outcome;
}

io_result run_now(runtime& with, const admission& admitted, const io_options& options) {
  const staging::going_first first(admitted.file().mount().right_of_way());
  const auto began = now_ns();
  const auto& what = admitted.what();
  auto& path = with.path(admitted.route().path);
  const std::function<void(const status&)> did_without = [&](const status& why) {
    with.stats().count_fallback(path.kind(), why.message());
  };
  const bool spares = spares_cache(admitted.file(), what.is_write, what.length, admitted.route().cache);
  path::small_transfer all{&admitted.file().source(),
                           &admitted.place(),
                           what.memory,
                           what.offset,
                           what.length,
                           what.is_write,
                           admitted.route().cache,
                           spares,
                           &admitted.file().mount().lanes(),
                           options.deadline,
                           &did_without};
  auto outcome = path.carry_now(all);
  if (path.declared().gpu_direct) outcome.direct_bytes = outcome.bytes_done;
  const bool goes_on = !outcome.ok() && path.declared().gpu_direct && !with.forced(options);
  if (!outcome.ok()) outcome.error = outcome.error.with_context(path.name());
  const auto ended = now_ns();
  with.stats().count_piece(path.kind(), what.is_write, outcome.bytes_done, {began, ended}, !outcome.ok() && !goes_on);
  if (goes_on) return go_on_by_base(with, path.kind(), all, std::move(outcome));
  const auto stays_out = [&] { return or_no_memory([&] { return admitted.file().source().uncached_problem(); }).ok(); };
  if (spares && stays_out()) with.stats().count_uncached(outcome.bytes_done);
  if (outcome.ok()) note_call_use(with, admitted, outcome.bytes_done, ended - began);
  return outcome;
}

bool is_slow(const planned_piece& piece) { return path::is_slow(piece.way); }

io_result run_pieces(runtime& with, admission& admitted, const io_options& options) {
  const auto what = admitted.what();
  const bool on_device = admitted.place().on_device();
  const bool background = options.priority == request_priority::background;
  const bool limited = admitted.file().is_limited();
  // If many callers use a device, each reads its own slabs, because splitting would only make the copies smaller.
  const in_use counted(on_device ? &with.blocking() : nullptr);
  const unsigned active = with.blocking().load();
  const unsigned lanes = with.lane_count(options);
  const bool crowded = on_device && !what.is_write && active > 2 && active + lanes > with.cores() + with.cores() / 4;
  const timed_ref op(*new request(with.shared_from_this(), std::move(admitted), options));
  auto planned = or_no_memory([&] { return op->plan({crowded || background ? 1 : lanes, active > 2}); });
  const auto pieces = op->pieces();
  // Disks and remote sources are slow, so the thread should sleep during long waits.
  const bool soon_over = what.length <= spun_request_bytes && planned.ok() && std::none_of(pieces.begin(), pieces.end(), &is_slow);
  if (!planned.ok()) {
    op->fail(std::move(planned));
  } else {
    const auto carries = [&](const planned_piece& piece) { return with.paths().of(piece.path).carries; };
    const auto on_caller = [&](const planned_piece& piece) { return carries(piece) == path::portion::everything && !is_slow(piece); };
    const bool alone = !background && !limited &&
                       ((crowded && std::all_of(pieces.begin(), pieces.end(), on_caller)) ||
                        (pieces.size() == 1 && carries(pieces.front()) == path::portion::cached_ranges));
    op->start(alone);
    if (!alone && !background && what.length <= helped_request_bytes) op->help();
  }
  op->wait(soon_over && !background && !limited && with.cores() > 2 ? 2000us : 0us);
  return op->outcome();
}

io_result run_on_caller(runtime& with, admission& admitted, const io_options& options) {
  admitted.list();
  return or_without_memory([&] { return run_now(with, admitted, options); }, [] { return io_result{0, no_memory()}; });
}

// Serves a read of a file that was declared immutable.
io_result run_ahead(runtime& with, admission& admitted, const io_options& options) {
  admitted.list();
  ahead_call ahead(with, admitted, options);
  if (auto served = ahead.serve(admitted)) {
    admitted.count(*served);
    return *std::move(served);
  }
  io_result outcome;
  if (admitted.route().by == carrier::caller) {
    outcome = run_on_caller(with, admitted, options);
    admitted.count(outcome);
  } else {
    outcome = run_pieces(with, admitted, options);
  }
  if (outcome.ok()) ahead.passed();
  return outcome;
}

}  // namespace

io_result run(runtime& with, file_core& file, const transfer& what, const io_options& options) {
  const auto shown = with.shown_range(what.is_write ? "write" : "read", what.length, file.name());
  admission admitted;
  io_result outcome;
  outcome.error = or_no_memory([&] { return admitted.admit(with, file, what, options, asker::waits); });
  if (outcome.ok() && what.length > 0) {
    if (!what.is_write && file.answers_late() && file.asked_cache(options) != cache_use::bypass) file.fetch_ahead(what.offset, what.length);
    if (file.ahead() != nullptr && options.priority == request_priority::normal) return run_ahead(with, admitted, options);
    if (admitted.route().by == carrier::lanes || (file.is_limited() && !file.try_pass(what.length)))
      return run_pieces(with, admitted, options);
    outcome = run_on_caller(with, admitted, options);
  }
  admitted.count(outcome);
  return outcome;
}

}  // namespace penstock::core
