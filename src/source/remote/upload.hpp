// An object on a server of S3 that is being written, whole or not at all: what comes is gathered into parts, each of which is sent once all
// of its bytes are there, and the object is there once all parts are and complete() has said so. Shared by the sources over it and by
// whoever completes it. Thread-safe.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "source/remote/fetch.hpp"
#include "source/remote/network.hpp"
#include "source/remote/parts.hpp"
#include "source/remote/patience.hpp"
#include "source/remote/s3.hpp"
#include "source/remote/url.hpp"
#include "source/source.hpp"

namespace penstock::source::remote {

// Where an object is to lie, and who writes it.
struct upload_target {
  std::shared_ptr<s3_account> account;
  url address;
};

struct upload_facts {
  std::string name;  // for messages
  std::string mark;  // by which this object is known from all others: drawn
  upload_target to;
  // The same in another region, to which S3 may say that the bucket belongs.
  std::function<result<upload_target>(const std::string& region)> in_region;
  patience how;
  std::vector<header> headers{};                      // of the request that makes the object
  bool sends_md5 = false;                             // from the first request on, and not only once the server has asked for it
  std::optional<bool> signs_payload{};                // nothing: over http alone
  std::uint64_t most_held_bytes = ~std::uint64_t{0};  // in memory, of parts
};

class upload final : public fetch_owner {
 public:
  // Parts that lack bytes or are on their way are held in memory: twice what is sent at once, between these limits and within
  // upload_facts::most_held_bytes, but always four parts. Writers wait for room while parts are on their way. If none is, so that waiting
  // would bring none, as much again may be held, and then writing is an error.
  static constexpr std::uint64_t least_held_bytes = std::uint64_t{128} << 20;
  static constexpr std::uint64_t most_held_bytes = std::uint64_t{1} << 30;

  upload(std::shared_ptr<network> by, upload_facts facts, part_plan plan);
  upload(const upload&) = delete;
  upload& operator=(const upload&) = delete;
  ~upload() override;  // gives it up, unless it is complete

  [[nodiscard]] const std::string& name() const noexcept { return name_; }
  // That serves it, among the devices of sources: writers wait for a server, so each has threads of its own.
  [[nodiscard]] std::uint64_t device() const;
  [[nodiscard]] std::string told() const;
  // As it will be, or as far as it was written. Known once the last part was cut to it, at the latest.
  [[nodiscard]] std::uint64_t size() const;
  // Of the whole object: parts can then be equal. Errors: invalid_argument (bytes were written, and it had another size, or they lie behind
  // its end; more than 5 TiB).
  status set_size(std::uint64_t bytes);
  // Blocks while there is no room, until stopped says why not, where it is given. The memory is free on return. Errors: invalid_argument (a
  // byte that is on its way already, or behind the size; too many gaps), and what parts have failed with.
  io_result write(const std::byte* memory, std::uint64_t length, std::uint64_t offset, const stop_question& stopped = {});
  // Blocks. The object is there once this has returned ok, and after other outcomes it is not, unless the message says that this is not
  // known. With no write under way. replace: false: an object that is there stays (EEXIST). May be called again after an error; once the
  // server was asked for the object, no byte can be added to it.
  status complete(bool replace);
  // Nothing of it remains on the server, as far as that answers within some seconds. Writes that are under way end; a second time nothing.
  void abort() noexcept;

 private:
  struct request;
  struct part;
  using lock = std::unique_lock<std::mutex>;

  result<std::string> request_of(fetch& what) override;
  verdict judge(const response_head& head, std::string_view body, fetch& what) override;
  void ended(fetch& what, status how) noexcept override;
  [[nodiscard]] verdict judge_success(const response_head& head, std::string_view body, request& one);
  [[nodiscard]] std::shared_ptr<s3_account> account() const;
  [[nodiscard]] std::optional<verdict> judge_region(const response_head& head, request& one);
  [[nodiscard]] std::optional<verdict> judge_checksum(const response_head& head, std::string_view body, request& one);

