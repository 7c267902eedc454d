// An object on a server, as a far, read-only source of the bytes that it had when it was opened. Each request specifies the required
// version, and each response is checked against it.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "remote/net/fetch.hpp"
#include "remote/net/network.hpp"
#include "remote/net/patience.hpp"
#include "remote/net/url.hpp"
#include "source/source.hpp"

namespace penstock::source::remote {

// Identifies one version of an object.
struct version {
  std::string etag;           // as received
  std::string last_modified;  // as received
  bool operator==(const version&) const = default;
  [[nodiscard]] bool known() const noexcept { return !etag.empty() || !last_modified.empty(); }
  // According to RFC 9110, only a strong ETag guarantees that all bytes are equal.
  [[nodiscard]] bool has_strong_etag() const noexcept { return !etag.empty() && !etag.starts_with("W/"); }
};

// Builds requests for an object's bytes and interprets the server's errors. There is one for each kind of server. Thread-safe.
class protocol {
 public:
  virtual ~protocol() = default;
  // Returns the header lines for a GET of that address, each with its line ending. range: as in a Range header; if empty, no Range header
  // is sent.
  virtual result<std::string> headers(const url& address, std::string_view range) = 0;
  // Returns the address for a range. Most servers use one address for all ranges.
  [[nodiscard]] virtual url address_of(const url& object, std::uint64_t offset, std::uint64_t length) const;
  // Returns true if ranges are requested with a Range header and the response has status 206.
  [[nodiscard]] virtual bool by_range_header() const noexcept { return true; }
  // Returns true if redirects (300 to 399) are followed. Requests to other servers omit the lines from headers().
  [[nodiscard]] virtual bool follows() const noexcept { return false; }
  // Interprets an error response; nullopt: treat it like one from any HTTP server.
  virtual std::optional<verdict> judge(const response_head& /*head*/, std::string_view /*body*/, fetch& /*what*/) { return std::nullopt; }
};

struct object_facts {
  std::string name;  // for messages
  url address;
  std::uint64_t size = 0;
  version of{};                // unknown: the first response decides
  std::optional<url> found{};  // where redirects led when the object was opened
  bool has_ranges = true;      // false: as far as known, the server sends only whole objects
};

// How to read an object whose server does not support ranges.
struct whole_reading {
  bool allowed = true;
  std::string folder{};  // for objects too large for memory; empty: the usual folders
};

class object final : public source, public fetch_owner {
 public:
  object(std::shared_ptr<network> by, std::shared_ptr<protocol> speaks, object_facts facts, const patience& how, whole_reading whole = {});
  ~object() override;

  result<std::uint64_t> size() override { return facts().size; }
  status sync() override { return {}; }
  result<bool> ends_at(std::uint64_t offset) override { return offset >= facts().size; }
  io_result drain(const std::byte* memory, std::uint64_t length, std::uint64_t offset, const drain_manner& how) override;
  void begin_fill(far_fill& what) noexcept override;
  void cancel(far_fill& what) noexcept override;
  std::shared_ptr<turnstile> turns(staging::lanes& by, turnstile::share& of) override;
  [[nodiscard]] std::string told() const override;
  status close() override;

  [[nodiscard]] const origin& server() const noexcept { return *origin_; }
  // The facts that were known when the object was opened.
  [[nodiscard]] const object_facts& known() const noexcept { return about_; }
  // Sets a text that told() includes. Call this before the first read.
  void set_note(std::string note) { note_ = std::move(note); }
  [[nodiscard]] version seen_version() const;
  // If the size is unknown_bytes, reads the whole object to find it. Call this before the first read. Blocks; ends early if `stopped`,
  // which may be empty, returns true. Errors: those of reads; cancelled.
  status find_size(const std::function<bool()>& stopped);

 private:
  struct piece;
  struct stream;
  [[nodiscard]] const object_facts& facts() const noexcept { return about_; }
  result<std::string> request_of(fetch& what) override;
  verdict judge(const response_head& head, std::string_view body, fetch& what) override;
  void ended(fetch& what, status how) noexcept override;
  verdict judge_error(const response_head& head, std::string_view body, fetch& what);
  verdict judge_whole(const response_head& head, fetch& what);
  verdict judge_bytes(const response_head& head, fetch& what);
  verdict judge_redirect(const response_head& head, fetch& what);
  void note_version() noexcept;
  void leave() noexcept;
  // --- For a server without ranges: the object is read once, in order, and fills are served from the bytes received so far
  enum class waits : std::uint8_t { first, beside_others, no_memory };
  [[nodiscard]] bool reads_whole() const noexcept;
  waits wait_for_stream(far_fill& what) noexcept;
  void add_to_stream(far_fill& what) noexcept;
  void begin_stream() noexcept;
  void serve_stream() noexcept;
  void stream_ended(status how) noexcept;
  [[nodiscard]] url asked_address(const fetch& what) const;
  [[nodiscard]] bool follow_afresh(const response_head& head, fetch& what);
  [[nodiscard]] status changed(const response_head& head);
  [[nodiscard]] status other_size(std::uint64_t now) const;

  const std::shared_ptr<network> network_;
  const std::shared_ptr<protocol> protocol_;
  object_facts about_;  // the size is known before the first read
  const patience how_;
  const whole_reading whole_;
  const std::shared_ptr<origin> home_;          // the server at the object's address
  const std::shared_ptr<origin> origin_;        // the server that responded when the object was opened
  std::string note_;                            // included in told(); may be empty
  std::atomic<bool> has_served_ranges_{false};  // if set, a response with the whole object is a temporary error
  mutable std::mutex lock_;                     // guards the members below
  // The server, path and query that redirects last led to; empty: start at the object's address.
  std::shared_ptr<origin> place_;
  std::string target_;
  version version_;
  bool version_settled_ = false;  // set by a response that contained bytes
  bool version_noted_ = false;
  piece* first_ = nullptr;  // list of pieces in progress
  unsigned under_way_ = 0;  // includes pieces whose completion is being reported
  std::unique_ptr<stream> stream_;
  std::condition_variable quiet_;
};

}  // namespace penstock::source::remote
