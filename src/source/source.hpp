// A source: an end whose bytes have offsets, which requests read from and write to by range. One file per kind of source. It owns the
// descriptors behind it, where there are any; paths that need one ask for it, and refuse where there is none. Thread-safe, but for close().
//
// Most answer at once: a thread calls fill(), and has the bytes when that returns. A far source, whose answers come over a network, begins
// fills (begin_fill) and tells when they have ended, so that hundreds of them need no thread.
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

// Edges of a transfer past the cache are cut at multiples of it, however small the device's sectors are.
inline constexpr std::uint64_t direct_alignment = sys::direct_alignment;
constexpr std::uint64_t round_down(std::uint64_t value) { return value / direct_alignment * direct_alignment; }
constexpr std::uint64_t round_up(std::uint64_t value) { return round_down(value + direct_alignment - 1); }
// How long the whole blocks around a range are.
constexpr std::uint64_t blocks_around(std::uint64_t offset, std::uint64_t length) { return round_up(offset % direct_alignment + length); }
// Whether a transfer can go past the cache as it is.
inline bool aligned(const void* memory, std::uint64_t length, std::uint64_t offset) {
  return (reinterpret_cast<std::uintptr_t>(memory) | length | offset) % direct_alignment == 0;
}

// -1 where there is none.
struct descriptor_pair {
  int cached = -1;  // through the page cache
  int direct = -1;  // O_DIRECT; demands no more alignment than direct_alignment
};

// What is known of a source from its opening on.
struct source_facts {
  std::uint64_t device = 0;      // where its bytes lie: the sources of one device are served by the same threads
  std::uint64_t inode = 0;       // names a file of that device; 0: none
  std::int64_t modified_ns = 0;  // its contents when it was opened
  bool in_memory = false;        // tmpfs: registering its pages with a driver is slow
  bool readable = true;
  bool writable = true;
  bool direct_writes = false;    // large writes shall go past the cache
  bool lent_past_cache = false;  // it was lent by an O_DIRECT descriptor
  bool from_server = false;      // a server brings its bytes, as sys::file_info has it, and may answer late
  unsigned fills_at_once = 0;    // of a far source: so many fills under way serve it best; 0: it answers at once
};

// A read that a far source begins. It and its memory stay until it has ended, however long that takes: whoever does not want to wait for it
// leaves it behind, and asks the source to be done with it (source::cancel). It ends once it has been told and begun() was called.
class far_fill {
 public:
  far_fill(const far_fill&) = delete;
  far_fill& operator=(const far_fill&) = delete;

  // --- for the source
  [[nodiscard]] std::byte* target() const noexcept { return target_; }
  [[nodiscard]] std::uint64_t length() const noexcept { return length_; }
  [[nodiscard]] std::uint64_t offset() const noexcept { return offset_; }
  // How it ended, as source::fill() would return it. Exactly once, on any thread, also before begin_fill() returns, and with no lock that
  // begin_fill() or cancel() takes. The source touches neither the memory nor this any more.
  void tell(io_result outcome) noexcept;
  far_fill* next_of_source = nullptr;  // for a list of the source's
  far_fill* previous_of_source = nullptr;

  // --- for whoever made it
  // begin_fill() has returned, and nothing more is done with it here.
  void begun() noexcept { step(); }

 protected:
  far_fill() noexcept = default;
  ~far_fill() = default;
  // Before it is begun, each time.
  void aim(std::byte* target, std::uint64_t length, std::uint64_t offset) noexcept;
  // Exactly once for each aim(), on the thread of tell() or of begun(). Must not block, nor let go of the source's file.
  virtual void ended(io_result outcome) noexcept = 0;

 private:
  void step() noexcept;

  std::byte* target_ = nullptr;
  std::uint64_t length_ = 0;
  std::uint64_t offset_ = 0;
  io_result outcome_;
  std::atomic<int> steps_{0};  // to come: tell() and begun()
};

// That far sources have: fills block no thread, so one set of threads serves them all, whatever their servers do.
inline constexpr std::uint64_t far_device = ~std::uint64_t{0};

// Whether whoever waits has been told to stop: an error that says why.
using stop_question = std::function<status()>;

class source {
 public:
  source(const source&) = delete;
  source& operator=(const source&) = delete;
  virtual ~source() = default;  // closes what is still open

  [[nodiscard]] const std::string& name() const noexcept { return name_; }
  [[nodiscard]] const source_facts& facts() const noexcept { return facts_; }

  // The descriptors that can be had, and why bytes cannot go through the cache, or past it: ok where they can. The first of these calls
  // may open a descriptor.
  [[nodiscard]] const descriptor_pair& descriptors() { return complete().descriptors_; }
  [[nodiscard]] const status& cached_problem() { return complete().cached_problem_; }
  [[nodiscard]] const status& direct_problem() { return complete().direct_problem_; }

  // The descriptor that it was opened or lent with; -1 where there is none.
  [[nodiscard]] virtual int descriptor() const noexcept { return -1; }

