// Penstock's C++ interface: an engine, the files opened through it, and the operations on them.
//
//   auto engine = penstock::engine::create();
//   auto buffer = engine->allocate("cuda:0", bytes);
//   auto file   = engine->open("model.safetensors");
//   auto done   = file->read(buffer->data(), bytes, 0);      // done.bytes_done, done.error
//
// Memory is identified by plain pointers: pageable host memory, pinned memory, or memory of any device that the engine supports
// (cudaMalloc, cudaMallocAsync, cuMemCreate, or engine.allocate). The engine classifies the pointer on each call; you never have to
// register memory.
// Lengths and offsets are in bytes. File offsets are relative to the start of the file.
// Thread-safe: any thread may call anything here. An object must not be in use while it is destroyed or moved.
// If memory runs out, a call returns errc::out_of_memory, and later calls can succeed. Calls that return a container or a string without a
// status (batch::wait, devices, pci_devices, requests, stats, summary) throw std::bad_alloc instead; you may retry them. In a forked child,
// the parent's objects return errc::forked. Create a new engine in the child; engine::shared() does so automatically.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "penstock/facts.hpp"
#include "penstock/machine.hpp"
#include "penstock/options.hpp"
#include "penstock/status.hpp"

namespace penstock {

// The implementation behind the handles. Opaque: only an engine creates these objects, and the constructors that take one are reserved for
// it.
namespace core {
class engine_core;
class file_core;
class pinned_entry;
class operation;
class upload_core;
}  // namespace core

class file;

// Memory on one device, freed on destruction. Freeing may wait for work on the memory. Keeps the engine alive.
class device_buffer {
 public:
  device_buffer() noexcept = default;  // empty
  device_buffer(std::shared_ptr<void> made, std::size_t bytes) noexcept : memory_(std::move(made)), size_(bytes) {}
  device_buffer(device_buffer&&) noexcept = default;
  device_buffer& operator=(device_buffer&&) noexcept = default;
  ~device_buffer() = default;
  [[nodiscard]] void* data() const noexcept { return memory_.get(); }
  [[nodiscard]] std::size_t size() const noexcept { return memory_ == nullptr ? 0 : size_; }

 private:
  std::shared_ptr<void> memory_;
  std::size_t size_ = 0;
};

// Makes repeated use of one memory range cheaper: device memory is classified once, host memory is pinned, and the first GPU-direct
// transfer registers device memory with NVIDIA's libcufile. The range must stay allocated until you destroy the registration, which waits
// for GPU-direct transfers of the range. Keeps the engine alive.
class registration {
 public:
  registration() noexcept = default;  // registers nothing
  explicit registration(std::shared_ptr<void> made) noexcept : held_(std::move(made)) {}
  registration(registration&&) noexcept = default;
  registration& operator=(registration&&) noexcept = default;
  ~registration() = default;

 private:
  std::shared_ptr<void> held_;
};

// The page cache of a file range, pinned (registered with the driver) while this object exists; created by file::pin(). For reads into
// device memory, the GPU then copies directly from the page cache, at the speed of the link and with almost no CPU time. Other file objects
// of this engine for the same file on disk also use it. Keeps the engine alive, but does not keep the file open. The engine drops the pin
// early if memory runs short (see engine::trim()) or the file changes; reads then use their normal path.
class PENSTOCK_API pinned_range {
 public:
  pinned_range() noexcept = default;  // pins nothing
  explicit pinned_range(std::shared_ptr<core::pinned_entry> made) noexcept : held_(std::move(made)) {}
  pinned_range(pinned_range&&) noexcept = default;
  pinned_range& operator=(pinned_range&&) noexcept = default;
  ~pinned_range() = default;  // may wait while the driver unregisters the range (6 ms per GiB); reads in flight finish first
  // Pinned bytes; 0 once the pin has been dropped.
  [[nodiscard]] std::uint64_t size() const noexcept;
  // Returns why the pin was dropped; ok while it is active.
  [[nodiscard]] status problem() const;

