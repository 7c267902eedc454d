#include "sys/web.hpp"

#include <arpa/inet.h>
#include <dlfcn.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <mutex>

#include <fmt/format.h>

#include "base/no_memory.hpp"
#include "base/no_pipe_signal.hpp"
#include "sys/metadata_address.hpp"
#include "sys/uninterrupted.hpp"

namespace penstock::sys {

namespace {

using namespace std::chrono_literals;
using steady = std::chrono::steady_clock;

constexpr unsigned oldest_version = 0x074400;  // 7.68: curl_multi_poll and all options below
constexpr long version_has_tls = 1L << 2;      // CURL_VERSION_SSL
constexpr std::size_t most_kept_handles = 8;   // each keeps its connection for the next short request
constexpr auto look_for_stop = 50ms;
constexpr auto trust_kept = 1h;  // then the CA certificates are loaded again

// libcurl's constants, which never change (https://curl.se/libcurl/abi.html).
enum option : int {
  opt_http_version = 84,
  opt_nobody = 44,
  opt_nosignal = 99,
  opt_sslversion = 32,
  opt_tcp_nodelay = 121,
  opt_connect_only = 141,
  opt_timeout_ms = 155,
  opt_connecttimeout_ms = 156,
  opt_protocols = 181,
  opt_path_as_is = 234,
  opt_dns_shuffle_addresses = 275,
  opt_quick_exit = 322,  // since 7.87: a pending name lookup is abandoned to its thread
  opt_httpproxytunnel = 61,
  opt_suppress_connect_headers = 265,
  opt_writedata = 10001,
  opt_url = 10002,
  opt_proxy = 10004,
  opt_errorbuffer = 10010,
  opt_postfields = 10015,
  opt_useragent = 10018,
  opt_httpheader = 10023,
  opt_headerdata = 10029,
  opt_customrequest = 10036,
  opt_cainfo = 10065,
  opt_capath = 10097,
  opt_ssl_ctx_data = 10109,
  opt_opensocketdata = 10164,
  opt_resolve = 10203,
  opt_writefunction = 20011,
  opt_headerfunction = 20079,
  opt_ssl_ctx_function = 20108,
  opt_opensocketfunction = 20163,
  opt_postfieldsize_large = 30120,
};
constexpr long http_1_1 = 2;
constexpr long tls_1_2 = 6;
constexpr long http_and_https = 1 | 2;
constexpr int info_response_code = 0x200002;
constexpr int info_connect_code = 0x200016;
constexpr int info_active_socket = 0x50002c;
constexpr int info_pretransfer_us = 0x600035;
constexpr int info_starttransfer_us = 0x600036;
constexpr int code_ok = 0;
constexpr int code_no_address = 6;  // CURLE_COULDNT_RESOLVE_HOST
constexpr int code_out_of_memory = 27;
constexpr int code_timed_out = 28;
constexpr int code_untrusted = 60;  // CURLE_PEER_FAILED_VERIFICATION
constexpr int code_again = 81;
constexpr int code_stopped = -1;  // our own
constexpr int message_done = 1;
constexpr long global_default = 3;
constexpr int no_socket = -1;  // CURL_SOCKET_BAD

struct version_data {  // the beginning of curl_version_info_data
  int age;
  const char* version;
  unsigned version_number;
  const char* host;
  int features;
  const char* ssl_version;
};
struct message {  // CURLMsg
  int kind;
  void* easy;
  union {
    void* whatever;
    int result;
  } data;
};
struct string_list;    // curl_slist
struct curl_address {  // curl_sockaddr
  int family;
  int type;
  int protocol;
  unsigned length;
  sockaddr address;  // may be longer
};

// OpenSSL's functions for the certificates of a context. All are null if libcurl uses another library.
struct trust_functions {
  void* (*get)(const void*) = nullptr;  // SSL_CTX_get_cert_store
  void (*set)(void*, void*) = nullptr;  // SSL_CTX_set1_cert_store, which counts a reference
  int (*keep)(void*) = nullptr;         // X509_STORE_up_ref
  void (*drop)(void*) = nullptr;        // X509_STORE_free
};

struct curl_functions {
  trust_functions trust{};
  int (*global_init)(long) = nullptr;
  version_data* (*version_info)(int) = nullptr;
  void* (*easy_init)() = nullptr;
  int (*easy_setopt)(void*, int, ...) = nullptr;
  int (*easy_getinfo)(void*, int, ...) = nullptr;
  void (*easy_reset)(void*) = nullptr;
  void (*easy_cleanup)(void*) = nullptr;
  const char* (*easy_strerror)(int) = nullptr;
  int (*easy_send)(void*, const void*, std::size_t, std::size_t*) = nullptr;
  int (*easy_recv)(void*, void*, std::size_t, std::size_t*) = nullptr;
  void* (*multi_init)() = nullptr;
  int (*multi_add)(void*, void*) = nullptr;
  int (*multi_remove)(void*, void*) = nullptr;
  int (*multi_perform)(void*, int*) = nullptr;
  int (*multi_poll)(void*, void*, unsigned, int, int*) = nullptr;
  message* (*multi_read)(void*, int*) = nullptr;
  int (*multi_cleanup)(void*) = nullptr;
  string_list* (*list_append)(string_list*, const char*) = nullptr;
  void (*list_free)(string_list*) = nullptr;
};

template <class Function>
bool find(void* in, const char* name, Function& to) noexcept {
  to = reinterpret_cast<Function>(dlsym(in, name));
  return to != nullptr;
}

bool find_all(void* in, curl_functions& to) noexcept {
  return find(in, "curl_global_init", to.global_init) && find(in, "curl_version_info", to.version_info) &&
         find(in, "curl_easy_init", to.easy_init) && find(in, "curl_easy_setopt", to.easy_setopt) &&
         find(in, "curl_easy_getinfo", to.easy_getinfo) && find(in, "curl_easy_reset", to.easy_reset) &&
         find(in, "curl_easy_cleanup", to.easy_cleanup) && find(in, "curl_easy_strerror", to.easy_strerror) &&
         find(in, "curl_easy_send", to.easy_send) && find(in, "curl_easy_recv", to.easy_recv) &&
         find(in, "curl_multi_init", to.multi_init) && find(in, "curl_multi_add_handle", to.multi_add) &&
         find(in, "curl_multi_remove_handle", to.multi_remove) && find(in, "curl_multi_perform", to.multi_perform) &&
         find(in, "curl_multi_poll", to.multi_poll) && find(in, "curl_multi_info_read", to.multi_read) &&
         find(in, "curl_multi_cleanup", to.multi_cleanup) && find(in, "curl_slist_append", to.list_append) &&
         find(in, "curl_slist_free_all", to.list_free);
}

// Returns nothing if libcurl's version is not that of the copy in which the symbols are found.
trust_functions find_trust(void* in, const char* ssl_version) {
  trust_functions to;
  const char* (*version)(int) = nullptr;  // a program that exports OpenSSL's symbols has libcurl use its copy, which dlsym() does not find
  constexpr std::string_view name = "OpenSSL/";
  const std::string_view used = ssl_version != nullptr ? ssl_version : "";
  const bool found = used.starts_with(name) && find(in, "OpenSSL_version", version) &&
                     std::string_view(version(0)).starts_with("OpenSSL " + std::string(used.substr(name.size())) + " ") &&
                     find(in, "SSL_CTX_get_cert_store", to.get) && find(in, "SSL_CTX_set1_cert_store", to.set) &&
                     find(in, "X509_STORE_up_ref", to.keep) && find(in, "X509_STORE_free", to.drop);
  return found ? to : trust_functions();
}

constexpr const char* install = "install libcurl4 (Debian, Ubuntu) or libcurl (Fedora, RHEL)";

// An unusable library stays loaded, because other code in the process may use it.
result<curl_functions> open_curl(const std::string& name) {
  const std::array<const char*, 2> usual{"libcurl.so.4", "libcurl-gnutls.so.4"};
  void* opened = nullptr;
  std::string why;  // from the first attempt
  const auto open = [&](const char* each) {
    opened = dlopen(each, RTLD_NOW | RTLD_LOCAL);
    const auto* const words = opened == nullptr ? dlerror() : nullptr;  // NOLINT(concurrency-mt-unsafe): per thread
    if (words != nullptr && why.empty()) why = words;
  };
  if (!name.empty()) open(name.c_str());
  for (const auto* each : usual) {
    if (name.empty() && opened == nullptr) open(each);
  }
  const auto& shown = name.empty() ? std::string(usual.front()) : name;
  if (opened == nullptr && why.find("failed to map") != std::string::npos)
    return status(errc::out_of_memory, fmt::format("URLs require {}, but there is not enough memory to load it: {}", shown, why));
  if (opened == nullptr && why.find("No such file") == std::string::npos && !why.empty())
    return status(errc::unsupported, fmt::format("URLs require {}, which cannot be loaded: {}", shown, why));
  if (opened == nullptr) return status(errc::unsupported, fmt::format("URLs require {}, which is not installed: {}", shown, install));
  curl_functions found;
  if (!find_all(opened, found)) {
    return status(errc::unsupported, fmt::format("{} is too old; URLs require version 7.68 or later: {}", shown, install));
  }
  const auto* const seen = found.version_info(0);
  if (seen->version_number < oldest_version || (seen->features & version_has_tls) == 0) {
    return status(errc::unsupported, fmt::format("{} is version {}{}; URLs require 7.68 or later, with TLS: {}", shown, seen->version,
                                                 (seen->features & version_has_tls) == 0 ? " without TLS" : "", install));
  }
  if (found.global_init(global_default) != code_ok) return no_memory();
  found.trust = find_trust(opened, seen->ssl_version);
  return found;
}

std::string lower(std::string_view text) {
  std::string made(text);
  for (auto& each : made) each = static_cast<char>(std::tolower(static_cast<unsigned char>(each)));
  return made;
}

std::string_view trimmed(std::string_view text) noexcept {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t' || text.back() == '\r' || text.back() == '\n')) text.remove_suffix(1);
  return text;
}

std::string_view host_of(std::string_view url) noexcept {
  const auto scheme = url.find("://");
  if (scheme != std::string_view::npos) url.remove_prefix(scheme + 3);
  url = url.substr(0, url.find_first_of("/?#"));
  const auto user = url.rfind('@');
  return user == std::string_view::npos ? url : url.substr(user + 1);
}

// Created only once, because it is returned after every burst of bytes.
const status& not_now() {
  static const status made(errc::would_block, "the connection has no data or no room now");
  return made;
}

// Collects the response to a short request.
struct gathering {
  web_answer answer;
  std::size_t head_bytes = 0;
  std::size_t most_bytes = 0;
  bool begins_only = false;
  status problem;

