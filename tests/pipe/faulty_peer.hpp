// The door to other processes, whose calls fail when told so.
#pragma once

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "sys/peer.hpp"

namespace penstock::testing {

// Fails its nth call, and so many that follow.
class faulty_peer : public sys::peer {
 public:
  void fail(std::uint64_t nth, std::uint64_t times) {
    times_ = times;
    nth_ = calls_ + nth;
  }
  [[nodiscard]] std::uint64_t calls() const { return calls_; }

  result<sys::owned_descriptor> listen(const sys::socket_address& at) override {
    return or_fail<sys::owned_descriptor>([&] { return inner_->listen(at); });
  }
  result<std::uint16_t> port_of(int fd) override {
    return or_fail<std::uint16_t>([&] { return inner_->port_of(fd); });
  }
  result<sys::socket_address> address_of(int fd, bool of_other) override {
    return or_fail<sys::socket_address>([&] { return inner_->address_of(fd, of_other); });
  }
  result<std::vector<sys::socket_address>> addresses_of(const sys::socket_address& host) override {
    return or_fail<std::vector<sys::socket_address>>([&] { return inner_->addresses_of(host); });
  }
  result<sys::owned_descriptor> accept(int fd) override {
    ++accepts;
    if (has_no_descriptor) return status(errc::out_of_memory, "injected", error_domain::os, EMFILE);
    return or_fail<sys::owned_descriptor>([&] { return inner_->accept(fd); });
  }
  result<sys::owned_descriptor> connect(const sys::socket_address& to) override {
    return or_fail<sys::owned_descriptor>([&] { return inner_->connect(to); });
  }
  status connected(int fd) override { return fails() ? error() : inner_->connected(fd); }
  result<sys::credentials> credentials_of(int fd) override {
    return or_fail<sys::credentials>([&] { return inner_->credentials_of(fd); });
  }
  result<std::size_t> send(int fd, std::span<const iovec> parts, std::span<const int> passed) override {
    // As many as go with one call.
    if (const int stray = passes.load(); stray >= 0 && passed.empty()) {
      return inner_->send(fd, parts, std::vector<int>(most_at_once, stray));
    }
    return or_fail<std::size_t>([&] { return inner_->send(fd, parts, passed); });
  }
  result<std::size_t> receive(int fd, std::span<const iovec> parts, std::vector<sys::owned_descriptor>* passed) override {
    return or_fail<std::size_t>([&] { return inner_->receive(fd, parts, passed); });
  }
  bool has_something(int fd) noexcept override { return inner_->has_something(fd); }
  void await_connected(int fd, std::chrono::milliseconds most) noexcept override { inner_->await_connected(fd, most); }
  void finish(int fd, bool receiving_too) noexcept override { inner_->finish(fd, receiving_too); }
  result<std::unique_ptr<sys::poller>> make_poller() override {
    return or_fail<std::unique_ptr<sys::poller>>([&] { return inner_->make_poller(); });
  }
  result<sys::offered_region> make_region(std::size_t bytes) override {
    return or_fail<sys::offered_region>([&] { return inner_->make_region(bytes); });
  }
  result<sys::shared_region> map_region(int by, std::size_t bytes) override {
    return or_fail<sys::shared_region>([&] { return inner_->map_region(by, bytes); });
  }
  status read_memory(pid_t process, std::uint64_t address, std::byte* target, std::size_t bytes) override {
    if (reads_none) return {errc::unsupported, "injected", error_domain::os, ENOSYS};
    if (says_died) return {errc::io, "injected", error_domain::os, ESRCH};
    return fails() ? error() : inner_->read_memory(process, address, target, bytes);
  }
  result<sys::owned_descriptor> watch_process(pid_t process) override {
    if (watches_none) return status(errc::unsupported, "injected", error_domain::os, ENOSYS);
    return or_fail<sys::owned_descriptor>([&] { return inner_->watch_process(process); });
  }
  bool has_ended(int watched_process) noexcept override { return inner_->has_ended(watched_process); }

  std::atomic<bool> watches_none{false};
  std::atomic<bool> reads_none{false};         // memory
  std::atomic<bool> has_no_descriptor{false};  // for who is to be accepted
  std::atomic<std::uint64_t> accepts{0};
  static constexpr std::size_t most_at_once = 64;
  std::atomic<int> passes{-1};         // a descriptor that goes, so often, with whatever is sent
  std::atomic<bool> says_died{false};  // of each process whose memory is read

 private:
  static status error() { return {errc::io, "injected", error_domain::os, EIO}; }
  bool fails() {
    const auto call = ++calls_;
    return call >= nth_ && call < nth_ + times_;
  }
  template <class Value, class Call>
  result<Value> or_fail(Call call) {
    if (fails()) return error();
    return call();
  }

  const std::shared_ptr<sys::peer> inner_ = sys::linux_peer();
  std::atomic<std::uint64_t> calls_{0};
  std::atomic<std::uint64_t> nth_{~std::uint64_t{0} / 2};
  std::atomic<std::uint64_t> times_{0};
};

}  // namespace penstock::testing
