#include "remote/net/network.hpp"

#include <sys/resource.h>

#include <algorithm>
#include <new>
#include <utility>

#include <fmt/format.h>

#include "base/no_memory.hpp"
#include "remote/net/reactor.hpp"

namespace penstock::source::remote {

namespace {

using namespace std::chrono_literals;

constexpr unsigned dialer_threads = 32;
constexpr auto put_off_for = 100ms;
constexpr auto most_refusals = 60s;  // then each refusal counts as a failed attempt
constexpr auto most_put_off = 70s;   // a program that provides credentials may take 60 s
constexpr double tokens_of_a_retry = 5;
constexpr double tokens_of_a_success = 1;
constexpr double hedges_of_a_success = 0.02;
constexpr double most_hedges_kept = 4;
constexpr auto longest_sleep = 100ms;
constexpr std::size_t most_origins_kept = 64;  // beyond this, unused ones are dropped

constexpr unsigned least_of_each = 4;  // connections to each server, however many there are to others

// Returns the limit on connections to all servers. Each connection through libcurl may use three descriptors.
std::size_t connections_in_all() noexcept {
  constexpr rlim_t share = 8;
  rlimit limit{};
  const bool is_limited = ::getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
  return is_limited ? static_cast<std::size_t>(limit.rlim_cur / share) : ~std::size_t{0};
}

network_settings within_descriptors(network_settings made) {
  made.most_connections = static_cast<unsigned>(std::min<std::size_t>(made.most_connections, connections_in_all()));
  return made;
}

verdict refused(status why) { return {.then = verdict::kind::refused, .error = std::move(why)}; }

}  // namespace

// --- connecting

struct network::dial final : staging::work {
  dial(network& with, std::shared_ptr<origin> whom) : by(with), to(std::move(whom)) {}
  bool run() override {
    auto made = or_no_memory([&]() -> result<std::unique_ptr<sys::web_connection>> {
      auto with = by.door();
      if (!with) return with.error();
      return (*with)->connect(to->address(), by.settings_.connect_within, by.stop_of_dials(*to));
    });
    by.dialled(to, std::move(made));
    delete this;
    return true;
  }
  network& by;
  const std::shared_ptr<origin> to;
};

struct network::errand final : staging::work {
  explicit errand(std::function<void()> what) : run_(std::move(what)) {}
  bool run() override {
    run_();
    delete this;
    return true;
  }
  const std::function<void()> run_;
};

bool network::aside(std::function<void()> what) {
  auto made = std::make_unique<errand>(std::move(what));
  if (!dialers_.push(dials_, *made).ok()) return false;
  (void)made.release();
  return true;
}

network::network(const network_settings& with)
    : settings_(within_descriptors(with)),
      most_in_all_(connections_in_all()),
      own_(with),
      stop_(with.stop_requested),
      drawn_(std::random_device{}()),
      dialers_(staging::lanes::crew{dialer_threads}, 0us, nullptr, "penstock-c") {}

std::shared_ptr<network> network::make(const network_settings& with) { return std::shared_ptr<network>(new network(with)); }

network::~network() {
  stop_.stop();
  end_.stop();
}

std::size_t network::in_flight() const noexcept {
  auto count = waiting_.size();
  for (const auto& [name, each] : origins_) count += each->queue_.size() + each->carried_ + each->dialing_;
  return count;
}

status network::rest(clock::time_point until) {
  std::vector<std::unique_ptr<reactor>> ended;
  for (;; std::this_thread::sleep_for(1ms)) {
    dialers_.rest();
    const std::lock_guard guard(lock_);
    const auto count = in_flight();
    if (count > 0 && clock::now() >= until) return {errc::timed_out, fmt::format("{} requests to servers are in flight", count)};
    if (count > 0) continue;
    ended.swap(reactors_);
    break;
  }
  ended.clear();  // their threads may need the lock
  {
    const std::lock_guard guard(opening_);
    door_ = nullptr;  // keeps connections for short requests
  }
  const std::lock_guard guard(lock_);
  for (const auto& [name, each] : origins_) {
    each->idle_.clear();
    in_all_ -= std::exchange(each->lines_, 0);
  }
  return {};
}

result<std::shared_ptr<sys::web_door>> network::door() {
  const std::lock_guard guard(opening_);
  if (door_ == nullptr) {
    auto opened = sys::web_door::open(settings_.door);
    if (!opened) return opened.error();
    door_ = *std::move(opened);
  }
  return door_;
}

result<std::string> network::library_version() {
  auto with = door();
  if (!with) return with.error();
  return (*with)->version();
}

result<sys::web_answer> network::exchange(const sys::web_request& what, const std::function<bool()>& stopped) {
  auto with = door();
  if (!with) return with.error();
  tell_of(network_listener::event::request);
  const sys::web_stop either(stop_, stopped);
  auto asked = what;
  asked.unless = &either;
  return (*with)->exchange(asked);
}

void network::tell_of(network_listener::event what) noexcept {
  if (settings_.told != nullptr) settings_.told->happened(what);
}

void network::sent() noexcept {
  requests_.fetch_add(1, std::memory_order_relaxed);
  tell_of(network_listener::event::request);
}

void network::received(const line& over, std::uint64_t bytes) noexcept {
  if (settings_.told != nullptr) settings_.told->received(bytes, over.over_tls());
}

void network::tls_bound(clock::time_point from, clock::time_point until) noexcept {
  if (settings_.told != nullptr) settings_.told->tls_bound(from, until);
}

bool network::pause(const patience& how, remote_retry what, std::chrono::milliseconds asked_for) {
  unsigned drawn = 0;
  {
    const std::lock_guard guard(lock_);
    drawn = static_cast<unsigned>(drawn_());
  }
  what.pause = how.pause_after(what.attempt, drawn, asked_for);
  what.attempts = how.attempts;
  how.tell(what);
  tell_of(network_listener::event::retry);
  const auto until = clock::now() + what.pause;
  const sys::web_stop either(stop_, how.stop_requested);
  while (!either.stopped() && clock::now() < until)
    std::this_thread::sleep_for(std::min<clock::duration>(until - clock::now(), longest_sleep));
  return !either.stopped();
}

std::shared_ptr<origin> network::origin_of(const url& at) {
  auto made = std::make_shared<origin>(at, settings_);
  const std::lock_guard guard(lock_);
  if (origins_.size() >= most_origins_kept) std::erase_if(origins_, [](const auto& each) { return each.second.use_count() == 1; });
  return origins_.try_emplace(made->address(), made).first->second;
}

void network::meet(const url& at, clock::duration latency) {
  const auto to = origin_of(at);
  const std::lock_guard guard(lock_);
  to->pace_.meet(latency);
}

void network::look_at(const std::shared_ptr<origin>& of) noexcept {
  unsigned more = 0;
  {
    const std::lock_guard guard(lock_);
    if (!of->pace_.look(of->progress(), clock::now())) return;
    feed_idle(*of);
    more = dials_wanted(*of);
  }
  start_dials(of, more);
  of->start_fills();
}

network_counts network::counts() const noexcept {
  return {requests_.load(), retries_.load(), connections_.load(), throttled_.load(), hedges_.load()};
}

unsigned network::dials_wanted(origin& to) noexcept {
  const auto wanted = std::min<std::size_t>(to.pace_.wanted(), to.carried_ + to.queue_.size());
  unsigned more = 0;
  const auto may = [&] { return in_all_ < most_in_all_ || to.lines_ + to.dialing_ < least_of_each; };
  for (; to.lines_ + to.dialing_ < wanted && to.dialing_ < to.dials_at_once() && may(); ++more) {
    ++to.dialing_;
    ++in_all_;
  }
  return more;
}

// Connects despite a stop if a fetch that ignores stops is waiting.
const sys::web_stop& network::stop_of_dials(origin& to) noexcept {
  const std::lock_guard guard(lock_);
  for (const auto* each = to.queue_.front(); each != nullptr; each = each->next) {
    if (each->despite_stop) return end_;
  }
  return stop_;
}

void network::start_dials(const std::shared_ptr<origin>& to, unsigned count) noexcept {
  for (unsigned i = 0; i < count; ++i) {
    auto* const made = prepare_to_throw() ? new (std::nothrow) dial(*this, to) : nullptr;
    auto started = made == nullptr ? no_memory() : dialers_.push(dials_, *made);
    if (started.ok()) continue;
    delete made;
    dialled(to, std::move(started));
  }
}

// The first reactor handles waiting fetches; more are started as long as there are connections for them. If no more can be started, the
// least busy reactor gets the connection.
result<reactor*> network::reactor_for_one_more() {
  reactors_.reserve(reactors_.size() + 1);  // before pointers to its elements are taken
  const auto least =
      std::min_element(reactors_.begin(), reactors_.end(), [](const auto& a, const auto& b) { return a->lines() < b->lines(); });
  if (least != reactors_.end() && ((*least)->lines() == 0 || reactors_.size() >= settings_.threads)) return least->get();
  auto made = reactor::make(*this, reactors_.empty());
  if (made) {
    reactors_.push_back(*std::move(made));
    return reactors_.back().get();
  }
  if (least == reactors_.end()) return made.error();
  return least->get();
}

status network::adopt(const std::shared_ptr<origin>& to, std::unique_ptr<sys::web_connection> made) {
  const std::lock_guard guard(lock_);
  auto by = reactor_for_one_more();
  if (!by) return by.error();
  (*by)->adopt(std::make_unique<line>(std::move(made), to, *this, **by));
  ++to->lines_;
  connections_.fetch_add(1, std::memory_order_relaxed);
  tell_of(network_listener::event::connection);
  return {};
}

// If others are open, a failed connection means that the server, or this process, allows no more. Otherwise it counts as a failed attempt
// by one waiting fetch, so that all of them end eventually.
void network::dialled(const std::shared_ptr<origin>& to, result<std::unique_ptr<sys::web_connection>> made) noexcept {
  auto how = made ? or_no_memory([&] { return adopt(to, *std::move(made)); }) : made.error();
  fetch* what = nullptr;
  const bool is_for_good = how.code() == errc::permission_denied || sys::is_unknown_host(how);
  verdict then{.then = is_for_good ? verdict::kind::refused : verdict::kind::again, .error = how};
  unsigned more = 0;
  {
    const std::lock_guard guard(lock_);
    --to->dialing_;
    if (!how.ok()) --in_all_;
    const bool is_limit = !how.ok() && !is_for_good && to->lines_ > to->idle_.size();
    if (is_limit) to->pace_.limited(to->lines_ + to->dialing_, clock::now());
    if (!how.ok() && !is_limit) what = to->queue_.pop_front();
    if (what != nullptr) {
      what->where = fetch::place::none;
      ask_again(*what, then, *to);
    }
    more = dials_wanted(*to);
  }
  if (what != nullptr && then.then == verdict::kind::refused) tell(*what, then);
  start_dials(to, more);
}

// --- fetches

void network::queue(fetch& what, bool first) noexcept {
  what.where = fetch::place::queued;
  first ? what.at->queue_.push_front(what) : what.at->queue_.push_back(what);
  feed_idle(*what.at);
}

void network::feed_idle(origin& of) noexcept {
  while (!of.queue_.empty() && !of.idle_.empty() && of.carried_ < of.pace_.wanted()) {
    auto& one = *of.idle_.back();
    of.idle_.pop_back();
    auto& next = *of.queue_.pop_front();
    next.where = fetch::place::carried;
    next.on = &one;
    of.carries_one_more();
    one.given = &next;
    one.by().give(one);
  }
}

fetch* network::take(line& one) noexcept {
  auto& of = *one.to();
  auto* const next = of.carried_ < of.pace_.wanted() ? of.queue_.pop_front() : nullptr;
  if (next == nullptr) {
    of.idle_.push_back(&one);
    return nullptr;
  }
  next->where = fetch::place::carried;
  next->on = &one;
  of.carries_one_more();
  return next;
}

// If a NAT or firewall has dropped one connection, it has probably dropped all idle ones: the next attempt uses a new connection.
void network::drop_idle(origin& of) noexcept {
  for (auto* const each : of.idle_) {
    each->unwanted.store(true);
    each->by().look();
  }
  of.idle_.clear();
}

// The line is dropped before the rest is requested again, because two connections must never receive into the same memory.
bool network::is_late(line& on, const fetch& what, clock::duration time) noexcept {
  const std::lock_guard guard(lock_);
  auto& of = *on.to();
  if (of.hedges_ < 1 || !of.times_.is_late(time, what.length)) return false;
  of.hedges_ -= 1;
  hedges_.fetch_add(1, std::memory_order_relaxed);
  tell_of(network_listener::event::hedge);
  return true;
}

void network::begin(fetch& what) noexcept {
  const auto to = what.at;
  unsigned more = 0;
  {
    const std::lock_guard guard(lock_);
    what.served_before = to->progress().bytes;
    queue(what, false);
    more = dials_wanted(*to);
  }
  start_dials(to, more);
}

bool network::cancel(fetch& what) noexcept {
  const std::lock_guard guard(lock_);
  what.cancelled.store(true);
  switch (what.where) {
    case fetch::place::queued:
      what.at->queue_.remove(what);
      break;
    case fetch::place::waiting:
      waiting_.remove(what);
      break;
    case fetch::place::carried:
      what.on->by().look();
      return false;
    case fetch::place::none:
      return false;
  }
  what.where = fetch::place::none;
  return true;
}

// Reduces the number of connections if the server refused a request because there were too many. Returns true if the server serves other
// requests meanwhile, so that the refusal does not count as a failed attempt of this one.
bool network::note_refusal(fetch& what, const verdict& how, origin& asked) noexcept {
  const auto now = clock::now();
  const bool serves_others = asked.carried_ > 0 && asked.progress().bytes > what.served_before;
  if (!how.throttled && !(how.crowded && serves_others)) return false;
  if (what.refused_since == clock::time_point()) what.refused_since = now;
  const bool is_free = serves_others && now - what.refused_since < most_refusals && patience_with(what).attempts > 1;
  return asked.pace_.throttled(what.asked, now) && is_free;
}

// Decides whether a fetch that did not receive its bytes fails, is queued, or waits.
void network::ask_again(fetch& what, verdict& how, origin& asked) noexcept {
  if (how.then != verdict::kind::elsewhere && how.then != verdict::kind::refused && !how.unsent) {  // the missing bytes may be elsewhere
    what.at = what.home;
    what.target.clear();
  }
  auto& of = *what.at;
  if (how.throttled) throttled_.fetch_add(1, std::memory_order_relaxed);
  const bool is_free = note_refusal(what, how, asked);
  if (is_unwanted(what)) how = refused(unwanted());
  if (how.then == verdict::kind::refused) return;
  if (how.then == verdict::kind::elsewhere) {
    tell_of(network_listener::event::redirect);
    what.served_before = of.progress().bytes;
  }
  if (how.then == verdict::kind::later) return put_off(what, how);
  what.put_off_since = {};
  if (how.then != verdict::kind::again) return queue(what, true);
  const bool too_often = of.tokens_ < tokens_of_a_retry;
  const auto& patient = patience_with(what);
  if (!is_free) {
    ++what.tries;
    what.served_before = asked.progress().bytes;
  }
  if (what.tries >= patient.attempts || (too_often && !is_free) || stop_.stopped()) {
    const auto words = too_often ? "; the server has failed so often that requests are not retried for now" : "";
    how = refused(or_no_memory(
        [&] { return how.error.with_context(fmt::format("after {} {}{}", what.tries, what.tries == 1 ? "try" : "tries", words)); }));
    return;
  }
  if (!is_free) of.tokens_ -= tokens_of_a_retry;
  retries_.fetch_add(1, std::memory_order_relaxed);
  tell_of(network_listener::event::retry);
  const auto pause = patient.pause_after(std::max(1U, what.tries), static_cast<unsigned>(drawn_()), how.after);
  what.due = clock::now() + pause;
  if (how.throttled && settings_.told != nullptr) settings_.told->put_off(what.due - pause, what.due);
  patient.tell({how.http_status, how.error.code(), pause, std::max(1U, what.tries), patient.attempts});
  wait(what, how);
}

// Waits until credentials for signing are available, for at most as long as finding them may take.
void network::put_off(fetch& what, verdict& how) noexcept {
  const auto now = clock::now();
  if (what.put_off_since == clock::time_point()) what.put_off_since = now;
  if (now - what.put_off_since > most_put_off) {
    how = refused(or_no_memory([&] { return status(errc::timed_out, std::string(how.error.message())); }));
    return;
  }
  what.due = now + put_off_for;
  wait(what, how);
}

void network::wait(fetch& what, verdict& how) noexcept {
  what.where = fetch::place::waiting;
  waiting_.push_back(what);
  const auto first =
      or_no_memory([&]() -> result<reactor*> { return reactors_.empty() ? reactor_for_one_more() : reactors_.front().get(); });
  if (first) {
    (*first)->look();
    return;
  }
  waiting_.remove(what);  // no thread would handle the fetch
  what.where = fetch::place::none;
  how = refused(first.error());
}

fetch* network::ended(line& on, fetch& what, verdict& how, bool line_goes_on) noexcept {
  const auto to = on.to();
  std::shared_ptr<origin> elsewhere;
  fetch* next = nullptr;
  unsigned more = 0;
  unsigned more_there = 0;
  bool has_risen = false;
  {
    const std::lock_guard guard(lock_);
    what.on = nullptr;
    what.where = fetch::place::none;
    if (what.sends_bytes == 0) has_risen = to->pace_.look(to->progress(), clock::now());
    --to->carried_;
    if (how.then == verdict::kind::body) {
      to->tokens_ = std::min(origin::most_tokens, to->tokens_ + tokens_of_a_success);
      to->hedges_ = std::min(most_hedges_kept, to->hedges_ + hedges_of_a_success);
      if (what.length > 0) to->times_.took(clock::now() - what.asked, what.length);
    } else {
      if (how.silent) drop_idle(*to);
      ask_again(what, how, *to);
      if (how.then != verdict::kind::refused && what.at != to) elsewhere = what.at;
    }
    if (line_goes_on) next = take(on);
    feed_idle(*to);
    more = dials_wanted(*to);
    if (elsewhere != nullptr) more_there = dials_wanted(*elsewhere);
  }
  start_dials(to, more);
  start_dials(elsewhere, more_there);
  if (has_risen) to->start_fills();
  return next;
}

fetch* network::next_for(line& one) noexcept {
  const std::lock_guard guard(lock_);
  if (one.given != nullptr) return std::exchange(one.given, nullptr);
  return take(one);
}

void network::gone(line& one) noexcept {
  const auto to = one.to();
  unsigned more = 0;
  {
    const std::lock_guard guard(lock_);
    std::erase(to->idle_, &one);
    --to->lines_;
    --in_all_;
    if (auto* const given = std::exchange(one.given, nullptr); given != nullptr) {
      one.by().take_back(one);
      given->on = nullptr;
      --to->carried_;
      queue(*given, true);
    }
    more = dials_wanted(*to);
  }
  start_dials(to, more);
}

network::clock::time_point network::queue_due(clock::time_point now) noexcept {
  for (;;) {
    auto next = clock::time_point::max();
    std::shared_ptr<origin> to;
    unsigned more = 0;
    {
      const std::lock_guard guard(lock_);
      for (auto* each = waiting_.front(); each != nullptr && to == nullptr; each = each->next) {
        next = std::min(next, each->due);
        if (each->due > now && !is_unwanted(*each)) continue;
        waiting_.remove(*each);
        to = each->at;
        queue(*each, false);
        more = dials_wanted(*to);
        break;
      }
    }
    if (to == nullptr) return next;
    start_dials(to, more);
  }
}

}  // namespace penstock::source::remote
