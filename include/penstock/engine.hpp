// Penstock's C++ interface: an engine, the files opened through it, and the operations on them.
//
//   auto engine = penstock::engine::create();
//   auto buffer = engine->allocate("cuda:0", bytes);
//   auto file   = engine->open("model.safetensors");
//   auto done   = file->read(buffer->data(), bytes, 0);      // done.bytes_done, done.error
//
// Memory is named by plain pointers: pageable host memory, pinned memory, or memory of any device that the engine knows
// (cudaMalloc, cudaMallocAsync, cuMemCreate, or engine.allocate). It is classified on each call; registering is never required.
// Thread-safe: everything here may be called from any thread, except that destroying or moving an object needs it to be otherwise unused.
// Where memory runs out, a call ends with errc::out_of_memory, and everything works afterwards. Only calls that return a container or a
// string and no status (batch::wait, devices, pci_devices, stats, summary) throw std::bad_alloc then, and may be called again.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "penstock/machine.hpp"
#include "penstock/options.hpp"
#include "penstock/status.hpp"

namespace penstock {

namespace core {
class engine_core;
class file_core;
class pending;
struct transfer;
}  // namespace core

enum class memory_kind : std::uint8_t { host = 0, pinned, device };

struct device_info {
  std::string name;         // "cuda:0" or "host:0": what allocate() takes
  std::string description;  // "NVIDIA H200"
  std::string pci_bus_id;   // empty for the host device
  std::uint64_t memory_bytes = 0;
  int numa_node = -1;                   // -1: not known
  std::array<std::uint8_t, 16> uuid{};  // zeros: not known
  std::uint64_t window_bytes = 0;       // its largest PCI memory window (BAR1); 0: not known
};

// What a pointer is.
struct memory_facts {
  memory_kind kind = memory_kind::host;
  std::string device;      // that owns it, as in device_info::name; empty for pageable memory
  void* base = nullptr;    // of the allocation; null where that is not known, as for pageable memory
  std::uint64_t size = 0;  // of the allocation, from base
};

// Memory of one device; freed on destruction. The engine stays alive as long as one of its buffers does.
class PENSTOCK_API device_buffer {
 public:
  device_buffer() noexcept = default;
  device_buffer(device_buffer&& other) noexcept;
  device_buffer& operator=(device_buffer&& other) noexcept;
  ~device_buffer();
  [[nodiscard]] void* data() const noexcept { return data_; }
  [[nodiscard]] std::size_t size() const noexcept { return size_; }

 private:
  friend class engine;
  std::shared_ptr<core::engine_core> engine_;
  std::string device_;
  void* data_ = nullptr;
  std::size_t size_ = 0;
};

// A request under way, from the *_async calls. Dropping it does not stop the request.
class PENSTOCK_API operation {
 public:
  operation() noexcept = default;  // done, with errc::closed
  operation(operation&&) noexcept;
  operation& operator=(operation&&) noexcept;
  ~operation();
  // Blocks until the request has ended, and its callback, if it has one, has run; any number of times, from any thread. In that callback
  // itself it returns at once.
  io_result wait();
  // True when the request ended within the time. Never takes longer, whatever the file system does.
  [[nodiscard]] bool wait_for(std::chrono::nanoseconds timeout);
  // Whether wait() would return at once.
  [[nodiscard]] bool done() const noexcept;
  // Asks the request to stop: pieces not yet started are dropped, and it ends with errc::cancelled and a true bytes_done,
  // or ends as if cancel() had not been called when it was too late. Does not block: what is still queued ends at once, on this thread.
  void cancel() noexcept;

 private:
  friend class file;
  friend class engine;
  explicit operation(core::pending* state) noexcept : state_(state) {}
  core::pending* state_ = nullptr;
};

// Called exactly once, when a request has ended, on a thread of the engine that calls back and does nothing else: one that blocks holds
// up other callbacks, not requests. May start other requests. What could not start (a closed file, no memory) is told of before the call
// that asked for it returns, on the caller's thread.
using io_callback = std::function<void(const io_result&)>;

// Called exactly once for each request of a batch, when it has ended: its place in the order of submission, and its outcome. On any
// thread, and also while submit() runs. Must neither block nor call the engine.
using item_callback = std::function<void(std::size_t index, const io_result&)>;

// One request of a batch. memory is read from when is_write, else written to; never touched after the batch has ended.
class file;
struct io_request {
  const file* target = nullptr;
  void* memory = nullptr;
  std::uint64_t length = 0;
  std::int64_t offset = 0;
  bool is_write = false;
};

// Several requests submitted at once. Dropping it waits for none of them.
class PENSTOCK_API batch {
 public:
  batch() noexcept = default;
  batch(batch&&) noexcept;
  batch& operator=(batch&&) noexcept;
  ~batch();
  // Blocks until every request has ended, and its callback has run. Returns one result per request, in the order of submission. Errors
  // of single requests are in their results; the others are not disturbed.
  std::vector<io_result> wait();
  [[nodiscard]] bool wait_for(std::chrono::nanoseconds timeout);
  [[nodiscard]] bool done() const noexcept;
  void cancel() noexcept;

