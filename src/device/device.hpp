// The only door to GPUs. A driver speaks for all devices of one kind ("cuda", or "host": the embedded device that every
// layer above is tested on); a session is one context of one device. Everything is thread-safe. No call here ever blocks on
// work queued to a stream except those that say so. Sessions never use or wait for the caller's streams unless handed one.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "penstock/status.hpp"
#include "sys/peer.hpp"

namespace penstock::device {

using stream = void*;  // CUstream; null is the device's default stream
using event = void*;   // CUevent

enum class memory_type : std::uint8_t { host, pinned, device };

struct memory_info {
  memory_type type = memory_type::host;
  int ordinal = -1;
  void* context = nullptr;    // that owns the memory; null: the primary one
  std::byte* base = nullptr;  // of the allocation; null for plain host memory
  std::uint64_t size = 0;
};

struct device_facts {
  std::string description;  // "NVIDIA H200"
  std::string pci_bus_id;   // "0000:3b:00.0"; empty for the host device
  std::uint64_t memory_bytes = 0;
  std::array<std::uint8_t, 16> uuid{};  // zeros: not known
  bool shares_host_memory = false;      // as of a session
};

// One piece of a scatter: bytes from source to target. Any alignment.
struct segment {
  const void* source = nullptr;
  void* target = nullptr;
  std::uint64_t bytes = 0;
};

// What a stream does to a word in pinned memory: as write_value() or wait_value().
struct word_step {
  bool waits = false;
  std::uint32_t* word = nullptr;
  std::uint32_t value = 0;
};

// What another process of this host needs to map an allocation of this one.
struct shared_memory {
  std::string handle;            // for open_shared(), of at most 128 bytes
  std::uint64_t generation = 0;  // of the allocation: a later one may come by the same handle
  std::uint64_t offset = 0;      // of the memory that was asked for, from where it is mapped
  std::uint64_t length = 0;      // of what lies in the allocation from there on; a range may span several
  bool by_descriptor = false;    // open_shared() needs a descriptor too, or can do with less when it has one
};

// One allocation of device memory. What is allocated there later has another number.
struct allocation {
  std::byte* base = nullptr;
  std::uint64_t size = 0;
  std::uint64_t number = 0;
};

// One context of one device. Streams that it makes never synchronise with the default stream.
class session {
 public:
  virtual ~session() = default;
  [[nodiscard]] virtual int ordinal() const = 0;
  // Whether the device has no memory but the host's, so that of what one holds the other has less: integrated GPUs, as of DGX Spark and
  // Jetson. Not where each reaches the other's, as on Grace Hopper.
  [[nodiscard]] virtual bool shares_host_memory() const { return false; }

  virtual result<void*> allocate(std::size_t bytes) = 0;  // errc::out_of_memory
  virtual status release(void* memory) = 0;
  // Page-locks host memory for every context of this driver. read_only: for mappings that may not be written.
  virtual status pin(void* base, std::size_t length, bool read_only) = 0;
  virtual status unpin(void* base) = 0;

  virtual result<stream> make_stream() = 0;
  // Whose kernels get their turn before those of other streams, where the device knows that.
  virtual result<stream> make_prompt_stream() { return make_stream(); }
  virtual status destroy_stream(stream target) = 0;
  // What no other stream of this process has, ever, though it may get the same handle later, or (as that of each thread) has it now. 0: not
  // known.
  virtual std::uint64_t identity_of(stream /*target*/) { return 0; }
  virtual result<event> make_event() = 0;
  virtual status destroy_event(event target) = 0;

  // Queue onto a stream and return at once. Both ends of a copy may be device or pinned memory.
  virtual status copy(void* target, const void* source, std::size_t bytes, stream on) = 0;
  // Runs every segment with one kernel. table and host ends lie in pinned memory and stay valid until the stream has passed.
  // errc::unsupported where the kernel cannot be loaded.
  virtual status scatter(const segment* table, std::size_t count, stream on) = 0;
  // The same with a table, of at most short_table segments, that is read by the call and may lie anywhere.
  static constexpr std::size_t short_table = 128;
  virtual status scatter_short(std::span<const segment> table, stream on) = 0;
  // Loads what scatter() needs, which it else does itself: the first time that waits until every stream of the context is quiet.
  virtual status prepare_scatter() { return {}; }
  virtual status record(event target, stream on) = 0;
  // Holds the stream until all is done that came before the last recording of the event.
  virtual status wait_event(stream on, event until) = 0;
  virtual status call(stream on, void (*function)(void*), void* argument) = 0;  // function makes no device call
  // Holds the stream until *flag >= value (as unsigned, cyclic). flag lies in pinned memory. errc::unsupported where the device cannot.
  virtual status wait_value(stream on, std::uint32_t* flag, std::uint32_t value) = 0;
  // Stores to such a flag. Who sees the value, the CPU of another process too, finds what was copied on this stream before.
  virtual status write_value(stream on, std::uint32_t* flag, std::uint32_t value) = 0;
  // Several of these two, one behind the other, with one call of the driver where it can. An error: perhaps some of them are on the stream.
  virtual status step_through(std::span<const word_step> steps, stream on) {
    for (const auto& each : steps) {
      auto queued = each.waits ? wait_value(on, each.word, each.value) : write_value(on, each.word, each.value);
      if (!queued.ok()) return queued;
    }
    return {};
  }

