// An object on a server as a source: far, read only, and of the bytes that it had when it was opened. Each request says which version it
// wants, and each answer is compared with it.
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

#include "source/remote/fetch.hpp"
#include "source/remote/network.hpp"
#include "source/remote/patience.hpp"
#include "source/remote/url.hpp"
#include "source/source.hpp"

namespace penstock::source::remote {

// What tells one version of an object from another.
struct version {
  std::string etag;           // as it came
  std::string last_modified;  // likewise
  bool operator==(const version&) const = default;
  [[nodiscard]] bool known() const noexcept { return !etag.empty() || !last_modified.empty(); }
  // By RFC 9110 only a strong one says that all bytes are the same.
  [[nodiscard]] bool has_strong_etag() const noexcept { return !etag.empty() && !etag.starts_with("W/"); }
};

// How requests for the bytes of an object look, and what its server's errors mean. One for each kind of server. Thread-safe.
class protocol {
 public:
  virtual ~protocol() = default;
  // Lines to be added to the head of a GET of that address, each with its line end. range: as in a Range header; empty: none is sent.
  virtual result<std::string> headers(const url& address, std::string_view range) = 0;
  // Address for a range. Most servers have one for all.
  [[nodiscard]] virtual url address_of(const url& object, std::uint64_t offset, std::uint64_t length) const;
  // Whether ranges are asked for in a header, and answered with 206.
  [[nodiscard]] virtual bool by_range_header() const noexcept { return true; }
  // Answers of 300 to 399 are followed, to other servers without what headers() has.
  [[nodiscard]] virtual bool follows() const noexcept { return false; }
  // What an answer that is an error means; judged as any server's where that says nothing.
  virtual std::optional<verdict> judge(const response_head& /*head*/, std::string_view /*body*/, fetch& /*what*/) { return std::nullopt; }
};

struct object_facts {
  std::string name;  // for messages
  url address;
  std::uint64_t size = 0;
  version of{};                // not known: the first answer says
  std::optional<url> found{};  // where redirects led when it was opened
  bool has_ranges = true;      // false: its server answers with the whole object, as far as is known
};

// What becomes of an object whose server serves no ranges.
struct whole_reading {
  bool allowed = true;
  std::string folder{};  // for what is too large for memory; empty: the usual ones
};

class object final : public source, public fetch_owner {
 public:
  object(std::shared_ptr<network> by, std::shared_ptr<protocol> speaks, object_facts facts, const patience& how, whole_reading whole = {});
  ~object() override;

  result<std::uint64_t> size() override { return facts().size; }
  status sync() override { return {}; }
  result<bool> ends_at(std::uint64_t offset) override { return offset >= facts().size; }
  io_result drain(const std::byte* memory, std::uint64_t length, std::uint64_t offset) override;
  void begin_fill(far_fill& what) noexcept override;
  void cancel(far_fill& what) noexcept override;
  std::shared_ptr<turnstile> turns(staging::lanes& by, turnstile::share& of) override;
  [[nodiscard]] std::string told() const override;
  status close() override;

  [[nodiscard]] const origin& server() const noexcept { return *origin_; }
  // As it was opened.
  [[nodiscard]] const object_facts& known() const noexcept { return about_; }
  // Before it is read, by who made it.
  void set_note(std::string note) { note_ = std::move(note); }
  [[nodiscard]] version seen_version() const;
  // Reads all of an object whose size is unknown_bytes, and so finds it. Before anybody reads it. Blocks, unless it is stopped; stopped may
  // be empty. Errors: as of a read; cancelled.
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
  // --- of a server without ranges: all of the object is read once, in order, and fills are served from what has come
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
  object_facts about_;  // its size is found before anybody reads it
  const patience how_;
  const whole_reading whole_;
  const std::shared_ptr<origin> home_;          // of its address
  const std::shared_ptr<origin> origin_;        // that served it when it was opened
  std::string note_;                            // for told(); empty: there is none
  std::atomic<bool> has_served_ranges_{false};  // then an answer with all of it is a mistake of the moment
  mutable std::mutex lock_;                     // guards what follows
  // Where redirects led last: the server, and path and query there; empty: they are followed from its address on.
  std::shared_ptr<origin> place_;
  std::string target_;
  version version_;
  bool version_settled_ = false;  // by an answer that brought bytes
  bool version_noted_ = false;
  piece* first_ = nullptr;  // under way
  unsigned under_way_ = 0;  // with those that are being told
  std::unique_ptr<stream> stream_;
  std::condition_variable quiet_;
};

}  // namespace penstock::source::remote