 private:
  friend class engine;
  batch(core::pending* state, std::size_t count) noexcept : state_(state), count_(count) {}
  core::pending* state_ = nullptr;
  std::size_t count_ = 0;  // requests
};

// A request that runs in the order of a stream: after the work queued before it, before the work queued after it, by the staged path. The
// host is not blocked, and once queued the request ends whatever other threads ask of the driver meanwhile. (The first such request of a
// CUDA context loads a kernel, for which the driver waits until all streams of the context are quiet.) The pointed-to values are read when
// the stream reaches the request, and must stay valid until it has ended; so must memory. *length may only become less than it was when the
// request was queued. *bytes_done, if given, is written before later work of the stream starts: bytes, or -1 on failure.
struct stream_request {
  void* stream = nullptr;  // CUstream of the device that owns memory (null: its default stream)
  void* memory = nullptr;
  const std::size_t* length = nullptr;
  const std::int64_t* offset = nullptr;         // in the file
  const std::int64_t* memory_offset = nullptr;  // null: 0
  std::int64_t* bytes_done = nullptr;           // in memory of the host or of the stream's device
  // May be empty. Called before later work of the stream starts, once bytes_done is written, on a thread of the driver's: it must not block
  // and must not call the driver.
  io_callback ended{};
};

// Makes repeated use of one memory range cheaper: the range is classified once (device memory) or pinned (host memory), and device memory
// is registered with NVIDIA's libcufile by the first GPU-direct transfer that touches it. The range must stay allocated until the
// registration is destroyed, which waits for GPU-direct transfers of it. Never required.
class PENSTOCK_API registration {
 public:
  registration() noexcept = default;
  registration(registration&&) noexcept;
  registration& operator=(registration&&) noexcept;
  ~registration();

 private:
  friend class engine;
  std::shared_ptr<core::engine_core> engine_;
  void* base_ = nullptr;
};

// What the planner would do with a part of a file, and why.
struct plan_part {
  std::uint64_t offset = 0;
  std::uint64_t length = 0;
  path_kind path = path_kind::automatic;
  std::string path_name;
  std::string reason;  // one sentence
};
struct plan {
  std::vector<plan_part> parts;  // in file order, covering the range once
  // Of the range, in the page cache. Estimated from samples where this process may not write the file, and nothing where it is not known.
  std::optional<std::uint64_t> cached_bytes;
  std::vector<std::string> remarks;  // why faster paths were not taken, and what would make it faster
};

struct path_stats {
  std::string name;              // of the path
  std::uint64_t operations = 0;  // pieces carried
  std::uint64_t bytes = 0;
  std::uint64_t errors = 0;
  std::uint64_t fallbacks = 0;  // pieces that this path began or was due to carry and handed to another; memory that it could not register
  std::string last_fallback;    // the reason for the latest of them
  std::uint64_t busy_ns = 0;    // summed over pieces
  std::uint64_t active_ns = 0;  // while at least one piece was under way
  // Piece counts by size: [i] counts lengths in [2^i, 2^(i+1)) KiB; [0] also smaller ones; the last also larger ones.
  std::array<std::uint64_t, 24> size_histogram{};
  // Piece counts by time taken: [i] counts [2^i, 2^(i+1)) microseconds, likewise.
  std::array<std::uint64_t, 24> latency_histogram{};
};
struct engine_stats {
  std::vector<path_stats> by_path;      // indexed by path_kind
  std::uint64_t reads = 0, writes = 0;  // requests ended
  std::uint64_t read_bytes = 0, written_bytes = 0;
  std::uint64_t failed = 0, cancelled = 0, timed_out = 0;
  std::uint64_t pinned_bytes = 0, pinned_peak_bytes = 0;
  [[nodiscard]] const path_stats& path(path_kind kind) const {
    static const path_stats none;
    return static_cast<std::size_t>(kind) < by_path.size() ? by_path[static_cast<std::size_t>(kind)] : none;
  }
};

class PENSTOCK_API file {
 public:
  file() noexcept = default;  // closed
  file(file&&) noexcept;
  file& operator=(file&&) noexcept;
  ~file();  // closes, waiting for requests under way

