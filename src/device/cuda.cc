// The driver "cuda". It uses only GPUs that a call names. A session's calls push its context and pop it again (0.04 us on an H200 host), so
// the caller's current context never changes. Nothing is called after CUDA has been torn down at exit.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cctype>
#include <chrono>
#include <cstdlib>
#include <limits>
#include <map>
#include <mutex>
#include <span>
#include <unordered_map>
#include <utility>

#include "device/cuda_api.hpp"
#include "device/device.hpp"
#include "device/kernel_code.hpp"
#include "device/kernel_ptx.hpp"

namespace penstock::device {
namespace {

using cuda::code;
using cuda::failure;
using cuda::functions;
using cuda::handle;

// The maximum number of devices that can be distinguished; CUDA's own limit is lower.
constexpr int max_devices = 128;

cuda::address address_of(const void* memory) { return reinterpret_cast<cuda::address>(memory); }

// A driver that does not support the query has no integrated device.
bool is_integrated(const functions& api, cuda::device_id device) noexcept {
  int integrated = 0;
  return api.device_get_attribute(&integrated, cuda::attribute_integrated, device) == cuda::success && integrated != 0;
}

// A driver that does not support the query exports no dma-bufs. Neither does one whose kernel modules are not the open ones.
bool lends_dma_bufs(const functions& api, cuda::device_id device) noexcept {
  int supported = 0;
  return api.mem_get_handle_for_address_range != nullptr &&
         api.device_get_attribute(&supported, cuda::attribute_dma_buf_supported, device) == cuda::success && supported != 0;
}

// Makes a context current on this thread for the lifetime of this object.
class context_scope {
 public:
  context_scope(const functions& api, handle context) : api_(api), entered_(api.ctx_push_current(context)) {}
  context_scope(const context_scope&) = delete;
  context_scope& operator=(const context_scope&) = delete;
  ~context_scope() {
    handle popped = nullptr;
    if (entered_ == cuda::success) (void)api_.ctx_pop_current(&popped);
  }
  [[nodiscard]] code entered() const { return entered_; }

 private:
  const functions& api_;
  const code entered_;
};

class cuda_session final : public session {
 public:
  struct abilities {
    bool uses_host_pointers = false;  // the device can use CPU addresses of registered memory
    bool is_integrated = false;
    bool lends_dma_bufs = false;
  };
  cuda_session(const functions& api, int ordinal, handle context, const abilities& can)
      : api_(api), ordinal_(ordinal), context_(context), can_(can) {}
  [[nodiscard]] int ordinal() const override { return ordinal_; }
  [[nodiscard]] bool shares_host_memory() const override { return can_.is_integrated; }

  result<void*> allocate(std::size_t bytes) override;
  status release(void* memory) override;
  status pin(void* base, std::size_t length, bool read_only) override;
  status unpin(void* base) override;
  result<stream> make_stream() override;
  result<stream> make_prompt_stream() override;
  status destroy_stream(stream target) override;
  std::uint64_t identity_of(stream target) override;
  result<event> make_event() override;
  status destroy_event(event target) override;
  status copy(void* target, const void* source, std::size_t bytes, stream on) override;
  status scatter(const segment* table, std::size_t count, stream on) override;
  status scatter_short(std::span<const segment> table, stream on) override;
  status prepare_scatter() override;
  status add_to_digest(std::span<const digest_part> parts, std::uint64_t* sums, stream on) override;
  status record(event target, stream on) override;
  status wait_event(stream on, event until) override;
  status call(stream on, void (*function)(void*), void* argument) override;
  status wait_value(stream on, std::uint32_t* flag, std::uint32_t value) override;
  status write_value(stream on, std::uint32_t* flag, std::uint32_t value) override;
  status step_through(std::span<const word_step> steps, stream on) override;
  result<bool> idle(stream target) override;
  result<bool> reached(event target) override;
  status wait(event target) override;
  status synchronize(stream target) override;
  status copy_small(void* target, const void* source, std::size_t bytes, stream on) override;
  status copy_beside(void* target, const void* source, std::size_t bytes, stream on) override;
  bool allow_copies_from(session& other) override;
  result<shared_memory> share(const void* memory) override;
  result<sys::owned_descriptor> export_shared(const void* memory) override;
  result<void*> open_shared(std::string_view handle, std::int64_t process, int descriptor) override;
  status close_shared(void* memory) override;
  status dma_buf_problem() override;
  result<allocation> allocation_of(const void* memory) override;
  result<sys::owned_descriptor> export_dma_buf(void* memory, std::uint64_t bytes) override;
  status make_current() override;
  void restore_current() override;

  // Unloads the kernels. Call it only while the context is known to be alive.
  void unload();

 private:
  template <class Call>
  code inside(Call call_it) const {
    const context_scope scope(api_, context_);
    return scope.entered() == cuda::success ? call_it() : scope.entered();
  }
  // Returns the outcome of a call. what() builds the text only on failure.
  template <class What>
  status outcome(code error, What what, errc invalid_value = errc::invalid_argument) const {
    return error == cuda::success ? status() : failure(api_, error, fmt::format("cuda:{}: {}", ordinal_, what()), invalid_value);
  }
  [[nodiscard]] bool maps_allocations() const noexcept;
  result<void*> map_allocation(std::string_view handle, int descriptor);
  status load();
  code load_kernels();
  code launch_nothing(handle kernel, std::array<void*, 2> parameters);
  status launch(handle kernel, void* table, std::span<const segment> segments, stream on);
  code wait_for_little(stream on);
  code wait_for_word(stream on);
  std::byte* words();

