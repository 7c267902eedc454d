// Requests to a server on this machine, without a client of HTTP.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <string>

#include "remote/net/control.hpp"

namespace penstock::source::remote {

// One request of HTTP 1.0 over a socket of its own, with blocking calls: enough for a server on this machine.
inline result<control_answer> ask_plainly(const control_request& request) {
  control_answer answer;
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(request.address.port);
  inet_pton(AF_INET, request.address.host.c_str(), &to.sin_addr);
  if (connect(fd, reinterpret_cast<const sockaddr*>(&to), sizeof to) == 0) {
    auto text = request.method + " " + request.address.unredacted_target() + " HTTP/1.0\r\nHost: " + request.address.authority() +
                "\r\nContent-Length: " + std::to_string(request.body.size()) + "\r\n";
    for (const auto& [name, value] : request.headers) text += name + ": " + value + "\r\n";
    text += "\r\n" + request.body;
    for (std::size_t sent = 0; sent < text.size();) {
      const auto count = send(fd, text.data() + sent, text.size() - sent, MSG_NOSIGNAL);
      if (count <= 0) break;
      sent += static_cast<std::size_t>(count);
    }
    std::string got(std::size_t{1} << 20, '\0');
    std::size_t size = 0;
    for (ssize_t count = 1; count > 0; size += static_cast<std::size_t>(std::max<ssize_t>(count, 0)))
      count = recv(fd, got.data() + size, got.size() - size, 0);
    got.resize(size);
    answer.status_code = size > 12 ? std::atoi(got.c_str() + 9) : 0;
    const auto body = got.find("\r\n\r\n");
    if (body != std::string::npos) answer.body = got.substr(body + 4);
  }
  close(fd);
  if (answer.status_code == 0) return status(errc::io, "no answer");
  return answer;
}

}  // namespace penstock::source::remote