 private:
  std::shared_ptr<core::pinned_entry> held_;
};

// A request in flight, returned by the *_async calls. Destroying the object does not stop the request.
class PENSTOCK_API operation {
 public:
  operation() noexcept = default;  // done, with errc::closed
  explicit operation(core::operation* made) noexcept : state_(made) {}
  operation(operation&&) noexcept;
  operation& operator=(operation&&) noexcept;
  ~operation();
  // Blocks until the request has completed and its callback, if any, has returned. May be called any number of times, from any thread.
  // Inside that callback it returns at once.
  io_result wait();
  // Returns true if the request completed within the timeout. Never takes longer than the timeout, even if the file system hangs.
  [[nodiscard]] bool wait_for(std::chrono::nanoseconds timeout);
  // Returns true if wait() would return at once.
  [[nodiscard]] bool done() const noexcept;
  // Requests cancellation. Pieces that have not started are dropped, and the request fails with errc::cancelled and the actual bytes_done.
  // If it is too late, the request completes as usual. Does not block: a request that is still queued completes at once, on this thread.
  void cancel() noexcept;

 private:
  core::operation* state_ = nullptr;
};

// Several requests submitted at once. Destroying the object does not wait for them.
class PENSTOCK_API batch {
 public:
  batch() noexcept = default;  // done, with no results
  batch(core::operation* made, std::size_t requests) noexcept : state_(made), count_(requests) {}
  batch(batch&&) noexcept;
  batch& operator=(batch&&) noexcept;
  ~batch();
  // Blocks until every request has completed and its callback has returned. Returns one result per request, in submission order. A failed
  // request reports the error in its own result and does not affect the others.
  std::vector<io_result> wait();
  // As for operation.
  [[nodiscard]] bool wait_for(std::chrono::nanoseconds timeout);
  [[nodiscard]] bool done() const noexcept;
  void cancel() noexcept;

 private:
  core::operation* state_ = nullptr;
  std::size_t count_ = 0;
};

// Called exactly once when a request has completed, on an engine thread that only runs callbacks: a callback that blocks delays other
// callbacks, not requests. It may start other requests. If a request cannot start (a closed file, no memory), its callback runs on the
// calling thread before the call returns.
using io_callback = std::function<void(const io_result&)>;

// Called exactly once for each request of a batch when that request has completed, with its index in submission order and its result. Runs
// on any thread, possibly before submit() returns. Must not block or call the engine.
using item_callback = std::function<void(std::size_t index, const io_result&)>;

// One request of a batch. If is_write, the engine reads from memory, otherwise it writes to memory. Memory is not accessed after the batch
// has completed.
struct io_request {
  const file* target = nullptr;
  void* memory = nullptr;
  std::uint64_t length = 0;
  std::int64_t offset = 0;
  bool is_write = false;
  // The index of an earlier read in the batch with the same target, length and offset: this request copies its bytes into different memory,
  // so the file is read only once. If both memory ranges are on devices that can access each other, the bytes are copied to this one as
  // they arrive, and the earlier request completes after that. Otherwise, or if the copy fails, this request reads the file itself. To load
  // a file onto several devices, make each request a copy of the one for the previous device; requests of 32 MiB keep all devices busy.
  // Error: invalid_argument if there is no such earlier request.
  std::optional<std::uint32_t> copy_of{};
};

// A request that runs in stream order, on the staged path: after the work queued before it and before the work queued after it. The host
// does not wait, and once queued, the request completes regardless of the driver calls that other threads make. (The first such request in
// a CUDA context loads a kernel: the driver waits until all streams in the context are idle.)
// The engine reads the pointed-to values when the stream reaches the request. These values and memory must stay valid until the request has
// completed. *length may decrease after the request is queued, but never increase. *bytes_done, if given, is set before later work on the
// stream starts: bytes, or -1 on failure.
// constant_arguments: the pointed-to values will not change and need not stay valid after the call. The engine may then read the file at
// once, ahead of the stream, but not before overlapping writes by this engine that were queued earlier on any stream. Memory is still
// written in stream order. Work on the stream must not change the file in any other way. If such a read was within the file when it was
// queued but later fails or is short, the memory after the last byte read contains zeros or its old contents.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"  // GCC warns about copies
struct stream_request {
  void* stream = nullptr;  // CUstream of the device that owns memory (null: its default stream)
  void* memory = nullptr;
  const std::size_t* length = nullptr;
  const std::int64_t* offset = nullptr;         // in the file
  const std::int64_t* memory_offset = nullptr;  // null: 0
  std::int64_t* bytes_done = nullptr;           // in memory of the host or of the stream's device
  bool constant_arguments = false;
  // With constant_arguments, for a read: *bytes_done may be written and ended called as soon as the outcome is known, while the bytes are
  // still being copied. Wait for the stream before you use the bytes. If the call itself fails after that, ended has already been called.
  // This makes a stream of small reads a third faster.
  bool told_early = false;
  // With constant_arguments and without bytes_done: later work on the stream may start before ended is called and before the bytes of a
  // write are in the file, so small requests do not wait for the host. Reads that are queued later on any stream still return these bytes.
  // Until ended is called, no other write and no request outside streams may overlap the write.
  bool passes_early = false;
  // May be empty. Called once, after *bytes_done is set and, without passes_early, before later work on the stream starts, on an engine
  // thread: it must not block or call the driver. Not called if the call that queues the request fails.
  io_callback ended{};
  [[deprecated("its name is constant_arguments now")]] bool fixed = false;
};
#pragma GCC diagnostic pop

class PENSTOCK_API file {
 public:
  file() noexcept = default;  // closed
  explicit file(std::shared_ptr<core::file_core> made) noexcept : core_(std::move(made)) {}
  file(file&&) noexcept;
  file& operator=(file&&) noexcept;
  ~file();  // closes, waiting for requests in flight

