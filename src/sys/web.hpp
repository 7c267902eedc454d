// The door to web servers: libcurl, opened when it is first needed. Names, proxies, TLS and the checks of certificates are its business.
// Thread-safe unless said otherwise. Proxies and their exceptions come from the environment, as with curl.
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
  std::string name;  // of an answer: in lower case
  std::string value;
};

// A short request, whose answer is kept in memory.
struct web_request {
  std::string method = "GET";  // GET, HEAD, PUT, POST, DELETE
  std::string url;
  std::vector<web_header> headers;
  std::string body;
  std::chrono::milliseconds timeout = std::chrono::seconds(60);
  std::size_t most_bytes = std::size_t{1} << 20;  // of the body that comes
  bool begins_only = false;                       // of a longer body, keep the beginning; else it is an error
  bool by_proxy = true;                           // false: whatever the environment says
  const class web_stop* unless = nullptr;         // ends it: errc::cancelled
};
struct web_answer {
  int status = 0;
  std::vector<web_header> headers;
  std::string body;
  bool is_cut = false;  // the body is longer
  // The first of that name, in lower case; empty where there is none.
  [[nodiscard]] std::string_view header(std::string_view name) const noexcept;
};

// A connection over which requests go one after the other. For one thread at a time, but for stop().
class web_connection {
 public:
  virtual ~web_connection() = default;
  // To be polled: whatever is waited for, it can be read then.
  [[nodiscard]] virtual int descriptor() const noexcept = 0;
  // Neither blocks. Bytes; would_block when none can go or come now. receive(): 0 at the end.
  virtual result<std::size_t> send(std::string_view bytes) = 0;
  virtual result<std::size_t> receive(std::byte* target, std::size_t room) = 0;
  // It ends at a proxy that makes no tunnel to the server, and forwards requests that name the whole URL.
  [[nodiscard]] virtual bool is_forwarded() const noexcept { return false; }
};

// Lets one thread end what another waits for; requested, if there is such a function, lets the program end it as well.
class web_stop {
 public:
  explicit web_stop(bool (*requested)() noexcept = nullptr) noexcept : requested_(requested) {}
  // Either says so. Both outlive it; asked, which may be empty, is called by the thread that waits.
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

// Whether an error says that no host has that name, so that a retry is of no use. false if the resolver did not answer.
[[nodiscard]] bool is_unknown_host(const status& error) noexcept;

class web_door {
 public:
  struct options {
    std::string library{};  // empty: libcurl.so.4
    std::string ca_file{};  // PEM; empty: what libcurl finds, or the usual places
    std::string ca_folder{};
    std::vector<std::string> resolved{};  // "name:port:address" as curl's --resolve has it: not looked up
    bool proxied = false;                 // the environment names a proxy: plain bytes then pass through libcurl, too
  };
  static constexpr std::size_t most_head_bytes = std::size_t{64} << 10;

  // Errors: unsupported (no libcurl, an old one, one without TLS), which say what to install.
  static result<std::shared_ptr<web_door>> open(const options& how);
  virtual ~web_door() = default;
  // "libcurl 7.88.1 (OpenSSL/3.0.15)"
  [[nodiscard]] virtual std::string version() const = 0;
  // A name may lead anywhere, so both refuse to connect to an address at which machines keep credentials (sys/metadata_address) unless the
  // URL names that address itself: permission_denied. Other addresses of the name are tried. Requests that use no proxy (by_proxy) are for
  // this machine's own services, and may go there.

  // Sends it and waits for its answer, which may have any status. Follows no redirect. Errors: timed_out; io (no such host, refused, reset,
  // a certificate that is not trusted, an answer that is none, or longer than it may be), in curl's words; they name no more of the URL
  // than its host.
  virtual result<web_answer> exchange(const web_request& what) = 0;
  // Connects to the host of an URL ("https://host:port"), and has TLS agreed. Blocks for at most within, or until somebody says stop.
  // Where a name has several addresses, connections go to all of them. Errors as above, and cancelled.
  virtual result<std::unique_ptr<web_connection>> connect(const std::string& origin, std::chrono::milliseconds within,
                                                          const web_stop& unless) = 0;
};

}  // namespace penstock::sys
