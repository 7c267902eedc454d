// Fetches many values: looks them up, lists the reads to submit, and checks the results. Not thread-safe.
//
// If another process writes, it may drop a value and reuse its extent during the read. The index is therefore checked again after the read:
// a drop is recorded before the bytes change. A value that was dropped during the read is looked up and read again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "kv/operations.hpp"
#include "kv/volume.hpp"
#include "penstock/engine.hpp"
#include "penstock/kv.hpp"

namespace penstock::kv {

class fetch {
 public:
  // results: one per item; must stay valid until this object is destroyed. on: the stream on which the reads will be queued; begin() is
  // then called only once.
  fetch(const engine& with, volume& from, std::span<const item> items, bool checksums, std::span<key_result> results,
        const stream_order& on = {});
  fetch(const fetch&) = delete;
  fetch& operator=(const fetch&) = delete;
  ~fetch() { let_go(); }

  // Looks up the values that are still missing. Returns false if none are missing; all results are then set.
  bool begin();
  // Returns the reads to submit after begin(), as one batch.
  [[nodiscard]] std::span<const io_request> requests() const noexcept { return requests_; }
  // Returns true if request_ended() will read the bytes of this request.
  [[nodiscard]] bool checks(std::size_t request) const noexcept { return bytes_of_[request] != nullptr; }
  // Call once per request when it has completed, before finish(); from any thread, and from several at once. The last request of a value
  // computes the value's checksum here, while the bytes are still in this core's cache and other values are being read. In stream order,
  // this happens before later work on the stream may change them.
  void request_ended(std::size_t request) noexcept;
  // outcomes: one per request.
  void finish(std::span<const io_result> outcomes);
  void fail_all(const status& why);

 private:
  struct reading {
    std::size_t index;  // of the key
    catalogue::entry* entry = nullptr;
    value_facts facts{};
    status refusal{};  // why the value cannot be read
    std::size_t first_request = 0;
    std::size_t requests = 0;
    std::size_t unfinished = 0;               // requests in flight; accessed atomically
    std::optional<std::uint64_t> checksum{};  // of the bytes that were read; absent if not checked, or if finish() checks them
  };
  void find(std::size_t index);
  void ask_in_file_order();
  void ask(reading& read);
  [[nodiscard]] status check(const key_part& part, const value_facts& facts);
  [[nodiscard]] std::optional<std::uint64_t> checksum_of(const reading& read) const noexcept;
  [[nodiscard]] key_result look_at(const reading& read, std::span<const io_result> outcomes) const;
  [[nodiscard]] bool is_gone(const reading& read) const;
  void let_go() noexcept;

  const engine& engine_;
  volume& from_;
  bool checksums_;
  const stream_order on_;
  std::vector<key_part> parts_;
  std::span<key_result> results_;
  std::vector<std::size_t> wanted_;  // keys without a result
  std::vector<reading> readings_;
  std::vector<io_request> requests_;
  // One element per request:
  std::vector<reading*> reading_of_;
  std::vector<const std::byte*> bytes_of_;  // address for the CPU; null if it cannot access the memory or the value has no checksum
  unsigned rounds_ = 0;
};

}  // namespace penstock::kv
