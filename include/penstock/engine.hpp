// Penstock's C++ interface: an engine, the files opened through it, and the operations on them.
//
//   auto engine = penstock::engine::create();
//   auto buffer = engine->allocate("cuda:0", bytes);
//   auto file   = engine->open("model.safetensors");
//   auto done   = file->read(buffer->data(), bytes, 0);      // done.bytes_done, done.error
//
// Memory is named by plain pointers: pageable host memory, pinned memory, or memory of any device that the engine knows
// (cudaMalloc, cudaMallocAsync, cuMemCreate, or engine.allocate). It is classified on each call; registering is never required.
// Lengths and offsets are in bytes. Offsets count from the beginning of the file.
// Thread-safe: everything here may be called from any thread, except that destroying or moving an object needs it to be otherwise unused.
// Where memory runs out, a call ends with errc::out_of_memory, and everything works afterwards. Only calls that return a container or a
// string and no status (batch::wait, devices, pci_devices, requests, stats, summary) throw std::bad_alloc then, and may be called again.
// In a forked child, what the parent made answers errc::forked; the child makes an engine of its own, which engine::shared() does by
// itself.
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

// What stands behind a handle. Opaque: only an engine makes one, and the constructors that take one are for it alone.
namespace core {
class engine_core;
class file_core;
class pinned_entry;
class operation;
class upload_core;
}  // namespace core

class file;

// Memory of one device; freed on destruction, which may wait for work on it. Keeps the engine alive.
class device_buffer {
 public:
  device_buffer() noexcept = default;  // of no bytes
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

// Makes repeated use of one memory range cheaper: the range is classified once (device memory) or pinned (host memory), and device memory
// is registered with NVIDIA's libcufile by the first GPU-direct transfer that touches it. The range must stay allocated until the
// registration is destroyed, which waits for GPU-direct transfers of it. Keeps the engine alive.
class registration {
 public:
  registration() noexcept = default;  // of nothing
  explicit registration(std::shared_ptr<void> made) noexcept : held_(std::move(made)) {}
  registration(registration&&) noexcept = default;
  registration& operator=(registration&&) noexcept = default;
  ~registration() = default;

 private:
  std::shared_ptr<void> held_;
};

// The page cache of a range of a file, pinned (registered with the driver) as long as this lives: reads into device memory are then copied
// from it by the GPU, at the speed of the link and for next to no CPU time, however often they come. From file::pin(). Keeps the engine
// alive, not the file open; other files of this engine over the same file on the disk are served too. It is given up before that where
// memory becomes short (see engine::trim()), and where the file has changed: reads then go their usual way.
class PENSTOCK_API pinned_range {
 public:
  pinned_range() noexcept = default;  // of nothing
  explicit pinned_range(std::shared_ptr<core::pinned_entry> made) noexcept : held_(std::move(made)) {}
  pinned_range(pinned_range&&) noexcept = default;
  pinned_range& operator=(pinned_range&&) noexcept = default;
  ~pinned_range() = default;  // may wait while the driver unregisters it (6 ms for each GiB); reads under way are finished first
  // Bytes that are pinned: 0 once it was given up.
  [[nodiscard]] std::uint64_t size() const noexcept;
  // Why it was given up; ok as long as it is not.
  [[nodiscard]] status problem() const;

 private:
  std::shared_ptr<core::pinned_entry> held_;
};

// A request under way, from the *_async calls. Dropping it does not stop the request.
class PENSTOCK_API operation {
 public:
  operation() noexcept = default;  // done, with errc::closed
  explicit operation(core::operation* made) noexcept : state_(made) {}
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
  core::operation* state_ = nullptr;
};

// Several requests submitted at once. Dropping it waits for none of them.
class PENSTOCK_API batch {
 public:
  batch() noexcept = default;  // done, with no results
  batch(core::operation* made, std::size_t requests) noexcept : state_(made), count_(requests) {}
  batch(batch&&) noexcept;
  batch& operator=(batch&&) noexcept;
  ~batch();
  // Blocks until every request has ended, and its callback has run. Returns one result per request, in the order of submission. Errors
  // of single requests are in their results; the others are not disturbed.
  std::vector<io_result> wait();
  // These three as for operation.
  [[nodiscard]] bool wait_for(std::chrono::nanoseconds timeout);
  [[nodiscard]] bool done() const noexcept;
  void cancel() noexcept;