  std::size_t take_header(const char* data, std::size_t bytes) {
    head_bytes += bytes;
    if (head_bytes > web_door::most_head_bytes) {
      problem = {errc::io, fmt::format("the server's headers are larger than {} KiB", web_door::most_head_bytes >> 10)};
      return 0;
    }
    const std::string_view line(data, bytes);
    if (line.substr(0, 5) == "HTTP/") answer.headers.clear();  // keeps only the headers of the final response
    const auto colon = line.find(':');
    if ((line.starts_with(' ') || line.starts_with('\t')) && !answer.headers.empty()) {  // a folded line continues the previous header
      auto& value = answer.headers.back().value;
      value += value.empty() ? "" : " ";
      value += trimmed(line);
    } else if (colon != std::string_view::npos)
      answer.headers.push_back({lower(trimmed(line.substr(0, colon))), std::string(trimmed(line.substr(colon + 1)))});
    return bytes;
  }
  std::size_t take_body(const char* data, std::size_t bytes) {
    if (bytes > most_bytes - answer.body.size()) {
      answer.is_cut = begins_only;
      if (begins_only) return 0;
      problem = {errc::io, fmt::format("the server's response is larger than {} bytes", most_bytes)};
      return 0;
    }
    answer.body.append(data, bytes);
    return bytes;
  }
};

// Exceptions must not propagate through libcurl.
template <class Take>
std::size_t without_exception(gathering& into, Take take) noexcept {
  return or_without_memory(take, [&] {
    into.problem = no_memory();
    return std::size_t{0};
  });
}
std::size_t header_came(char* data, std::size_t, std::size_t bytes, void* into) {
  auto& gathered = *static_cast<gathering*>(into);
  return without_exception(gathered, [&] { return gathered.take_header(data, bytes); });
}
std::size_t body_came(char* data, std::size_t, std::size_t bytes, void* into) {
  auto& gathered = *static_cast<gathering*>(into);
  return without_exception(gathered, [&] { return gathered.take_body(data, bytes); });
}

// Removes the port, and the brackets around an IPv6 address.
std::string without_port(std::string_view host) {
  std::string text(host);
  if (const auto port = text.rfind(':'); port != std::string::npos && text.find(']', port) == std::string::npos) text.erase(port);
  return text.size() > 2 && text.front() == '[' ? text.substr(1, text.size() - 2) : text;
}

bool is_address(std::string_view host) {
  const auto text = without_port(host);
  in_addr four{};
  in6_addr six{};
  return inet_aton(text.c_str(), &four) != 0 || inet_pton(AF_INET6, text.c_str(), &six) == 1;
}

// libcurl reports the same error for a name that does not exist and for a resolver that does not respond. This function queries the
// resolver again to distinguish the two. It may block as long as the resolver does, which has just responded to libcurl.
int why_no_address(std::string_view host) noexcept {
  return or_without_memory(
      [&] {
        addrinfo* found = nullptr;
        const addrinfo wanted{.ai_flags = 0,
                              .ai_family = AF_UNSPEC,
                              .ai_socktype = SOCK_STREAM,
                              .ai_protocol = 0,
                              .ai_addrlen = 0,
                              .ai_addr = nullptr,
                              .ai_canonname = nullptr,
                              .ai_next = nullptr};
        const int why = getaddrinfo(without_port(host).c_str(), nullptr, &wanted, &found);
        if (why == 0) freeaddrinfo(found);
        return why;
      },
      [] { return EAI_MEMORY; });
}

// Decides which addresses connections for one URL may use.
struct address_guard {
  bool any = false;
  bool refused = false;  // at least one address was refused
  int socket_error = 0;  // errno if the kernel refused to create a socket; libcurl's message omits it