  // True: all that this stream was given, and what that waits for, is done. False where that is not known. An error of the work shows here.
  virtual result<bool> idle(stream target) = 0;
  virtual result<bool> reached(event target) = 0;  // an error of the work before the event shows here
  virtual status wait(event target) = 0;           // blocks, and may spin
  virtual status synchronize(stream target) = 0;   // blocks
  // Copies between host memory of any kind and device memory, and blocks, or spins, until that and all before it on the stream is done.
  virtual status copy_small(void* target, const void* source, std::size_t bytes, stream on) = 0;
  // The same where long copies over the link are under way on other streams, and the host memory is pinned: not behind them, where it can.
  virtual status copy_beside(void* target, const void* source, std::size_t bytes, stream on) {
    return copy_small(target, source, bytes, on);
  }

  // From now on copies between memory of that session's device and this one's that this session makes go straight, where they can;
  // otherwise, and where this is false, the driver takes them over the host. The same driver's.
  virtual bool allow_copies_from(session& /*other*/) { return false; }
  // Where a network fabric finds the bytes of a range of this device's memory. Errors: bad_memory.
  virtual result<void*> network_address(void* memory, std::uint64_t /*bytes*/) { return memory; }
  // The allocation around an address, for another process. Errors: unsupported, with the reason.
  virtual result<shared_memory> share(const void* /*memory*/) { return status(errc::unsupported, "this device shares no memory"); }
  // The descriptor for it, to be passed to the other process. As long as it is open the memory stays. Takes up to milliseconds.
  virtual result<sys::owned_descriptor> export_shared(const void* /*memory*/) {
    return status(errc::unsupported, "this device shares no memory");
  }
  // Maps what another process has shared (a handle of this one is refused). process: as this one numbers it. descriptor: -1 where none has
  // come. Takes up to milliseconds.
  virtual result<void*> open_shared(std::string_view /*handle*/, std::int64_t /*process*/, int /*descriptor*/) {
    return status(errc::unsupported, "this device shares no memory");
  }
  // What open_shared() gave. May wait for the device.
  virtual status close_shared(void* /*memory*/) { return {errc::unsupported, "this device shares no memory"}; }

  // Why memory of this device cannot be lent to drives; ok where it may be. The device is asked once.
  virtual status dma_buf_problem() { return {errc::unsupported, "this device lends no memory to drives"}; }
  // The allocation around an address; of memory that is mapped piece by piece, the piece.
  virtual result<allocation> allocation_of(const void* /*memory*/) {
    return status(errc::unsupported, "this device lends no memory to drives");
  }
  // A dma-buf of a range of one allocation, which begins and ends on pages of the host. As long as the descriptor, or whoever knows it, is
  // there, the memory stays, though it is released. Errors: unsupported, or the driver's, where it does not lend memory of this kind.
  virtual result<sys::owned_descriptor> export_dma_buf(void* /*memory*/, std::uint64_t /*bytes*/) {
    return status(errc::unsupported, "this device lends no memory to drives");
  }

  // Makes this context current on the calling thread, for a library that works on whatever is current there (libcufile), until
  // restore_current() on the same thread brings back what was current before. Pairs nest; no restore after an error.
  // The default suits devices that know no contexts.
  virtual status make_current() { return {}; }
  virtual void restore_current() {}
};

class driver {
 public:
  virtual ~driver() = default;
  [[nodiscard]] virtual std::string_view kind() const = 0;  // "cuda" or "host"
  virtual result<int> count() = 0;                          // devices; an error says why none can be used
  virtual result<device_facts> describe(int ordinal) = 0;   // makes no context
  // What a pointer is. Memory that this driver does not know is memory_type::host with a null base.
  // errc::bad_memory for an address that lies in device memory but not in a live allocation, where the driver can tell.
  virtual result<memory_info> classify(const void* memory) = 0;
  // Whether device memory was mapped with cuMemMap, so that one range may span several mappings. False where that cannot be known.
  virtual bool is_mapped(const void* /*memory*/) { return false; }
  // Where the CPU finds device memory, for as long as it is allocated. Errors: unsupported (it is out of the CPU's reach), bad_memory (the
  // range does not lie in one allocation).
  virtual result<std::byte*> cpu_address(const void* /*memory*/, std::uint64_t /*length*/) {
    return status(errc::unsupported, "the CPU does not reach memory of this device");
  }
  // What is current on the calling thread, in a process that uses this driver already; nothing else. Makes and loads nothing.
  struct current_context {
    int ordinal = 0;
    void* context = nullptr;
  };
  virtual std::optional<current_context> current() { return {}; }
  // The session of a context (null: the primary context of the device, made if need be). Owned by the driver, one per context.
  virtual result<session*> open(int ordinal, void* context) = 0;
};

// Fails on first use, not here, where libcuda.so.1 is missing or unusable.
std::shared_ptr<driver> make_cuda_driver();
// Devices in host memory, with streams and events on threads; copies between them go straight.
// shared_memory: they play integrated GPUs.
std::shared_ptr<driver> make_host_driver(int devices = 1, bool shared_memory = false);

}  // namespace penstock::device
