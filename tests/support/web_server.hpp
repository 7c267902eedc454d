// A web server for tests, on loopback: it serves bytes correctly, and misbehaves where a test asks for it. One thread per connection.
#pragma once

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "sys/peer.hpp"

namespace penstock::testing {

struct web_request {
  std::string method;
  std::string target;
  std::map<std::string, std::string> headers;                      // names in lower case
  std::string body{};                                              // of the length that Content-Length states
  std::size_t number = 0;                                          // among all requests, from 0
  std::optional<std::pair<std::uint64_t, std::uint64_t>> range{};  // first and last byte
  [[nodiscard]] std::string header(const std::string& name) const {
    const auto found = headers.find(name);
    return found == headers.end() ? "" : found->second;
  }
};

class web_server {
 public:
  // A connection, as answers use it.
  class client {
   public:
    explicit client(int fd, std::atomic<bool>& stopping) : fd_(fd), stopping_(stopping) {}
    // Returns a number that no other open connection has.
    [[nodiscard]] int number() const noexcept { return fd_; }
    // Returns false if the connection is closed.
    bool send(std::string_view text) const {
      while (!text.empty()) {
        const auto sent = ::send(fd_, text.data(), text.size(), MSG_NOSIGNAL);
        if (sent <= 0) return false;
        text.remove_prefix(static_cast<std::size_t>(sent));
      }
      return true;
    }
    // Waits until the client closes the connection or the server ends.
    void hold() const {
      pollfd waited{fd_, POLLIN | POLLRDHUP, 0};
      std::array<char, 256> ignored{};
      while (!stopping_.load()) {
        if (::poll(&waited, 1, 20) > 0 && ::recv(fd_, ignored.data(), ignored.size(), MSG_DONTWAIT) <= 0) return;
      }
    }
    // The same, without reading what the client sends.
    void wait_until_gone() const {
      pollfd hung_up{fd_, POLLRDHUP, 0};
      while (!stopping_.load() && ::poll(&hung_up, 1, 20) == 0) {
      }
    }
    // Reads that many bytes from the client, or fewer if it disconnects.
    std::size_t take(std::size_t bytes) const {
      std::vector<char> room(bytes);
      std::size_t come = 0;
      while (come < bytes) {
        const auto got = ::recv(fd_, room.data() + come, bytes - come, 0);
        if (got <= 0) break;
        come += static_cast<std::size_t>(got);
      }
      return come;
    }
    // Closes the connection so that the client sees a reset, not an end.
    void reset() const {
      const linger at_once{1, 0};
      ::setsockopt(fd_, SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
    }

   private:
    const int fd_;
    std::atomic<bool>& stopping_;
  };
  // What happens to a connection after an answer.
  enum class then : std::uint8_t { keep, close };
  // Answers a request itself, or returns nothing to have the server answer.
  using answer = std::function<std::optional<then>(const web_request&, const client&)>;