 private:
  core::operation* state_ = nullptr;
  std::size_t count_ = 0;
};

// Called exactly once, when a request has ended, on a thread of the engine that calls back and does nothing else: one that blocks holds
// up other callbacks, not requests. May start other requests. What could not start (a closed file, no memory) is told of before the call
// that asked for it returns, on the caller's thread.
using io_callback = std::function<void(const io_result&)>;

// Called exactly once for each request of a batch, when it has ended: its place in the order of submission, and its outcome. On any
// thread, and also while submit() runs. Must neither block nor call the engine.
using item_callback = std::function<void(std::size_t index, const io_result&)>;

// One request of a batch. memory is read from when is_write, else written to; never touched after the batch has ended.
struct io_request {
  const file* target = nullptr;
  void* memory = nullptr;
  std::uint64_t length = 0;
  std::int64_t offset = 0;
  bool is_write = false;
  // A read of the same range as that earlier one of the batch (target, length and offset are equal), into other memory. The file is read
  // once: where both are memory of devices that reach each other, the bytes go on from there, as soon as they are there, and the earlier
  // request ends when they have. Elsewhere, and where that fails, this one is read by itself. So a file goes to several devices, each
  // request a copy of the one for the device before; requests of 32 MiB keep all of them busy. invalid_argument where there is no such
  // request.
  std::optional<std::uint32_t> copy_of{};
};

// A request that runs in the order of a stream: after the work queued before it, before the work queued after it, by the staged path. The
// host is not blocked, and once queued the request ends whatever other threads ask of the driver meanwhile. (The first such request of a
// CUDA context loads a kernel, for which the driver waits until all streams of the context are quiet.) The pointed-to values are read when
// the stream reaches the request, and must stay valid until it has ended; so must memory. *length may only become less than it was when the
// request was queued. *bytes_done, if given, is written before later work of the stream starts: bytes, or -1 on failure.
// fixed: the pointed-to values do not change any more, and need not stay valid. A read may then take place in the file from now on, ahead
// of the stream, though not before writes of this engine that were queued onto any stream before and overlap it; memory is written to in
// the order of the stream. So the file is not to be changed otherwise by what the stream waits for. Where such a read, which lay within the
// file when it was queued, fails later or comes up short, the memory behind the bytes that came holds zeros, or what it held.
struct stream_request {
  void* stream = nullptr;  // CUstream of the device that owns memory (null: its default stream)
  void* memory = nullptr;
  const std::size_t* length = nullptr;
  const std::int64_t* offset = nullptr;         // in the file
  const std::int64_t* memory_offset = nullptr;  // null: 0
  std::int64_t* bytes_done = nullptr;           // in memory of the host or of the stream's device
  bool fixed = false;
  // For a fixed read: *bytes_done may be written, and ended called, as soon as the outcome is known, while the bytes are still being
  // copied. Wait for the stream before you use them. If the call itself fails after that, ended has been called. A stream of small reads is
  // faster by a third.
  bool told_early = false;
  // May be empty. Called once, after bytes_done is written and before later work of the stream starts, on a thread of the engine's: it must
  // not block and must not call the driver. Not called if the call that queues the request fails.
  io_callback ended{};
};

class PENSTOCK_API file {
 public:
  file() noexcept = default;  // closed
  explicit file(std::shared_ptr<core::file_core> made) noexcept : core_(std::move(made)) {}
  file(file&&) noexcept;
  file& operator=(file&&) noexcept;
  ~file();  // closes, waiting for requests under way

  // Reads up to length bytes at offset into memory. Blocks. memory must stay valid until return. Short count only at end of file.
  // Errors: invalid_argument (negative or overflowing range), bad_memory, io, cancelled, timed_out, out_of_memory, closed, forked, device.
  io_result read(void* memory, std::uint64_t length, std::int64_t offset, const io_options& options = {}) const;
  // Writes length bytes from memory at offset. Blocks. Errors as for read, and no_space, permission_denied.
  io_result write(const void* memory, std::uint64_t length, std::int64_t offset, const io_options& options = {}) const;
  // The same without waiting for the transfer: memory must stay valid until the operation has ended. callback may be empty. Of more than
  // 128 KiB the call itself still asks driver and file system what it is about, as starts_without_blocking() tells.
  operation read_async(void* memory, std::uint64_t length, std::int64_t offset, const io_options& options = {},
                       io_callback callback = {}) const;
  operation write_async(const void* memory, std::uint64_t length, std::int64_t offset, const io_options& options = {},
                        io_callback callback = {}) const;
  // True when starting such a request (read_async, write_async) makes no driver call and no file I/O, so a caller may keep its lock. Else
  // the call first asks the driver what the memory is, and the kernel for the size and the cached part of the file (fstat, cachestat),
  // which a file system that stalls can hold up. It is true of requests up to 128 KiB, unless a path is forced or the default stream is to
  // come first.
  [[nodiscard]] bool starts_without_blocking(std::uint64_t length, const io_options& options = {}) const noexcept;
  // Queue a request onto a stream. Do not wait for it. An error means that nothing was queued.
  status read_on_stream(const stream_request& request) const;
  status write_on_stream(const stream_request& request) const;

