// An end of a pipe over tcp that speaks by hand, and need not keep to what pipes say.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "channel/connection.hpp"
#include "channel/wire.hpp"
#include "pipe/channel_frames.hpp"
#include "pipe/pipe_fixture.hpp"
#include "sys/peer.hpp"

namespace penstock::testing {

struct heard_frame {
  channel::frame_head head;
  bytes body;
  [[nodiscard]] channel::frame_kind kind() const { return heard_kind(head.kind); }
};

class raw_end {
 public:
  explicit raw_end(std::uint16_t port) {
    auto made = door_->connect({sys::socket_address::family::tcp, "127.0.0.1", port});
    EXPECT_TRUE(made.ok());
    socket_ = *std::move(made);
  }
  explicit raw_end(sys::owned_descriptor over) : socket_(std::move(over)) {}
  static std::uint16_t port_of(const std::string& url) { return static_cast<std::uint16_t>(std::stoi(url.substr(url.rfind(':') + 1))); }

  // False: the other end has gone, or takes no more and give_up says so.
  bool write(
      const bytes& all, const std::function<bool()>& give_up = [] { return false; }) {
    for (std::size_t done = 0; done < all.size();) {
      const iovec part{const_cast<std::byte*>(all.data() + done), all.size() - done};
      const auto sent = door_->send(socket_.get(), {&part, 1});
      if (sent) done += *sent;
      if (!sent && (sent.error().code() != errc::would_block || give_up())) return false;
      if (!sent) std::this_thread::yield();
    }
    return true;
  }
  static bytes frame(channel::frame_kind kind, const bytes& body = {}, std::uint64_t message = 0, std::uint64_t part = 0,
                     std::uint32_t code = 0) {
    const channel::frame_head head{static_cast<std::uint32_t>(kind), code, message, part, body.size()};
    const auto* const raw = reinterpret_cast<const std::byte*>(&head);
    bytes all(raw, raw + sizeof(head));
    all.insert(all.end(), body.begin(), body.end());
    return all;
  }
  bool say(channel::frame_kind kind, const bytes& body = {}, std::uint64_t message = 0, std::uint64_t part = 0, std::uint32_t code = 0) {
    return write(frame(kind, body, message, part, code));
  }
  // Nothing: the other end has gone.
  std::optional<bytes> read(std::size_t count) {
    const auto latest = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    bytes got(count);
    for (std::size_t done = 0; done < count;) {
      const iovec part{got.data() + done, count - done};
      const auto some = door_->receive(socket_.get(), {&part, 1});
      if ((some && *some == 0) || (!some && some.error().code() != errc::would_block)) return std::nullopt;
      if (std::chrono::steady_clock::now() > latest) {
        ADD_FAILURE() << "the other end is there and says nothing";
        return std::nullopt;
      }
      done += some.value_or(0);
      if (!some) std::this_thread::yield();
    }
    return got;
  }
  std::optional<heard_frame> hear() {
    heard_frame heard;
    const auto head = read(sizeof(heard.head));
    if (!head) return std::nullopt;
    std::memcpy(&heard.head, head->data(), sizeof(heard.head));
    auto body = read(heard.head.length);
    if (!body) return std::nullopt;
    heard.body = *std::move(body);
    return heard;
  }
  // What comes before is dropped.
  std::optional<heard_frame> hear_of(channel::frame_kind kind) {
    for (;;) {
      auto heard = hear();
      if (!heard || heard->kind() == kind) return heard;
    }
  }
  // The number of each channel is its place in this list: mpt 0, basic 1, cuda_basic 2.
  void greet(std::uint32_t connections) {
    channel::hello hello{channel::wire_version, channel::own_identity()};
    hello.who.connections = connections;
    say(channel::frame_kind::hello, channel::encode(hello));
    const std::vector<channel::reached_channel> reach{{"mpt", ""}, {"basic", ""}, {"cuda_basic", ""}};
    say(channel::frame_kind::reach, channel::encode(reach));
  }
  void announce(std::uint64_t number, std::uint64_t length) {
    channel::announcement facts;
    facts.tensors.emplace_back().length = length;
    say(channel::frame_kind::announcement, channel::encode(facts), number);
  }
  // The other end has gone, and said nothing before.
  bool hears_nothing() { return !read(1); }
  // The other end has gone by now, where it never says anything.
  [[nodiscard]] bool is_left() const {
    std::byte byte{};
    const iovec into{&byte, 1};
    const auto got = door_->receive(socket_.get(), {&into, 1});
    return got ? *got == 0 : got.error().code() != errc::would_block;
  }
  void leave() { socket_ = sys::owned_descriptor(); }

 private:
  std::shared_ptr<sys::peer> door_ = sys::linux_peer();
  sys::owned_descriptor socket_;
};

}  // namespace penstock::testing
