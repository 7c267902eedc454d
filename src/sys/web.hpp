// HTTP and TLS connections to web servers through libcurl, which is loaded on first use. libcurl handles name resolution, proxies, TLS and
// certificate checks. Thread-safe unless noted. Proxies and exceptions to them are read from the environment, as in curl.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "penstock/status.hpp"

namespace penstock::sys {

struct web_header {
  std::string name;  // in lower case in a response
  std::string value;
};

// A short request whose response is kept in memory.
struct web_request {
  std::string method = "GET";  // GET, HEAD, PUT, POST, DELETE
  std::string url;
  std::vector<web_header> headers;
  std::string body;
  std::chrono::milliseconds timeout = std::chrono::seconds(60);
  std::size_t most_bytes = std::size_t{1} << 20;  // limit on the size of the response body
  bool begins_only = false;                       // true: keep the first most_bytes of a longer body; false: a longer body is an error
  bool by_proxy = true;                           // false: ignore proxies set in the environment
  const class web_stop* unless = nullptr;         // stops the request with errc::cancelled
};
struct web_answer {
  int status = 0;
  std::vector<web_header> headers;
  std::string body;
  bool is_cut = false;                  // the body was longer and has been truncated
  std::chrono::microseconds latency{};  // from the request to the response, without connecting
  // Returns the first header with this name, which must be in lower case; empty if there is none.
  [[nodiscard]] std::string_view header(std::string_view name) const noexcept;
};

// A connection for consecutive requests. Use it from one thread at a time.
class web_connection {
 public:
  virtual ~web_connection() = default;
  // Returns the socket. Poll it for reading, and for writing while bytes are waiting to be sent.
  [[nodiscard]] virtual int descriptor() const noexcept = 0;
  // Neither call blocks. Both return a byte count; receive() returns 0 at the end of the stream. Errors: would_block (no bytes can be sent
  // or received now).
  virtual result<std::size_t> send(std::string_view bytes) = 0;
  virtual result<std::size_t> receive(std::byte* target, std::size_t room) = 0;
  // Returns true if the connection ends at a proxy that provides no tunnel to the server, but forwards requests that contain the full URL.
  [[nodiscard]] virtual bool is_forwarded() const noexcept { return false; }
};

// Lets one thread stop an operation that another thread is waiting for. If `requested` is set, the program can stop it too.
class web_stop {
 public:
  explicit web_stop(bool (*requested)() noexcept = nullptr) noexcept : requested_(requested) {}
  // Stopped if other is stopped or asked() returns true. Both must outlive this object. The waiting thread calls asked, which may be empty.
  web_stop(const web_stop& other, const std::function<bool()>& asked) noexcept : other_(&other), asked_(&asked) {}
  web_stop(const web_stop&) = delete;
  web_stop& operator=(const web_stop&) = delete;
  [[nodiscard]] bool stopped() const noexcept {
    return stopped_.load(std::memory_order_acquire) || (requested_ != nullptr && requested_()) ||
           (other_ != nullptr && (other_->stopped() || (*asked_ && (*asked_)())));
  }
  void stop() noexcept { stopped_.store(true, std::memory_order_release); }

 private:
  bool (*const requested_)() noexcept = nullptr;
  const web_stop* const other_ = nullptr;
  const std::function<bool()>* const asked_ = nullptr;
  std::atomic<bool> stopped_{false};
};

// Returns true if the error means that no such host exists, so a retry is useless; false if the resolver did not respond.
[[nodiscard]] bool is_unknown_host(const status& error) noexcept;

class web_door {
 public:
  struct options {
    std::string library{};  // empty: libcurl.so.4
    std::string ca_file{};  // PEM; empty: libcurl's default, or the usual locations
    std::string ca_folder{};
    std::vector<std::string> resolved{};  // "name:port:address" as in curl's --resolve: these names are not looked up
    bool tls_proxied = false;             // the environment sets a proxy for https
    bool proxied = false;                 // the environment sets a proxy, so plain bytes are transferred through libcurl too
  };
  static constexpr std::size_t most_head_bytes = std::size_t{64} << 10;

  // Errors: unsupported (no libcurl, too old, or without TLS); the message says what to install.
  static result<std::shared_ptr<web_door>> open(const options& how);
  virtual ~web_door() = default;
  // "libcurl 7.88.1 (OpenSSL/3.0.15)"
  [[nodiscard]] virtual std::string version() const = 0;
  // exchange() and connect() refuse addresses that provide machine credentials (sys/metadata_address) with permission_denied, because a
  // name may resolve to any address. An address that the URL itself contains is allowed. The name's other addresses are tried. Requests
  // that use no proxy (by_proxy) are for this machine's own services and may connect to such addresses.

  // Sends the request and waits for the response, which may have any status. Does not follow redirects. Errors: timed_out; io (no such
  // host, connection refused or reset, an untrusted certificate, or a response that is invalid or too large), with curl's message. Of the
  // URL, the message contains only the host.
  virtual result<web_answer> exchange(const web_request& what) = 0;
  // Connects to the host in a URL ("https://host:port") and completes the TLS handshake. Blocks for at most `within`, or until stopped. If
  // a name has several addresses, connections are spread over all of them. Errors: those of exchange(), and cancelled.
  virtual result<std::unique_ptr<web_connection>> connect(const std::string& origin, std::chrono::milliseconds within,
                                                          const web_stop& unless) = 0;
};

}  // namespace penstock::sys