  explicit address_guard(std::string_view host) : any(is_address(host)) {}
  // Returns permission_denied if the connection failed because an address was refused, the errno if no socket could be created, otherwise
  // the given error.
  [[nodiscard]] status told(status why, std::string_view host) const {
    if (why.ok() || why.code() == errc::out_of_memory) return why;
    if (socket_error != 0) return status::from_errno(socket_error, fmt::format("{}: socket", host));
    if (!refused) return why;
    return {errc::permission_denied,
            fmt::format("{}: the name resolves to an address that provides machine credentials; to use that server, put its address "
                        "in the URL",
                        host)};
  }
};

int open_guarded_socket(void* with, int /*purpose*/, curl_address* to) noexcept {
  auto& guarded = *static_cast<address_guard*>(with);
  if (!guarded.any && is_metadata_address(to->address)) {
    guarded.refused = true;
    return no_socket;
  }
  const int made = ::socket(to->family, to->type | SOCK_CLOEXEC, to->protocol);
  guarded.socket_error = made < 0 ? errno : 0;
  return made;
}

// The CA certificates (X509_STORE) for one connection.
struct loaded_trust {
  const trust_functions* with = nullptr;
  std::shared_ptr<void> lent;  // null: libcurl loads them
  std::shared_ptr<void> own;   // loaded by libcurl
};

// Called by libcurl with the context of a new connection.
int share_store(void* /*easy*/, void* context, void* with) noexcept {
  auto& loaded = *static_cast<loaded_trust*>(with);
  if (loaded.lent != nullptr) {
    loaded.with->set(context, loaded.lent.get());
    return code_ok;
  }
  auto* const store = loaded.with->get(context);
  if (store == nullptr || loaded.with->keep(store) != 1) return code_ok;
  return or_without_memory(
      [&] {
        loaded.own = std::shared_ptr<void>(store, loaded.with->drop);
        return code_ok;
      },
      [] { return code_out_of_memory; });
}

class curl_door;

class curl_connection final : public web_connection {
 public:
  curl_connection(std::shared_ptr<const curl_door> door, bool plain) noexcept : door_(std::move(door)), plain_(plain) {}
  curl_connection(const curl_connection&) = delete;
  curl_connection& operator=(const curl_connection&) = delete;
  ~curl_connection() override;
  status make(const std::string& origin, std::chrono::milliseconds within, const web_stop& unless);
  [[nodiscard]] bool is_forwarded() const noexcept override { return is_forwarded_; }
  [[nodiscard]] int descriptor() const noexcept override { return socket_; }
  result<std::size_t> send(std::string_view bytes) override;
  result<std::size_t> receive(std::byte* target, std::size_t room) override;

