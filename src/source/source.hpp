// A source contains bytes, addressed by offset; requests read and write ranges of them. Each kind of source has its own file. A source owns
// its descriptors, if any; a path that needs a descriptor rejects sources without one. Thread-safe, except close().
//
// Most sources are synchronous: fill() returns when the bytes are there. A far source reads over a network: begin_fill() starts a fill, and
// the source reports its completion, so hundreds of fills need no thread.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "base/ask_once.hpp"
#include "penstock/status.hpp"
#include "source/turnstile.hpp"
#include "staging/waiting_lanes.hpp"

namespace penstock::source {

// Transfers that bypass the page cache are split at multiples of this, even if the device has smaller sectors.
inline constexpr std::uint64_t direct_alignment = sys::direct_alignment;
constexpr std::uint64_t round_down(std::uint64_t value) { return value / direct_alignment * direct_alignment; }
constexpr std::uint64_t round_up(std::uint64_t value) { return round_down(value + direct_alignment - 1); }
// The total length of the blocks that contain a range.
constexpr std::uint64_t blocks_around(std::uint64_t offset, std::uint64_t length) { return round_up(offset % direct_alignment + length); }
// Returns true if a transfer can bypass the page cache without a bounce buffer.
inline bool aligned(const void* memory, std::uint64_t length, std::uint64_t offset) {
  return (reinterpret_cast<std::uintptr_t>(memory) | length | offset) % direct_alignment == 0;
}

// -1: no such descriptor.
struct descriptor_pair {
  int cached = -1;  // through the page cache
  int direct = -1;  // O_DIRECT; requires at most direct_alignment
};

// Facts that are determined when a source is opened.
struct source_facts {
  std::uint64_t device = 0;      // the same threads serve all sources on a device
  std::uint64_t inode = 0;       // identifies a file on that device; 0: none
  std::int64_t modified_ns = 0;  // time of the last change before it was opened
  bool in_memory = false;        // tmpfs: registering its pages with a driver is slow
  bool readable = true;
  bool writable = true;
  bool direct_writes = false;    // large writes bypass the page cache
  bool lent_past_cache = false;  // adopted with an O_DIRECT descriptor
  bool from_server = false;      // a server supplies the bytes (see sys::file_info) and may respond late
  unsigned fills_at_once = 0;    // the best number of concurrent fills for a far source; 0: not a far source
};

// A read from a far source. The object and its memory must stay valid until the read completes, however long that takes. A caller that does
// not want to wait abandons the fill and calls source::cancel(). The fill completes once both tell() and begun() have been called.
class far_fill {
 public:
  far_fill(const far_fill&) = delete;
  far_fill& operator=(const far_fill&) = delete;

  // --- for the source
  [[nodiscard]] std::byte* target() const noexcept { return target_; }
  [[nodiscard]] std::uint64_t length() const noexcept { return length_; }
  [[nodiscard]] std::uint64_t offset() const noexcept { return offset_; }
  // Reports the outcome that source::fill() would return. Call exactly once, on any thread, possibly before begin_fill() returns. Do not
  // hold any lock that begin_fill() or cancel() takes. The source must not access the memory or this object afterwards.
  void tell(io_result outcome) noexcept;
  far_fill* next_of_source = nullptr;  // links for a list in the source
  far_fill* previous_of_source = nullptr;

  // --- for the owner
  // Call this after begin_fill() has returned. Do not use the object afterwards.
  void begun() noexcept { step(); }

 protected:
  far_fill() noexcept = default;
  ~far_fill() = default;
  // Sets the range. Call this before each begin_fill().
  void aim(std::byte* target, std::uint64_t length, std::uint64_t offset) noexcept;
  // Called exactly once per aim(), on the thread that calls tell() or begun(). Must not block or release the source's file.
  virtual void ended(io_result outcome) noexcept = 0;

 private:
  void step() noexcept;

  std::byte* target_ = nullptr;
  std::uint64_t length_ = 0;
  std::uint64_t offset_ = 0;
  io_result outcome_;
  std::atomic<int> steps_{0};  // remaining calls: tell() and begun()
};

// The device number of all far sources. Their fills block no thread, so one set of threads serves them all.
inline constexpr std::uint64_t far_device = ~std::uint64_t{0};

// Returns the reason as an error if the waiting caller was asked to stop.
using stop_question = std::function<status()>;

// How a transfer uses the page cache. A source without a page cache ignores it.
enum class caching : std::uint8_t {
  usual,      // through the page cache if possible
  streaming,  // the same, into a target that a device reads immediately and that should not stay dirty in this CPU's caches (see
              // base/stream_copy.hpp)
  filling,    // the same, for a range that is partly uncached and should become cached
  uncached,   // if the kernel supports it, uncached bytes do not enter the page cache, or leave it once on the device
  direct,     // past the page cache; direct_problem() must be ok. A read needs memory for all blocks that contain the range: target is
              // offset % direct_alignment bytes after its start, which must be aligned unless the file system accepts any memory
};

struct drain_manner {
  caching by = caching::usual;             // usual, uncached or direct
  const stop_question* stopped = nullptr;  // polled while the source waits for anything other than the kernel; null: nothing stops it
};

class source {
 public:
  source(const source&) = delete;
  source& operator=(const source&) = delete;
  virtual ~source() = default;  // closes anything that close() did not

