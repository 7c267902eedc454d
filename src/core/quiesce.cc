#include "penstock/quiesce.hpp"

#include <algorithm>
#include <string>
#include <thread>
#include <vector>

#include <fmt/format.h>

#include "base/no_memory.hpp"
#include "core/engine_core.hpp"
#include "core/gate.hpp"
#include "core/resident.hpp"

namespace penstock {

namespace {

using namespace std::chrono_literals;
namespace gate = core::gate;

// A thread that waits at the gate may hold a lock that a callback needs, so each attempt closes the gate only for a limited time.
constexpr std::chrono::milliseconds first_attempt = 50ms;
constexpr std::chrono::milliseconds longest_attempt = 1s;
constexpr std::chrono::milliseconds between_attempts = 5ms;
constexpr std::chrono::microseconds between_looks = 100us;

status find_obstacle() {
  std::string all;
  for (const auto& each : gate::residents()) {
    if (const auto name = each->obstacle(); !name.empty()) all += (all.empty() ? "" : ", ") + name;
  }
  return all.empty() ? status() : status(errc::unsupported, fmt::format("this process cannot be frozen: close {} first", all));
}

status too_late() {
  std::vector<request_info> all;
  for (const auto& each : gate::residents()) {
    auto* const engine = dynamic_cast<core::engine_core*>(each.get());
    if (engine == nullptr) continue;
    const auto more = engine->under_way();
    all.insert(all.end(), more.begin(), more.end());
  }
  if (all.empty() && gate::is_ending()) return {errc::timed_out, "another thread is still closing an engine, a store or a pipe"};
  if (all.empty()) return {errc::timed_out, "calls on other threads are in progress"};
  const auto& one = all.front();
  const auto others = all.size() > 1 ? fmt::format(" and {} more", all.size() - 1) : "";
  return {errc::timed_out, fmt::format("still in flight: {} {} at {} of {}{}", one.is_write ? "write" : "read", one.length, one.offset,
                                       shown_name(one.file), others)};
}

bool becomes_quiet(deadline_clock::time_point until) {
  while (!gate::is_quiet()) {
    if (deadline_clock::now() >= until) return false;
    std::this_thread::sleep_for(between_looks);
  }
  return true;
}

// Another thread may have begun to destroy an object in the meantime, or this loop may have held the last reference to one.
status rest_all(deadline_clock::time_point until) {
  for (const auto& each : gate::residents()) {
    if (auto problem = each->rest(until); !problem.ok()) return problem;
  }
  return becomes_quiet(until) ? status() : too_late();
}

// The gate must be closed. Returns would_block if something was in flight until attempt_ends.
status attempt(deadline_clock::time_point attempt_ends, deadline_clock::time_point until) {
  while (becomes_quiet(attempt_ends)) {
    gate::set(gate::state::shut);
    if (gate::is_quiet()) {
      auto obstacle = find_obstacle();
      return obstacle.ok() ? rest_all(until) : obstacle;
    }
    gate::set(gate::state::closing);  // a thread of the library has started a request in the meantime
  }
  return {errc::would_block, {}};
}

status quiesce_until(deadline_clock::time_point until) {
  if (gate::is_inside()) return {errc::invalid_argument, "a callback, or a signal handler that interrupts a call, would wait for itself"};
  for (auto length = first_attempt;; length = std::min(2 * length, longest_attempt)) {
    if (auto obstacle = find_obstacle(); !obstacle.ok()) return obstacle;
    if (gate::try_close()) {
      const gate::keeper kept;
      auto outcome = or_no_memory([&] { return attempt(std::min(until, deadline_clock::now() + length), until); });
      if (outcome.code() != errc::would_block) return outcome;
    }
    if (deadline_clock::now() >= until) return too_late();
    std::this_thread::sleep_for(between_attempts);
  }
}

}  // namespace

status quiesce(std::chrono::nanoseconds timeout) {
  const auto now = deadline_clock::now();
  const auto most = deadline_clock::time_point::max() - now;
  const auto until = timeout < most ? now + timeout : deadline_clock::time_point::max();
  return or_no_memory([&] { return quiesce_until(until); }).with_context("quiesce");
}

}  // namespace penstock