 private:
  [[nodiscard]] status refused(int code) const;
  status connect(std::chrono::milliseconds within, const web_stop& unless);
  [[nodiscard]] bool has_no_tunnel() const;
  void let_go() noexcept;

  const std::shared_ptr<const curl_door> door_;
  const bool plain_;  // bytes are transferred directly over the socket, not through libcurl
  void* easy_ = nullptr;
  void* multi_ = nullptr;  // owns the connection
  int socket_ = -1;
  bool is_forwarded_ = false;
  std::string origin_;
  loaded_trust trust_;
  address_guard guarded_{{}};
  std::array<char, 256> words_{};
};

class curl_door final : public web_door, public std::enable_shared_from_this<curl_door> {
 public:
  curl_door(const curl_functions& with, options how) : curl_(with), how_(std::move(how)) {
    for (const auto& each : how_.resolved) resolved_ = curl_.list_append(resolved_, each.c_str());
  }
  curl_door(const curl_door&) = delete;
  curl_door& operator=(const curl_door&) = delete;
  ~curl_door() override {
    for (const auto& each : kept_) drop(each);
    curl_.list_free(resolved_);
  }
  [[nodiscard]] const curl_functions& curl() const noexcept { return curl_; }
  [[nodiscard]] std::string version() const override {
    const auto* const seen = curl_.version_info(0);
    return fmt::format("libcurl {} ({})", seen->version, seen->ssl_version);
  }

