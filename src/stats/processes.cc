#include "stats/processes.hpp"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include "penstock/version.hpp"
#include "stats/advisor.hpp"
#include "stats/book.hpp"
#include "sys/process_identity.hpp"

namespace penstock::stats {

namespace {

using board_layout::page;
std::string version_of(const board_layout::head& head) {
  std::string text(head.penstock_version.data(), strnlen(head.penstock_version.data(), head.penstock_version.size()));
  const auto odd = [](char each) { return each < 0x20 || each > 0x7e; };
  std::replace_if(text.begin(), text.end(), odd, '?');
  return text;
}

// Reads the head of a board of any version.
result<board_layout::head> head_of(sys::board_folder& folder, int pid) {
  std::array<std::byte, sizeof(board_layout::head)> bytes{};
  const auto count = folder.read_start(pid, bytes);
  if (!count) return count.error();
  board_layout::head head;
  std::memcpy(static_cast<void*>(&head), bytes.data(), sizeof head);
  if (*count < sizeof head || head.magic != board_layout::magic || head.pid != pid)
    return status(errc::invalid_argument, fmt::format("{}/{} is not a Penstock board", folder.name(), pid));
  return head;
}

status known_layout(const board_layout::head& head) {
  if (head.version == board_layout::layout_version && head.size_bytes == sizeof(page)) return {};
  return {errc::unsupported, fmt::format("process {} runs Penstock {}, whose counters (layout {}, {} bytes) this version, {}, cannot read",
                                         head.pid, version_of(head), head.version, head.size_bytes, version())};
}

// Returns true if no engine's counters were being moved between two copies.
bool same_moment(const page& first, const page& second) {
  const auto before = first.changes.load(relaxed);
  return (before & 1) == 0 && before == second.changes.load(relaxed);
}

template <std::size_t Size>
void drop_unless_same(shared_text<Size>& text, const shared_text<Size>& before, const shared_text<Size>& after) {
  const auto changes = text.changes.load(relaxed);
  if ((changes & 1) == 0 && before.changes.load(relaxed) == changes && after.changes.load(relaxed) == changes) return;
  for (auto& word : text.words) word.store(0, relaxed);
}

// Makes three copies in a row. Data that is equal in the first and the last was complete in the middle one.
result<std::unique_ptr<page>> copy_of(sys::board_folder& folder, int pid) {
  constexpr int most_tries = 20;
  std::array<std::unique_ptr<page>, 3> copies{std::make_unique<page>(), std::make_unique<page>(), std::make_unique<page>()};
  for (int tries = 0;; ++tries) {
    for (auto& each : copies) {
      if (auto problem = folder.read(pid, {reinterpret_cast<std::byte*>(each.get()), sizeof(page)}); !problem.ok()) return problem;
    }
    if (same_moment(*copies[0], *copies[2]) || tries == most_tries) break;
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
  auto& [before, seen, after] = copies;
  drop_unless_same(seen->program, before->program, after->program);
  for (std::size_t i = 0; i < seen->engines.size(); ++i) {
    for (std::size_t j = 0; j < seen->engines[i].paths.size(); ++j) {
      auto& path = seen->engines[i].paths[j];
      drop_unless_same(path.last_fallback, before->engines[i].paths[j].last_fallback, after->engines[i].paths[j].last_fallback);
    }
  }
  for (std::size_t i = 0; i < seen->engines.size(); ++i) {
    for (std::size_t j = 0; j < seen->engines[i].channels.size(); ++j) {
      auto& channel = seen->engines[i].channels[j];
      drop_unless_same(channel.name, before->engines[i].channels[j].name, after->engines[i].channels[j].name);
    }
  }
  for (std::size_t i = 0; i < seen->requests.size(); ++i) {
    drop_unless_same(seen->requests[i].file, before->requests[i].file, after->requests[i].file);
    drop_unless_same(seen->requests[i].device, before->requests[i].device, after->requests[i].device);
  }
  return std::move(seen);
}

std::vector<request_info> requests_of(const page& seen) {
  std::vector<request_info> told;
  const auto count = std::min<std::size_t>(seen.request_count.load(relaxed), seen.requests.size());
  for (std::size_t i = 0; i < count; ++i) {
    const auto& line = seen.requests[i];
    told.push_back({line.file.get(), static_cast<std::int64_t>(line.offset.load(relaxed)), line.length.load(relaxed),
                    line.is_write.load(relaxed) != 0, line.device.get(), static_cast<std::int64_t>(line.since_ns.load(relaxed)),
                    line.of_pipe.load(relaxed) != 0,
                    line.is_background.load(relaxed) != 0 ? request_priority::background : request_priority::normal});
  }
  return told;
}

process_stats tell(const page& seen) {
  process_stats told;
  told.pid = seen.head.pid;
  told.program = seen.program.get();
  told.penstock_version = version_of(seen.head);
  for (const auto& engine : seen.engines) add_section(told.stats, engine);
  told.stats.usage.copy_ns_per_mib = measured_copy_ns_per_mib();
  return told;
}

enum class state : std::uint8_t { runs, gone, elsewhere };

state state_of(const board_layout::head& head) {
  const auto self = sys::identify_own_process();
  if (self && head.namespace_inode != self->namespace_inode) return state::elsewhere;
  const auto now = sys::identify_process(head.pid);
  if (now) return now->start_ticks == head.start_ticks ? state::runs : state::gone;
  return now.error().code() == errc::not_found ? state::gone : state::runs;
}

// The program name as the process's board would show it.
std::string shown_name(int pid) {
  decltype(page::program) text;
  text.set(sys::program_name(pid));
  return text.get();
}

// Returns true if no process is left that could use the file with this number, whatever it contains.
bool is_left_behind(sys::board_folder& folder, int pid) {
  if (const auto head = head_of(folder, pid)) return state_of(*head) == state::gone;
  return sys::identify_process(pid).error().code() == errc::not_found;
}

// Returns why a process has no board.
status without_board(sys::board_folder& folder, int pid) {
  const auto owner = sys::owner_of_process(pid);
  if (!owner) return owner.error();
  if (*owner != geteuid())
    return {errc::permission_denied, fmt::format("process {} belongs to user {}, and only that user can inspect it", pid, *owner)};
  if (const auto usable = folder.list(); !usable) return usable.error();
  return {errc::not_found,
          fmt::format("process {} ({}) does not use Penstock: it has made no request yet, was started with PENSTOCK_STATS=0, or "
                      "cannot create files in /dev/shm (run `penstock check` in its environment to find out)",
                      pid, sys::program_name(pid))};
}

// patience: how long to wait for an answer; reduced if there is none.
result<process_stats> observe_within(sys::board_folder& folder, int pid, bool with_requests, std::chrono::milliseconds& patience) {
  const auto head = head_of(folder, pid);
  if (!head) return head.error().code() == errc::not_found ? without_board(folder, pid) : head.error();
  auto now = state_of(*head);
  if (now == state::elsewhere) return status(errc::permission_denied, fmt::format("process {} is in another PID namespace", pid));
  if (now == state::gone) folder.note_gone(pid);
  if (auto problem = known_layout(*head); !problem.ok()) return problem;
  const auto most = std::clamp(patience, least_answer_time, answer_time);
  const bool answers = with_requests && now == state::runs && folder.ask(pid, offsetof(page, asked), offsetof(page, answered), most).ok();
  if (with_requests && now == state::runs && !answers) patience -= std::min(patience, most);
  const auto seen = copy_of(folder, pid);
  if (!seen) return seen.error();
  if (auto problem = known_layout((*seen)->head); !problem.ok()) return problem;
  // After exec(), a process keeps its PID and start time but not its board. This is checked only if something looks different.
  const bool looks_other = (with_requests && !answers) || (*seen)->program.get() != shown_name(pid);
  if (now == state::runs && looks_other && !folder.is_mapped_by(pid)) now = state::gone;
  auto told = tell(**seen);
  told.pid = pid;
  told.ended = now == state::gone;
  if (answers) {
    told.requests = requests_of(**seen);
    told.requests_not_shown = (*seen)->requests_not_shown.load(relaxed);
  }
  return told;
}

}  // namespace

result<process_stats> observe_process(sys::board_folder& folder, int pid, bool with_requests) {
  auto patience = answer_time;
  return observe_within(folder, pid, with_requests, patience);
}

process_list observe_processes(sys::board_folder& folder, bool with_requests) {
  process_list all;
  const auto listed = folder.list();
  if (!listed) {
    all.problems.push_back(listed.error());
    return all;
  }
  std::vector<int> gone;
  auto patience = all_answers_time;
  for (const int pid : *listed) {
    auto seen = observe_within(folder, pid, with_requests, patience);
    if (seen) {
      if (seen->ended) gone.push_back(pid);
      all.processes.push_back(*std::move(seen));
    } else if (seen.error().code() != errc::not_found) {
      if (is_left_behind(folder, pid)) {  // it is unreadable and its process has exited
        folder.note_gone(pid);
        gone.push_back(pid);
      } else {
        all.problems.push_back(seen.error());
      }
    }
  }
  folder.tidy(gone);
  return all;
}

}  // namespace penstock::stats

namespace penstock {

result<process_stats> observe_process(int pid, bool with_requests) {
  return stats::observe_process(*sys::make_board_folder(), pid, with_requests);
}

process_list observe_processes(bool with_requests) { return stats::observe_processes(*sys::make_board_folder(), with_requests); }

}  // namespace penstock