  explicit web_server(std::vector<std::byte> content) : content_(std::move(content)) {
    listening_ = sys::owned_descriptor(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(::bind(listening_.get(), reinterpret_cast<sockaddr*>(&at), sizeof(at)), 0);
    EXPECT_EQ(::listen(listening_.get(), 256), 0);
    socklen_t bytes = sizeof(at);
    EXPECT_EQ(::getsockname(listening_.get(), reinterpret_cast<sockaddr*>(&at), &bytes), 0);
    port_ = ntohs(at.sin_port);
    accepting_ = std::thread([this] { accept(); });
  }
  web_server(const web_server&) = delete;
  web_server& operator=(const web_server&) = delete;
  ~web_server() { stop(); }

  // Closes all connections, and accepts no more.
  void stop() {
    if (stopping_.exchange(true)) return;
    ::shutdown(listening_.get(), SHUT_RDWR);
    accepting_.join();
    listening_ = {};
    for (;;) {
      std::vector<std::thread> all;
      {
        const std::lock_guard guard(lock_);
        for (const int fd : open_) ::shutdown(fd, SHUT_RDWR);
        all.swap(threads_);
      }
      if (all.empty()) return;
      for (auto& each : all) each.join();
    }
  }

  // Refuses connections once it has accepted this many in total.
  void accept_at_most(std::size_t count) { most_accepted_.store(count); }

  [[nodiscard]] std::uint16_t port() const noexcept { return port_; }
  [[nodiscard]] std::string origin() const { return fmt::format("http://127.0.0.1:{}", port_); }
  [[nodiscard]] std::string url(const std::string& target = "/data") const { return origin() + target; }
  void set_answer(answer how) {
    const std::lock_guard guard(lock_);
    answer_ = std::move(how);
  }
  // The same before the body of a request is read, except for bytes that arrive with its head: to answer early, or to read only part of it.
  void set_early_answer(answer how) {
    const std::lock_guard guard(lock_);
    early_answer_ = std::move(how);
  }
  void put(std::vector<std::byte> content, std::string etag) {
    const std::lock_guard guard(lock_);
    content_ = std::move(content);
    etag_ = std::move(etag);
  }
  [[nodiscard]] std::vector<web_request> requests() const {
    const std::lock_guard guard(lock_);
    return requests_;
  }
  [[nodiscard]] std::size_t connections() const noexcept { return accepted_.load(); }
  [[nodiscard]] std::size_t most_connections() const noexcept { return most_open_.load(); }

  // --- for answers
  // Returns the head of a correct answer to the request, with additional lines. The next function returns the bytes that follow it.
  [[nodiscard]] std::string head_of(const web_request& asked, const std::string& more = {}) const {
    const std::lock_guard guard(lock_);
    const auto size = content_.size();
    if (!asked.range)
      return fmt::format("HTTP/1.1 200 OK\r\nETag: {}\r\nLast-Modified: {}\r\nContent-Length: {}\r\n{}\r\n", etag_, modified_, size, more);
    const auto [first, last] = *asked.range;
    if (first >= size)
      return fmt::format("HTTP/1.1 416 Range Not Satisfiable\r\nContent-Range: bytes */{}\r\nContent-Length: 0\r\n\r\n", size);
    const auto end = std::min<std::uint64_t>(last, size - 1);
    return fmt::format(
        "HTTP/1.1 206 Partial Content\r\nETag: {}\r\nLast-Modified: {}\r\nContent-Range: bytes {}-{}/{}\r\nContent-Length: {}\r\n{}\r\n",
        etag_, modified_, first, end, size, end - first + 1, more);
  }
  [[nodiscard]] std::string body_of(const web_request& asked) const {
    const std::lock_guard guard(lock_);
    const auto [first, last] = asked.range.value_or(std::pair<std::uint64_t, std::uint64_t>(0, content_.size() - 1));
    if (first >= content_.size()) return {};
    const auto end = std::min<std::uint64_t>(last, content_.size() - 1);
    return {reinterpret_cast<const char*>(content_.data()) + first, static_cast<std::size_t>(end - first + 1)};
  }
  [[nodiscard]] std::string etag() const {
    const std::lock_guard guard(lock_);
    return etag_;
  }

 private:
  void accept() {
    for (;;) {
      const int fd = ::accept4(listening_.get(), nullptr, nullptr, SOCK_CLOEXEC);
      if (fd < 0) return;
      const std::lock_guard guard(lock_);
      if (stopping_.load()) {
        ::close(fd);
        return;
      }
      accepted_.fetch_add(1);
      if (accepted_.load() >= most_accepted_.load()) ::shutdown(listening_.get(), SHUT_RDWR);  // ends the loop
      open_.push_back(fd);
      most_open_.store(std::max(most_open_.load(), open_.size()));
      threads_.emplace_back([this, fd] { serve(fd); });
    }
  }
  void serve(int fd) {
    std::string come;
    while (one(fd, come)) {
    }
    const std::lock_guard guard(lock_);
    open_.erase(std::find(open_.begin(), open_.end(), fd));
    ::close(fd);
  }
  bool one(int fd, std::string& come) {
    std::array<char, 4096> room{};
    std::size_t end = 0;
    while ((end = come.find("\r\n\r\n")) == std::string::npos) {
      const auto got = ::recv(fd, room.data(), room.size(), 0);
      if (got <= 0) return false;
      come.append(room.data(), static_cast<std::size_t>(got));
    }
    auto asked = parse(come.substr(0, end + 2));
    come.erase(0, end + 4);
    answer how;
    answer early;
    {
      const std::lock_guard guard(lock_);
      asked.number = requests_.size();
      requests_.push_back(asked);
      how = answer_;
      early = early_answer_;
    }
    const client over(fd, stopping_);
    if (const auto length = asked.header("content-length"); !length.empty()) {
      asked.body = come.substr(0, std::stoull(length));
      come.erase(0, asked.body.size());
      if (const auto after = early ? early(asked, over) : std::nullopt) return *after == then::keep;
      if (!take_rest(fd, std::stoull(length), asked.body)) return false;
    }
    if (const auto after = how ? how(asked, over) : std::nullopt) return *after == then::keep;
    return over.send(head_of(asked)) && (asked.method == "HEAD" || over.send(body_of(asked)));
  }
  static bool take_rest(int fd, std::size_t length, std::string& to) {
    auto at = to.size();
    to.resize(length);
    while (at < length) {
      const auto got = ::recv(fd, to.data() + at, length - at, 0);
      if (got <= 0) return false;
      at += static_cast<std::size_t>(got);
    }
    return true;
  }
  static web_request parse(const std::string& text) {
    web_request made;
    const auto line_end = text.find("\r\n");
    const auto first = text.find(' ');
    const auto second = text.find(' ', first + 1);
    made.method = text.substr(0, first);
    made.target = text.substr(first + 1, second - first - 1);
    for (std::size_t at = line_end + 2; at < text.size();) {
      const auto end = text.find("\r\n", at);
      const auto colon = text.find(':', at);
      auto name = text.substr(at, colon - at);
      std::transform(name.begin(), name.end(), name.begin(), [](unsigned char each) { return static_cast<char>(std::tolower(each)); });
      made.headers[name] = text.substr(colon + 2, end - colon - 2);
      at = end + 2;
    }
    if (const auto range = made.header("range"); !range.empty()) {
      const auto dash = range.find('-');
      made.range.emplace(std::stoull(range.substr(6, dash - 6)), std::stoull(range.substr(dash + 1)));
    }
    return made;
  }

  std::vector<std::byte> content_;
  std::string etag_ = "\"first\"";
  std::string modified_ = "Wed, 21 Oct 2015 07:28:00 GMT";
  sys::owned_descriptor listening_;
  std::uint16_t port_ = 0;
  std::atomic<bool> stopping_{false};
  std::atomic<std::size_t> accepted_{0};
  std::atomic<std::size_t> most_accepted_{~std::size_t{0}};
  std::atomic<std::size_t> most_open_{0};
  mutable std::mutex lock_;  // guards all members below, and the content
  answer answer_;
  answer early_answer_;
  std::vector<web_request> requests_;
  std::vector<int> open_;
  std::vector<std::thread> threads_;
  std::thread accepting_;
};

}  // namespace penstock::testing