  // Forces written data to the disk (fdatasync). Blocks.
  status sync() const;
  // As the kernel tells it now. Asks the file system. Errors: io, closed, forked.
  [[nodiscard]] result<std::uint64_t> size() const;
  // Cuts the file, or lengthens it with zeros. Asks the file system. Requests under way are not waited for. Errors: permission_denied (not
  // open for writing), invalid_argument (also of a block device), no_space, io, closed, forked.
  status truncate(std::uint64_t size) const;
  // Brings a range into the page cache and pins it there for GPUs (see pinned_range), to the end of the file at most. Blocks: for the disk,
  // where it is not in the page cache; for the driver, where a GPU is in use (18 ms for each GiB), else the first read that finds it does
  // that; and up to 20 ms where the file was changed just now, since an unnoticed change could come within the same tick of its clock. A
  // range that lies in one that is pinned already shares its registration; others are counted each by itself. On tmpfs the GPU copies such
  // memory at 14 to 18 GB/s, so reads of it go their usual way unless CPU time is to be spared. Errors: invalid_argument (nothing of the
  // file lies in the range), unsupported (it has no pages in the page cache), out_of_memory (beyond
  // engine_options::pinned_file_budget_bytes, or memory is short), would_block (somebody keeps changing it), io, closed, forked, device.
  [[nodiscard]] result<pinned_range> pin(std::uint64_t offset = 0, std::uint64_t length = ~std::uint64_t{0}) const;
  // What the first read into that device needs (48 MiB of pinned memory, the first 16 of which take about 2.5 ms and the rest 7, streams, a
  // kernel) is made by the engine's threads from here on: for programs that know early where their bytes will go. Does not wait for it;
  // makes the device's context where there is none. device: device_info::name. Errors: not_found, invalid_argument, closed, forked, device.
  status prepare(std::string_view device) const;
  // The descriptor that it was opened or adopted with (of adopt_options::duplicate: the duplicate), which close() ends. Past the page cache
  // (O_DIRECT) only where it was adopted so. Errors: closed, forked, unsupported (the file is not one of the kernel's).
  [[nodiscard]] result<int> descriptor() const;
  // What it was opened as; "descriptor N" of an adopted one; empty of a file that was never opened.
  [[nodiscard]] const std::string& path() const noexcept;
  // Waits for requests under way, then closes the descriptors that Penstock opened (not one it was lent). Twice is errc::closed.
  status close();

  // What stands behind it.
  [[nodiscard]] const std::shared_ptr<core::file_core>& core() const noexcept { return core_; }

 private:
  std::shared_ptr<core::file_core> core_;
};

struct adopt_options {
  cache_use cache = cache_use::automatic;  // as open_options::cache
  bool direct_writes = false;              // as open_options::direct_writes; those of an O_DIRECT descriptor always are
  std::uint64_t bytes_per_second = 0;      // as open_options::bytes_per_second
  std::string not_direct{};                // not empty: it is never GPU-direct, and this, half a sentence, is why
  std::string name{};                      // what messages and file::path() call it; empty: "descriptor N"
  // Works through a duplicate of the descriptor, which the caller may then close before the file: requests reach the same file even if the
  // number is given to another one. Takes one descriptor more.
  bool duplicate = false;
};

// Whether engine::open() takes a name for the URL of an object on a server, well-formed or not, and not for the name of a file.
PENSTOCK_API bool is_url(std::string_view name) noexcept;
// The path that file:///PATH names, which engine::open() takes too; any other name as it is.
PENSTOCK_API std::string file_path(std::string_view name);
// What messages call it: a URL without what gives access, such as a signature in its query; the name of a file as it is.
PENSTOCK_API std::string shown_name(std::string_view name);

// An object on a server that is being written: it is there once publish() has returned, and nothing of it otherwise. Dropping it gives it
// up; a process that is killed leaves the parts that it has sent, which are in nobody's way and cost what they take, until a rule of the
// bucket (AbortIncompleteMultipartUpload) removes them. Keeps the engine alive. One thread at a time.
class PENSTOCK_API upload {
 public:
  upload() noexcept = default;  // of nothing
  explicit upload(std::shared_ptr<core::upload_core> made) noexcept : core_(std::move(made)) {}
  upload(upload&&) noexcept = default;
  upload& operator=(upload&&) noexcept = default;  // gives up what it was
  ~upload() = default;