  [[nodiscard]] status write_part(const std::byte* memory, std::uint64_t length, std::uint64_t offset, const stop_question& stopped);
  [[nodiscard]] status check_range(std::uint64_t length, std::uint64_t offset);
  [[nodiscard]] result<part*> part_for(lock& guard, std::uint64_t offset, const stop_question& stopped);
  // Nothing: there is no room now.
  [[nodiscard]] std::optional<status> give_memory(part& to);
  [[nodiscard]] std::uint64_t room_bytes() const noexcept;
  [[nodiscard]] status copied(lock& guard, part& one, std::uint64_t first, std::uint64_t end, const stop_question& stopped);
  void send(lock& guard, part& one, const stop_question& stopped);
  // What is ready stays so where stopped says why, while the upload is being begun: the next one begins it anew.
  void send_ready(lock& guard, const stop_question& stopped);
  void hash_and_begin(part& one) noexcept;
  void launch(part& one) noexcept;
  void release(part& one) noexcept;
  void fail(const status& why) noexcept;

  [[nodiscard]] status check_holes(std::uint64_t total) const;
  // Sends it and waits until it has ended, or the time is over, or stopped says why, where it is given, or the upload is given up.
  [[nodiscard]] status perform(request& one, std::chrono::milliseconds within, const stop_question& stopped = {});
  [[nodiscard]] status given_up(lock& guard, request& one, status why);
  [[nodiscard]] bool signs_payload(const url& at) const noexcept { return signs_payload_.value_or(!at.tls); }
  [[nodiscard]] status hash(request& one) const;
  [[nodiscard]] static status add_md5(request& one);
  void address(request& one) noexcept;
  [[nodiscard]] status create(const stop_question& stopped);
  [[nodiscard]] status put_whole(lock& guard, std::uint64_t total, bool replace);
  [[nodiscard]] status complete_parts(bool replace);
  [[nodiscard]] status ask_for_object(request& one, std::chrono::milliseconds within);
  [[nodiscard]] status settled(const request& asked, bool was_asked_before, status how);
  // Whether the object that is there is this one; nothing where that is not known.
  [[nodiscard]] std::optional<bool> is_there();
  [[nodiscard]] status check_free();
  void stop_parts(lock& guard) noexcept;

  const std::shared_ptr<network> network_;
  const std::string name_;
  const std::string mark_;  // by which this object is known from all others
  const std::function<result<upload_target>(const std::string& region)> in_region_;
  const patience how_;
  const std::vector<header> headers_;
  const std::optional<bool> signs_payload_;
  std::atomic<bool> sends_md5_;
  const std::uint64_t most_held_bytes_;
  mutable std::mutex lock_;  // guards what follows
  std::condition_variable changed_;
  upload_target to_;
  std::shared_ptr<origin> origin_;
  part_plan plan_;
  std::optional<std::uint64_t> size_;
  std::uint64_t written_end_ = 0;
  std::map<unsigned, std::unique_ptr<part>> parts_;
  std::vector<part*> ready_;                         // to be sent once there is an upload
  std::vector<std::unique_ptr<std::byte[]>> spare_;  // of the usual size
  std::uint64_t held_bytes_ = 0;
  std::uint64_t largest_part_ = usual_part_bytes;
  unsigned copying_ = 0;    // writers
  unsigned sending_ = 0;    // parts that are ready or on their way
  unsigned under_way_ = 0;  // requests, and parts whose bytes are being hashed
  std::string upload_id_;
  bool creating_ = false;
  bool was_to_end_ = false;  // the server was asked for the object, and may have made it
  bool is_over_ = false;
  status problem_;
};

// A source over it, which is written to and not read.
std::unique_ptr<source> make_upload_source(std::shared_ptr<upload> to);

}  // namespace penstock::source::remote
