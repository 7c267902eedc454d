// The interface to GPUs. A driver represents all devices of one kind ("cuda", or "host": devices in host memory, on which all higher layers
// are tested). A session is one context on one device. Everything is thread-safe. No call blocks on work queued on a stream unless its
// comment says so. Sessions use or wait for a caller's stream only if it is passed to the call.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "penstock/detail/digest.hpp"
#include "penstock/status.hpp"
#include "sys/peer.hpp"

namespace penstock::device {

using detail::digest_part;

using stream = void*;  // CUstream; null is the device's default stream
using event = void*;   // CUevent

enum class memory_type : std::uint8_t { host, pinned, device };

struct memory_info {
  memory_type type = memory_type::host;
  int ordinal = -1;
  void* context = nullptr;    // the context that owns the memory; null: the primary one
  std::byte* base = nullptr;  // start of the allocation; null for plain host memory
  std::uint64_t size = 0;
};

struct device_facts {
  std::string description;  // "NVIDIA H200"
  std::string pci_bus_id;   // "0000:3b:00.0"; empty for the host device
  std::uint64_t memory_bytes = 0;
  std::array<std::uint8_t, 16> uuid{};  // zeros: unknown
  bool shares_host_memory = false;      // as session::shares_host_memory()
};

// One piece of a scatter: copies bytes from source to target. Any alignment.
struct segment {
  const void* source = nullptr;
  void* target = nullptr;
  std::uint64_t bytes = 0;
};

// One stream operation on a word in pinned memory, equivalent to wait_value() or write_value().
struct word_step {
  bool waits = false;
  std::uint32_t* word = nullptr;
  std::uint32_t value = 0;
};

// The data that another process on this host needs to map an allocation of this process.
struct shared_memory {
  std::string handle;            // for open_shared(); at most 128 bytes
  std::uint64_t generation = 0;  // number of the allocation, because a later one may have the same handle
  std::uint64_t offset = 0;      // offset of the requested memory in the mapping
  std::uint64_t length = 0;      // bytes from there to the end of the allocation; a range may span several allocations
  bool by_descriptor = false;    // open_shared() needs a descriptor too, or can handle more cases with one
};

// One allocation of device memory. Memory allocated later at the same address has a different number.
struct allocation {
  std::byte* base = nullptr;
  std::uint64_t size = 0;
  std::uint64_t number = 0;
};

// One context on one device. Streams that it creates never synchronize with the default stream.
class session {
 public:
  virtual ~session() = default;
  [[nodiscard]] virtual int ordinal() const = 0;
  // Returns true if the device's only memory is the host's, so that memory used by one is unavailable to the other: integrated GPUs, as in
  // DGX Spark and Jetson. Returns false if each has its own memory but can access the other's, as on Grace Hopper.
  [[nodiscard]] virtual bool shares_host_memory() const { return false; }

  virtual result<void*> allocate(std::size_t bytes) = 0;  // errc::out_of_memory
  virtual status release(void* memory) = 0;
  // Page-locks host memory for all contexts of this driver. read_only: for mappings that are not writable.
  virtual status pin(void* base, std::size_t length, bool read_only) = 0;
  virtual status unpin(void* base) = 0;

  virtual result<stream> make_stream() = 0;
  // Creates a stream whose kernels run before those of other streams, if the device supports priorities.
  virtual result<stream> make_prompt_stream() { return make_stream(); }
  virtual status destroy_stream(stream target) = 0;
  // Returns a number unique to this stream in this process, although the stream's handle may be reused later or (for per-thread streams)
  // shared. 0: unknown.
  virtual std::uint64_t identity_of(stream /*target*/) { return 0; }
  virtual result<event> make_event() = 0;
  virtual status destroy_event(event target) = 0;

  // The following calls queue work on a stream and return at once. Source and target of a copy may be device memory or pinned memory.
  virtual status copy(void* target, const void* source, std::size_t bytes, stream on) = 0;
  // Copies all segments with one kernel. The table and host memory must be pinned and stay valid until the stream has passed the operation.
  // Errors: unsupported if the kernel cannot be loaded.
  virtual status scatter(const segment* table, std::size_t count, stream on) = 0;
  // The same with a table of at most short_table segments, which may be in any memory. The call reads it before it returns.
  static constexpr std::size_t short_table = 128;
  virtual status scatter_short(std::span<const segment> table, stream on) = 0;
  // Loads the kernels of scatter(), which otherwise loads them on first use. Loading waits until all streams of the context are idle.
  virtual status prepare_scatter() { return {}; }
  // Queues on a stream: adds the digest of the parts, which are in device memory, to four integers in device memory, which several streams
  // may use at once. The list of parts is read before the call returns. The first call loads the kernel, even if the list is empty, and
  // waits like prepare_scatter(). Errors: unsupported (the kernel cannot be loaded).
  virtual status add_to_digest(std::span<const digest_part> parts, std::uint64_t* sums, stream on) = 0;
  virtual status record(event target, stream on) = 0;
  // Blocks the stream until all work before the event's last recording is done.
  virtual status wait_event(stream on, event until) = 0;
  virtual status call(stream on, void (*function)(void*), void* argument) = 0;  // function must not call the device
  // Blocks the stream until *flag >= value (unsigned, cyclic). flag must be in pinned memory. Errors: unsupported if the device cannot do
  // this.
  virtual status wait_value(stream on, std::uint32_t* flag, std::uint32_t value) = 0;
  // Stores to such a flag. A reader that sees the value, even the CPU in another process, also sees everything copied on this stream before
  // it.
  virtual status write_value(stream on, std::uint32_t* flag, std::uint32_t value) = 0;
  // Queues several of these two operations in order, with one driver call if possible. On failure, some of them may have been queued.
  virtual status step_through(std::span<const word_step> steps, stream on) {
    for (const auto& each : steps) {
      auto queued = each.waits ? wait_value(on, each.word, each.value) : write_value(on, each.word, each.value);
      if (!queued.ok()) return queued;
    }
    return {};
  }

