#include "core/pipe_server.hpp"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "base/no_memory.hpp"

namespace penstock::core {

namespace {

using family = sys::socket_address::family;

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

std::string chosen_name() {
  static std::atomic<unsigned> count{0};
  return fmt::format("penstock-{}-{}-{:x}", getpid(), count.fetch_add(1), channel::own_identity().process_token);
}

// Best first, as they are named; all, as they are registered, where none is.
result<std::vector<const channel::channel*>> channels_of(const std::vector<std::string>& named) {
  const auto all = channel::all_channels();
  if (named.empty()) return std::vector(all.begin(), all.end());
  std::vector<const channel::channel*> found;
  for (const auto& name : named) {
    const auto* const each = channel::find_channel(name);
    if (each == nullptr) {
      std::string names;
      for (const auto* known : all) names.append(names.empty() ? "" : ", ").append(known->name());
      return status(errc::invalid_argument, fmt::format("there is no channel \"{}\"; there are {}", name, names));
    }
    if (std::find(found.begin(), found.end(), each) != found.end()) {
      return status(errc::invalid_argument, fmt::format("the channel \"{}\" is named twice", name));
    }
    found.push_back(each);
  }
  return found;
}

}  // namespace

result<std::shared_ptr<pipe_server>> pipe_server::make(std::shared_ptr<core::runtime> with, std::shared_ptr<sys::peer> door,
                                                       const pipe_options& options, std::shared_ptr<sys::fabrics> network,
                                                       const std::string& sysfs) {
  if (options.connections < 1 || options.connections > channel::limits::connections) {
    return status(errc::invalid_argument,
                  fmt::format("a pipe has 1 to {} connections, not {}", channel::limits::connections, options.connections));
  }
  auto more = std::make_shared<channel::reactors>(door);
  pipe_shared shared{std::move(with), std::move(door), nullptr, {}, options.secret, options.connections, std::move(more)};
  if (!options.secret.empty()) {
    if (options.secret.size() < channel::proof::least_secret) {
      return status(errc::invalid_argument, fmt::format("a secret has at least {} bytes", channel::proof::least_secret));
    }
    if (auto problem = sys::can_prove(); !problem.ok()) return problem;
  }
  auto channels = channels_of(options.channels);
  if (!channels) return channels.error();
  shared.channels = *std::move(channels);
  const auto over_fabric = [](const std::string& name) { return channel::find_channel(name)->how() == channel::carriage::fabric; };
  const bool named = std::any_of(options.channels.begin(), options.channels.end(), over_fabric);
  shared.fabrics = std::make_shared<channel::fabrics>(std::move(network), named, options.secret.empty(), sysfs);
  // A thread of the pipes may be the last to let go of the engine, which then ends on the watcher.
  if (auto problem = shared.runtime->feeders().ready(); !problem.ok()) return problem;
  auto reactor = channel::reactor::make(shared.door);
  if (!reactor) return reactor.error();
  shared.reactor = *std::move(reactor);
  return std::make_shared<pipe_server>(std::move(shared));
}

result<std::shared_ptr<pipe_listener_core>> pipe_server::listen(const std::string& url) const {
  auto at = url == "unix:" ? sys::socket_address{family::unix_abstract, chosen_name(), 0} : parse(url);
  if (!at) return at.error();
  const bool local = at->kind != family::tcp;
  if (!local && !is_loopback(at->name) && with_.secret.empty()) {
    return status(errc::permission_denied,
                  fmt::format("{}: without a secret tcp listens on loopback addresses only, since anybody could connect", url));
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
  return std::make_shared<pipe_listener_core>(with_, *std::move(socket), std::move(told), local);
}

result<std::shared_ptr<pipe_core>> pipe_server::connect(const std::string& url) const {
  const auto to = parse(url);
  if (!to) return to.error();
  auto socket = with_.door->connect(*to);
  if (!socket) return socket.error();
  return pipe_core::make(with_, *std::move(socket), to->kind != family::tcp, true);
}

// --- listeners

operation* pipe_listener_core::accept(pipe& into, const pipe_operation_options& options, io_callback callback) {
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

channel::socket_handler::next pipe_listener_core::ready(bool readable, bool /*writable*/) noexcept {
  if (readable) accept_what_has_come();
  return next::event;
}

result<pipe> pipe_listener_core::accept_one() {
  for (;;) {
    if (!proven_.empty()) {
      pipe made(std::move(proven_.front()));
      proven_.pop_front();
      return made;
    }
    auto socket = with_.door->accept(socket_.get());
    if (!socket) return socket.error();
    if (!local_ && !with_.secret.empty()) {
      const auto told = [self = weak_from_this()](const std::shared_ptr<pipe_core>& of, bool knows) {
        if (const auto listener = self.lock(); listener != nullptr) listener->proven(of, knows);
      };
      auto made = pipe_core::make(with_, *std::move(socket), false, false, told);
      if (!made) return made.error();
      strangers_.push_back(*std::move(made));
      if (strangers_.size() <= most_strangers) continue;
      turned_away_.push_back(std::move(strangers_.front()));
      strangers_.pop_front();
      continue;
    }
    if (local_) {
      const auto who = with_.door->credentials_of(socket->get());
      if (!who || who->uid != geteuid()) continue;  // not let in
    }
    auto made = pipe_core::make(with_, *std::move(socket), local_, false);
    if (!made) return made.error();
    return pipe(*std::move(made));
  }
}

// On a thread that reads from it.
void pipe_listener_core::proven(const std::shared_ptr<pipe_core>& of, bool knows) noexcept {
  {
    const std::lock_guard guard(lock_);
    if (std::erase(strangers_, of) == 0 || !knows || closed_) return;
    if (!or_without_memory([&] { return proven_.push_back(of), true; }, [] { return false; })) return;
  }
  accept_what_has_come();
}

void pipe_listener_core::accept_what_has_come() noexcept {
  while (auto met = meet()) {
    if (met->come) *met->op->into = *std::move(met->come);
    met->op->tell_end(met->problem);
  }
  std::deque<std::shared_ptr<pipe_core>> away;  // closed when the lock is open
  const std::lock_guard guard(lock_);
  away.swap(turned_away_);
}

std::optional<pipe_listener_core::meeting> pipe_listener_core::meet() noexcept {
  const std::lock_guard guard(lock_);
  if (closed_) return std::nullopt;
  if (waiting_.empty()) {
    if (token_ != 0) with_.reactor->remove(socket_.get(), std::exchange(token_, 0));
    return std::nullopt;
  }
  meeting met{waiting_.front(), std::nullopt, {}};
  auto come = or_no_memory([&] { return accept_one(); });
  if (!come && come.error().code() == errc::would_block && token_ == 0) {
    const auto token = or_no_memory([&] { return with_.reactor->add(socket_.get(), shared_from_this(), false); });
    token_ = token.value_or(0);
    come = token ? or_no_memory([&] { return accept_one(); }) : result<pipe>(token.error());  // somebody may have come meanwhile
  }
  if (come) {
    met.come = *std::move(come);
  } else if (come.error().code() == errc::would_block) {
    return std::nullopt;  // the reactor tells of who comes
  } else {
    met.problem = come.error();
  }
  waiting_.pop_front();
  met.op->known = false;
  return met;
}

void pipe_listener_core::stop(accept_operation& op) noexcept {
  const auto why = op.stop_reason();
  if (with_.runtime->forked()) return;
  {
    const std::lock_guard guard(lock_);
    if (why.ok() || !std::exchange(op.known, false)) return;
    std::erase(waiting_, &op);
  }
  op.tell_end(why);
}

void pipe_listener_core::close() noexcept {
  if (with_.runtime->forked()) return;
  std::deque<accept_operation*> ended;
  std::deque<std::shared_ptr<pipe_core>> strangers;  // closed when the lock is open
  std::deque<std::shared_ptr<pipe_core>> proven;
  {
    const std::lock_guard guard(lock_);
    closed_ = true;
    strangers.swap(strangers_);
    proven.swap(proven_);
    if (token_ != 0) with_.reactor->remove(socket_.get(), std::exchange(token_, 0));
    ended.swap(waiting_);
    for (auto* op : ended) op->known = false;
  }
  for (auto* op : ended) op->tell_end({errc::closed, "the listener was closed"});
}

}  // namespace penstock::core