  // Reads up to length bytes at offset into memory. Blocks. memory must stay valid until the call returns. Reads fewer bytes only at the
  // end of the file. Errors: invalid_argument (negative or overflowing range), bad_memory, io, cancelled, timed_out, out_of_memory, closed,
  // forked, device.
  io_result read(void* memory, std::uint64_t length, std::int64_t offset, const io_options& options = {}) const;
  // Writes length bytes from memory at offset. Blocks. Errors: those of read, and no_space, permission_denied.
  io_result write(const void* memory, std::uint64_t length, std::int64_t offset, const io_options& options = {}) const;
  // Like read() and write(), but without waiting for the transfer. memory must stay valid until the operation has completed. callback may
  // be empty. For more than 128 KiB the call itself still queries the driver and the file system; see starts_without_blocking().
  operation read_async(void* memory, std::uint64_t length, std::int64_t offset, const io_options& options = {},
                       io_callback callback = {}) const;
  operation write_async(const void* memory, std::uint64_t length, std::int64_t offset, const io_options& options = {},
                        io_callback callback = {}) const;
  // Returns true if starting such a request with read_async or write_async makes no driver call and no file I/O, so that you may hold a
  // lock during the call. Otherwise the call first queries the driver for the kind of memory, and the kernel for the file's size and cached
  // part (fstat, cachestat); a file system that hangs can delay that. True for requests up to 128 KiB, unless a path is forced or the
  // request must wait for the default stream.
  [[nodiscard]] bool starts_without_blocking(std::uint64_t length, const io_options& options = {}) const noexcept;
  // Queue a request on a stream and return at once. If they return an error, nothing was queued.
  status read_on_stream(const stream_request& request) const;
  status write_on_stream(const stream_request& request) const;

