// A channel that the tests alone have: through a std::vector of the process that both ends are in. The sender puts what it is asked for
// there, under a number that the receiver takes it by.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "channel/carrier.hpp"

namespace penstock::testing {

class heap_shelf {
 public:
  static heap_shelf& the() {
    static heap_shelf shelf;
    return shelf;
  }
  std::uint64_t put(std::vector<std::byte> what) {
    const std::lock_guard guard(lock_);
    all_.emplace(++last_, std::move(what));
    return last_;
  }
  std::vector<std::byte> take(std::uint64_t number) {
    const std::lock_guard guard(lock_);
    auto found = all_.extract(number);
    return found.empty() ? std::vector<std::byte>() : std::move(found.mapped());
  }

 private:
  std::mutex lock_;  // guards what follows
  std::uint64_t last_ = 0;
  std::map<std::uint64_t, std::vector<std::byte>> all_;
};

class heap_carrier final : public channel::carrier {
 public:
  using carrier::carrier;

  std::optional<std::string> take(channel::incoming& message, std::size_t tensor) override {
    arriving_of(message).tensors.push_back(tensor);
    return std::nullopt;
  }
  channel::delivery& delivery_of(channel::incoming& message) override { return arriving_of(message); }

  result<channel::frame_room> begins(const channel::frame_head& head) override {
    const auto kind = channel::own_kind_of_frame(head.kind);
    if (kind == wanted && head.length == 0) return channel::frame_room{};
    if (kind == there) return channel::frame_room{{}, sizeof(std::uint64_t)};
    return channel::out_of_turn("a frame");
  }
  status arrived(const channel::frame_head& head, std::span<const std::byte> body) override {
    status wrong;
    with_lock([&](channel::endings& ended) {
      if (owner_.hears()) wrong = channel::own_kind_of_frame(head.kind) == wanted ? asked(head) : come(head, body, ended);
    });
    return wrong;
  }

 private:
  enum own_kind : std::uint8_t { wanted = 1, there };
  struct arriving final : channel::delivery {
    arriving(heap_carrier& owner, channel::incoming& of) : by(owner), message(of) {}
    [[nodiscard]] std::uint64_t parts() const noexcept override { return tensors.size(); }
    void ask(channel::endings& /*ended*/) override {
      for (; next < tensors.size(); ++next) by.say(wanted, message.number, {}, tensors[next]);
    }
    [[nodiscard]] std::uint64_t abandon() noexcept override {
      const auto gone = tensors.size();
      tensors.clear();
      return gone;
    }
    heap_carrier& by;
    channel::incoming& message;
    std::vector<std::size_t> tensors;  // that have not come
    std::size_t next = 0;              // to be asked for
  };
  arriving& arriving_of(channel::incoming& message) {
    return message.delivery_of<arriving>(this, [&] { return std::make_unique<arriving>(*this, message); });
  }

  status asked(const channel::frame_head& head) {
    auto* const message = owner_.find_outgoing(head.message);
    if (message == nullptr) return {};
    if (head.part >= message->places.size()) return {errc::io, "there is no such tensor"};
    const auto& tensor = message->message.tensors[head.part];
    const auto* const from = static_cast<const std::byte*>(tensor.memory);
    say(there, message->number, channel::encode_tag(heap_shelf::the().put({from, from + tensor.length})), head.part);
    return {};
  }
  status come(const channel::frame_head& head, std::span<const std::byte> body, channel::endings& ended) {
    const auto number = channel::decode_tag(body);
    if (!number) return number.error();
    const auto bytes = heap_shelf::the().take(*number);
    auto* const message = owner_.find_incoming(head.message);
    auto* const of = message == nullptr ? nullptr : message->find_delivery<arriving>(*this);
    if (of == nullptr || std::erase(of->tensors, head.part) == 0) return {};  // it was stopped
    --of->next;
    if (bytes.size() != message->targets[head.part].length) return {errc::io, "a tensor of another length"};
    std::memcpy(message->targets[head.part].memory, bytes.data(), bytes.size());
    ended.of_parts.emplace_back(message, 1);
    return {};
  }
};

class heap_channel final : public channel::channel {
 public:
  [[nodiscard]] std::string_view name() const noexcept override { return "heap"; }
  [[nodiscard]] bool serves(bool from_device, bool to_device) const noexcept override { return !from_device && !to_device; }
  [[nodiscard]] std::optional<std::string> refuses(const penstock::channel::identity& from, const penstock::channel::identity& here,
                                                   const penstock::channel::means& /*by*/) const override {
    if (from.process_token != here.process_token) return "the other end is another process";
    return std::nullopt;
  }
  [[nodiscard]] std::unique_ptr<penstock::channel::carrier> make(const penstock::channel::tools& with,
                                                                 penstock::channel::carrier_owner& owner) const override {
    return std::make_unique<heap_carrier>(*this, with, owner);
  }
  static const heap_channel& the() {
    static const heap_channel made;
    return made;
  }
};

}  // namespace penstock::testing