  result<web_answer> exchange(const web_request& what) override {
    const no_pipe_signal quiet;  // libcurl with OpenSSL may write to a socket whose peer has closed
    const auto by = take();
    if (by.easy == nullptr || by.multi == nullptr) {
      drop(by);
      return no_memory();
    }
    auto answered = exchange(by, what);
    give(by, answered.ok());
    return answered;
  }

  result<std::unique_ptr<web_connection>> connect(const std::string& origin, std::chrono::milliseconds within,
                                                  const web_stop& unless) override {
    const no_pipe_signal quiet;
    auto made = std::make_unique<curl_connection>(shared_from_this(), origin.starts_with("http://") && !how_.proxied);
    if (auto problem = made->make(origin, within, unless); !problem.ok()) return problem;
    return std::unique_ptr<web_connection>(std::move(made));
  }

  // Sets the options common to all requests.
  void prepare(void* easy, const std::string& url, char* words, address_guard& guarded) const {
    const auto set = curl_.easy_setopt;
    set(easy, opt_url, url.c_str());
    set(easy, opt_nosignal, 1L);
    set(easy, opt_quick_exit, 1L);
    set(easy, opt_errorbuffer, words);
    set(easy, opt_protocols, http_and_https);
    set(easy, opt_opensocketfunction, &open_guarded_socket);
    set(easy, opt_opensocketdata, static_cast<void*>(&guarded));
    set(easy, opt_http_version, http_1_1);
    set(easy, opt_sslversion, tls_1_2);
    set(easy, opt_path_as_is, 1L);  // an object key may contain dots
    set(easy, opt_dns_shuffle_addresses, 1L);
    set(easy, opt_tcp_nodelay, 1L);
    if (resolved_ != nullptr) set(easy, opt_resolve, resolved_);
    if (!how_.ca_file.empty()) set(easy, opt_cainfo, how_.ca_file.c_str());
    if (!how_.ca_folder.empty()) set(easy, opt_capath, how_.ca_folder.c_str());
  }
  // Gives a new connection the CA certificates that an earlier one has loaded, because loading them takes 20 ms of CPU time. If there are
  // none, the connection stores in `loaded` those that it loads. With a proxy, which may use other CAs, each connection loads them.
  void share_trust(void* easy, loaded_trust& loaded) const {
    if (curl_.trust.get == nullptr || how_.proxied || how_.tls_proxied) return;
    loaded.with = &curl_.trust;
    {
      const std::lock_guard guard(trust_lock_);
      if (steady::now() < trusted_until_) loaded.lent = trust_;
    }
    if (loaded.lent != nullptr) {
      curl_.easy_setopt(easy, opt_cainfo, static_cast<const char*>(nullptr));
      curl_.easy_setopt(easy, opt_capath, static_cast<const char*>(nullptr));
    }
    curl_.easy_setopt(easy, opt_ssl_ctx_function, &share_store);
    curl_.easy_setopt(easy, opt_ssl_ctx_data, static_cast<void*>(&loaded));
  }
  // Keeps the certificates with which a handshake has succeeded. Before that, libcurl may not have loaded all of them.
  void keep_trust(loaded_trust& loaded) const {
    if (loaded.own == nullptr) return;
    const std::lock_guard guard(trust_lock_);
    trust_ = std::move(loaded.own);
    trusted_until_ = steady::now() + trust_kept;
  }
  // Drops certificates with which a connection failed: they may be older than the server's.
  void drop_trust(const loaded_trust& lent) const noexcept {
    const std::lock_guard guard(trust_lock_);
    if (lent.lent != nullptr && lent.lent == trust_) trusted_until_ = {};
  }
  [[nodiscard]] status told(int code, const char* words, std::string_view url) const {
    if (code == code_out_of_memory) return no_memory();
    const std::string_view text = words[0] != '\0' ? words : curl_.easy_strerror(code);
    if (code == code_no_address && why_no_address(host_of(url)) == EAI_NONAME)
      return {errc::io, fmt::format("{}: {}", host_of(url), text), error_domain::penstock, EAI_NONAME};
    return {code == code_timed_out ? errc::timed_out : errc::io, fmt::format("{}: {}", host_of(url), text)};
  }