  // Forces written data to disk (fdatasync). Blocks.
  status sync() const;
  // Returns the current size. Queries the file system. Errors: io, closed, forked.
  [[nodiscard]] result<std::uint64_t> size() const;
  // Shortens the file, or extends it with zeros. Calls the file system. Does not wait for requests in flight. Errors: permission_denied
  // (not open for writing), invalid_argument (also for a block device), no_space, io, closed, forked.
  status truncate(std::uint64_t size) const;
  // Reads a range into the page cache and pins it there for GPUs (see pinned_range), up to the end of the file. Blocks on the disk if the
  // range is not cached; on the driver if a GPU is in use (18 ms per GiB; otherwise the first read that uses the pin takes that time); and
  // for up to 20 ms if the file has just been changed, because another change could get the same timestamp. A range inside a pinned range
  // shares its registration; other ranges count separately. On tmpfs the GPU copies from pinned page cache at only 14 to 18 GB/s, so reads
  // use the pin only if you prefer to save CPU time. Errors: invalid_argument (the range holds no bytes of the file), unsupported (the file
  // has no page cache), out_of_memory (beyond engine_options::pinned_file_budget_bytes, or memory is short), would_block (the file keeps
  // changing), io, closed, forked, device.
  [[nodiscard]] result<pinned_range> pin(std::uint64_t offset = 0, std::uint64_t length = ~std::uint64_t{0}) const;
  // Prepares the first read into this device on the engine's threads, for programs that know the target device early: 48 MiB of pinned
  // memory (the first 16 MiB take about 2.5 ms, the rest 7 ms), streams and a kernel. Creates the device's context if it does not exist.
  // Does not wait. device: device_info::name. Errors: not_found, invalid_argument, closed, forked, device.
  status prepare(std::string_view device) const;
  // Returns the descriptor that the file was opened or adopted with (with adopt_options::duplicate, the duplicate); close() invalidates it.
  // It bypasses the page cache (O_DIRECT) only if it was adopted that way. Errors: closed, forked, unsupported (not a kernel file).
  [[nodiscard]] result<int> descriptor() const;
  // Returns the path that the file was opened with; "descriptor N" for an adopted file; empty if it was never opened.
  [[nodiscard]] const std::string& path() const noexcept;
  // Waits for requests in flight, then closes the descriptors that Penstock opened, but not a borrowed one. A second call returns
  // errc::closed.
  status close();

  // The implementation.
  [[nodiscard]] const std::shared_ptr<core::file_core>& core() const noexcept { return core_; }

 private:
  std::shared_ptr<core::file_core> core_;
};

struct adopt_options {
  cache_use cache = cache_use::automatic;  // see open_options::cache
  bool direct_writes = false;              // see open_options::direct_writes; always on for an O_DIRECT descriptor
  std::uint64_t bytes_per_second = 0;      // see open_options::bytes_per_second
  std::string name{};                      // its name in messages and file::path(); if empty, "descriptor N"
  // Uses a duplicate of the descriptor. You may then close yours, and requests still refer to the same file even if the number is reused.
  // Takes one more descriptor.
  bool duplicate = false;
};

// Returns true if engine::open() treats the name as the URL of an object on a server, even a malformed one, and not as a file name.
PENSTOCK_API bool is_url(std::string_view name) noexcept;
// Returns the path in file:///PATH, which engine::open() also accepts; returns any other name unchanged.
PENSTOCK_API std::string file_path(std::string_view name);
// Returns the name used in messages: a URL without anything that grants access, such as a signature in its query; a file name unchanged.
PENSTOCK_API std::string shown_name(std::string_view name);

// An object that is being written to a server. It appears when publish() returns; until then, none of it is visible. Destroying the upload
// discards it. If the process is killed, the parts sent so far stay hidden on the server, at the usual storage price, until a bucket rule
// (AbortIncompleteMultipartUpload) removes them. Keeps the engine alive. Not thread-safe.
class PENSTOCK_API upload {
 public:
  upload() noexcept = default;  // empty
  explicit upload(std::shared_ptr<core::upload_core> made) noexcept : core_(std::move(made)) {}
  upload(upload&&) noexcept = default;
  upload& operator=(upload&&) noexcept = default;  // discards its previous upload
  ~upload() = default;

