// One thread and poll(2) are enough: a page takes a millisecond, and a scraper requests one every few seconds. An HTTP library would be
// larger than this file and would offer features that an endpoint on every machine should not have.
#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <utility>
#include <vector>

#include "cli/watch/prometheus.hpp"

namespace penstock::cli {
namespace {

using clock = std::chrono::steady_clock;

constexpr std::size_t most_clients = 32;
constexpr std::size_t most_request_bytes = 8192;
constexpr std::chrono::seconds most_time{5};    // from the connection to the last byte of the response
constexpr std::chrono::milliseconds tick{200};  // how quickly a stop is noticed

class descriptor {
 public:
  explicit descriptor(int fd) noexcept : fd_(fd) {}
  descriptor(descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  descriptor& operator=(descriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  [[nodiscard]] int get() const noexcept { return fd_; }

 private:
  int fd_;
};

struct client {
  descriptor socket;
  clock::time_point until;
  std::string request{}, answer{};
  std::size_t sent = 0;
};

std::string response(std::string_view line, std::string_view body, std::string_view more = "") {
  return fmt::format(
      "HTTP/1.1 {}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\nContent-Length: {}\r\nConnection: close\r\n{}\r\n{}", line,
      body.size(), more, body);
}

// A web page may make a browser send requests here under its own host name (DNS rebinding), so only this machine's names are accepted.
bool names_this_machine(std::string_view head) {
  for (auto rest = head; !rest.empty();) {
    const auto line = rest.substr(0, rest.find("\r\n"));
    rest.remove_prefix(std::min(rest.size(), line.size() + 2));
    constexpr std::string_view name = "host:";
    const auto same = [](char one, char other) { return (one | 0x20) == (other | 0x20); };
    if (line.size() < name.size() || !std::equal(name.begin(), name.end(), line.begin(), same)) continue;
    auto host = line.substr(name.size());
    host.remove_prefix(std::min(host.find_first_not_of(" \t"), host.size()));
    host = host.starts_with('[') ? host.substr(0, host.find(']') + 1) : host.substr(0, host.find_first_of(": \t"));
    if (host != "localhost" && host != "127.0.0.1" && host != "[::1]") return false;
  }
  return true;
}

// Returns the response to a complete request head.
std::string answer_to(std::string_view head, const std::function<std::string()>& page) {
  const auto line = head.substr(0, head.find("\r\n"));
  const auto method = line.substr(0, line.find(' '));
  const auto rest = line.substr(std::min(line.size(), method.size() + 1));
  const auto target = rest.substr(0, rest.find(' '));
  if (!line.ends_with(" HTTP/1.1") && !line.ends_with(" HTTP/1.0")) return response("400 Bad Request", "not an HTTP request\n");
  if (!names_this_machine(head)) return response("421 Misdirected Request", "this server answers requests to localhost only\n");
  if (method != "GET") return response("405 Method Not Allowed", "GET only\n", "Allow: GET\r\n");
  if (target == "/") return response("302 Found", "The counters are at /metrics\n", "Location: /metrics\r\n");
  if (target != "/metrics") return response("404 Not Found", "The counters are at /metrics\n");
  return response("200 OK", page());
}

// Returns false once the client is finished or disconnected.
bool go_on(client& with, const std::function<std::string()>& page) {
  if (with.answer.empty()) {
    char part[2048];
    const auto count = ::recv(with.socket.get(), part, sizeof part, 0);
    if (count < 0) return errno == EAGAIN || errno == EINTR;
    if (count == 0) return false;
    with.request.append(part, static_cast<std::size_t>(count));
    if (with.request.find("\r\n\r\n") != std::string::npos) {
      with.answer = answer_to(with.request, page);
    } else if (with.request.size() > most_request_bytes) {
      with.answer = response("431 Request Header Fields Too Large", "too long\n");
    } else {
      return true;
    }
  }
  const auto count = ::send(with.socket.get(), with.answer.data() + with.sent, with.answer.size() - with.sent, MSG_NOSIGNAL);
  if (count < 0) return errno == EAGAIN || errno == EINTR;
  with.sent += static_cast<std::size_t>(count);
  return with.sent < with.answer.size();
}

result<descriptor> listen_on(const std::string& address, std::uint16_t port, std::uint16_t& bound) {
  sockaddr_storage at{};
  socklen_t length = 0;
  if (address == "127.0.0.1" || address == "localhost") {
    auto& v4 = reinterpret_cast<sockaddr_in&>(at);
    v4.sin_family = AF_INET;
    v4.sin_port = htons(port);
    v4.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    length = sizeof v4;
  } else if (address == "[::1]") {
    auto& v6 = reinterpret_cast<sockaddr_in6&>(at);
    v6.sin6_family = AF_INET6;
    v6.sin6_port = htons(port);
    v6.sin6_addr = in6addr_loopback;
    length = sizeof v6;
  } else {
    return status(errc::invalid_argument,
                  fmt::format("{} is reachable from other machines: use 127.0.0.1:PORT or [::1]:PORT with --serve", address));
  }
  descriptor socket(::socket(at.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  const auto failed = [&](const char* call) { return status::from_errno(errno, fmt::format("{} {}:{}", call, address, port)); };
  if (socket.get() < 0) return failed("socket for");
  const int on = 1;
  (void)::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (::bind(socket.get(), reinterpret_cast<const sockaddr*>(&at), length) != 0) return failed("bind");
  if (::listen(socket.get(), 16) != 0) return failed("listen on");
  if (::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&at), &length) != 0) return failed("getsockname of");
  bound = ntohs(at.ss_family == AF_INET ? reinterpret_cast<const sockaddr_in&>(at).sin_port
                                        : reinterpret_cast<const sockaddr_in6&>(at).sin6_port);
  return socket;
}

}  // namespace

status serve_metrics(const std::string& address, std::uint16_t port, const std::function<std::string()>& page,
                     const std::function<void(std::uint16_t)>& started, const std::function<bool()>& stopped) {
  std::uint16_t bound = 0;
  const auto listening = listen_on(address, port, bound);
  if (!listening) return listening.error();
  started(bound);
  std::vector<client> clients;
  while (!stopped()) {
    std::vector<pollfd> watched{{listening->get(), POLLIN, 0}};
    for (const auto& each : clients) watched.push_back({each.socket.get(), static_cast<short>(each.answer.empty() ? POLLIN : POLLOUT), 0});
    if (::poll(watched.data(), watched.size(), static_cast<int>(tick.count())) < 0 && errno != EINTR)
      return status::from_errno(errno, "poll");
    const auto now = clock::now();
    std::size_t kept = 0;
    for (std::size_t i = 0; i < clients.size(); ++i) {
      const bool goes_on = now < clients[i].until && (watched[i + 1].revents == 0 || go_on(clients[i], page));
      if (goes_on && kept != i) clients[kept] = std::move(clients[i]);
      if (goes_on) ++kept;
    }
    clients.erase(clients.begin() + static_cast<std::ptrdiff_t>(kept), clients.end());
    if ((watched[0].revents & POLLIN) == 0) continue;
    descriptor accepted(::accept4(listening->get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (accepted.get() < 0) {
      if (errno == EMFILE || errno == ENFILE) clients.clear();  // frees descriptors for the next client
      continue;
    }
    if (clients.size() == most_clients) clients.erase(clients.begin());  // the oldest
    clients.push_back({std::move(accepted), now + most_time});
  }
  return {};
}

}  // namespace penstock::cli