 private:
  // An easy handle, and the multi handle that keeps its connection. Used by one request at a time.
  struct handles {
    void* easy = nullptr;
    void* multi = nullptr;
  };

  handles take() {
    {
      const std::lock_guard guard(lock_);
      if (!kept_.empty()) {
        const auto last = kept_.back();
        kept_.pop_back();
        return last;
      }
    }
    return {curl_.easy_init(), curl_.multi_init()};
  }
  void give(const handles& used, bool sound) noexcept {
    curl_.easy_reset(used.easy);
    if (sound) {
      const std::lock_guard guard(lock_);
      if (kept_.size() < most_kept_handles && or_without_memory([&] { return kept_.push_back(used), true; }, [] { return false; })) return;
    }
    drop(used);
  }
  void drop(const handles& used) noexcept {
    if (used.easy != nullptr) curl_.easy_cleanup(used.easy);
    if (used.multi != nullptr) curl_.multi_cleanup(used.multi);
  }

  // Like curl_easy_perform(), but returns code_stopped if the request is stopped.
  [[nodiscard]] int perform(const handles& by, const web_stop* unless) const {
    if (curl_.multi_add(by.multi, by.easy) != code_ok) return code_out_of_memory;
    int code = code_ok;
    const auto longest = unless != nullptr ? std::chrono::milliseconds(look_for_stop) : std::chrono::milliseconds(1s);
    for (int running = 1;;) {
      if (curl_.multi_perform(by.multi, &running) != code_ok) code = code_out_of_memory;
      if (code == code_ok && running > 0 && unless != nullptr && unless->stopped()) code = code_stopped;
      if (code != code_ok || running == 0) break;
      curl_.multi_poll(by.multi, nullptr, 0, static_cast<int>(longest.count()), nullptr);
    }
    int left = 0;
    for (const auto* seen = curl_.multi_read(by.multi, &left); seen != nullptr; seen = curl_.multi_read(by.multi, &left)) {
      if (seen->kind == message_done && code == code_ok) code = seen->data.result;
    }
    curl_.multi_remove(by.multi, by.easy);
    return code;
  }