  [[nodiscard]] const std::string& name() const noexcept { return name_; }
  [[nodiscard]] const source_facts& facts() const noexcept { return facts_; }

  // Return the available descriptors, and why transfers cannot use or cannot bypass the page cache (ok if they can). The first of these
  // calls may open a descriptor.
  [[nodiscard]] const descriptor_pair& descriptors() { return complete().descriptors_; }
  [[nodiscard]] const status& cached_problem() { return complete().cached_problem_; }
  [[nodiscard]] const status& direct_problem() { return complete().direct_problem_; }

  // The descriptor that the source was opened or adopted with; -1 if none.
  [[nodiscard]] virtual int descriptor() const noexcept { return -1; }

  // --- The calls below block. The errors of the next four do not name the source.
  // The current size. It may be stale or wrong (/proc, FUSE, a block device that grew); only ends_at() finds the end reliably. A far source
  // must answer both without sending a request, because plans call them.
  virtual result<std::uint64_t> size() = 0;
  virtual status sync() = 0;  // returns when all written bytes are on the device
  virtual status truncate(std::uint64_t /*size*/) { return {errc::unsupported, "the size of the source cannot be changed"}; }
  // Returns how many bytes of the range are cached. Error: unsupported if that is unknown.
  virtual result<std::uint64_t> resident_bytes(std::uint64_t /*offset*/, std::uint64_t /*length*/) {
    return status(errc::unsupported, "the source does not report which bytes are cached");
  }

  // Returns true if the size or modification time has changed since the source was opened; false if unknown.
  virtual bool changed() { return false; }

  // Returns true if the source ends at or before offset. Called after a short read. Errors: those of reads.
  virtual result<bool> ends_at(std::uint64_t offset) = 0;

  // Reads length bytes at offset into host memory. Reads fewer bytes only at the end of the source; bytes_done is exact on failure. A far
  // source starts one fill and waits for it.
  virtual io_result fill(std::byte* target, std::uint64_t length, std::uint64_t offset, caching by);
  io_result fill(std::byte* target, std::uint64_t length, std::uint64_t offset) { return fill(target, length, offset, caching::usual); }
  // Starts reading the uncached part of the range into the page cache, without waiting. A hint.
  virtual void fetch_ahead(std::uint64_t /*offset*/, std::uint64_t /*length*/) noexcept {}

  // Returns ok if the range can be written. If cached_problem() is not ok, range and memory must be aligned: anything else would need a
  // read-modify-write, which can lose adjacent bytes. memory: null if it will be aligned. Error: invalid_argument, with the alignment.
  status can_drain(const std::byte* memory, std::uint64_t length, std::uint64_t offset);
  // Writes a range that can_drain() accepts; caching::direct also needs an aligned range and memory. bytes_done is exact on failure.
  virtual io_result drain(const std::byte* memory, std::uint64_t length, std::uint64_t offset, const drain_manner& how) = 0;
  io_result drain(const std::byte* memory, std::uint64_t length, std::uint64_t offset) { return drain(memory, length, offset, {}); }
  // Returns why bytes transferred with caching::uncached stay in the page cache, as far as known: ok before the first such transfer.
  [[nodiscard]] virtual status uncached_problem() { return {errc::unsupported, "the source has no such cache"}; }

  // The text for explain: which server supplies the bytes and how it is queried, if the name does not show that.
  [[nodiscard]] virtual std::string told() const { return {}; }

  // --- For far sources
  // The queue in which fills wait to be started, shared with other sources on the same server. Both arguments must outlive it.
  virtual std::shared_ptr<turnstile> turns(staging::lanes& by, turnstile::share& of);
  // Starts reading what.length() bytes at what.offset() into what.target(). Does not block or fail: errors are reported through
  // what.tell().
  virtual void begin_fill(far_fill& what) noexcept { what.tell({0, {errc::unsupported, "the source does not support fills"}}); }
  // Abandons a fill for which begin_fill() has returned: the source calls tell(), with any outcome, as soon as it no longer needs the
  // memory. Does not block. The fill must stay valid until this call returns. Does nothing if tell() was already called.
  virtual void cancel(far_fill& /*what*/) noexcept {}

  // Makes begin_fill() available for a source whose fill() blocks on a server: dedicated threads wait for the fills, so callers may abandon
  // them. times: records the response times. Returns false if the source does not support this. Both arguments must outlive the source.
  virtual bool let_wait(staging::waiting_lanes& /*by*/, staging::answer_times& /*times*/) { return false; }

  // Releases everything the source owns. Call this once, when no request is in progress and none will follow. A far source first ends
  // abandoned fills, so a server that does not respond cannot delay this call, which returns after every tell() has returned.
  virtual status close() { return {}; }

 protected:
  explicit source(std::string name) : name_(std::move(name)) {}
  // Opens anything that was not opened at first, and sets the members below. Called once, by the first query.
  virtual void open_rest() {}

  std::string name_;
  source_facts facts_;
  descriptor_pair descriptors_;
  status cached_problem_;
  status direct_problem_;

 private:
  source& complete() {
    (void)rest_.ask([this]() -> status {
      open_rest();
      return {};
    });
    return *this;
  }

  asked_once rest_;
};

}  // namespace penstock::source
