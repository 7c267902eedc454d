#include "core/request/ahead_call.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "base/no_memory.hpp"
#include "core/request/decide.hpp"
#include "core/request/usage.hpp"

namespace penstock::core {

namespace {

source::read_ahead::call as_call(const transfer& what, const staging::place& place) { return {what.offset, what.length, place.via}; }

}  // namespace

// Reads only a few words of memory, because every read of such a file calls it.
bool ahead_call::suits(runtime& with, const staging::place& place, const io_options& options) {
  const auto forced = with.forced_path(options, true);
  if (forced != path_kind::automatic && forced != with.paths().base(true)) return false;
  const auto prefer = with.preference_of(options);
  return prefer != preference::cpu && (prefer == preference::speed || !with.few_cores() || place.emulated());
}

std::optional<std::string> ahead_call::refuses(runtime& with, file_core& file, const staging::place& place, const io_options& options) {
  if (file.ahead() == nullptr) return "it was not declared immutable";
  if (auto problem = file.ahead()->problem(); !problem.ok()) return std::string(problem.message());
  if (with.preference_of(options) == preference::cpu) return "saving CPU time was requested";
  if (!suits(with, place, options)) return with.few_cores() ? "there are few cores" : "a different path was requested";
  if (with.pinned_pages().holds(file.source())) return "it is pinned";
  if (with.forced_path(options, true) != path_kind::automatic || place.via == nullptr) return std::nullopt;
  const auto* const better = carrier_of_whole(with, file, place, 0, source::read_ahead::piece_bytes, options);
  if (better == nullptr) return std::nullopt;
  return fmt::format("path {} handles it", better->name);
}

ahead_call::ahead_call(runtime& with, const admission& admitted, const io_options& options) : with_(with), options_(options) {
  auto& file = admitted.file();
  if (file.ahead() == nullptr || admitted.what().is_write || !admitted.place().on_device()) return;
  if (!suits(with, admitted.place(), options)) return;
  auto use = file.use();  // a separate use, because the admission's may end before passed()
  if (!use) return;
  use_ = *std::move(use);
  file_ = &file;
  place_ = admitted.place();
  what_ = admitted.what();
}

std::optional<io_result> ahead_call::serve(const admission& admitted) {
  if (file_ == nullptr) return std::nullopt;
  auto& ahead = *file_->ahead();
  const auto call = as_call(what_, place_);
  if (!ahead.begin(call)) return std::nullopt;
  const auto began = now_ns();
  auto outcome = or_without_memory([&] { return copy(what_.length); }, []() -> std::optional<io_result> { return std::nullopt; });
  const bool all = outcome && outcome->ok();
  ahead.end(call, all);
  if (!outcome) return outcome;
  const auto ended = now_ns();
  with_.stats().count_piece(with_.paths().base(true), false, outcome->bytes_done, {began, ended}, !all);
  if (!all) return outcome;
  file_->planned(what_.offset + outcome->bytes_done);
  note_call_use(with_, admitted, outcome->bytes_done, ended - began);
  return outcome;
}

// This thread issues the copies, one per slab that the call touches, and waits for the last one. No copy is running on return, even after a
// failure.
std::optional<io_result> ahead_call::copy(std::uint64_t length) {
  auto& ahead = *file_->ahead();
  auto& session = place_.via->session();
  const auto stream = place_.via->small_stream();
  if (!stream) return std::nullopt;
  const auto size = ahead.size();
  const auto there = std::min(length, size - what_.offset);
  // A short read means the end of the file only if the source confirms it.
  if (there < length && !file_->source().ends_at(size).value_or(false)) return std::nullopt;
  std::uint64_t done = 0;
  status problem;
  while (done < there && problem.ok()) {
    auto part = ahead.part(what_.offset + done, there - done, options_.deadline);
    if (part.length == 0) {
      (void)session.synchronize(*stream);
      if (part.problem.ok()) return std::nullopt;
      return io_result{done, std::move(part.problem)};
    }
    auto* const target = what_.memory + done;
    const bool last = done + part.length == there;
    problem =
        last ? place_.via->copy_little(target, part.data, part.length, *stream) : session.copy(target, part.data, part.length, *stream);
    done += part.length;
  }
  if (problem.ok()) return io_result{done, {}};
  (void)or_no_memory([&] { return session.synchronize(*stream); });
  return std::nullopt;
}

// The bytes have been read, so failures here are ignored.
void ahead_call::passed() noexcept {
  if (file_ == nullptr) return;
  const auto call = as_call(what_, place_);
  if (!file_->ahead()->may_begin(call)) return;
  const bool may = or_without_memory([&] { return !refuses(with_, *file_, place_, options_); }, [] { return false; });
  if (may && with_.ahead().watch().ok()) file_->ahead()->passed(call);
}

}  // namespace penstock::core