  // Returns a file to write the object's bytes to, in any order, each byte once; close it before publish(). Bytes are sent as you write
  // them and stay in memory until sent (up to 1 GiB, usually 128 MiB; see docs/guides/object-storage.md); writes wait while that memory is
  // full. file::truncate() declares the object's size. Errors: closed, forked.
  [[nodiscard]] result<file> open(std::uint64_t bytes_per_second = 0) const;
  // Blocks until everything is sent. If replace is false and the object exists, it is kept and this call fails (EEXIST). Errors:
  // invalid_argument (bytes that were never written; the message names them), permission_denied, not_found (the bucket), timed_out, io,
  // closed, forked.
  status publish(bool replace = true) const;
  // Discards the upload unless it was published. Blocks until the server confirms, but at most a few seconds.
  void discard() noexcept { core_.reset(); }
  // Returns the URL without its query.
  [[nodiscard]] const std::string& url() const noexcept;

 private:
  std::shared_ptr<core::upload_core> core_;
};

class PENSTOCK_API engine {
 public:
  // Does not read files or access GPUs. Threads, contexts and pinned memory are created when first needed.
  static result<engine> create(const engine_options& options);
  static result<engine> create();  // with engine_options::from_environment()
  // Returns the engine that all of Penstock's interfaces in this process share. Created on first use, and again in a forked child.
  static result<engine> shared();
  // The same. If this call creates the engine, `change` may edit engine_options::from_environment() first; otherwise the existing engine
  // keeps its options, which options() returns. Errors: those of create(), including errors in changed options.
  static result<engine> shared(const std::function<void(engine_options&)>& change);

  explicit engine(std::shared_ptr<core::engine_core> made) noexcept : core_(std::move(made)) {}
  engine(engine&&) noexcept;
  engine& operator=(engine&&) noexcept;
  ~engine();  // files, buffers and operations keep what they need alive

  // Opens a regular file or a block device. Blocks. Errors: not_found, permission_denied, not_a_file, out_of_memory (also for descriptors).
  [[nodiscard]] result<file> open(const std::string& path, const open_options& options = {}) const;
  // Opens an object on a server by its URL, for reading only: http://, https:// and the other kinds in docs/guides/object-storage.md.
  // open() does the same for a path that is a URL, with remote_options{}. Blocks while it queries the server for the size. Reads return the
  // version found at that time; if the object is replaced later, reads fail rather than mix versions. Errors (the message includes the URL
  // without its query): invalid_argument, not_found, permission_denied, timed_out, unsupported (no libcurl; ranges_only for a server
  // without ranges), io.
  [[nodiscard]] result<file> open_remote(const std::string& url, const remote_options& how, const open_options& options = {}) const;
  // Lists the objects whose URLs start with url (s3://BUCKET or s3://BUCKET/PREFIX), sorted; other servers cannot be listed. one_level:
  // URLs with a "/" after the prefix are truncated there and listed once. most: more entries than this are an error. Blocks; requests pages
  // of 1,000 entries from the server. Errors: those of open_remote(); invalid_argument.
  [[nodiscard]] result<std::vector<remote_object>> list_remote(const std::string& url, const remote_options& how = {},
                                                               bool one_level = false, std::size_t most = 1'000'000) const;
  // Starts writing an S3 object (s3://BUCKET/KEY). how.size: the object's size, if known. Blocks while it finds credentials. Errors (the
  // message includes the URL): invalid_argument, permission_denied, unsupported (a different kind of URL, no libcurl).
  [[nodiscard]] result<upload> begin_upload(const std::string& url, const remote_options& how = {}) const;
  // Creates a file from a descriptor that you own, opened with or without O_DIRECT. Keep the descriptor open until close(), unless
  // adopt_options::duplicate is set. cache: see open_options::cache. Errors: not_a_file, invalid_argument (O_PATH, or O_APPEND for
  // writing), io (EBADF), out_of_memory (also for descriptors), forked.
  [[nodiscard]] result<file> adopt(int descriptor, cache_use cache = cache_use::automatic) const;
  [[nodiscard]] result<file> adopt(int descriptor, const adopt_options& options) const;