  result<web_answer> exchange(const handles& by, const web_request& what) {
    void* const easy = by.easy;
    std::array<char, 256> words{};
    gathering into;
    into.most_bytes = what.most_bytes;
    into.begins_only = what.begins_only;
    address_guard guarded(host_of(what.url));
    if (!what.by_proxy) guarded.any = true;
    prepare(easy, what.url, words.data(), guarded);
    const auto set = curl_.easy_setopt;
    set(easy, opt_timeout_ms, static_cast<long>(what.timeout.count()));
    set(easy, opt_connecttimeout_ms, static_cast<long>(std::min<std::chrono::milliseconds>(what.timeout, 5s).count()));
    set(easy, opt_headerfunction, &header_came);
    set(easy, opt_headerdata, static_cast<void*>(&into));
    set(easy, opt_writefunction, &body_came);
    set(easy, opt_writedata, static_cast<void*>(&into));
    if (!what.by_proxy) set(easy, opt_proxy, "");
    if (what.method == "HEAD") {
      set(easy, opt_nobody, 1L);
    } else if (what.method != "GET") {
      set(easy, opt_postfieldsize_large, static_cast<std::int64_t>(what.body.size()));
      set(easy, opt_postfields, what.body.c_str());
      set(easy, opt_customrequest, what.method.c_str());
    }
    string_list* lines = nullptr;
    bool listed = true;
    const auto add = [&](const std::string& line) {
      auto* const longer = listed ? curl_.list_append(lines, line.c_str()) : nullptr;
      listed = longer != nullptr;
      if (listed) lines = longer;
    };
    for (const auto& each : what.headers) add(each.value.empty() ? each.name + ";" : each.name + ": " + each.value);
    add("Expect:");
    set(easy, opt_httpheader, lines);
    const int code = listed ? perform(by, what.unless) : code_out_of_memory;
    long answered = 0;
    std::int64_t asked_us = 0, answered_us = 0;
    curl_.easy_getinfo(easy, info_response_code, &answered);
    curl_.easy_getinfo(easy, info_pretransfer_us, &asked_us);
    curl_.easy_getinfo(easy, info_starttransfer_us, &answered_us);
    curl_.list_free(lines);
    if (code == code_stopped) return status(errc::cancelled, fmt::format("{}: stopped while waiting for the server", host_of(what.url)));
    if (!into.problem.ok()) return into.problem.with_context(host_of(what.url));
    if (code != code_ok && !into.answer.is_cut) return guarded.told(told(code, words.data(), what.url), host_of(what.url));
    into.answer.status = static_cast<int>(answered);
    into.answer.latency = std::chrono::microseconds(std::max<std::int64_t>(answered_us - asked_us, 0));
    return std::move(into.answer);
  }