  // A file that is written to, in any order, each byte once, and closed before publish(). What is written is sent from then on, and held in
  // memory until it is (up to 1 GiB, mostly 128 MiB; see docs/guides/object-storage.md): a write waits where there is no room.
  // file::truncate() tells how long the object will be. Errors: closed, forked.
  [[nodiscard]] result<file> open(std::uint64_t bytes_per_second = 0) const;
  // Blocks while what is left is sent. replace: false: an object that is there stays, and this fails (EEXIST). Errors: invalid_argument
  // (bytes that were never written, which the message names), permission_denied, not_found (the bucket), timed_out, io, closed, forked.
  status publish(bool replace = true) const;
  // Nothing remains of it, unless it was published. Blocks for as long as the server takes to say so, for some seconds at most.
  void discard() noexcept { core_.reset(); }
  // Without its query.
  [[nodiscard]] const std::string& url() const noexcept;

 private:
  std::shared_ptr<core::upload_core> core_;
};

enum class noted_call : std::uint8_t { handle_register = 0, buffer_register, batch_submit };

class PENSTOCK_API engine {
 public:
  // Reads no file and touches no GPU; threads, contexts and pinned memory are made when first needed.
  static result<engine> create(const engine_options& options);
  static result<engine> create();  // with engine_options::from_environment()
  // The engine that the faces of this process share; made on first use, and anew in a forked child.
  static result<engine> shared();
  // The same. Where this call makes it, it has engine_options::from_environment() as change leaves them; else it is as it was made, which
  // options() tells. Errors: those of create(), also of changed options.
  static result<engine> shared(const std::function<void(engine_options&)>& change);

  explicit engine(std::shared_ptr<core::engine_core> made) noexcept : core_(std::move(made)) {}
  engine(engine&&) noexcept;
  engine& operator=(engine&&) noexcept;
  ~engine();  // files, buffers and operations keep what they need alive

  // Opens a regular file or a block device. Blocks. Errors: not_found, permission_denied, not_a_file, out_of_memory (descriptors too).
  [[nodiscard]] result<file> open(const std::string& path, const open_options& options = {}) const;
  // Opens an object on a server by its URL: http://, https://. open() does the same of a path that is a URL, with remote_options{}. For
  // reading only; blocks while the server is asked how large it is. What is read is the version that was found then: an object that is
  // replaced meanwhile gives errors, never bytes of both. Errors name the URL without its query: invalid_argument, not_found,
  // permission_denied, timed_out, unsupported (no libcurl; ranges_only, and no ranges), io.
  [[nodiscard]] result<file> open_remote(const std::string& url, const remote_options& how, const open_options& options = {}) const;
  // The objects whose URLs begin with url, which is s3://BUCKET or s3://BUCKET/BEGINNING, sorted; other servers list nothing. one_level:
  // where objects have a "/" behind that beginning, their URLs up to there are told instead, each once. most: more of both are an error.
  // Blocks while the server is asked, a page of 1,000 after the other. Errors: those of open_remote(); invalid_argument.
  [[nodiscard]] result<std::vector<remote_object>> list_remote(const std::string& url, const remote_options& how = {},
                                                               bool one_level = false, std::size_t most = 1'000'000) const;
  // Begins to write an object of S3 (s3://BUCKET/KEY). size, of how: that the object will have, if it is known. Blocks while credentials
  // are found. Errors name the URL: invalid_argument, permission_denied, unsupported (another kind of URL, no libcurl).
  [[nodiscard]] result<upload> begin_upload(const std::string& url, const remote_options& how = {}) const;
  // A file over a descriptor that the caller keeps owning, opened with or without O_DIRECT, and must keep open until close(), unless
  // adopt_options::duplicate is set. cache: as open_options::cache. Errors: not_a_file, invalid_argument (O_PATH, or O_APPEND for writing),
  // io (EBADF), out_of_memory (descriptors too), forked.
  [[nodiscard]] result<file> adopt(int descriptor, cache_use cache = cache_use::automatic) const;
  [[nodiscard]] result<file> adopt(int descriptor, const adopt_options& options) const;