  // Returns true if all work on this stream, and all work that it waits for, is done. Returns false if that is unknown. Reports errors of
  // that work.
  virtual result<bool> idle(stream target) = 0;
  virtual result<bool> reached(event target) = 0;  // reports errors of the work before the event
  virtual status wait(event target) = 0;           // blocks, and may spin
  virtual status synchronize(stream target) = 0;   // blocks
  // Copies between any host memory and device memory. Blocks (may spin) until the copy and all earlier work on the stream are done.
  virtual status copy_small(void* target, const void* source, std::size_t bytes, stream on) = 0;
  // The same for pinned host memory while long copies on other streams use the link. If the device supports it, the copy does not wait for
  // them.
  virtual status copy_beside(void* target, const void* source, std::size_t bytes, stream on) {
    return copy_small(target, source, bytes, on);
  }

  // Lets later copies by this session go directly between the two sessions' devices, if the devices support that. Otherwise the driver
  // copies through the host, and the result is false. Both sessions must belong to the same driver.
  virtual bool allow_copies_from(session& /*other*/) { return false; }
  // Returns the address at which a network fabric can access a range of this device's memory. Errors: bad_memory.
  virtual result<void*> network_address(void* memory, std::uint64_t /*bytes*/) { return memory; }
  // Describes the allocation that contains an address, for use by another process. Errors: unsupported, with the reason.
  virtual result<shared_memory> share(const void* /*memory*/) { return status(errc::unsupported, "this device cannot share memory"); }
  // Returns a descriptor of that allocation, to pass to the other process. The memory exists for as long as the descriptor is open. May
  // take milliseconds.
  virtual result<sys::owned_descriptor> export_shared(const void* /*memory*/) {
    return status(errc::unsupported, "this device cannot share memory");
  }
  // Maps memory that another process has shared. Rejects a handle from this process. process: the PID as seen by this process. descriptor:
  // -1 if none was received. May take milliseconds.
  virtual result<void*> open_shared(std::string_view /*handle*/, std::int64_t /*process*/, int /*descriptor*/) {
    return status(errc::unsupported, "this device cannot share memory");
  }
  // Unmaps memory from open_shared(). May wait for the device.
  virtual status close_shared(void* /*memory*/) { return {errc::unsupported, "this device cannot share memory"}; }

  // Ends the threads that this process runs for the device, except those with work. The next work starts them again.
  virtual void rest() {}

  // Returns why drives cannot access this device's memory, or ok if they can. The device is queried once.
  virtual status dma_buf_problem() { return {errc::unsupported, "drives cannot access this device's memory"}; }
  // Returns the allocation that contains an address. For memory mapped in several pieces, returns the piece.
  virtual result<allocation> allocation_of(const void* /*memory*/) {
    return status(errc::unsupported, "drives cannot access this device's memory");
  }
  // Exports a range of one allocation as a dma-buf. The range must start and end at host page boundaries. The memory exists, even if it is
  // released, for as long as the descriptor or any user of it does. Errors: unsupported, or the driver's error, if it cannot export this
  // kind of memory.
  virtual result<sys::owned_descriptor> export_dma_buf(void* /*memory*/, std::uint64_t /*bytes*/) {
    return status(errc::unsupported, "drives cannot access this device's memory");
  }

  // Makes this context current on the calling thread, for a library that uses the current context (libcufile). restore_current() on the
  // same thread restores the previous one. Pairs may be nested. After an error, do not call restore_current(). The default, for devices
  // without contexts, does nothing.
  virtual status make_current() { return {}; }
  virtual void restore_current() {}
};

class driver {
 public:
  virtual ~driver() = default;
  [[nodiscard]] virtual std::string_view kind() const = 0;  // "cuda" or "host"
  virtual result<int> count() = 0;                          // number of devices; the error says why none is usable
  virtual result<device_facts> describe(int ordinal) = 0;   // does not create a context
  // Classifies a pointer. Memory unknown to this driver is memory_type::host with a null base. Errors: bad_memory for an address in device
  // memory outside any live allocation, if the driver can detect that.
  virtual result<memory_info> classify(const void* memory) = 0;
  // Returns true if device memory was mapped with cuMemMap, so that one range may span several mappings. Returns false if unknown.
  virtual bool is_mapped(const void* /*memory*/) { return false; }
  // Returns the CPU address of device memory, valid while the memory is allocated. Errors: unsupported (the CPU cannot access it),
  // bad_memory (the range is not within one allocation).
  virtual result<std::byte*> cpu_address(const void* /*memory*/, std::uint64_t /*length*/) {
    return status(errc::unsupported, "the CPU cannot access this device's memory");
  }
  // Returns the context that is current on the calling thread, if the process already uses this driver. Creates and loads nothing.
  struct current_context {
    int ordinal = 0;
    void* context = nullptr;
  };
  virtual std::optional<current_context> current() { return {}; }
  // Returns the session of a context (null: the device's primary context, created if necessary). The driver owns it, one per context.
  virtual result<session*> open(int ordinal, void* context) = 0;
};

// If libcuda.so.1 is missing or unusable, this call still succeeds, and the first use fails.
std::shared_ptr<driver> make_cuda_driver();
// Creates devices in host memory, with streams and events on threads. Copies between them are direct. shared_memory: they behave like
// integrated GPUs.
std::shared_ptr<driver> make_host_driver(int devices = 1, bool shared_memory = false);

}  // namespace penstock::device
