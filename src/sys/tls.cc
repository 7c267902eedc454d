#include "sys/tls.hpp"

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "base/no_memory.hpp"

namespace penstock::sys {

namespace {

// Constants from OpenSSL's ssl.h, bio.h and x509_vfy.h.
constexpr int ctrl_mode = 33;
constexpr int ctrl_min_proto_version = 123;
constexpr int ctrl_set_host_name = 55;
constexpr long release_buffers = 0x10;
constexpr long version_1_3 = 0x0304;
constexpr int pem_file = 1;
constexpr int verify_peer = 1;
constexpr int verify_needs_certificate = 2;
constexpr int error_want_read = 2;
constexpr int error_zero_return = 6;
constexpr unsigned no_partial_wildcards = 0x4;
constexpr std::uint64_t no_handler_at_exit = 0x00080000;
constexpr unsigned long reason_of_error = 0x7FFFFF;
constexpr unsigned long first_reason_of_alerts = 1000;

constexpr std::size_t most_taken = std::size_t{256} << 10;  // the most bytes to encrypt before sending any
constexpr std::size_t most_fetched = std::size_t{64} << 10;
// The most socket reads in one call: received data may contain no bytes for the caller (repeated key updates, for example), and the calling
// thread serves other connections too.
constexpr unsigned most_fetches = 16;

struct libssl {
  int (*init)(std::uint64_t, const void*) = nullptr;
  const void* (*method)() = nullptr;
  void* (*context_new)(const void*) = nullptr;
  void (*context_free)(void*) = nullptr;
  long (*context_ctrl)(void*, int, long, void*) = nullptr;
  void (*ask_pass_phrase)(void*, int (*)(char*, int, int, void*)) = nullptr;
  void (*pass_to_asked)(void*, void*) = nullptr;
  int (*use_certificate)(void*, const char*) = nullptr;
  int (*use_key)(void*, const char*, int) = nullptr;
  int (*check_key)(const void*) = nullptr;
  int (*trust)(void*, const char*, const char*) = nullptr;
  int (*trust_usual)(void*) = nullptr;
  void (*verify)(void*, int, void*) = nullptr;
  int (*tickets)(void*, std::size_t) = nullptr;
  void* (*create)(void*) = nullptr;
  void (*destroy)(void*) = nullptr;
  void (*set_bio)(void*, void*, void*) = nullptr;
  void (*accept_state)(void*) = nullptr;
  void (*connect_state)(void*) = nullptr;
  int (*handshake)(void*) = nullptr;
  int (*shutdown)(void*) = nullptr;
  int (*read)(void*, void*, std::size_t, std::size_t*) = nullptr;
  int (*write)(void*, const void*, std::size_t, std::size_t*) = nullptr;
  int (*error)(const void*, int) = nullptr;
  int (*pending)(const void*) = nullptr;
  int (*set_host)(void*, const char*) = nullptr;
  void (*set_host_flags)(void*, unsigned) = nullptr;
  long (*ctrl)(void*, int, long, void*) = nullptr;
  long (*verify_result)(const void*) = nullptr;
  void* (*parameters)(void*) = nullptr;
  int (*set_ip)(void*, const char*) = nullptr;
  const char* (*verify_words)(long) = nullptr;
  void* (*bio_new)(const void*) = nullptr;
  const void* (*bio_memory)() = nullptr;
  int (*bio_read)(void*, void*, int) = nullptr;
  int (*bio_write)(void*, const void*, int) = nullptr;
  std::size_t (*bio_pending)(void*) = nullptr;
  unsigned long (*next_error)() = nullptr;
  void (*error_words)(unsigned long, char*, std::size_t) = nullptr;
  void (*clear_errors)() = nullptr;
  bool usable = false;
};

libssl open_libssl() {
  libssl found;
  void* const opened = dlopen("libssl.so.3", RTLD_NOW | RTLD_LOCAL);
  if (opened == nullptr) return found;
  found.usable = true;
  const auto find = [&](auto& into, const char* name) {
    into = reinterpret_cast<std::remove_reference_t<decltype(into)>>(dlsym(opened, name));  // also finds symbols in libcrypto
    found.usable = found.usable && into != nullptr;
  };
  find(found.init, "OPENSSL_init_ssl");
  find(found.method, "TLS_method");
  find(found.context_new, "SSL_CTX_new");
  find(found.context_free, "SSL_CTX_free");
  find(found.context_ctrl, "SSL_CTX_ctrl");
  find(found.ask_pass_phrase, "SSL_CTX_set_default_passwd_cb");
  find(found.pass_to_asked, "SSL_CTX_set_default_passwd_cb_userdata");
  find(found.use_certificate, "SSL_CTX_use_certificate_chain_file");
  find(found.use_key, "SSL_CTX_use_PrivateKey_file");
  find(found.check_key, "SSL_CTX_check_private_key");
  find(found.trust, "SSL_CTX_load_verify_locations");
  find(found.trust_usual, "SSL_CTX_set_default_verify_paths");
  find(found.verify, "SSL_CTX_set_verify");
  find(found.tickets, "SSL_CTX_set_num_tickets");
  find(found.create, "SSL_new");
  find(found.destroy, "SSL_free");
  find(found.set_bio, "SSL_set_bio");
  find(found.accept_state, "SSL_set_accept_state");
  find(found.connect_state, "SSL_set_connect_state");
  find(found.handshake, "SSL_do_handshake");
  find(found.shutdown, "SSL_shutdown");
  find(found.read, "SSL_read_ex");
  find(found.write, "SSL_write_ex");
  find(found.error, "SSL_get_error");
  find(found.pending, "SSL_pending");
  find(found.set_host, "SSL_set1_host");
  find(found.set_host_flags, "SSL_set_hostflags");
  find(found.ctrl, "SSL_ctrl");
  find(found.verify_result, "SSL_get_verify_result");
  find(found.parameters, "SSL_get0_param");
  find(found.set_ip, "X509_VERIFY_PARAM_set1_ip_asc");
  find(found.verify_words, "X509_verify_cert_error_string");
  find(found.bio_new, "BIO_new");
  find(found.bio_memory, "BIO_s_mem");
  find(found.bio_read, "BIO_read");
  find(found.bio_write, "BIO_write");
  find(found.bio_pending, "BIO_ctrl_pending");
  find(found.next_error, "ERR_get_error");
  find(found.error_words, "ERR_error_string_n");
  find(found.clear_errors, "ERR_clear_error");
  // Otherwise OpenSSL would free data at exit that reactor threads still use for encryption. Has no effect if another library has already
  // initialized OpenSSL.
  found.usable = found.usable && found.init(no_handler_at_exit, nullptr) == 1;
  return found;
}

const libssl& ssl() {
  static const libssl opened = open_libssl();
  return opened;
}

struct reason {
  std::string words;
  unsigned long alert = 0;  // the peer's alert; 0: none
};

// Returns the reason why this thread's last call failed.
reason reason_of_openssl() {
  std::array<char, 256> words{};
  const auto code = ssl().next_error();
  if (code == 0) return {"OpenSSL reported no reason"};
  ssl().error_words(code, words.data(), words.size());
  ssl().clear_errors();
  const std::string_view all(words.data());  // error:CODE:library:function:reason
  const auto last = all.rfind(':');
  const auto number = code & reason_of_error;
  return {std::string(last == std::string_view::npos ? all : all.substr(last + 1)),
          number > first_reason_of_alerts ? number - first_reason_of_alerts : 0};
}

std::string words_of_openssl() { return reason_of_openssl().words; }

// Returns true for alerts about certificates (RFC 8446, 6.2). The peer may send one after the local handshake has completed.
bool is_of_certificate(unsigned long alert) {
  constexpr unsigned long no_certificate = 41, certificate_unknown = 46, unknown_ca = 48, access_denied = 49, certificate_required = 116;
  return (alert >= no_certificate && alert <= certificate_unknown) || alert == unknown_ca || alert == access_denied ||
         alert == certificate_required;
}

// Replaces OpenSSL's callback, which would block on a prompt at the terminal. asked: a bool.
int refuse_pass_phrase(char* /*into*/, int /*size*/, int /*writing*/, void* asked) {
  if (asked != nullptr) *static_cast<bool*>(asked) = true;
  return -1;
}

// Returns true if the first bytes of a connection are a TLS record type and major version (RFC 8446, 5.1).
bool begins_as_tls(std::span<const std::byte> bytes) noexcept {
  constexpr std::byte first_type{20};
  constexpr std::byte last_type{24};
  constexpr std::byte major{3};
  return bytes[0] >= first_type && bytes[0] <= last_type && (bytes.size() == 1 || bytes[1] == major);
}

// A record with a fatal protocol_version alert, because OpenSSL does not always respond to bytes that are not TLS.
constexpr std::array<std::uint8_t, 7> protocol_alert{21, 3, 3, 0, 2, 2, 70};
const iovec protocol_alert_part{const_cast<std::uint8_t*>(protocol_alert.data()), protocol_alert.size()};  // only read

// The socket stays readable, so it is reported again.
status more_later() { return {errc::would_block, "more data is waiting than one call may process"}; }

status error_of_file(std::string_view what, const std::string& file, bool has_pass_phrase) {
  if (has_pass_phrase)
    return {
        errc::invalid_argument,
        fmt::format("tls: the {} {} has a pass phrase, but Penstock does not prompt for one. Use a file without a pass phrase, written by "
                    "\"openssl pkey -in {} -out NEW\"",
                    what, file, file)};
  return {errc::invalid_argument, fmt::format("tls: the {} {} cannot be used: {}", what, file, words_of_openssl())};
}

}  // namespace

// --- contexts

struct tls_context::contexts {
  contexts() = default;
  contexts(const contexts&) = delete;
  contexts& operator=(const contexts&) = delete;
  ~contexts() {
    if (accepts != nullptr) ssl().context_free(accepts);
    if (connects != nullptr) ssl().context_free(connects);
  }
  void* accepts = nullptr;  // null: no certificate
  void* connects = nullptr;
};

namespace {

result<void*> context_of(const tls_context::options& how, bool accepts) {
  ssl().clear_errors();
  void* const made = ssl().context_new(ssl().method());
  if (made == nullptr) return status(errc::out_of_memory, "tls: no memory for a context");
  bool has_pass_phrase = false;
  const auto unusable = [&](std::string_view what, const std::string& file) { return error_of_file(what, file, has_pass_phrase); };
  const auto problem = [&]() -> status {
    if (ssl().context_ctrl(made, ctrl_min_proto_version, version_1_3, nullptr) != 1) {
      return {errc::unsupported, fmt::format("tls: OpenSSL does not support TLS 1.3: {}", words_of_openssl())};
    }
    ssl().ask_pass_phrase(made, refuse_pass_phrase);
    ssl().pass_to_asked(made, &has_pass_phrase);
    (void)ssl().context_ctrl(made, ctrl_mode, release_buffers, nullptr);
    (void)ssl().tickets(made, 0);  // no session resumption, and no unsolicited messages
    if (!how.certificate.empty()) {
      if (ssl().use_certificate(made, how.certificate.c_str()) != 1) return unusable("certificate", how.certificate);
      if (ssl().use_key(made, how.key.c_str(), pem_file) != 1 || ssl().check_key(made) != 1) return unusable("key", how.key);
    }
    if (!how.ca.empty()) {
      if (ssl().trust(made, how.ca.c_str(), nullptr) != 1) return unusable("authority's certificate", how.ca);
    } else if (!accepts) {
      (void)ssl().trust_usual(made);
    }
    const int asks = !accepts ? verify_peer : how.ca.empty() ? 0 : verify_peer | verify_needs_certificate;
    ssl().verify(made, asks, nullptr);
    return {};
  }();
  ssl().pass_to_asked(made, nullptr);
  if (problem.ok()) return made;
  ssl().context_free(made);
  return problem;
}

}  // namespace

result<std::shared_ptr<const tls_context>> tls_context::make(const options& how) {
  if (!ssl().usable) return status(errc::unsupported, "TLS requires OpenSSL's libssl.so.3, which was not found");
  if (how.certificate.empty() != how.key.empty()) {
    return status(errc::invalid_argument, "tls: a certificate and its key must be set together");
  }
  auto made = std::make_unique<contexts>();
  const auto connects = context_of(how, false);
  if (!connects) return connects.error();
  made->connects = *connects;
  if (!how.certificate.empty()) {
    const auto accepts = context_of(how, true);
    if (!accepts) return accepts.error();
    made->accepts = *accepts;
  }
  return std::make_shared<const tls_context>(how, std::move(made));
}

tls_context::tls_context(options how, std::unique_ptr<contexts> made) : how_(std::move(how)), contexts_(std::move(made)) {}
tls_context::~tls_context() = default;

result<std::unique_ptr<tls_stream>> tls_context::accept() const {
  if (!can_accept()) return status(errc::invalid_argument, "tls: listening requires a certificate and its key");
  return made({});
}

result<std::unique_ptr<tls_stream>> tls_context::connect(const std::string& host) const {
  return made(how_.server_name.empty() ? host : how_.server_name);
}

// --- streams

struct tls_stream::state {
  state() = default;
  state(const state&) = delete;
  state& operator=(const state&) = delete;
  ~state() {
    if (of != nullptr) ssl().destroy(of);  // frees in and out too
  }
  void* of = nullptr;
  void* in = nullptr;   // received encrypted bytes
  void* out = nullptr;  // encrypted bytes to send
};

result<std::unique_ptr<tls_stream>> tls_context::made(const std::string& name) const {
  const auto no_room = [] { return status(errc::out_of_memory, "tls: no memory for a connection"); };
  auto state = std::make_unique<tls_stream::state>();
  state->of = ssl().create(name.empty() ? contexts_->accepts : contexts_->connects);
  if (state->of == nullptr) return no_room();
  state->in = ssl().bio_new(ssl().bio_memory());
  state->out = ssl().bio_new(ssl().bio_memory());
  if (state->in == nullptr || state->out == nullptr) return no_room();
  ssl().set_bio(state->of, state->in, state->out);
  ssl().set_host_flags(state->of, no_partial_wildcards);
  if (name.empty()) {
    ssl().accept_state(state->of);
  } else {
    ssl().connect_state(state->of);
    // An IP address is compared with the addresses in the certificate, but not sent as a server name (RFC 6066, 3).
    const bool is_number = ssl().set_ip(ssl().parameters(state->of), name.c_str()) == 1;
    if (!is_number && ssl().set_host(state->of, name.c_str()) != 1) return no_room();
    if (!is_number) (void)ssl().ctrl(state->of, ctrl_set_host_name, 0, const_cast<char*>(name.c_str()));
  }
  return std::make_unique<tls_stream>(shared_from_this(), std::move(state), name);
}

tls_stream::tls_stream(std::shared_ptr<const tls_context> of, std::unique_ptr<state> made, std::string name)
    : of_(std::move(of)), name_(std::move(name)), state_(std::move(made)) {}
tls_stream::~tls_stream() = default;

result<std::unique_ptr<tls_stream>> tls_stream::sibling() const { return of_->made(name_); }

status tls_stream::fail_to_receive(status why) {
  if (not_received_.ok()) not_received_ = std::move(why);
  return not_received_;
}

status tls_stream::fail_to_send(status why) {
  if (not_sent_.ok()) not_sent_ = std::move(why);
  return not_sent_;
}

// Sets the send and receive errors: nothing can be transferred without a handshake.
status tls_stream::fail_to_agree(status why) {
  (void)fail_to_send(why);
  return fail_to_receive(std::move(why));
}

bool tls_stream::all_is_out() const noexcept { return out_sent_ == out_.size() && ssl().bio_pending(state_->out) == 0; }

// Sends what the socket accepts. A failure does not discard data that has already arrived, such as the peer's reason for closing.
void tls_stream::put_out(peer& door, int fd) {
  if (!not_sent_.ok()) return;
  if (out_sent_ == out_.size()) {
    out_.clear();
    out_sent_ = 0;
  }
  if (const auto more = ssl().bio_pending(state_->out); more > 0) {
    const auto before = out_.size();
    out_.resize(before + more);
    const int got = ssl().bio_read(state_->out, out_.data() + before, static_cast<int>(more));
    out_.resize(before + static_cast<std::size_t>(std::max(got, 0)));
  }
  while (out_sent_ < out_.size()) {
    const iovec part{out_.data() + out_sent_, out_.size() - out_sent_};
    const auto sent = door.send(fd, {&part, 1});
    if (!sent) {
      if (sent.error().code() != errc::would_block) (void)fail_to_send(sent.error());
      return;
    }
    out_sent_ += *sent;
  }
}

// Reads more encrypted bytes from the peer. Errors: would_block.
status tls_stream::fetch(peer& door, int fd) {
  std::array<std::byte, most_fetched> bytes;
  const iovec part{bytes.data(), bytes.size()};
  const auto got = door.receive(fd, {&part, 1});
  if (!got && got.error().code() == errc::would_block) return got.error();
  if (!got || *got == 0) return fail_to_receive(why_cut(got ? status() : got.error()));
  if (fetched_ == 0) is_plain_ = !begins_as_tls(std::span(bytes).first(*got));
  fetched_ += *got;
  const int kept = ssl().bio_write(state_->in, bytes.data(), static_cast<int>(*got));
  if (kept != static_cast<int>(*got)) return fail_to_receive({errc::out_of_memory, "tls: no memory for the received bytes"});
  return {};
}

// The socket was closed without a TLS close notification from the peer. An attacker on the network could cause that too.
status tls_stream::why_cut(const status& of_socket) const {
  if (has_ended_) return {errc::closed, "tls: the peer closed the connection"};
  if (agreed_ && of_socket.ok()) return {errc::io, "tls: the connection was interrupted"};
  if (agreed_) return {errc::io, fmt::format("tls: the connection was interrupted: {}", of_socket.message())};
  const auto told = of_socket.ok() ? std::string() : fmt::format(" ({})", of_socket.message());
  return {errc::closed, fmt::format("tls: the peer closed the connection during the handshake{}; it may not use TLS", told)};
}

// Continues the handshake until it is done. Errors: would_block.
status tls_stream::agree(peer& door, int fd) {
  for (unsigned fetches = 0; !agreed_; ++fetches) {
    ssl().clear_errors();
    const int done = ssl().handshake(state_->of);
    const int why = done == 1 ? 0 : ssl().error(state_->of, done);
    const auto words = done == 1 || why == error_want_read ? std::string() : words_of_openssl();
    put_out(door, fd);  // includes the alert if the local end gives up
    if (done == 1) {
      agreed_ = true;
    } else if (why != error_want_read && is_plain_) {
      (void)door.send(fd, {&protocol_alert_part, 1});  // so that the peer can report why
      return fail_to_agree({errc::permission_denied, "tls: the peer does not use TLS, which this end requires"});
    } else if (why != error_want_read) {
      const auto verified = ssl().verify_result(state_->of);
      if (verified == 0) {
        return fail_to_agree({errc::permission_denied, fmt::format("tls: the handshake failed: {}", words)});
      }
      return fail_to_agree(
          {errc::permission_denied, fmt::format("tls: the peer's certificate was not accepted: {}", ssl().verify_words(verified))});
    } else if (fetches == most_fetches) {
      return more_later();
    } else if (auto come = fetch(door, fd); !come.ok()) {
      return come.code() == errc::would_block ? come : fail_to_agree(come);
    }
  }
  return {};
}

result<std::size_t> tls_stream::send(peer& door, int fd, std::span<const iovec> parts) {
  const std::lock_guard guard(lock_);
  if (!not_sent_.ok()) return not_sent_;
  if (auto problem = agree(door, fd); !problem.ok()) return problem;
  for (const auto& each : all_is_out() && taken_ == 0 ? parts : std::span<const iovec>()) {
    if (taken_ == most_taken) break;
    std::size_t taken = 0;
    const auto size = std::min(each.iov_len, most_taken - taken_);
    ssl().clear_errors();
    if (ssl().write(state_->of, each.iov_base, size, &taken) != 1) {
      return fail_to_send({errc::io, fmt::format("tls: {}", words_of_openssl())});
    }
    taken_ += taken;
  }
  put_out(door, fd);
  if (!not_sent_.ok()) return not_sent_;
  if (!all_is_out() || taken_ == 0) return status(errc::would_block, "the socket is full");
  return std::exchange(taken_, 0);
}

result<std::size_t> tls_stream::receive(peer& door, int fd, const iovec& part) {
  const std::lock_guard guard(lock_);
  for (unsigned fetches = 0;; ++fetches) {
    if (!not_received_.ok()) return not_received_.code() == errc::closed && agreed_ ? result<std::size_t>(std::size_t{0}) : not_received_;
    if (auto problem = agree(door, fd); !problem.ok()) return problem;
    std::size_t got = 0;
    ssl().clear_errors();
    if (ssl().read(state_->of, part.iov_base, part.iov_len, &got) == 1) return got;
    const int why = ssl().error(state_->of, 0);
    if (why == error_zero_return) return std::size_t{0};
    if (why != error_want_read) {
      const auto told = reason_of_openssl();  // the peer may have rejected the local certificate
      put_out(door, fd);
      return fail_to_receive({is_of_certificate(told.alert) ? errc::permission_denied : errc::io, fmt::format("tls: {}", told.words)});
    }
    if (fetches == most_fetches) return more_later();
    if (auto come = fetch(door, fd); come.code() == errc::would_block) return come;
  }
}

void tls_stream::flush(peer& door, int fd) noexcept {
  const std::lock_guard guard(lock_);
  flush_locked(door, fd);
}

void tls_stream::flush_locked(peer& door, int fd) noexcept {
  if (!not_sent_.ok() || all_is_out()) return;
  (void)or_no_memory([&]() -> status {
    put_out(door, fd);
    return {};
  });
}

void tls_stream::end(peer& door, int fd) noexcept {
  const std::lock_guard guard(lock_);
  if (!agreed_ || std::exchange(has_ended_, true)) return;
  ssl().clear_errors();
  (void)ssl().shutdown(state_->of);
  ssl().clear_errors();
  flush_locked(door, fd);
}

bool tls_stream::has_unsent() noexcept {
  const std::lock_guard guard(lock_);
  return not_sent_.ok() && !all_is_out();
}

bool tls_stream::has_taken() noexcept {
  const std::lock_guard guard(lock_);
  return taken_ > 0;
}

tls_stream::awaited tls_stream::waits_for() noexcept {
  const std::lock_guard guard(lock_);
  if (!not_sent_.ok()) return awaited::nothing;
  if (!all_is_out()) return awaited::room;
  return agreed_ ? awaited::nothing : awaited::other_end;
}

bool tls_stream::has_unread() noexcept {
  const std::lock_guard guard(lock_);
  return not_received_.ok() && agreed_ && (ssl().pending(state_->of) > 0 || ssl().bio_pending(state_->in) > 0);
}

std::uint64_t tls_stream::fetched() noexcept {
  const std::lock_guard guard(lock_);
  return fetched_;
}

}  // namespace penstock::sys
