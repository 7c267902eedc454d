// HTTP and TLS connections to web servers through libcurl, which is loaded on first use. libcurl handles names, proxies, TLS and
// certificate checks. Thread-safe unless noted. Proxies and their exceptions come from the environment, as with curl.
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
  std::string name;  // in lower case in an answer
  std::string value;
};

// A short request. Its answer is kept in memory.
struct web_request {
  std::string method = "GET";  // GET, HEAD, PUT, POST, DELETE
  std::string url;
  std::vector<web_header> headers;
  std::string body;
  std::chrono::milliseconds timeout = std::chrono::seconds(60);
  std::size_t most_bytes = std::size_t{1} << 20;  // limit on the body of the answer
  bool begins_only = false;                       // true: keep the first most_bytes of a longer body; false: a longer body is an error
  bool by_proxy = true;                           // false: ignore proxies of the environment
  const class web_stop* unless = nullptr;         // stops the request with errc::cancelled
};
struct web_answer {
  int status = 0;
  std::vector<web_header> headers;
  std::string body;
  bool is_cut = false;  // the full body is longer
  // Returns the first header of that name, which must be in lower case; empty if there is none.
  [[nodiscard]] std::string_view header(std::string_view name) const noexcept;
};

// A connection that carries requests one after the other. Use it from one thread at a time.
class web_connection {
 public:
  virtual ~web_connection() = default;
  // The socket. Poll it for reading, and for writing while bytes wait to be sent.
  [[nodiscard]] virtual int descriptor() const noexcept = 0;
  // Neither call blocks. They return a byte count, 0 from receive() at the end. Errors: would_block (no bytes can be sent or received now).
  virtual result<std::size_t> send(std::string_view bytes) = 0;
  virtual result<std::size_t> receive(std::byte* target, std::size_t room) = 0;
  // True if the connection ends at a proxy that makes no tunnel to the server but forwards requests that contain the whole URL.
  [[nodiscard]] virtual bool is_forwarded() const noexcept { return false; }
};

// Lets one thread stop what another waits for. If `requested` is set, the program can stop it as well.
class web_stop {
 public:
  explicit web_stop(bool (*requested)() noexcept = nullptr) noexcept : requested_(requested) {}
  // Stopped if either other or asked says so. Both must outlive this object. The waiting thread calls asked, which may be empty.
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

// Returns true if an error says that no such host exists, so that a retry is useless; false if the resolver did not answer.
[[nodiscard]] bool is_unknown_host(const status& error) noexcept;

class web_door {
 public:
  struct options {
    std::string library{};  // empty: libcurl.so.4
    std::string ca_file{};  // PEM; empty: what libcurl finds, or the usual places
    std::string ca_folder{};
    std::vector<std::string> resolved{};  // "name:port:address" as in curl's --resolve: these names are not looked up
    bool proxied = false;                 // the environment names a proxy: plain bytes then go through libcurl too
  };
  static constexpr std::size_t most_head_bytes = std::size_t{64} << 10;

  // Errors: unsupported (no libcurl, too old, or without TLS); the message says what to install.
  static result<std::shared_ptr<web_door>> open(const options& how);
  virtual ~web_door() = default;
  // "libcurl 7.88.1 (OpenSSL/3.0.15)"
  [[nodiscard]] virtual std::string version() const = 0;
  // exchange() and connect() refuse addresses from which machines hand out credentials (sys/metadata_address) with permission_denied,
  // unless the URL contains that address, because a name may resolve to anything. Other addresses of the name are tried. Requests that use
  // no proxy (by_proxy) are for this machine's own services and may go there.

  // Sends the request and waits for the answer, which may have any status. Does not follow redirects. Errors: timed_out; io (no such host,
  // refused, reset, an untrusted certificate, an invalid answer, or one that is too long), in curl's words. The message contains no more of
  // the URL than its host.
  virtual result<web_answer> exchange(const web_request& what) = 0;
  // Connects to the host of a URL ("https://host:port") and completes the TLS handshake. Blocks for at most `within`, or until stopped. If
  // a name has several addresses, connections are spread over all of them. Errors: as above, and cancelled.
  virtual result<std::unique_ptr<web_connection>> connect(const std::string& origin, std::chrono::milliseconds within,
                                                          const web_stop& unless) = 0;
};

}  // namespace penstock::sys
