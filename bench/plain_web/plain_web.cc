// Measures how fast plain sockets read an object from a web server: HOST PORT PATH BYTES CONNECTIONS PIECE_BYTES http|https. Each thread
// has one connection, takes the next piece of the object, requests it with a Range header, and receives it into its own memory. The bytes
// are not used. https: through SSL_read() of OpenSSL, which is loaded at run time; certificates are not checked. Prints seconds and CPU
// seconds as JSON. bench/remote_bench.py uses the result as its ceiling.
#include <dlfcn.h>
#include <netdb.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <charconv>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace {

[[noreturn]] void give_up(const char* what) {
  std::fprintf(stderr, "plain_web: %s\n", what);
  std::exit(1);
}

// The functions of libssl that are used.
struct open_ssl {
  void* library = dlopen("libssl.so.3", RTLD_NOW | RTLD_GLOBAL);
  template <class Function>
  Function* find(const char* name) const {
    auto* const found = library == nullptr ? nullptr : dlsym(library, name);
    if (found == nullptr) give_up("there is no libssl.so.3");
    return reinterpret_cast<Function*>(found);
  }
  const void* (*client)() = find<const void*()>("TLS_client_method");
  void* (*make_context)(const void*) = find<void*(const void*)>("SSL_CTX_new");
  void* (*make)(void*) = find<void*(void*)>("SSL_new");
  int (*set_socket)(void*, int) = find<int(void*, int)>("SSL_set_fd");
  int (*connect)(void*) = find<int(void*)>("SSL_connect");
  int (*read)(void*, void*, int) = find<int(void*, void*, int)>("SSL_read");
  int (*write)(void*, const void*, int) = find<int(void*, const void*, int)>("SSL_write");
  void* context = make_context(client());
};

class connection {
 public:
  connection(const addrinfo& to, const open_ssl* tls) : tls_(tls), socket_(::socket(to.ai_family, SOCK_STREAM, 0)) {
    if (::connect(socket_, to.ai_addr, to.ai_addrlen) != 0) give_up("the server cannot be reached");
    if (tls == nullptr) return;
    session_ = tls->make(tls->context);
    tls->set_socket(session_, socket_);
    if (tls->connect(session_) != 1) give_up("no TLS with the server");
  }
  connection(const connection&) = delete;
  connection& operator=(const connection&) = delete;
  ~connection() { ::close(socket_); }

  void send(std::string_view text) const {
    const auto size = static_cast<int>(text.size());
    const auto sent = tls_ == nullptr ? ::send(socket_, text.data(), text.size(), MSG_NOSIGNAL) : tls_->write(session_, text.data(), size);
    if (sent != size) give_up("a request could not be sent");
  }
  std::size_t receive(char* to, std::size_t most) const {
    const auto come = tls_ == nullptr ? ::recv(socket_, to, most, 0) : tls_->read(session_, to, static_cast<int>(most));
    if (come <= 0) give_up("the server ended a connection");
    return static_cast<std::size_t>(come);
  }

 private:
  const open_ssl* tls_;
  int socket_;
  void* session_ = nullptr;
};

struct object {
  std::string host, path;
  std::uint64_t bytes = 0, piece = 0;
};

void receive_piece(const connection& from, const object& what, std::uint64_t first, std::vector<char>& memory) {
  const auto length = std::min(what.piece, what.bytes - first);
  from.send("GET " + what.path + " HTTP/1.1\r\nHost: " + what.host + "\r\nRange: bytes=" + std::to_string(first) + "-" +
            std::to_string(first + length - 1) + "\r\n\r\n");
  std::size_t have = 0, body = 0;
  while (body == 0) {
    have += from.receive(memory.data() + have, 4096);
    const auto end = std::string_view(memory.data(), have).find("\r\n\r\n");
    if (end != std::string_view::npos) body = end + 4;
  }
  if (std::string_view(memory.data(), have).substr(9, 3) != "206") give_up("the server serves no ranges");
  for (std::uint64_t done = have - body; done < length;) done += from.receive(memory.data() + done, length - done);
}

double cpu_seconds() {
  rusage used{};
  ::getrusage(RUSAGE_SELF, &used);
  const auto seconds = [](const timeval& time) { return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec); };
  return seconds(used.ru_utime) + seconds(used.ru_stime);
}

std::uint64_t number(const char* text) {
  std::uint64_t made = 0;
  std::from_chars(text, text + std::strlen(text), made);
  return made;
}

}  // namespace

int main(int count, char** words) {
  if (count != 8) give_up("HOST PORT PATH BYTES CONNECTIONS PIECE_BYTES http|https");
  const object what{words[1], words[3], number(words[4]), number(words[6])};
  addrinfo* found = nullptr;
  if (::getaddrinfo(words[1], words[2], nullptr, &found) != 0) give_up("the host is not known");
  const auto tls = std::string_view(words[7]) == "https" ? std::make_unique<open_ssl>() : nullptr;
  std::atomic<std::uint64_t> next{0};
  std::atomic<unsigned> ready{0};
  const auto connections = static_cast<unsigned>(number(words[5]));
  std::chrono::steady_clock::time_point began;
  double cpu_before = 0;
  std::atomic<bool> go{false};
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < connections; ++i) {
    threads.emplace_back([&] {
      const connection mine(*found, tls.get());
      std::vector<char> memory(what.piece + 8192, 1);
      ready.fetch_add(1);
      go.wait(false);
      for (auto at = next.fetch_add(what.piece); at < what.bytes; at = next.fetch_add(what.piece)) receive_piece(mine, what, at, memory);
    });
  }
  while (ready.load() < connections) std::this_thread::yield();
  cpu_before = cpu_seconds();
  began = std::chrono::steady_clock::now();
  go.store(true);
  go.notify_all();
  for (auto& each : threads) each.join();
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
  std::printf("{\"seconds\": %.6f, \"cpu_seconds\": %.6f}\n", took.count(), cpu_seconds() - cpu_before);
  ::freeaddrinfo(found);
  return 0;
}