  // Reads up to length bytes at offset into memory. Blocks. memory must stay valid until return. Short count only at end of file.
  // Errors: invalid_argument (negative or overflowing range), bad_memory, io, cancelled, timed_out, out_of_memory, closed, forked, device.
  io_result read(void* memory, std::uint64_t length, std::int64_t offset, const io_options& options = {}) const;
  // Writes length bytes from memory at offset. Blocks. Errors as for read, and no_space, permission_denied.
  io_result write(const void* memory, std::uint64_t length, std::int64_t offset, const io_options& options = {}) const;
  // The same without blocking: memory must stay valid until the operation has ended. callback may be empty.
  operation read_async(void* memory, std::uint64_t length, std::int64_t offset, const io_options& options = {},
                       io_callback callback = {}) const;
  operation write_async(const void* memory, std::uint64_t length, std::int64_t offset, const io_options& options = {},
                        io_callback callback = {}) const;
  // True where they only queue such a request, and wait for neither file nor device nor driver: sooner done than letting go of a lock that
  // the caller holds and taking it again.
  [[nodiscard]] bool only_queues(std::uint64_t length, const io_options& options = {}) const noexcept;
  // Stream-ordered forms; see stream_request. An error here means that nothing was queued.
  status read_on_stream(const stream_request& request) const;
  status write_on_stream(const stream_request& request) const;

  // Forces written data to the disk (fdatasync). Blocks.
  status sync() const;
  [[nodiscard]] result<std::uint64_t> size() const;
  [[nodiscard]] const std::string& path() const noexcept;
  // Waits for requests under way, then closes the descriptors that Penstock opened (not one it was lent). Twice is errc::closed.
  status close();

 private:
  friend class engine;
  explicit file(std::shared_ptr<core::file_core> core) noexcept : core_(std::move(core)) {}
  operation begin(const core::transfer& what, const io_options& options, io_callback& callback) const;
  std::shared_ptr<core::file_core> core_;
};

class PENSTOCK_API engine {
 public:
  // Reads no file and touches no GPU; threads, contexts and pinned memory are made when first needed.
  static result<engine> create(const engine_options& options);
  static result<engine> create();  // with engine_options::from_environment()
  // The engine that the faces of this process share; made on first use, and anew in a forked child.
  static result<engine> shared();

  engine(engine&&) noexcept;
  engine& operator=(engine&&) noexcept;
  ~engine();  // files, buffers and operations keep what they need alive

  [[nodiscard]] result<file> open(const std::string& path, const open_options& options = {}) const;
  // A file over a descriptor that the caller keeps owning, opened with or without O_DIRECT, and must keep open until close().
  [[nodiscard]] result<file> adopt(int descriptor) const;

  // All devices, without creating a context on any: "cuda:N", then the host device "host:0".
  [[nodiscard]] std::vector<device_info> devices() const;
  // Why no CUDA device is listed; ok when one is.
  [[nodiscard]] status cuda_status() const;
  [[nodiscard]] result<device_buffer> allocate(std::string_view device, std::size_t bytes) const;
  // What a pointer is. Errors: bad_memory for an address of a device where nothing is allocated.
  [[nodiscard]] result<memory_facts> describe(const void* memory) const;
  // All PCI devices of the machine; empty where sysfs is not mounted.
  [[nodiscard]] std::vector<pci_device> pci_devices() const;
  // Blocking copy between any two memory ranges of this process.
  status copy(void* target, const void* source, std::size_t bytes) const;
  [[nodiscard]] result<registration> register_memory(void* memory, std::size_t bytes) const;

  // Submits requests as one batch: many small ranges are gathered and scattered together. Does not block.
  // callback, if given, is called once when all have ended, with the total of bytes and the first error; each, for every request.
  [[nodiscard]] batch submit(std::span<const io_request> requests, const io_options& options = {}, io_callback callback = {},
                             item_callback each = {}) const;

  // What a blocking read (or write) of length bytes at offset would do with memory of that device: a name as in device_info::name, "" or
  // "host" for memory of the host. Makes no context: of a GPU that is not in use yet it tells what can be known without one. Asks for no
  // right: a write of a file that is open for reading only is told as if it were allowed. Errors: invalid_argument, not_found (the message
  // names the devices that there are), closed, forked, unsupported (the path that was asked for refuses).
  [[nodiscard]] result<plan> explain(const file& target, std::string_view device, std::uint64_t length, std::int64_t offset,
                                     bool is_write = false, const io_options& options = {}) const;
  [[nodiscard]] engine_stats stats() const;
  // The counters in words: a line for each path that carried something, with what kept its bytes from a faster one.
  [[nodiscard]] std::string summary() const;
  // Why no file of this machine can be read or written GPU-direct; ok where some may be.
  [[nodiscard]] status gpu_direct_status() const;
  [[nodiscard]] const engine_options& options() const noexcept;

 private:
  friend struct engine_access;
  explicit engine(std::shared_ptr<core::engine_core> core) noexcept : core_(std::move(core)) {}
  std::shared_ptr<core::engine_core> core_;
};

}  // namespace penstock