  const curl_functions curl_;
  const options how_;
  string_list* resolved_ = nullptr;
  std::mutex lock_;  // guards kept_
  std::vector<handles> kept_;
  mutable std::mutex trust_lock_;        // guards the members below
  mutable std::shared_ptr<void> trust_;  // X509_STORE
  mutable steady::time_point trusted_until_{};
};

curl_connection::~curl_connection() {
  const no_pipe_signal quiet;
  let_go();
}

void curl_connection::let_go() noexcept {
  const auto& curl = door_->curl();
  if (multi_ != nullptr && easy_ != nullptr) curl.multi_remove(multi_, easy_);  // closes the connection
  if (easy_ != nullptr) curl.easy_cleanup(std::exchange(easy_, nullptr));
  if (multi_ != nullptr) curl.multi_cleanup(std::exchange(multi_, nullptr));
}

status curl_connection::refused(int code) const { return door_->told(code, words_.data(), origin_); }

// Many proxies allow tunnels only to port 443 but forward plain requests.
status curl_connection::make(const std::string& origin, std::chrono::milliseconds within, const web_stop& unless) {
  origin_ = origin;
  auto made = connect(within, unless);
  if (made.ok() || !has_no_tunnel()) return made;
  let_go();
  is_forwarded_ = true;
  return connect(within, unless);
}

bool curl_connection::has_no_tunnel() const {
  constexpr long wants_a_password = 407;
  long code = 0;
  if (!origin_.starts_with("http://") || easy_ == nullptr) return false;
  if (door_->curl().easy_getinfo(easy_, info_connect_code, &code) != code_ok) return false;
  return code >= 400 && code != wants_a_password;
}

// The handle stays in its own multi handle, because removing it would close the connection.
status curl_connection::connect(std::chrono::milliseconds within, const web_stop& unless) {
  const auto& curl = door_->curl();
  guarded_ = address_guard(host_of(origin_));
  easy_ = curl.easy_init();
  multi_ = curl.multi_init();
  if (easy_ == nullptr || multi_ == nullptr) return no_memory();
  door_->prepare(easy_, origin_, words_.data(), guarded_);
  trust_ = {};
  door_->share_trust(easy_, trust_);
  curl.easy_setopt(easy_, opt_connect_only, 1L);
  curl.easy_setopt(easy_, opt_httpproxytunnel, is_forwarded_ ? 0L : 1L);
  curl.easy_setopt(easy_, opt_suppress_connect_headers, 1L);
  curl.easy_setopt(easy_, opt_connecttimeout_ms, static_cast<long>(within.count()));
  if (curl.multi_add(multi_, easy_) != code_ok) return no_memory();
  const auto until = steady::now() + within + 1s;  // libcurl enforces the timeout itself, except during a name lookup
  for (;;) {
    int running = 0;
    int left = 0;
    if (curl.multi_perform(multi_, &running) != code_ok) return no_memory();
    if (const auto* const seen = curl.multi_read(multi_, &left); seen != nullptr && seen->kind == message_done) {
      if (seen->data.result == code_untrusted) door_->drop_trust(trust_);
      if (seen->data.result != code_ok) return guarded_.told(refused(seen->data.result), host_of(origin_));
      break;
    }
    if (unless.stopped()) return {errc::cancelled, fmt::format("{}: the connection attempt was cancelled", host_of(origin_))};
    if (steady::now() > until) return {errc::timed_out, fmt::format("{}: the connection attempt timed out", host_of(origin_))};
    curl.multi_poll(multi_, nullptr, 0, static_cast<int>(std::chrono::milliseconds(look_for_stop).count()), nullptr);
  }
  int found = -1;
  if (const int code = curl.easy_getinfo(easy_, info_active_socket, &found); code != code_ok || found < 0)
    return {errc::io, fmt::format("{}: the connection was closed immediately", host_of(origin_))};
  socket_ = found;
  door_->keep_trust(trust_);
  return {};
}

result<std::size_t> curl_connection::send(std::string_view bytes) {
  if (plain_) {
    const auto sent = uninterrupted([&] { return ::send(socket_, bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL); });
    if (sent < 0) return errno == EAGAIN ? not_now() : status::from_errno(errno, fmt::format("{}: send", host_of(origin_)));
    return static_cast<std::size_t>(sent);
  }
  std::size_t sent = 0;
  const int code = door_->curl().easy_send(easy_, bytes.data(), bytes.size(), &sent);
  if (code == code_again) return not_now();
  if (code != code_ok) return refused(code);
  return sent;
}

result<std::size_t> curl_connection::receive(std::byte* target, std::size_t room) {
  if (plain_) {
    const auto got = uninterrupted([&] { return ::recv(socket_, target, room, MSG_DONTWAIT); });
    if (got < 0) return errno == EAGAIN ? not_now() : status::from_errno(errno, fmt::format("{}: recv", host_of(origin_)));
    return static_cast<std::size_t>(got);
  }
  std::size_t got = 0;
  const int code = door_->curl().easy_recv(easy_, target, room, &got);
  if (code == code_again) return not_now();
  if (code != code_ok) return refused(code);
  return got;
}

}  // namespace

bool is_unknown_host(const status& error) noexcept {
  return error.code() == errc::io && error.domain() == error_domain::penstock && error.native() == EAI_NONAME;
}

std::string_view web_answer::header(std::string_view name) const noexcept {
  const auto found = std::find_if(headers.begin(), headers.end(), [&](const web_header& each) { return each.name == name; });
  return found == headers.end() ? std::string_view() : std::string_view(found->value);
}

result<std::shared_ptr<web_door>> web_door::open(const options& how) {
  auto opened = open_curl(how.library);
  if (!opened) return opened.error();
  return std::shared_ptr<web_door>(std::make_shared<curl_door>(*opened, how));
}

}  // namespace penstock::sys
