// penstock top: shows the activity of running processes live.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "cli/common/command.hpp"
#include "cli/common/interrupt.hpp"
#include "cli/common/json.hpp"
#include "cli/common/say.hpp"
#include "cli/common/usage.hpp"
#include "cli/watch/observed.hpp"
#include "cli/watch/screen.hpp"
#include "cli/watch/top_view.hpp"

namespace penstock::cli {
namespace {

using steady = std::chrono::steady_clock;

struct top_options {
  double interval_seconds = 1;
  std::vector<int> pids;  // empty: all
  unsigned count = 0;     // 0: until the user quits
  bool once = false;
  output_options output;
};

// Keeps two consecutive snapshots.
class watch {
 public:
  explicit watch(std::vector<int> pids) : pids_(std::move(pids)) {}

  void look() {
    auto now = observe_processes(true);
    const auto is_wanted = [&](const process_stats& each) { return std::find(pids_.begin(), pids_.end(), each.pid) != pids_.end(); };
    if (!pids_.empty()) std::erase_if(now.processes, std::not_fn(is_wanted));
    const auto at = steady::now();
    seen_ = speeds_between(before_, now, std::chrono::duration<double>(at - at_).count());
    histories_.add(seen_);
    before_ = std::move(now);
    at_ = at;
  }
  [[nodiscard]] std::vector<process_speed>& seen() { return seen_; }
  [[nodiscard]] const std::vector<status>& problems() const { return before_.problems; }

 private:
  const std::vector<int> pids_;
  process_list before_;
  steady::time_point at_ = steady::now();
  std::vector<process_speed> seen_;
  speed_histories histories_;
};

// Returns false after an interrupt.
bool sleep_until(steady::time_point when) {
  while (!interrupted() && steady::now() < when) {
    std::this_thread::sleep_for(std::min<steady::duration>(when - steady::now(), std::chrono::milliseconds(100)));
  }
  return !interrupted();
}

int print_looks(const top_options& wanted) {
  const auto interval = std::chrono::duration_cast<steady::duration>(std::chrono::duration<double>(wanted.interval_seconds));
  watch over(wanted.pids);
  over.look();
  for (unsigned i = 0; wanted.count == 0 || i < wanted.count; ++i) {
    if (!sleep_until(steady::now() + interval)) return interrupted_exit_code();
    over.look();
    sort_by(over.seen(), top_order::speed);
    if (wanted.output.json) {
      auto documents = nlohmann::json::array();
      for (const auto& each : over.seen()) documents.push_back(to_json(each));
      print_json(documents);
      continue;
    }
    for (const auto& line : top_table(over.seen(), !wanted.pids.empty())) say_hanging(4, "{}\n", line);
    for (const auto& each : over.problems()) (void)fail(each);
  }
  return exit_success;
}

void select(top_screen& view, const std::vector<process_speed>& seen, int step) {
  const auto shown = shown_of(seen, view);
  if (shown.empty()) return;
  const auto at = std::ranges::find_if(shown, [&](const process_speed* each) { return each->now.pid == view.selected_pid; });
  const auto last = static_cast<std::ptrdiff_t>(shown.size()) - 1;
  const auto index = at == shown.end() ? 0 : std::clamp<std::ptrdiff_t>(at - shown.begin() + step, 0, last);
  view.selected_pid = shown[static_cast<std::size_t>(index)]->now.pid;
  view.is_chosen = true;
}

// Returns false to quit.
bool obey(screen::pressed key, top_screen& view, std::vector<process_speed>& seen) {
  using what = screen::key;
  if (key.what == what::end || (key.what == what::other && key.letter == 'q')) return false;
  if (key.what == what::enter) view.shows_requests = !view.shows_requests;
  if (key.what == what::down || key.letter == 'j') select(view, seen, 1);
  if (key.what == what::up || key.letter == 'k') select(view, seen, -1);
  if (key.letter == 'p') view.paused = !view.paused;
  if (key.letter == 'd') view.shows_ended = !view.shows_ended;
  if (key.letter == 's') {
    view.order = view.order == top_order::oldest ? top_order::speed : static_cast<top_order>(static_cast<int>(view.order) + 1);
    sort_by(seen, view.order);
  }
  return true;
}

int show_screen(const top_options& wanted) {
  const auto interval = std::chrono::duration_cast<steady::duration>(std::chrono::duration<double>(wanted.interval_seconds));
  top_screen view;
  view.of_those_named = !wanted.pids.empty();
  view.has_blocks = is_utf8_locale();
  watch over(wanted.pids);
  const screen on;
  for (auto next = steady::now(); !interrupted();) {
    if (const auto now = steady::now(); now >= next) {
      if (!view.paused) over.look();
      sort_by(over.seen(), view.order);
      next = now + interval;
    }
    view.selected_pid = selected_of(over.seen(), view);
    view.columns = on.columns();
    view.rows = on.rows();
    on.show(top_lines(over.seen(), over.problems(), view));
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(next - steady::now());
    if (!obey(screen::wait_for_key(std::max(left, std::chrono::milliseconds(0))), view, over.seen())) return exit_success;
  }
  return interrupted_exit_code();
}

}  // namespace

void add_top(CLI::App& app, command& chosen) {
  auto wanted = std::make_shared<top_options>();
  CLI::App& sub = *app.add_subcommand("top", "Watch the speeds of running processes, with their history; plain lines in a pipe");
  sub.add_option("--interval", wanted->interval_seconds, "Time between two measurements (default 1)")
      ->check(number_of_seconds(0.05, 3600))
      ->type_name("SECONDS");
  sub.add_option("-p,--pid", wanted->pids, "Processes to show (default: all of this user's)")
      ->check(whole_number(1, 1 << 30))
      ->type_name("PID,...")
      ->delimiter(',');
  auto* once = sub.add_flag("--once", wanted->once, "Print the lines once and exit");
  sub.add_option("--count", wanted->count, "Print the lines this many times and exit")->check(whole_number(1, 1000000))->excludes(once);
  add_output_options(sub, wanted->output);
  sub.get_option("--json")->description("Print JSON, one document per measurement");
  sub.callback([wanted, &chosen] {
    chosen.run = [wanted] {
      if (wanted->once) wanted->count = 1;
      const bool lines = wanted->output.json || wanted->count > 0 || !screen::possible();
      return lines ? print_looks(*wanted) : show_screen(*wanted);
    };
  });
}

}  // namespace penstock::cli