  const functions& api_;
  const int ordinal_;
  const handle context_;
  const abilities can_;

  std::atomic<std::uint64_t> asked_{0};    // bits of devices for which allow_copies_from() was called
  std::atomic<std::uint64_t> reached_{0};  // those with direct copies

  // Handles of allocations, by the driver's number for each, because querying a handle takes longer than sending a small message.
  static constexpr std::size_t most_shared = 1024;
  static constexpr std::string_view mapped_prefix = "cuMemCreate";
  std::mutex sharing_;  // guards the two maps below
  std::unordered_map<unsigned long long, std::string> shared_;
  std::unordered_map<cuda::address, std::size_t> mapped_;  // allocations made by other processes

  std::mutex loading_;  // guards changes to the members below; compiling, if necessary, takes about 100 ms once
  std::atomic<bool> loaded_{false};
  handle kernel_ = nullptr;
  handle short_kernel_ = nullptr;  // its table is a kernel argument
  handle digest_kernel_ = nullptr;
  handle module_ = nullptr;
  status kernel_error_;

  // Words of pinned memory, one per cache line, to which streams store when a small copy completes.
  static constexpr std::size_t word_count = 64;
  static constexpr std::size_t word_distance = 64;
  std::atomic<std::byte*> words_{nullptr};
  bool words_refused_ = false;  // guarded by loading_
  static constexpr unsigned waits_to_try = 32;
  std::atomic<unsigned> waits_tried_{0};
  std::atomic<std::int64_t> quickest_by_word_ns_{std::numeric_limits<std::int64_t>::max()};
  std::atomic<std::int64_t> quickest_by_stream_ns_{std::numeric_limits<std::int64_t>::max()};
  std::array<std::atomic<bool>, word_count> word_taken_{};
};

result<void*> cuda_session::allocate(std::size_t bytes) {
  cuda::address memory = 0;
  const code error = inside([&] { return api_.mem_alloc(&memory, bytes); });
  if (error != cuda::success) return outcome(error, [&] { return fmt::format("allocate {} bytes", bytes); });
  return reinterpret_cast<void*>(memory);
}

status cuda_session::release(void* memory) {
  return outcome(
      inside([&] { return api_.mem_free(address_of(memory)); }), [&] { return fmt::format("free {}", memory); }, errc::bad_memory);
}

status cuda_session::pin(void* base, std::size_t length, bool read_only) {
  const unsigned flags = cuda::register_portable | (read_only ? cuda::register_read_only : 0U);
  return outcome(
      inside([&] { return api_.mem_host_register(base, length, flags); }),
      [&] { return fmt::format("register {} bytes at {}{}", length, base, read_only ? ", read-only" : ""); }, errc::bad_memory);
}

status cuda_session::unpin(void* base) {
  return outcome(inside([&] { return api_.mem_host_unregister(base); }), [&] { return fmt::format("unregister {}", base); });
}

result<stream> cuda_session::make_stream() {
  handle made = nullptr;
  const code error = inside([&] { return api_.stream_create(&made, cuda::stream_non_blocking); });
  if (error != cuda::success) return outcome(error, [] { return "create a stream"; });
  return made;
}

result<stream> cuda_session::make_prompt_stream() {
  if (api_.stream_create_with_priority == nullptr || api_.ctx_get_stream_priority_range == nullptr) return make_stream();
  handle made = nullptr;
  const code error = inside([&] {
    int least = 0;
    int greatest = 0;
    const code asked = api_.ctx_get_stream_priority_range(&least, &greatest);
    return asked == cuda::success ? api_.stream_create_with_priority(&made, cuda::stream_non_blocking, greatest) : asked;
  });
  return error == cuda::success ? result<stream>(made) : make_stream();
}

status cuda_session::destroy_stream(stream target) {
  return outcome(inside([&] { return api_.stream_destroy(target); }), [] { return "destroy a stream"; });
}

// The driver's numbers start at 1 (580.159).
std::uint64_t cuda_session::identity_of(stream target) {
  unsigned long long id = 0;
  if (api_.stream_get_id == nullptr) return 0;
  return inside([&] { return api_.stream_get_id(target, &id); }) == cuda::success ? id : 0;
}

status cuda_session::make_current() {
  return outcome(api_.ctx_push_current(context_), [] { return "make the context current"; });
}

void cuda_session::restore_current() {
  handle popped = nullptr;
  (void)api_.ctx_pop_current(&popped);
}

result<event> cuda_session::make_event() {
  handle made = nullptr;
  // An event without timing is cheaper. An event for which wait() can sleep would raise an interrupt each time, which interrupts a core's
  // work for up to 37 us (H100). Threads here only poll.
  const code error = inside([&] { return api_.event_create(&made, cuda::event_disable_timing); });
  if (error != cuda::success) return outcome(error, [] { return "create an event"; });
  return made;
}

status cuda_session::destroy_event(event target) {
  return outcome(inside([&] { return api_.event_destroy(target); }), [] { return "destroy an event"; });
}

// The driver derives the direction from the addresses. It embeds up to 64 KiB of pageable memory in the command.
status cuda_session::copy(void* target, const void* source, std::size_t bytes, stream on) {
  if (bytes == 0) return {};
  return outcome(
      inside([&] { return api_.memcpy_async(address_of(target), address_of(source), bytes, on); }),
      [&] { return fmt::format("copy {} bytes from {} to {}", bytes, source, target); }, errc::bad_memory);
}

status cuda_session::record(event target, stream on) {
  return outcome(inside([&] { return api_.event_record(target, on); }), [] { return "record an event"; });
}

status cuda_session::wait_event(stream on, event until) {
  return outcome(inside([&] { return api_.stream_wait_event(on, until, 0); }), [] { return "make a stream wait for an event"; });
}

status cuda_session::call(stream on, void (*function)(void*), void* argument) {
  return outcome(inside([&] { return api_.launch_host_func(on, function, argument); }), [] { return "queue a host function"; });
}

status cuda_session::wait_value(stream on, std::uint32_t* flag, std::uint32_t value) {
  if (api_.stream_wait_value32 == nullptr || !can_.uses_host_pointers) {
    return {errc::unsupported, fmt::format("cuda:{}: streams cannot wait for a value in host memory", ordinal_)};
  }
  return outcome(
      inside([&] { return api_.stream_wait_value32(on, address_of(flag), value, cuda::wait_value_geq); }),
      [&] { return fmt::format("make a stream wait for the value at {}", static_cast<void*>(flag)); }, errc::bad_memory);
}

status cuda_session::write_value(stream on, std::uint32_t* flag, std::uint32_t value) {
  if (api_.stream_write_value32 == nullptr || !can_.uses_host_pointers) {
    return {errc::unsupported, fmt::format("cuda:{}: streams cannot write a value to host memory", ordinal_)};
  }
  return outcome(
      inside([&] { return api_.stream_write_value32(on, address_of(flag), value, cuda::write_value_default); }),
      [&] { return fmt::format("make a stream write the value at {}", static_cast<void*>(flag)); }, errc::bad_memory);
}

status cuda_session::step_through(std::span<const word_step> steps, stream on) {
  constexpr std::size_t most_at_once = 8;
  if (api_.stream_batch_mem_op == nullptr || !can_.uses_host_pointers || steps.size() > most_at_once)
    return session::step_through(steps, on);
  std::array<cuda::stream_operation, most_at_once> operations;
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const auto& [waits, word, value] = steps[i];
    operations[i] = {.operation = waits ? cuda::stream_operation::wait_value32 : cuda::stream_operation::write_value32,
                     .word = address_of(word),
                     .value = value,
                     .flags = waits ? cuda::wait_value_geq : cuda::write_value_default};
  }
  return outcome(
      inside([&] { return api_.stream_batch_mem_op(on, static_cast<unsigned>(steps.size()), operations.data(), 0); }),
      [] { return "make a stream wait for values in host memory, and write them"; }, errc::bad_memory);
}

// Querying the default stream also reports the state of the streams that it waits for (580.159).
result<bool> cuda_session::idle(stream target) {
  const code error = inside([&] { return api_.stream_query(target); });
  if (error == cuda::error_not_ready) return false;
  if (error != cuda::success) return outcome(error, [] { return "work on a stream"; });
  return true;
}

result<bool> cuda_session::reached(event target) {
  const code error = inside([&] { return api_.event_query(target); });
  if (error == cuda::error_not_ready) return false;
  if (error != cuda::success) return outcome(error, [] { return "work before an event"; });
  return true;
}

status cuda_session::wait(event target) {
  return outcome(inside([&] { return api_.event_synchronize(target); }), [] { return "work before an event"; });
}

status cuda_session::synchronize(stream target) {
  return outcome(inside([&] { return api_.stream_synchronize(target); }), [] { return "work on a stream"; });
}

status cuda_session::copy_small(void* target, const void* source, std::size_t bytes, stream on) {
  if (bytes == 0) return {};
  return outcome(
      inside([&] {
        const code queued = api_.memcpy_async(address_of(target), address_of(source), bytes, on);
        return queued == cuda::success ? wait_for_little(on) : queued;
      }),
      [&] { return fmt::format("copy {} bytes from {} to {}", bytes, source, target); }, errc::bad_memory);
}

// Copies with a kernel, which uses the link without a copy engine. (H200, 4 KiB during copies that saturate the link: 25 us. With a copy
// engine, 400 us, or unbounded if one other stream keeps it busy.) It waits for the program's kernels if they fill the GPU: on a prompt
// stream, until some of their blocks have completed (150 us for blocks of that length); on any other stream, until the whole grid has. Not
// used if the kernel must be loaded first, because loading waits for all streams.
status cuda_session::copy_beside(void* target, const void* source, std::size_t bytes, stream on) {
  if (bytes == 0 || !loaded_.load(std::memory_order_acquire)) return copy_small(target, source, bytes, on);
  const segment whole{source, target, bytes};
  if (!scatter_short({&whole, 1}, on).ok()) return copy_small(target, source, bytes, on);
  return outcome(
      inside([&] { return wait_for_word(on); }), [&] { return fmt::format("copy {} bytes from {} to {}", bytes, source, target); },
      errc::bad_memory);
}

// Which wait detects completion sooner differs between machines, in both directions, by 0.4 to 1.4 us out of 7 (H200, one driver, 4 KiB),
// so the first copies measure it.
code cuda_session::wait_for_little(stream on) {
  if (waits_tried_.load(std::memory_order_relaxed) >= waits_to_try) {
    const bool by_word = quickest_by_word_ns_.load(std::memory_order_relaxed) <= quickest_by_stream_ns_.load(std::memory_order_relaxed);
    return by_word ? wait_for_word(on) : api_.stream_synchronize(on);
  }
  // Tries each way twice in a row, because reads and writes may alternate.
  const bool by_word = waits_tried_.fetch_add(1, std::memory_order_relaxed) / 2 % 2 == 0;
  auto& quickest = by_word ? quickest_by_word_ns_ : quickest_by_stream_ns_;
  const auto began = std::chrono::steady_clock::now();
  const code error = by_word ? wait_for_word(on) : api_.stream_synchronize(on);
  const auto took = (std::chrono::steady_clock::now() - began).count();
  if (took < quickest.load(std::memory_order_relaxed)) quickest.store(took, std::memory_order_relaxed);
  return error;
}

// Waits until the stream stores to a word that this thread polls.
code cuda_session::wait_for_word(stream on) {
  std::byte* base = words();
  std::size_t mine = 0;
  while (base != nullptr && mine < word_count && word_taken_[mine].exchange(true, std::memory_order_acquire)) ++mine;
  if (base == nullptr || mine == word_count) return api_.stream_synchronize(on);
  auto& word = *reinterpret_cast<std::uint32_t*>(base + mine * word_distance);
  const std::atomic_ref<std::uint32_t> watched(word);
  watched.store(0);
  code error = api_.stream_write_value32(on, address_of(&word), 1, 0);
  if (error != cuda::success) {
    // Devices that cannot do this fail here. The copy itself is already queued.
    error = api_.stream_synchronize(on);
  } else {
    // A failed copy never stores, so the stream is queried occasionally.
    constexpr unsigned looks_before_asking = 100'000;
    for (unsigned looks = 1; error == cuda::success && watched.load(std::memory_order_acquire) == 0; ++looks) {
      if (looks % looks_before_asking != 0) continue;
      error = api_.stream_query(on);
      if (error == cuda::error_not_ready) error = cuda::success;
    }
  }
  word_taken_[mine].store(false, std::memory_order_release);
  return error;
}

// Returns the page of words, created on first use. Returns null if streams cannot store, or the page cannot be pinned.
std::byte* cuda_session::words() {
  if (auto* made = words_.load(std::memory_order_acquire)) return made;
  if (api_.stream_write_value32 == nullptr || !can_.uses_host_pointers) return nullptr;
  const std::lock_guard guard(loading_);
  if (auto* made = words_.load()) return made;
  if (words_refused_) return nullptr;
  constexpr std::size_t length = word_count * word_distance;
  auto* page = static_cast<std::byte*>(std::aligned_alloc(length, length));
  if (page == nullptr || api_.mem_host_register(page, length, cuda::register_portable) != cuda::success) {
    std::free(page);
    words_refused_ = true;
    return nullptr;
  }
  words_.store(page, std::memory_order_release);
  return page;
}

constexpr unsigned scatter_threads = 256;  // threads per block; at 16 bytes each they copy 4 KiB

struct table_of_launch {
  std::array<segment, session::short_table> of;
};

bool says_kernel_cannot_run(code error) {
  switch (error) {
    case cuda::error_invalid_image:
    case cuda::error_no_binary_for_gpu:
    case cuda::error_invalid_ptx:
    case cuda::error_jit_compiler_not_found:
    case cuda::error_unsupported_ptx_version:
    case cuda::error_jit_compilation_disabled:
      return true;
    default:
      return false;
  }
}

// A refusal of the kernels is remembered. After other errors (out of memory, for example) the next call tries again.
status cuda_session::load() {
  if (loaded_.load(std::memory_order_acquire)) return {};
  const std::lock_guard guard(loading_);
  if (loaded_.load(std::memory_order_relaxed)) return {};
  if (!kernel_error_.ok()) return kernel_error_;
  const code error = inside([&] { return load_kernels(); });
  if (error == cuda::success) {
    loaded_.store(true, std::memory_order_release);
    return {};
  }
  auto reason = outcome(error, [] { return "load the kernels"; });
  if (!says_kernel_cannot_run(error)) return reason;
  kernel_error_ = status(errc::unsupported, std::string(reason.message()), error_domain::cuda, error);
  return kernel_error_;
}

// Drivers load a kernel when it is first launched. The digest's kernel is not launched here, because few programs use it.
code cuda_session::load_kernels() {
  if (module_ == nullptr && api_.module_load_data_ex(&module_, kernel_code, 0, nullptr, nullptr) != cuda::success) {
    if (const code error = api_.module_load_data_ex(&module_, kernel_ptx, 0, nullptr, nullptr)) {
      module_ = nullptr;
      return error;
    }
  }
  if (const code error = api_.module_get_function(&kernel_, module_, "penstock_scatter")) return error;
  if (const code error = api_.module_get_function(&short_kernel_, module_, "penstock_scatter_short")) return error;
  if (const code error = api_.module_get_function(&digest_kernel_, module_, "penstock_digest")) return error;
  cuda::address table = 0;
  table_of_launch of_launch;
  unsigned long long count = 0;
  if (const code error = launch_nothing(kernel_, {&table, &count})) return error;
  return launch_nothing(short_kernel_, {&of_launch, &count});
}

code cuda_session::launch_nothing(handle kernel, std::array<void*, 2> parameters) {
  handle on = nullptr;
  if (const code error = api_.stream_create(&on, cuda::stream_non_blocking)) return error;
  const code error = api_.launch_kernel(kernel, 1, 1, 1, scatter_threads, 1, 1, 0, on, parameters.data(), nullptr);
  (void)api_.stream_destroy(on);
  return error;
}

status cuda_session::prepare_scatter() {
  if (!can_.uses_host_pointers) return {errc::unsupported, fmt::format("cuda:{}: kernels cannot use pinned memory in place", ordinal_)};
  return load();
}

void cuda_session::unload() {
  loaded_.store(false);
  if (module_ != nullptr) (void)inside([&] { return api_.module_unload(std::exchange(module_, nullptr)); });
  if (auto* page = words_.exchange(nullptr)) {
    (void)inside([&] { return api_.mem_host_unregister(page); });
    std::free(page);
  }
}

struct scatter_grid {
  unsigned segments = 1;  // segments in progress at once
  unsigned shares = 1;    // blocks per segment
};

constexpr std::size_t scatter_blocks = 256;  // 1 MiB in flight saturates PCIe and leaves most of the GPU free
constexpr std::size_t scatter_share_bytes = std::size_t{scatter_threads} * 16;

scatter_grid grid_for(std::span<const segment> table) {
  std::uint64_t largest = 0;
  for (const auto& each : table) largest = std::max(largest, each.bytes);
  const std::size_t segments = std::min(table.size(), scatter_blocks);
  const std::uint64_t shares = std::min<std::uint64_t>(scatter_blocks / segments, largest / scatter_share_bytes);
  return {static_cast<unsigned>(segments), static_cast<unsigned>(std::max<std::uint64_t>(shares, 1))};
}

// table: the first argument of the kernel.
status cuda_session::launch(handle kernel, void* table, std::span<const segment> segments, stream on) {
  const auto grid = grid_for(segments);
  unsigned long long count = segments.size();
  void* parameters[] = {table, &count};
  return outcome(
      inside([&] { return api_.launch_kernel(kernel, grid.segments, grid.shares, 1, scatter_threads, 1, 1, 0, on, parameters, nullptr); }),
      [&] { return fmt::format("scatter {} segments", count); });
}

status cuda_session::scatter(const segment* table, std::size_t count, stream on) {
  if (count == 0) return {};
  if (auto problem = prepare_scatter(); !problem.ok()) return problem;
  cuda::address table_address = address_of(table);
  return launch(kernel_, &table_address, {table, count}, on);
}

status cuda_session::scatter_short(std::span<const segment> table, stream on) {
  if (table.empty()) return {};
  if (auto problem = prepare_scatter(); !problem.ok()) return problem;
  table_of_launch of_launch;
  std::copy(table.begin(), table.end(), of_launch.of.begin());
  return launch(short_kernel_, &of_launch, table, on);
}

constexpr unsigned digest_threads = 256;  // threads per block; at 16 bytes each they read one row
constexpr std::size_t most_digest_parts = 128;
constexpr std::uint64_t most_digest_blocks = 1024;  // fills the largest GPUs

status cuda_session::add_to_digest(std::span<const digest_part> parts, std::uint64_t* sums, stream on) {
  if (auto problem = load(); !problem.ok()) return problem;
  code error = cuda::success;
  do {
    const auto some = parts.first(std::min(parts.size(), most_digest_parts));
    parts = parts.subspan(some.size());
    std::array<digest_part, most_digest_parts> table;
    std::copy(some.begin(), some.end(), table.begin());
    std::uint64_t rows = 0;
    for (const auto& each : some) rows += each.bytes / detail::digest_row_bytes + 1;
    const auto blocks = static_cast<unsigned>(std::bit_ceil(std::clamp<std::uint64_t>(rows, 1, most_digest_blocks)));
    unsigned long long count = some.size();
    cuda::address target = address_of(sums);
    void* parameters[] = {&table, &count, &target};
    error = inside([&] { return api_.launch_kernel(digest_kernel_, blocks, 1, 1, digest_threads, 1, 1, 0, on, parameters, nullptr); });
  } while (error == cuda::success && !parts.empty());
  return outcome(error, [] { return "add to a digest"; });
}

// The program may have enabled peer access already, or may do so later. Both get an error code and no other effect.
bool cuda_session::allow_copies_from(session& other) {
  auto* const seen = dynamic_cast<cuda_session*>(&other);
  if (seen == nullptr) return false;
  const auto& from = *seen;
  if (from.ordinal_ == ordinal_) return true;
  if (from.ordinal_ >= 64 || api_.ctx_enable_peer_access == nullptr || api_.device_can_access_peer == nullptr) return false;
  const std::uint64_t bit = std::uint64_t{1} << from.ordinal_;
  if ((asked_.load(std::memory_order_acquire) & bit) != 0) return (reached_.load() & bit) != 0;
  cuda::device_id mine = 0;
  cuda::device_id its = 0;
  int can = 0;
  bool reaches = api_.device_get(&mine, ordinal_) == cuda::success && api_.device_get(&its, from.ordinal_) == cuda::success &&
                 api_.device_can_access_peer(&can, mine, its) == cuda::success && can != 0;
  if (reaches) {
    const code error = inside([&] { return api_.ctx_enable_peer_access(from.context_, 0); });
    reaches = error == cuda::success || error == cuda::error_peer_access_already_enabled;
  }
  if (reaches) reached_.fetch_or(bit);
  asked_.fetch_or(bit, std::memory_order_release);
  return reaches;
}

// Memory from cudaMalloc has a handle. Each cuMemCreate allocation has a descriptor if it was created as exportable; its number and base
// identify it within the process.
result<shared_memory> cuda_session::share(const void* memory) {
  unsigned capable = 0;
  unsigned long long number = 0;
  unsigned long long types = 0;
  std::array<int, 3> attributes = {cuda::pointer_is_ipc_capable, cuda::pointer_buffer_id, cuda::pointer_allowed_handle_types};
  std::array<void*, 3> values = {&capable, &number, &types};
  const auto what = [&] { return fmt::format("share {}", memory); };
  const code asked = api_.pointer_get_attributes(attributes.size(), attributes.data(), values.data(), address_of(memory));
  if (asked != cuda::success) return outcome(asked, what);
  const bool by_handle = (capable & 0xff) != 0 && api_.ipc_get_mem_handle != nullptr;
  const bool by_descriptor = !by_handle && (types & cuda::handle_type_descriptor) != 0 && maps_allocations();
  if (!by_handle && !by_descriptor) {
    return status(errc::unsupported,
                  fmt::format("cuda:{}: only memory from cudaMalloc, or from cuMemCreate with a descriptor, can be shared", ordinal_));
  }
  cuda::address base = 0;
  std::size_t bytes = 0;
  // The range of this single allocation. The pointer attribute would give the range into which several are mapped.
  const code found = inside([&] { return api_.mem_get_address_range(&base, &bytes, address_of(memory)); });
  if (found != cuda::success) return outcome(found, what);
  shared_memory out;
  out.generation = number;
  out.offset = address_of(memory) - base;
  out.length = bytes - out.offset;
  out.by_descriptor = by_descriptor;
  if (by_descriptor) {
    out.handle = fmt::format("{} {:x} {}", mapped_prefix, base, bytes);
    return out;
  }
  {
    const std::lock_guard guard(sharing_);
    if (const auto known = shared_.find(number); known != shared_.end()) out.handle = known->second;
  }
  if (out.handle.empty()) {
    cuda::ipc_handle made{};
    const code error = inside([&] { return api_.ipc_get_mem_handle(&made, base); });
    if (error != cuda::success) return outcome(error, what);
    out.handle.assign(made.bytes.data(), made.bytes.size());
    const std::lock_guard guard(sharing_);
    if (shared_.size() >= most_shared) shared_.clear();
    shared_.emplace(number, out.handle);
  }
  return out;
}

bool cuda_session::maps_allocations() const noexcept {
  return api_.mem_retain_allocation_handle != nullptr && api_.mem_release != nullptr && api_.mem_export != nullptr &&
         api_.mem_import != nullptr && api_.mem_address_reserve != nullptr && api_.mem_address_free != nullptr && api_.mem_map != nullptr &&
         api_.mem_unmap != nullptr && api_.mem_set_access != nullptr;
}

result<sys::owned_descriptor> cuda_session::export_shared(const void* memory) {
  if (!maps_allocations()) return status(errc::unsupported, "the NVIDIA driver is too old to share memory from cuMemCreate");
  unsigned long long allocation = 0;
  int made = -1;
  code error = api_.mem_retain_allocation_handle(&allocation, const_cast<void*>(memory));
  if (error == cuda::success) {
    error = inside([&] { return api_.mem_export(&made, allocation, cuda::handle_type_descriptor, 0); });
    (void)api_.mem_release(allocation);
  }
  if (error != cuda::success) return outcome(error, [&] { return fmt::format("make a descriptor for {}", memory); });
  return sys::owned_descriptor(made);
}

result<void*> cuda_session::open_shared(std::string_view handle, std::int64_t /*process*/, int descriptor) {
  if (handle.starts_with(mapped_prefix)) return map_allocation(handle, descriptor);
  cuda::ipc_handle opened{};
  if (handle.size() != opened.bytes.size() || api_.ipc_open_mem_handle == nullptr) {
    return status(errc::unsupported, fmt::format("cuda:{}: this is not a CUDA IPC handle", ordinal_));
  }
  std::copy_n(handle.data(), opened.bytes.size(), opened.bytes.data());
  cuda::address memory = 0;
  const code error = inside([&] { return api_.ipc_open_mem_handle(&memory, opened, cuda::ipc_lazy_peer_access); });
  if (error != cuda::success) return outcome(error, [] { return std::string("map memory of another process"); });
  return reinterpret_cast<void*>(memory);
}

result<void*> cuda_session::map_allocation(std::string_view handle, int descriptor) {
  unsigned long long base = 0;
  std::size_t bytes = 0;
  const std::string text(handle.substr(mapped_prefix.size()));
  if (std::sscanf(text.c_str(), " %llx %zu", &base, &bytes) != 2 || bytes == 0 || !maps_allocations()) {
    return status(errc::unsupported, fmt::format("cuda:{}: this is not memory from cuMemCreate that can be mapped here", ordinal_));
  }
  if (descriptor < 0) {
    return status(errc::unsupported, fmt::format("cuda:{}: memory from cuMemCreate needs its descriptor, but none arrived", ordinal_));
  }
  unsigned long long allocation = 0;
  cuda::address at = 0;
  bool mapped = false;
  const code error = inside([&] {
    code step = api_.mem_import(&allocation, reinterpret_cast<void*>(static_cast<std::intptr_t>(descriptor)), cuda::handle_type_descriptor);
    if (step == cuda::success) step = api_.mem_address_reserve(&at, bytes, 0, 0, 0);
    if (step == cuda::success) step = api_.mem_map(at, bytes, 0, allocation, 0);
    mapped = step == cuda::success;
    const cuda::access_description access{.device = ordinal_};
    if (step == cuda::success) step = api_.mem_set_access(at, bytes, &access, 1);
    if (allocation != 0) (void)api_.mem_release(allocation);  // the mapping keeps the memory alive
    if (step != cuda::success && mapped) (void)api_.mem_unmap(at, bytes);
    if (step != cuda::success && at != 0) (void)api_.mem_address_free(at, bytes);
    return step;
  });
  if (error != cuda::success) return outcome(error, [] { return std::string("map memory of another process"); });
  const std::lock_guard guard(sharing_);
  mapped_.emplace(at, bytes);
  return reinterpret_cast<void*>(at);
}

status cuda_session::close_shared(void* memory) {
  std::size_t bytes = 0;
  {
    const std::lock_guard guard(sharing_);
    if (const auto found = mapped_.find(address_of(memory)); found != mapped_.end()) {
      bytes = found->second;
      mapped_.erase(found);
    }
  }
  return outcome(inside([&] {
                   if (bytes == 0) return api_.ipc_close_mem_handle(address_of(memory));
                   const code error = api_.mem_unmap(address_of(memory), bytes);
                   return error == cuda::success ? api_.mem_address_free(address_of(memory), bytes) : error;
                 }),
                 [&] { return fmt::format("unmap memory of another process at {}", memory); });
}

status cuda_session::dma_buf_problem() {
  if (can_.lends_dma_bufs) return {};
  return {
      errc::unsupported,
      fmt::format("cuda:{}: the NVIDIA driver cannot export GPU memory as a dma-buf; this requires its open kernel modules, 515 or later",
                  ordinal_)};
}

result<allocation> cuda_session::allocation_of(const void* memory) {
  unsigned long long number = 0;
  std::array<int, 1> attributes = {cuda::pointer_buffer_id};
  std::array<void*, 1> values = {&number};
  const auto what = [&] { return fmt::format("find the allocation of {}", memory); };
  code error = api_.pointer_get_attributes(attributes.size(), attributes.data(), values.data(), address_of(memory));
  cuda::address base = 0;
  std::size_t bytes = 0;
  if (error == cuda::success) error = inside([&] { return api_.mem_get_address_range(&base, &bytes, address_of(memory)); });
  if (error != cuda::success) return outcome(error, what, errc::bad_memory);
  return allocation{reinterpret_cast<std::byte*>(base), bytes, number};
}

result<sys::owned_descriptor> cuda_session::export_dma_buf(void* memory, std::uint64_t bytes) {
  if (auto problem = dma_buf_problem(); !problem.ok()) return problem;
  int made = -1;
  const code error =
      inside([&] { return api_.mem_get_handle_for_address_range(&made, address_of(memory), bytes, cuda::range_is_dma_buf, 0); });
  if (error != cuda::success) return outcome(error, [&] { return fmt::format("export {} bytes at {} as a dma-buf", bytes, memory); });
  return sys::owned_descriptor(made);
}

class cuda_driver final : public driver {
 public:
  ~cuda_driver() override;
  [[nodiscard]] std::string_view kind() const override { return "cuda"; }
  result<int> count() override;
  result<device_facts> describe(int ordinal) override;
  result<memory_info> classify(const void* memory) override;
  bool is_mapped(const void* memory) override;
  std::optional<current_context> current() override;
  result<session*> open(int ordinal, void* context) override;

