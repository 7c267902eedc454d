// An atomic upload of an object to an S3 server. Written bytes are collected in parts. Each part is sent once it is complete, and the
// object exists once all parts have been sent and complete() has returned ok. Shared by the sources that write to it and the code that
// completes it. Thread-safe.
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

#include "remote/net/fetch.hpp"
#include "remote/net/network.hpp"
#include "remote/net/patience.hpp"
#include "remote/net/url.hpp"
#include "remote/s3/parts.hpp"
#include "remote/s3/s3.hpp"
#include "source/source.hpp"

namespace penstock::source::remote {

// An object's destination, and the account that writes it.
struct upload_target {
  std::shared_ptr<s3_account> account;
  url address;
};

struct upload_facts {
  std::string name;  // for messages
  std::string mark;  // a random text that identifies this upload's object
  upload_target to;
  // Returns the target in another region, if S3 reports that the bucket is there.
  std::function<result<upload_target>(const std::string& region)> in_region;
  patience how;
  std::vector<header> headers{};                      // added to the request that creates the object
  bool sends_md5 = false;                             // with the first request, instead of only once the server requires it
  std::optional<bool> signs_payload{};                // nullopt: only over http
  std::uint64_t most_held_bytes = ~std::uint64_t{0};  // limit on the memory that parts use
};

class upload final : public fetch_owner {
 public:
  // Memory holds parts that are incomplete or being sent: twice as much as is sent concurrently, between these limits and up to
  // upload_facts::most_held_bytes, but at least four parts. Writers wait for room while parts are being sent. If none is being sent,
  // waiting would not help: then twice the amount may be held, and beyond that a write fails.
  static constexpr std::uint64_t least_held_bytes = std::uint64_t{128} << 20;
  static constexpr std::uint64_t most_held_bytes = std::uint64_t{1} << 30;

  upload(std::shared_ptr<network> by, upload_facts facts, part_plan plan);
  upload(const upload&) = delete;
  upload& operator=(const upload&) = delete;
  ~upload() override;  // aborts the upload unless it has been completed

  [[nodiscard]] const std::string& name() const noexcept { return name_; }
  // Returns the server's device number. Writers wait for a server, so each server has its own threads.
  [[nodiscard]] std::uint64_t device() const;
  [[nodiscard]] std::string told() const;
  // Returns the final size if it is known, otherwise the end of the bytes written so far. The size is final once the last part has been
  // truncated to it.
  [[nodiscard]] std::uint64_t size() const;
  // Sets the size of the whole object, so that all parts can have the same size. Errors: invalid_argument (bytes have been written past it,
  // or after a different size was set; more than 5 TiB).
  status set_size(std::uint64_t bytes);
  // Copies bytes into parts. Blocks while there is no room, until `stopped`, if set, returns an error. The caller may reuse the memory
  // after this call. Errors: invalid_argument (a byte is already being sent or is past the end; too many gaps), and errors from sending
  // parts.
  io_result write(const std::byte* memory, std::uint64_t length, std::uint64_t offset, const stop_question& stopped = {});
  // Completes the object. Blocks. No write may be in progress. On ok the object exists; on error it does not, unless the message says that
  // this is unknown. replace: if false, an existing object is kept and the call fails (EEXIST). May be called again after an error. Once
  // the server has been asked to create the object, nothing can be added.
  status complete(bool replace);
  // Removes everything from the server, if it responds within a few seconds. Ends writes in progress. Idempotent.
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
  // Returns nullopt if there is no room at present.
  [[nodiscard]] std::optional<status> give_memory(part& to);
  [[nodiscard]] std::uint64_t room_bytes() const noexcept;
  [[nodiscard]] status copied(lock& guard, part& one, std::uint64_t first, std::uint64_t end, const stop_question& stopped);
  void send(lock& guard, part& one, const stop_question& stopped);
  // If `stopped` ends this call while the upload is being created, ready parts stay ready, and the next call tries again.
  void send_ready(lock& guard, const stop_question& stopped);
  void hash_and_begin(part& one) noexcept;
  void launch(part& one) noexcept;
  void release(part& one) noexcept;
  void fail(const status& why) noexcept;

  [[nodiscard]] status check_holes(std::uint64_t total) const;
  // Sends a request and waits until it completes, the timeout expires, `stopped` (if set) returns an error, or the upload is aborted.
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
  // Returns true if the object on the server is this upload's; nullopt if unknown.
  [[nodiscard]] std::optional<bool> is_there();
  [[nodiscard]] status check_free();
  void stop_parts(lock& guard) noexcept;

  const std::shared_ptr<network> network_;
  const std::string name_;
  const std::string mark_;  // identifies this upload's object
  const std::function<result<upload_target>(const std::string& region)> in_region_;
  const patience how_;
  const std::vector<header> headers_;
  const std::optional<bool> signs_payload_;
  std::atomic<bool> sends_md5_;
  const std::uint64_t most_held_bytes_;
  mutable std::mutex lock_;  // guards the members below
  std::condition_variable changed_;
  upload_target to_;
  std::shared_ptr<origin> origin_;
  part_plan plan_;
  std::optional<std::uint64_t> size_;
  std::uint64_t written_end_ = 0;
  std::map<unsigned, std::unique_ptr<part>> parts_;
  std::vector<part*> ready_;                         // parts to send once the upload is created
  std::vector<std::unique_ptr<std::byte[]>> spare_;  // buffers of the usual size
  std::uint64_t held_bytes_ = 0;
  std::uint64_t largest_part_ = usual_part_bytes;
  unsigned copying_ = 0;    // writers that are copying bytes
  unsigned sending_ = 0;    // parts that are ready or being sent
  unsigned under_way_ = 0;  // requests in flight, and parts that are being hashed
  std::string upload_id_;
  bool creating_ = false;
  bool was_to_end_ = false;  // the server was asked to create the object and may have done so
  bool is_over_ = false;
  status problem_;
};

// Returns a write-only source that writes to an upload.
std::unique_ptr<source> make_upload_source(std::shared_ptr<upload> to);

}  // namespace penstock::source::remote