  // --- all that follows blocks. Errors of these four do not name the source.
  // As of now. May be old or wrong (/proc, FUSE, a block device that grew): only ends_at() tells where a source ends. A far source answers
  // both from what it knows, since plans ask them.
  virtual result<std::uint64_t> size() = 0;
  virtual status sync() = 0;  // what was written is on the device
  virtual status truncate(std::uint64_t /*size*/) { return {errc::unsupported, "the source has a size of its own"}; }
  // Bytes of the range in the cache. errc::unsupported where nothing is known.
  virtual result<std::uint64_t> resident_bytes(std::uint64_t /*offset*/, std::uint64_t /*length*/) {
    return status(errc::unsupported, "the source does not say what is in a cache");
  }

  // Whether its size or the time of its last change are no longer those of its opening; false where that cannot be told.
  virtual bool changed() { return false; }

  // Whether the source ends at offset or before: for those who were given less than they asked for. Errors: of the read.
  virtual result<bool> ends_at(std::uint64_t offset) = 0;

  // Reads length bytes at offset into host memory, through the cache if that can be. Short count only at the end of the source; bytes_done
  // is true on failure. Of a far source it begins one fill and waits for it.
  virtual io_result fill(std::byte* target, std::uint64_t length, std::uint64_t offset);
  // The same, where target is a slab that a device reads at once, and had better not be left dirty in this CPU's caches (see
  // base/stream_copy.hpp).
  virtual io_result fill_streaming(std::byte* target, std::uint64_t length, std::uint64_t offset) { return fill(target, length, offset); }
  // The same, where not all of the range is in the cache, in which it is to be.
  virtual io_result fill_cold(std::byte* target, std::uint64_t length, std::uint64_t offset) { return fill(target, length, offset); }
  // The same, where nothing that was not in the cache is to stay there, as far as that can be had: uncached_problem().
  virtual io_result fill_uncached(std::byte* target, std::uint64_t length, std::uint64_t offset) { return fill(target, length, offset); }
  // Has what is not in the cache of the range brought there; does not wait for it. A hint.
  virtual void fetch_ahead(std::uint64_t /*offset*/, std::uint64_t /*length*/) noexcept {}
  // Reads the whole blocks around any range past the cache, for which direct_problem() is ok; block has room for them, and is aligned, but
  // for file systems that take any memory. The range then lies offset % direct_alignment behind it, and its bytes alone are counted.
  virtual io_result fill_direct(std::byte* /*block*/, std::uint64_t /*length*/, std::uint64_t /*offset*/) { return {0, direct_problem()}; }

  // Whether a range can be written at all: where cached_problem() is not ok, only aligned ranges of aligned memory, since anything else
  // would need a read-modify-write, which can lose a neighbour's bytes. memory: null where it will be aligned. Errors: invalid_argument,
  // which names the alignment.
  status can_drain(const std::byte* memory, std::uint64_t length, std::uint64_t offset);
  // Writes likewise, what can_drain().
  virtual io_result drain(const std::byte* memory, std::uint64_t length, std::uint64_t offset) = 0;
  // The same for who may be told to stop: where it has to wait for anything but the kernel, it asks from time to time.
  virtual io_result drain_unless(const stop_question& /*stopped*/, const std::byte* memory, std::uint64_t length, std::uint64_t offset) {
    return drain(memory, length, offset);
  }
  // The same, where nothing is to stay in the cache once it is on the device, as far as that can be had.
  virtual io_result drain_uncached(const std::byte* memory, std::uint64_t length, std::uint64_t offset) {
    return drain(memory, length, offset);
  }
  // Why what these two bring stays in the cache, as far as is known: ok before the first of them.
  [[nodiscard]] virtual status uncached_problem() { return {errc::unsupported, "the source has no such cache"}; }
  // Past the cache, for which direct_problem() is ok; all three are aligned.
  virtual io_result drain_direct(const std::byte* /*memory*/, std::uint64_t /*length*/, std::uint64_t /*offset*/) {
    return {0, direct_problem()};
  }

  // In words, for explain: who serves it, and how it is asked, where that is not to be seen from its name.
  [[nodiscard]] virtual std::string told() const { return {}; }

  // --- of a far source
  // Where its fills wait to be begun, with those of others that the same server serves. Both outlive it.
  virtual std::shared_ptr<turnstile> turns(staging::lanes& by, turnstile::share& of);
  // Begins to read what.length() bytes at what.offset() into what.target(). Does not block, and does not fail: it tells.
  virtual void begin_fill(far_fill& what) noexcept { what.tell({0, {errc::unsupported, "the source begins no fills"}}); }
  // Nobody wants what a fill brings, for which begin_fill() has returned: the source tells it as soon as it can be done with the memory,
  // whatever it has brought. Does not block. The fill stays until this returns, and may be told before or meanwhile: then nothing is done.
  virtual void cancel(far_fill& /*what*/) noexcept {}

  // Has the fills that are begun of a source that answers at once, as long as its server does, be carried by threads that wait; who begins
  // them may then leave them behind. times: of what they bring. False: it begins none. Both outlive it.
  virtual bool let_wait(staging::waiting_lanes& /*by*/, staging::answer_times& /*times*/) { return false; }

  // Lets go of what the source owns: once, with no request under way and none to come. A far source tells what is still under way, all of
  // which has been left behind, and returns when each call of tell() has. So a source that does not answer holds up who closes it.
  virtual status close() { return {}; }

 protected:
  explicit source(std::string name) : name_(std::move(name)) {}
  // Opens what was left for the first question, and sets what follows. Called once.
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