 private:
  struct device_slot {
    std::mutex retaining;                  // held while retaining the primary context, which may take a second
    std::atomic<handle> primary{nullptr};  // retained once, until the driver is destroyed
  };

  result<cuda::device_id> find(const functions& api, int ordinal);
  result<handle> retain_primary(const functions& api, int ordinal);
  bool is_primary(const functions& api, int ordinal, handle context);

  cuda::library library_;
  std::array<device_slot, max_devices> devices_;
  std::mutex sessions_lock_;  // guards the map; sessions live until the driver is destroyed
  std::map<handle, std::unique_ptr<cuda_session>> sessions_;
};

cuda_driver::~cuda_driver() {
  const functions* api = library_.peek();
  int devices = 0;
  // At exit, CUDA may already have been torn down (CUDA_ERROR_DEINITIALIZED). Then there is nothing to release.
  if (api == nullptr || api->device_get_count(&devices) != cuda::success) return;
  for (int ordinal = 0; ordinal < std::min(devices, max_devices); ++ordinal) {
    const handle primary = devices_[ordinal].primary.load();
    if (primary == nullptr) continue;
    if (const auto found = sessions_.find(primary); found != sessions_.end()) found->second->unload();
    if (const auto device = find(*api, ordinal)) (void)api->primary_ctx_release(*device);
  }
}

bool cuda_driver::is_mapped(const void* memory) {
  const functions* api = library_.peek();
  if (api == nullptr || api->mem_retain_allocation_handle == nullptr || api->mem_release == nullptr) return false;
  unsigned long long allocation = 0;
  if (api->mem_retain_allocation_handle(&allocation, const_cast<void*>(memory)) != cuda::success) return false;
  (void)api->mem_release(allocation);
  return true;
}

std::optional<driver::current_context> cuda_driver::current() {
  const functions* api = library_.use_if_others_do();
  if (api == nullptr || api->ctx_get_current == nullptr || api->ctx_get_device == nullptr) return {};
  current_context found;
  if (api->ctx_get_current(&found.context) != cuda::success || found.context == nullptr) return {};
  if (api->ctx_get_device(&found.ordinal) != cuda::success) return {};
  return found;
}

result<int> cuda_driver::count() {
  const functions* api = library_.use();
  if (api == nullptr) return library_.error();
  int devices = 0;
  if (const code error = api->device_get_count(&devices)) return failure(*api, error, "count CUDA devices");
  if (devices == 0) return status(errc::not_found, "the NVIDIA driver reports no devices", error_domain::cuda, cuda::error_no_device);
  return std::min(devices, max_devices);
}

result<cuda::device_id> cuda_driver::find(const functions& api, int ordinal) {
  cuda::device_id device = 0;
  if (ordinal < 0 || ordinal >= max_devices) return status(errc::not_found, fmt::format("cuda:{}: no such device", ordinal));
  if (const code error = api.device_get(&device, ordinal)) {
    return failure(api, error, fmt::format("cuda:{}: find the device", ordinal), errc::not_found);
  }
  return device;
}

result<device_facts> cuda_driver::describe(int ordinal) {
  const functions* api = library_.use();
  if (api == nullptr) return library_.error();
  const auto device = find(*api, ordinal);
  if (!device) return device.error();
  std::array<char, 256> name{};
  std::array<char, 32> bus_id{};
  std::size_t bytes = 0;
  code error = api->device_get_name(name.data(), static_cast<int>(name.size()), *device);
  if (error == cuda::success) error = api->device_get_pci_bus_id(bus_id.data(), static_cast<int>(bus_id.size()), *device);
  if (error == cuda::success) error = api->device_total_mem(&bytes, *device);
  if (error != cuda::success) return failure(*api, error, fmt::format("cuda:{}: describe the device", ordinal));
  device_facts facts{name.data(), bus_id.data(), bytes, {}, is_integrated(*api, *device)};
  if (api->device_get_uuid != nullptr && api->device_get_uuid(&facts.uuid, *device) != cuda::success) facts.uuid = {};
  // sysfs uses lower case.
  for (char& letter : facts.pci_bus_id) letter = static_cast<char>(std::tolower(static_cast<unsigned char>(letter)));
  return facts;
}

// One driver call returns all attributes. For unknown memory, all values stay unchanged. Notes:
// - Managed memory is reported as host memory: the CPU may access it, and a copy by the GPU may find it in any place.
// - cudaMallocAsync and cuMemCreate memory belongs to no context. base and size describe one mapping. An address range mapped in several
//   pieces (cuMemMap) has several mappings, and a request may continue past the end of one into the next.
result<memory_info> cuda_driver::classify(const void* memory) {
  const functions* api = library_.use_if_others_do();
  if (api == nullptr) return memory_info{};
  unsigned type = 0;
  unsigned managed = 0;
  handle context = nullptr;
  int ordinal = -1;
  cuda::address base = 0;
  std::size_t size = 0;
  std::array<int, 6> attributes = {cuda::pointer_memory_type,    cuda::pointer_is_managed,  cuda::pointer_context,
                                   cuda::pointer_device_ordinal, cuda::pointer_range_start, cuda::pointer_range_size};
  std::array<void*, 6> values = {&type, &managed, &context, &ordinal, &base, &size};
  const code error = api->pointer_get_attributes(attributes.size(), attributes.data(), values.data(), address_of(memory));
  if (error == cuda::error_invalid_value || (error == cuda::success && type == 0)) return memory_info{};
  if (error != cuda::success) return failure(*api, error, fmt::format("classify {}", memory));

  memory_info info;
  info.base = reinterpret_cast<std::byte*>(base);
  info.size = size;
  if ((managed & 0xff) != 0 || (type != cuda::memory_is_device && type != cuda::memory_is_host)) return info;
  if (type == cuda::memory_is_host) {
    info.type = memory_type::pinned;
    return info;
  }
  info.type = memory_type::device;
  info.ordinal = ordinal;
  if (context != nullptr && !is_primary(*api, ordinal, context)) info.context = context;
  return info;
}

// Called for an existing context. If the device's primary context is not active, this context is not it. Otherwise retaining the primary
// context creates nothing new, and allows later calls to compare without a driver call.
bool cuda_driver::is_primary(const functions& api, int ordinal, handle context) {
  if (ordinal < 0 || ordinal >= max_devices) return false;
  if (const handle known = devices_[ordinal].primary.load(std::memory_order_acquire)) return known == context;
  const auto device = find(api, ordinal);
  unsigned flags = 0;
  int active = 0;
  if (!device || api.primary_ctx_get_state(*device, &flags, &active) != cuda::success || active == 0) return false;
  const auto primary = retain_primary(api, ordinal);
  return primary.ok() && *primary == context;
}

result<handle> cuda_driver::retain_primary(const functions& api, int ordinal) {
  const auto device = find(api, ordinal);
  if (!device) return device.error();
  auto& slot = devices_[ordinal];
  if (const handle known = slot.primary.load(std::memory_order_acquire)) return known;
  const std::lock_guard guard(slot.retaining);
  if (const handle known = slot.primary.load(std::memory_order_relaxed)) return known;
  handle primary = nullptr;
  if (const code error = api.primary_ctx_retain(&primary, *device)) {
    return failure(api, error, fmt::format("cuda:{}: retain the primary context", ordinal));
  }
  slot.primary.store(primary, std::memory_order_release);
  return primary;
}

result<session*> cuda_driver::open(int ordinal, void* context) {
  const functions* api = library_.use();
  if (api == nullptr) return library_.error();
  handle wanted = context;
  if (wanted == nullptr) {
    const auto primary = retain_primary(*api, ordinal);
    if (!primary) return primary.error();
    wanted = *primary;
  }
  const std::lock_guard guard(sessions_lock_);
  if (const auto found = sessions_.find(wanted); found != sessions_.end()) return found->second.get();
  const auto device = find(*api, ordinal);
  if (!device) return device.error();
  int usable = 0;
  if (const code error = api->device_get_attribute(&usable, cuda::attribute_host_pointer_usable_when_registered, *device)) {
    return failure(*api, error, fmt::format("cuda:{}: query host pointers", ordinal));
  }
  const cuda_session::abilities can{usable != 0, is_integrated(*api, *device), lends_dma_bufs(*api, *device)};
  auto made = std::make_unique<cuda_session>(*api, ordinal, wanted, can);
  return sessions_.emplace(wanted, std::move(made)).first->second.get();
}

}  // namespace

std::shared_ptr<driver> make_cuda_driver() { return std::make_shared<cuda_driver>(); }

}  // namespace penstock::device
