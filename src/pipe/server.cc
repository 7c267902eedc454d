#include "pipe/server.hpp"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "base/no_memory.hpp"
#include "channel/reactors.hpp"
#include "core/gate.hpp"

namespace penstock::pipes {

namespace {

using family = sys::socket_address::family;
using namespace std::chrono_literals;

status wrong_url(std::string_view url) {
  return {errc::invalid_argument, fmt::format("\"{}\" is not unix:/path, unix:@name or tcp://host:port", url)};
}

result<sys::socket_address> parse_tcp(std::string_view url, std::string_view rest) {
  const auto colon = rest.rfind(':');
  if (colon == std::string_view::npos || colon == 0) return wrong_url(url);
  auto host = rest.substr(0, colon);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  const auto digits = rest.substr(colon + 1);
  std::uint16_t port = 0;
  const auto [end, problem] = std::from_chars(digits.data(), digits.data() + digits.size(), port);
  if (problem != std::errc() || end != digits.data() + digits.size()) return wrong_url(url);
  return sys::socket_address{family::tcp, std::string(host), port};
}

result<sys::socket_address> parse(std::string_view url) {
  if (url.starts_with("tcp://")) return parse_tcp(url, url.substr(6));
  if (!url.starts_with("unix:")) return wrong_url(url);
  auto name = url.substr(5);
  if (name.starts_with("///")) name = name.substr(2);
  if (name.starts_with('@')) return sys::socket_address{family::unix_abstract, std::string(name.substr(1)), 0};
  if (!name.starts_with('/')) return wrong_url(url);
  return sys::socket_address{family::unix_path, std::string(name), 0};
}

bool is_loopback(std::string_view host) { return host == "localhost" || host == "::1" || host.starts_with("127."); }

// Turns a refused connection into not_found; returns any other error unchanged.
status nobody_listens(const std::string& url, const status& why) {
  if (why.domain() != error_domain::os || why.native() != ECONNREFUSED) return why;
  return {errc::not_found, fmt::format("no process is listening at {}: Connection refused (os {})", url, ECONNREFUSED), error_domain::os,
          ECONNREFUSED};
}

// Time within which connect() itself can report a refused connection. For slower hosts, the first operation reports it.
constexpr auto most_connecting = 100ms;
// Time to wait while a unix socket's backlog is full (EAGAIN, unix(7)) because many processes connect while the listener is not accepting.
constexpr auto most_waiting_for_room = 2s;
constexpr auto between_looks_for_room = 1ms;

result<sys::owned_descriptor> connect_in_turn(sys::peer& door, const sys::socket_address& to) {
  const auto until = std::chrono::steady_clock::now() + most_waiting_for_room;
  for (;;) {
    auto made = door.connect(to);
    const bool is_full = !made && made.error().domain() == error_domain::os && made.error().native() == EAGAIN;
    if (!is_full || std::chrono::steady_clock::now() >= until) return made;
    std::this_thread::sleep_for(between_looks_for_room);
  }
}

// Time before the host's next address is tried, even if this attempt is still pending (RFC 8305, section 5).
constexpr auto before_next_address = 250ms;

// Connects to the first address that responds; if none does in time, to the first that has not refused.
result<sys::owned_descriptor> connect_by_tcp(sys::peer& door, const sys::socket_address& to) {
  const auto all = door.addresses_of(to);
  if (!all) return all.error();
  result<sys::owned_descriptor> made = status(errc::not_found, fmt::format("{} has no address", to.name));
  for (std::size_t i = 0; i < all->size(); ++i) {
    auto next = connect_in_turn(door, (*all)[i]);
    if (next) {
      door.await_connected(next->get(), i + 1 < all->size() ? before_next_address : most_connecting);
      const auto problem = door.connected(next->get());
      if (!problem.ok()) next = problem.with_context(fmt::format("tcp://{}:{}", (*all)[i].name, (*all)[i].port));
    }
    const bool has_answered = next && door.address_of(next->get(), true).ok();
    if (has_answered || !made) made = std::move(next);
    if (has_answered) break;
  }
  return made;
}

// Returns the TLS context for tcp; null without TLS.
result<std::shared_ptr<const sys::tls_context>> tls_of(const pipe_options& options) {
  if (!options.tls) return std::shared_ptr<const sys::tls_context>();
  return sys::tls_context::make({options.tls->certificate, options.tls->key, options.tls->ca, options.tls->server_name});
}

std::string chosen_name() {
  static std::atomic<unsigned> count{0};
  return fmt::format("penstock-{}-{}-{:x}", getpid(), count.fetch_add(1), channel::own_identity().process_token);
}

// Returns the named channels, best first; if none is named, all channels in order of registration.
result<std::vector<const channel::channel*>> channels_of(const std::vector<std::string>& named,
                                                         std::span<const channel::channel* const> further) {
  std::vector<const channel::channel*> all(further.begin(), further.end());
  const auto registered = channel::all_channels();
  all.insert(all.end(), registered.begin(), registered.end());
  if (named.empty()) return all;
  std::vector<const channel::channel*> chosen;
  for (const auto& name : named) {
    const auto each = std::find_if(all.begin(), all.end(), [&](const auto* known) { return known->name() == name; });
    if (each == all.end()) {
      std::string names;
      for (const auto* known : all) names.append(names.empty() ? "" : ", ").append(known->name());
      return status(errc::invalid_argument, fmt::format("unknown channel \"{}\"; the channels are {}", name, names));
    }
    if (std::find(chosen.begin(), chosen.end(), *each) != chosen.end()) {
      return status(errc::invalid_argument, fmt::format("channel \"{}\" is named twice", name));
    }
    chosen.push_back(*each);
  }
  return chosen;
}

}  // namespace

result<std::shared_ptr<server>> server::make(std::shared_ptr<core::engine_core> with, std::shared_ptr<sys::peer> door,
                                             const pipe_options& options, std::shared_ptr<sys::fabrics> network, const std::string& sysfs,
                                             std::span<const channel::channel* const> further_channels) {
  if (options.connections < 1 || options.connections > channel::limits::connections) {
    return status(errc::invalid_argument,
                  fmt::format("the number of connections must be 1 to {}, not {}", channel::limits::connections, options.connections));
  }
  auto more = std::make_shared<channel::reactors>(door);
  auto& staging = channel::pipe_staging::of(*with);
  pipe_shared shared{{std::move(with), &staging, std::move(door), nullptr, options.connections, options.close_within, std::move(more)}};
  shared.secret = options.secret;
  shared.prove_within = options.prove_within;
  if (options.close_within < 0ms || options.prove_within <= 0ms) {
    return status(errc::invalid_argument, "close_within must not be negative, and prove_within must be positive");
  }
  if (!options.secret.empty()) {
    if (options.secret.size() < channel::proof::least_secret) {
      return status(errc::invalid_argument, fmt::format("the secret must be at least {} bytes long", channel::proof::least_secret));
    }
    if (auto problem = sys::can_prove(); !problem.ok()) return problem;
  }
  auto tls = tls_of(options);
  if (!tls) return tls.error();
  shared.tls = *std::move(tls);
  auto channels = channels_of(options.channels, further_channels);
  if (!channels) return channels.error();
  shared.channels = *std::move(channels);
  const auto over_fabric = [](const auto* each) { return each->over_fabric(); };
  if (shared.tls != nullptr && std::erase_if(shared.channels, over_fabric) > 0 && !options.channels.empty()) {
    return status(errc::unsupported, "UCX does not encrypt its traffic: the channels ucx and cuda_gdr cannot be used with TLS");
  }
  const bool named = !options.channels.empty() && std::any_of(shared.channels.begin(), shared.channels.end(), over_fabric);
  shared.fabrics = std::make_shared<channel::fabrics>(std::move(network), named, options.secret.empty(), sysfs);
  core::gate::add(shared.fabrics);
  // If a pipe thread drops the last reference to the engine, the watcher thread destroys the engine.
  if (auto problem = shared.runtime->feeders().ready(); !problem.ok()) return problem;
  auto reactor = channel::reactor::make(shared.door);
  if (!reactor) return reactor.error();
  shared.reactor = *std::move(reactor);
  return std::make_shared<server>(std::move(shared));
}

result<std::shared_ptr<listener>> server::listen(const std::string& url) const {
  auto at = url == "unix:" ? sys::socket_address{family::unix_abstract, chosen_name(), 0} : parse(url);
  if (!at) return at.error();
  const bool local = at->kind != family::tcp;
  const bool knows_who_connects = !with_.secret.empty() || (with_.tls != nullptr && with_.tls->asks_for_certificates());
  if (!local && !is_loopback(at->name) && !knows_who_connects) {
    return status(errc::permission_denied, fmt::format("{}: without a secret, or a CA (tls.ca) that signs client certificates, "
                                                       "tcp can listen on loopback addresses only, because anyone could connect",
                                                       url));
  }
  if (!local && with_.tls != nullptr && !with_.tls->can_accept()) {
    return status(errc::invalid_argument, fmt::format("{}: listening with TLS requires a certificate and its key", url));
  }
  auto socket = with_.door->listen(*at);
  if (!socket) return socket.error();
  std::string told = url;
  if (at->kind == family::unix_abstract) told = "unix:@" + at->name;
  if (!local) {
    const auto port = with_.door->port_of(socket->get());
    if (!port) return port.error();
    told = fmt::format(fmt::runtime(at->name.find(':') == std::string::npos ? "tcp://{}:{}" : "tcp://[{}]:{}"), at->name, *port);
  }
  auto made = std::make_shared<listener>(with_, *std::move(socket), std::move(told), local);
  core::gate::add(made);
  return made;
}

result<std::shared_ptr<session>> server::connect(const std::string& url) const {
  const auto to = parse(url);
  if (!to) return to.error();
  const bool local = to->kind != family::tcp;
  auto socket = local ? connect_in_turn(*with_.door, *to) : connect_by_tcp(*with_.door, *to);
  if (!socket) return nobody_listens(url, socket.error());
  std::unique_ptr<sys::tls_stream> secure;
  if (!local && with_.tls != nullptr) {
    auto made = with_.tls->connect(to->name);
    if (!made) return made.error();
    secure = *std::move(made);
  }
  return session::make(with_, *std::move(socket), url, local, true, std::move(secure));
}

// --- listeners

core::operation* listener::accept(pipe& into, const pipe_operation_options& options, io_callback callback) {
  auto* op = new accept_operation(shared_from_this(), into, with_.runtime);
  op->set_deadline(options.deadline);
  op->set_callback(std::move(callback));
  op->retain();
  auto problem = or_no_memory([&] { return op->watch_deadline(); });
  {
    const std::lock_guard guard(lock_);
    if (problem.ok() && closed_) problem = {errc::closed, "the listener was closed"};
    if (problem.ok()) {
      op->known = true;
      waiting_.push_back(op);
    }
  }
  if (!problem.ok()) {
    op->tell_end(problem);
    return op;
  }
  accept_what_has_come();
  if (!op->stop_reason().ok()) stop(*op);
  return op;
}

channel::socket_handler::next listener::ready(bool readable, bool /*writable*/) noexcept {
  if (readable) accept_what_has_come();
  return next::event;
}

namespace {

// Enough for a nearby peer to prove that it knows the secret, or at least to send something. With the largest allowed number of strangers,
// this admits 25,000 connections per second.
constexpr auto moment = 20ms;
constexpr auto between_tries = 50ms;  // between attempts to accept a connection when there is no room
constexpr auto least_pause = 1ms;
// New connections are accepted, or evict strangers, before other strangers' bytes are read. Without this limit, those bytes would wait as
// long as more connections arrive.
constexpr unsigned most_in_turn = 16;
constexpr unsigned most_looks = 8;  // eviction candidates to check: if this many have unread bytes, those are read first

// Returns true for accept(2) errors after which a later call may succeed.
bool passes(const status& why) {
  constexpr std::array passing{EMFILE, ENFILE, ENOBUFS, ENOMEM, EPROTO, ENETDOWN, ENETUNREACH, EHOSTDOWN, EHOSTUNREACH};
  return why.code() == errc::out_of_memory ||
         (why.domain() == error_domain::os && std::find(passing.begin(), passing.end(), why.native()) != passing.end());
}

status would_block() { return {errc::would_block, "no connection is pending"}; }

}  // namespace

// A quarter of the process's descriptor limit; only a few if the remaining descriptors should be left to the program.
std::size_t listener::most_strangers() const noexcept {
  constexpr std::size_t few = 16;
  constexpr rlim_t kept_share = 8;
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return few;
  if (static_cast<rlim_t>(latest_descriptor_) >= limit.rlim_cur - limit.rlim_cur / kept_share) return few;
  return std::clamp<std::size_t>(limit.rlim_cur / 4, few, 512);
}

status listener::admit(sys::owned_descriptor over) {
  const auto told = [self = weak_from_this()](const std::shared_ptr<session>& of, bool knows) {
    if (const auto listener = self.lock(); listener != nullptr) listener->proven(of, knows);
  };
  std::unique_ptr<sys::tls_stream> secure;
  if (!local_ && with_.tls != nullptr) {
    auto encrypts = with_.tls->accept();
    if (!encrypts) return encrypts.error();
    secure = *std::move(encrypts);
  }
  auto made = session::make(with_, std::move(over), {}, local_, false, std::move(secure), told);
  if (!made) return made.error();
  strangers_.push_back({*std::move(made), clock::now()});
  return {};
}

result<pipe> listener::accept_one(std::shared_ptr<session>& away) {
  for (unsigned admitted = 0;;) {
    if (!proven_.empty()) {
      core::gate::add(proven_.front());
      pipe made(std::move(proven_.front()));
      proven_.pop_front();
      return made;
    }
    if (strangers_.size() >= most_strangers()) return make_room(away);
    auto socket = with_.door->accept(socket_.get());
    if (!socket && passes(socket.error())) return make_room(away);
    if (!socket) return socket.error();
    latest_descriptor_ = socket->get();
    if (local_) {
      const auto who = with_.door->credentials_of(socket->get());
      if (!who || who->uid != geteuid()) continue;  // a different user: reject
    }
    if (auto problem = admit(*std::move(socket)); !problem.ok()) return make_room(away);  // the connection is dropped
    if (++admitted == most_in_turn) return would_block();
  }
}

// away: the stranger to close first. If null, none may be closed yet; the reactor calls again later.
status listener::make_room(std::shared_ptr<session>& away) {
  const auto now = clock::now();
  away = take_whom_to_turn_away(now);
  if (away != nullptr) return would_block();
  if (auto problem = hear(true); !problem.ok()) return problem;  // registers with the reactor to use its timer
  (void)hear(false);                                             // otherwise it would report the same connection again at once
  tries_again_ = strangers_.empty() ? now + between_tries : std::max(strangers_.front().came + moment, now + least_pause);
  return would_block();
}

std::shared_ptr<session> listener::take_whom_to_turn_away(clock::time_point now) {
  for (const bool has_spoken : {false, true}) {
    unsigned looks = 0;
    const auto found = std::find_if(strangers_.begin(), strangers_.end(), [&](const stranger& each) {
      if (each.came + moment > now || each.who->has_begun_to_prove() != has_spoken || looks == most_looks) return false;
      ++looks;
      return !each.who->has_something_to_say();
    });
    if (found == strangers_.end()) continue;
    auto gone = std::move(found->who);
    strangers_.erase(found);
    return gone;
  }
  return nullptr;
}

status listener::hear(bool on) {
  if (on == hears_) return {};
  if (!on) {
    with_.reactor->pause(socket_.get());
  } else if (token_ != 0) {
    if (auto problem = with_.reactor->resume(socket_.get(), token_); !problem.ok()) return problem;
  } else {
    const auto token = with_.reactor->add(socket_.get(), shared_from_this(), false);
    if (!token) return token.error();
    token_ = *token;
  }
  hears_ = on;
  return {};
}

void listener::set_clock() noexcept {
  auto when = waiting_.empty() ? clock::time_point::max() : tries_again_;
  if (!strangers_.empty()) when = std::min(when, strangers_.front().came + with_.prove_within);
  if (token_ == 0 || when == std::exchange(clock_at_, when)) return;
  with_.reactor->call_off(token_);
  if (when != clock::time_point::max()) (void)with_.reactor->call_at(token_, when);  // if memory is short, the next connection sets it
}

// Called on the thread that reads from the session.
void listener::proven(const std::shared_ptr<session>& of, bool knows) noexcept {
  {
    const std::lock_guard guard(lock_);
    const auto found = std::find_if(strangers_.begin(), strangers_.end(), [&](const stranger& each) { return each.who == of; });
    if (found == strangers_.end() || closed_) return;
    strangers_.erase(found);
    if (!knows) {  // there is room again: the reactor reports new connections after it has served the other sockets
      if (of->has_begun_to_prove()) refused_.fetch_add(1);
      if (!waiting_.empty()) (void)or_no_memory([&] { return hear(true); });
      return;
    }
    or_without_memory([&] { return proven_.push_back(of), true; }, [] { return false; });
  }
  accept_what_has_come();
}

// Closes strangers whose time is up, then accepts if there is room.
void listener::due() noexcept {
  for (;;) {
    std::shared_ptr<session> late;
    {
      const std::lock_guard guard(lock_);
      clock_at_ = tries_again_ = clock::time_point::max();
      if (closed_ || strangers_.empty() || strangers_.front().came + with_.prove_within > clock::now()) break;
      late = std::move(strangers_.front().who);
      strangers_.pop_front();
    }
    late->turn_away();
  }
  accept_what_has_come();
}

void listener::accept_what_has_come() noexcept {
  unsigned turned_away = 0;
  for (bool again = true; again;) {
    auto taken = [&] {
      const std::lock_guard guard(lock_);
      auto made = next_step();
      if (made.away != nullptr && ++turned_away == most_in_turn) {
        made.again = !or_no_memory([&] { return hear(true); }).ok();  // the reactor reports again at once, alternating with other sockets
      }
      return made;
    }();
    if (taken.away != nullptr) taken.away->turn_away();
    if (taken.come) *taken.op->into = *std::move(taken.come);
    if (taken.op != nullptr) taken.op->tell_end(taken.problem);
    again = taken.again;
  }
}

listener::step listener::next_step() noexcept {
  step taken;
  if (closed_) return taken;
  if (waiting_.empty()) {
    (void)hear(false);
    set_clock();
    return taken;
  }
  tries_again_ = clock::time_point::max();
  auto come = or_no_memory([&] { return accept_one(taken.away); });
  const bool nobody = !come && come.error().code() == errc::would_block;
  if (nobody && taken.away == nullptr && tries_again_ == clock::time_point::max() && !hears_) {
    const auto problem = or_no_memory([&] { return hear(true); });
    come =
        problem.ok() ? or_no_memory([&] { return accept_one(taken.away); }) : result<pipe>(problem);  // a connection may have arrived since
  }
  set_clock();
  taken.again = true;
  if (come) {
    taken.come = *std::move(come);
  } else if (come.error().code() == errc::would_block) {
    taken.again = taken.away != nullptr;  // if false, the reactor reports the next connection
    return taken;
  } else {
    taken.problem = come.error();
  }
  taken.op = waiting_.front();
  waiting_.pop_front();
  taken.op->known = false;
  return taken;
}

void listener::stop(accept_operation& op) noexcept {
  const auto why = op.stop_reason();
  if (with_.runtime->forked()) return;
  {
    const std::lock_guard guard(lock_);
    if (why.ok() || !std::exchange(op.known, false)) return;
    std::erase(waiting_, &op);
  }
  op.tell_end(why);
}

std::string listener::obstacle() const {
  if (with_.runtime->forked()) return {};
  const std::lock_guard guard(lock_);
  return closed_ ? std::string() : fmt::format("the listener at {}", url_);
}

void listener::close() noexcept {
  if (with_.runtime->forked()) return;
  std::deque<accept_operation*> ended;
  std::deque<stranger> strangers;
  std::deque<std::shared_ptr<session>> proven;  // destroyed, and so closed, after the lock is released
  {
    const std::lock_guard guard(lock_);
    closed_ = true;
    strangers.swap(strangers_);
    proven.swap(proven_);
    if (token_ != 0) with_.reactor->remove(socket_.get(), std::exchange(token_, 0));
    hears_ = false;
    const sys::owned_descriptor nobody_connects(std::move(socket_));  // closes the socket even if operations keep this object
    ended.swap(waiting_);
    for (auto* op : ended) op->known = false;
  }
  for (const auto& each : strangers) each.who->turn_away();
  for (auto* op : ended) op->tell_end({errc::closed, "the listener was closed"});
}

}  // namespace penstock::pipes