  // Returns all devices: "cuda:N", then the host device "host:0". Does not create a context.
  [[nodiscard]] std::vector<device_info> devices() const;
  // Returns why no CUDA device is listed; ok if at least one is.
  [[nodiscard]] status cuda_status() const;
  // Allocates memory on the named device. Errors: invalid_argument and not_found (the message lists the devices), out_of_memory, device.
  [[nodiscard]] result<device_buffer> allocate(std::string_view device, std::size_t bytes) const;
  // Returns the kind and device of the memory behind a pointer. Error: bad_memory for a device address that is not allocated.
  [[nodiscard]] result<memory_facts> describe(const void* memory) const;
  // Returns the address at which the CPU can access a memory range while it is allocated: a different address for the host device, the same
  // address for host memory. Errors: unsupported (GPU memory), bad_memory (a host device range that is not within one allocation).
  [[nodiscard]] result<void*> cpu_address(const void* memory, std::size_t bytes) const;
  // Returns all PCI devices of the machine; empty if sysfs is not mounted.
  [[nodiscard]] std::vector<pci_device> pci_devices() const;
  // Copies between any two memory ranges of this process. Blocks. Errors: bad_memory, device.
  status copy(void* target, const void* source, std::size_t bytes) const;
  // See registration. Errors: invalid_argument, bad_memory, out_of_memory.
  [[nodiscard]] result<registration> register_memory(void* memory, std::size_t bytes) const;

  // Submits requests as one batch, in which many small ranges are gathered and scattered together. Returns at once. callback, if given, is
  // called once when all requests have completed, with the total bytes and the first error; `each` is called for every request.
  [[nodiscard]] batch submit(std::span<const io_request> requests, const io_options& options = {}, io_callback callback = {},
                             item_callback each = {}) const;

  // Describes what a blocking read (or write) of length bytes at offset would do with memory on this device. device: a name as in
  // device_info::name; "" or "host" for host memory. Does not create a context: for a GPU that is not in use yet, the plan contains only
  // what is known without one. Ignores permissions: a write to a file that is open only for reading is explained as if it were allowed.
  // Errors: invalid_argument, not_found (the message lists the devices), closed, forked, unsupported (the forced path cannot serve it).
  [[nodiscard]] result<plan> explain(const file& target, std::string_view device, std::uint64_t length, std::int64_t offset,
                                     bool is_write = false, const io_options& options = {}) const;
  // Returns the requests in flight, in no particular order; a batch's requests are listed individually. Intended for monitoring: does not
  // wait for devices or files. Requests of a batch that waits for the default stream are missing until the stream reaches the batch.
  [[nodiscard]] std::vector<request_info> requests() const;
  // Returns the counters since the engine was created. Each counter is correct, but they are not all read at the same instant.
  [[nodiscard]] engine_stats stats() const;
  // Returns the counters as text: one line for each path that moved bytes, with the reason why a faster path was not used.
  [[nodiscard]] std::string summary() const;
  // Returns advice based on the counters. The first call in a process spends a few milliseconds measuring the cost of copying memory.
  [[nodiscard]] std::vector<penstock::advice> advice() const;
  // Returns idle pinned staging memory to the system, and the 32 MiB per device used for scattered pieces. Returns the decrease of
  // stats().pinned_bytes, in bytes. Later requests pin memory again (about 7 ms for 32 MiB). Blocks while the driver unpins. Requests in
  // flight keep their memory. If less than a sixteenth of all memory is free, not counting memory pinned by file::pin(), those pins are
  // dropped too, as the next read would do. Also releases cached pages that reads registered (prefer = cpu) and are not using now.
  std::size_t trim() const;
  // Prepares the first transfer of GPU memory, like file::prepare(), on an engine thread, in the CUDA context that is current on this
  // thread. Does nothing if no context is current. Does not wait.
  void prepare() const noexcept;
  // Returns why no file on this machine can be read or written GPU-direct; ok if some files can.
  [[nodiscard]] status gpu_direct_status() const;
  [[nodiscard]] const engine_options& options() const noexcept;
  [[nodiscard]] const std::shared_ptr<core::engine_core>& core() const noexcept { return core_; }

 private:
  std::shared_ptr<core::engine_core> core_;
};

}  // namespace penstock
