#include "channel/stripe_door.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/no_memory.hpp"

namespace penstock::channel {

// A new connection that has not sent its first frame yet.
class stripe_door::stranger final : public socket_handler, public std::enable_shared_from_this<stranger> {
 public:
  stranger(std::weak_ptr<stripe_door> at, sys::owned_descriptor over, std::unique_ptr<sys::tls_stream> by)
      : at_(std::move(at)), socket(std::move(over)), secure(std::move(by)) {}

  next ready(bool readable, bool /*writable*/) noexcept override {
    const auto door = at_.lock();
    if (door == nullptr || !readable) return next::event;
    while (heard < words.size()) {
      const iovec part{words.data() + heard, words.size() - heard};
      const auto got = or_no_memory([&] {
        auto& by = *door->door_;
        return secure != nullptr ? secure->receive(by, socket.get(), part) : by.receive(socket.get(), {&part, 1});
      });
      if (!got && got.error().code() == errc::would_block) return next::event;
      if (!got || *got == 0) {
        door->turn_away(shared_from_this());
        return next::event;
      }
      heard += *got;
    }
    door->heard(shared_from_this());
    return next::event;
  }

 private:
  const std::weak_ptr<stripe_door> at_;

 public:
  sys::owned_descriptor socket;
  std::unique_ptr<sys::tls_stream> secure;  // null: the pipe is not encrypted
  std::uint64_t token = 0;                  // from the reactor; guarded by the door's lock
  std::size_t heard = 0;
  std::array<std::byte, sizeof(frame_head) + sizeof(sys::digest)> words{};
};

result<std::shared_ptr<stripe_door>> stripe_door::open(std::shared_ptr<sys::peer> door, std::shared_ptr<reactor> with,
                                                       std::shared_ptr<connection> own, const sys::socket_address& at,
                                                       std::size_t connections, std::weak_ptr<stripe_host> of) {
  auto socket = door->listen(at);
  if (!socket) return socket.error();
  const auto port = door->port_of(socket->get());
  if (!port) return port.error();
  auto made = std::make_shared<stripe_door>(std::move(door), std::move(with), std::move(own), *std::move(socket), std::move(of));
  made->offer_.port = *port;
  for (std::size_t i = 0; i < connections; ++i) {
    const auto token = sys::random_digest();
    if (!token) return token.error();
    made->offer_.tokens.push_back(*token);
  }
  made->used_.resize(connections);
  const std::lock_guard guard(made->lock_);
  const auto token = made->reactor_->add(made->socket_.get(), made, false);
  if (!token) return token.error();
  made->token_ = *token;
  return made;
}

socket_handler::next stripe_door::ready(bool readable, bool /*writable*/) noexcept {
  if (!readable) return next::event;
  const auto problem = or_no_memory([&] { return accept_all(); });
  if (problem.ok() || problem.code() == errc::would_block) return next::event;
  close();  // otherwise the same error would be reported again at once
  if (const auto host = host_.lock(); host != nullptr) host->door_failed(problem);
  return next::event;
}

status stripe_door::accept_all() {
  for (;;) {
    std::shared_ptr<stranger> away;  // released after the lock
    const std::lock_guard guard(lock_);
    if (closed_) return {};
    auto come = door_->accept(socket_.get());
    if (!come) return come.error();
    std::unique_ptr<sys::tls_stream> secure;
    if (own_->secure() != nullptr) {
      auto another = own_->secure()->sibling();
      if (!another) return another.error();
      secure = *std::move(another);
    }
    auto made = std::make_shared<stranger>(weak_from_this(), *std::move(come), std::move(secure));
    strangers_.push_back(made);
    const auto token = reactor_->add(made->socket.get(), made, false);
    if (!token) {
      strangers_.pop_back();
      return token.error();
    }
    made->token = *token;
    if (strangers_.size() <= most_strangers) continue;
    // Closes the oldest one, preferably one with no unread bytes.
    const auto is_silent = [&](const auto& each) { return !door_->has_something(each->socket.get()); };
    auto first = std::find_if(strangers_.begin(), strangers_.end(), is_silent);
    if (first == strangers_.end()) first = strangers_.begin();
    away = std::move(*first);
    strangers_.erase(first);
    reactor_->remove(away->socket.get(), away->token);
  }
}

// Compares with every token, so that the time taken reveals nothing.
std::size_t stripe_door::which(std::span<const std::byte> token) const noexcept {
  std::size_t found = used_.size();
  for (std::size_t i = 0; i < used_.size(); ++i) {
    const bool same = sys::same(offer_.tokens[i], token);
    if (same && !used_[i]) found = i;
  }
  return found;
}

void stripe_door::heard(const std::shared_ptr<stranger>& who) noexcept {
  frame_head head;
  std::memcpy(&head, who->words.data(), sizeof(head));
  const bool joins = head.kind == static_cast<std::uint32_t>(stripe_frame::joins) && head.length == sizeof(sys::digest);
  sys::owned_descriptor over;
  std::unique_ptr<sys::tls_stream> secure;
  std::size_t index = 0;
  bool all = false;
  {
    const std::lock_guard guard(lock_);
    if (std::erase(strangers_, who) == 0) return;  // it has already been rejected
    reactor_->remove(who->socket.get(), std::exchange(who->token, 0));
    over = std::move(who->socket);
    secure = std::move(who->secure);
    index = which(std::span(who->words).subspan(sizeof(head)));
    if (!joins || index == used_.size()) return;
    used_[index] = true;
    all = std::find(used_.begin(), used_.end(), false) == used_.end();
  }
  if (all) close();
  if (const auto host = host_.lock(); host != nullptr) host->came(index, std::move(over), std::move(secure));
}

void stripe_door::turn_away(const std::shared_ptr<stranger>& who) noexcept {
  const std::lock_guard guard(lock_);
  if (std::erase(strangers_, who) > 0) reactor_->remove(who->socket.get(), std::exchange(who->token, 0));
}

void stripe_door::close() noexcept {
  std::deque<std::shared_ptr<stranger>> strangers;
  const std::lock_guard guard(lock_);
  if (std::exchange(closed_, true)) return;
  if (token_ != 0) reactor_->remove(socket_.get(), std::exchange(token_, 0));
  const auto socket = std::move(socket_);
  strangers.swap(strangers_);
  for (const auto& each : strangers) reactor_->remove(each->socket.get(), std::exchange(each->token, 0));
}

}  // namespace penstock::channel