  // All devices, without creating a context on any: "cuda:N", then the host device "host:0".
  [[nodiscard]] std::vector<device_info> devices() const;
  // Why no CUDA device is listed; ok when one is.
  [[nodiscard]] status cuda_status() const;
  // Memory of the device of that name. Errors: invalid_argument and not_found (the message names the devices that there are),
  // out_of_memory, device.
  [[nodiscard]] result<device_buffer> allocate(std::string_view device, std::size_t bytes) const;
  // What a pointer is. Errors: bad_memory for an address of a device where nothing is allocated.
  [[nodiscard]] result<memory_facts> describe(const void* memory) const;
  // Where the CPU finds a range of memory, for as long as it is allocated: of the host device at another address, of the host at its own.
  // Errors: unsupported (memory of a GPU), bad_memory (a range of the host device that does not lie in one allocation).
  [[nodiscard]] result<void*> cpu_address(const void* memory, std::size_t bytes) const;
  // All PCI devices of the machine; empty where sysfs is not mounted.
  [[nodiscard]] std::vector<pci_device> pci_devices() const;
  // Copies between any two memory ranges of this process. Blocks. Errors: bad_memory, device.
  status copy(void* target, const void* source, std::size_t bytes) const;
  // See registration. Errors: invalid_argument, bad_memory, out_of_memory.
  [[nodiscard]] result<registration> register_memory(void* memory, std::size_t bytes) const;

  // Submits requests as one batch: many small ranges are gathered and scattered together. Does not wait for them.
  // callback, if given, is called once when all have ended, with the total of bytes and the first error; each, for every request.
  [[nodiscard]] batch submit(std::span<const io_request> requests, const io_options& options = {}, io_callback callback = {},
                             item_callback each = {}) const;

  // What a blocking read (or write) of length bytes at offset would do with memory of that device: a name as in device_info::name, "" or
  // "host" for memory of the host. Makes no context: of a GPU that is not in use yet it tells what can be known without one. Asks for no
  // right: a write of a file that is open for reading only is told as if it were allowed. Errors: invalid_argument, not_found (the message
  // names the devices that there are), closed, forked, unsupported (the path that was asked for refuses).
  [[nodiscard]] result<plan> explain(const file& target, std::string_view device, std::uint64_t length, std::int64_t offset,
                                     bool is_write = false, const io_options& options = {}) const;
  // The requests under way, each by itself, also those of a batch; in no order. For programs that show what an engine is at: does not wait
  // for devices or files. Of a batch, those that wait for the default stream are not told of before it has been reached.
  [[nodiscard]] std::vector<request_info> requests() const;
  // The counters since the engine was made. Each is right by itself; together they are no moment in time.
  [[nodiscard]] engine_stats stats() const;
  // The counters in words: a line for each path that carried something, with what kept its bytes from a faster one.
  [[nodiscard]] std::string summary() const;
  // advise() of the counters. The first call in a process takes some milliseconds, in which it measures what copying memory costs.
  [[nodiscard]] std::vector<penstock::advice> advice() const;
  // Gives pinned staging memory that no request is using back to the system: stats().pinned_bytes less by what it returns, in bytes; and
  // the 32 MiB of each device through which pieces pass to many places, where none is under way. Later requests pin it anew (about 7 ms for
  // 32 MiB). Blocks while the driver unpins; requests under way are not disturbed, and keep theirs. Where less than a sixteenth of all
  // memory is left besides what file::pin() holds, that is given up too, as it is by the next read. What reads have registered of the page
  // cache (prefer = cpu) and nobody reads from now is let go of.
  std::size_t trim() const;
  // What the first transfer of memory of a GPU needs, as by file::prepare(), is made by a thread of the engine from here on: in the CUDA
  // context that is current on this thread, and only there, so that none is made; where none is current, nothing is. Does not wait.
  void prepare() const noexcept;
  // Returns once that is made, so that the context may go. Blocks for some milliseconds.
  void await_preparation() const noexcept;
  // An interface over this one has been called: counted in stats().usage.
  void note_call(noted_call what, bool ok) const noexcept;
  // Why no file of this machine can be read or written GPU-direct; ok where some may be.
  [[nodiscard]] status gpu_direct_status() const;
  [[nodiscard]] const engine_options& options() const noexcept;
  [[nodiscard]] const std::shared_ptr<core::engine_core>& core() const noexcept { return core_; }

 private:
  std::shared_ptr<core::engine_core> core_;
};

}  // namespace penstock
