// GPUDirect: the drive reads and writes device memory itself, through NVIDIA's libcufile. The machine and libcufile are checked once per
// engine, and each file once: a handle that can be registered with compatibility mode off is GPU-direct. Untested on hardware with
// nvidia-fs or P2PDMA; everything else is tested on a recording stand-in for libcufile.
// libcufile uses the thread's current context, so each call makes the session's context current.
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <unordered_map>
#include <utility>

#include <fmt/format.h>

#include "base/ask_once.hpp"
#include "base/no_memory.hpp"
#include "path/cufile_library.hpp"
#include "path/data_path.hpp"
#include "path/refusals.hpp"

namespace penstock::path {

extern const declaration declared_direct;

namespace {

// The maximum number of bytes per call, because a request can be stopped between two calls. 16 MiB is libcufile's own largest piece
// (max_direct_io_size_kb).
constexpr std::uint64_t direct_piece_bytes = std::uint64_t{16} << 20;

// Makes a session's context current on this thread during its own lifetime.
class current_context {
 public:
  explicit current_context(device::session& session) : session_(session), error_(session.make_current()) {}
  current_context(const current_context&) = delete;
  current_context& operator=(const current_context&) = delete;
  ~current_context() {
    if (error_.ok()) session_.restore_current();
  }
  [[nodiscard]] const status& error() const noexcept { return error_; }

 private:
  device::session& session_;
  status error_;
};

struct registration {
  asked_once asked;
  cufile_handle handle = nullptr;
  device::session* session = nullptr;  // the session in whose context the handle was created
  status why_not;                      // set if there is no handle
};

// Device memory that the user has registered.
struct known_memory {
  std::uint64_t bytes = 0;
  device::session* session = nullptr;
  asked_once asked;
  bool registered = false;   // with libcufile
  std::shared_mutex in_use;  // shared by jobs; exclusive to deregister it
};

class direct final : public data_path {
 public:
  explicit direct(const services& with)
      : kernel_(with.kernel),
        library_name_(with.cufile_library),
        parameters_(with.cufile),
        piece_bytes_(with.direct_piece_bytes > 0 ? std::min<std::uint64_t>(with.direct_piece_bytes, direct_piece_bytes)
                                                 : direct_piece_bytes) {}
  direct(const direct&) = delete;
  direct& operator=(const direct&) = delete;
  ~direct() override {
    for (const auto& [file, entry] : registrations_) release(*entry);
    for (const auto& [base, entry] : memories_) release(base, *entry);
  }

  [[nodiscard]] const declaration& declared() const override { return declared_direct; }

  [[nodiscard]] bool serves_nothing() const noexcept override { return is_useless_.load(std::memory_order_relaxed); }

  [[nodiscard]] std::optional<std::string> refuses(const question& asked) override {
    if (!asked.memory->on_device()) return "the memory is not on a device";
    if (asked.memory->emulated()) return std::string(no_gpu_memory);
    if (asked.file->descriptors().direct < 0) return "the file could not be opened with O_DIRECT";
    // libcufile can be queried only with a current context, and a query must not create one. The context of another GPU will do.
    auto* const known = asked.memory->via != nullptr ? &asked.memory->via->session() : loaded_with_.load(std::memory_order_acquire);
    if (known == nullptr) {
      auto why = cufile_library::possible(*kernel_);
      return why.ok() ? std::nullopt : std::optional(std::string(why.message()));
    }
    auto& session = *known;
    if (auto unasked = loaded_.ask([&] { return load(session); }); !unasked.ok()) return std::string(unasked.message());
    if (library_ == nullptr) return std::string(why_no_library_.message());
    auto& entry = registration_of(*asked.file);
    auto unasked = entry.asked.ask([&] { return register_file(entry, *asked.file, session); });
    if (!unasked.ok()) return std::string(unasked.message());
    if (entry.handle == nullptr) return std::string(entry.why_not.message());
    if (asked.is_write && (asked.offset | asked.length) % direct_alignment != 0) return unaligned_write();
    return std::nullopt;
  }

  bool run(job& item) override {
    const auto end = carry(item);
    if (end.handed_over) {
      item.owner->hand_over(item, end.why.with_context("direct"));
    } else {
      item.owner->finished(item, item.moved, end.why.with_context("direct"));
    }
    return true;
  }

  // Transfers a request whose caller waits. If libcufile does not complete it, another path must.
  io_result carry_now(const small_transfer& what) override {
    io_result outcome;
    const auto handle = handle_of(*what.file);
    if (handle == nullptr) return {0, {errc::unsupported, "the file is not registered with libcufile"}};
    if (what.is_write && !source::aligned(what.memory, what.length, what.offset)) return {0, {errc::unsupported, unaligned_write()}};
    const current_context current(what.place->via->session());
    if (!current.error().ok()) return {0, current.error()};
    std::shared_lock<std::shared_mutex> kept;
    const extent all{what.file, what.memory, what.offset, what.length, what.is_write};
    auto* const base = registered_base(all, kept, [&](const status& why) {
      if (what.did_without != nullptr) (*what.did_without)(why);
    });
    const auto moved = move_piece(all, 0, handle, base, what.length);
    if (!moved) return {0, at(moved.error(), all, 0, what.length)};
    outcome.bytes_done = std::min<std::uint64_t>(*moved, what.length);
    if (outcome.bytes_done < what.length) outcome.error = short_count(all, outcome.bytes_done, what.length - outcome.bytes_done);
    return outcome;
  }

  void forget(const source::source& closing) override {
    std::unique_ptr<registration> entry;
    {
      const std::lock_guard guard(lock_);
      const auto found = registrations_.find(&closing);
      if (found == registrations_.end()) return;
      entry = std::move(found->second);
      registrations_.erase(found);
    }
    release(*entry);
  }

  // The next request opens libcufile again.
  status rest() override {
    const std::lock_guard guard(lock_);
    if (library_ == nullptr) return {};
    for (const auto& [file, entry] : registrations_) release(*entry);
    registrations_.clear();
    for (const auto& [base, entry] : memories_) {
      release(base, *entry);
      entry->registered = false;
      entry->asked.forget();
    }
    auto problem = library_->close();
    library_ = nullptr;
    loaded_with_.store(nullptr);
    loaded_.forget();
    return problem;
  }

  status remember_memory(const staging::place& place, std::byte* base, std::uint64_t bytes) override {
    return or_no_memory([&]() -> status {
      auto made = std::make_unique<known_memory>();
      made->bytes = bytes;
      made->session = &place.via->session();
      const std::lock_guard guard(lock_);
      memories_.emplace(base, std::move(made));
      return {};
    });
  }

  void forget_memory(std::byte* base) override {
    std::unique_ptr<known_memory> entry;
    {
      const std::lock_guard guard(lock_);
      const auto found = memories_.find(base);
      if (found == memories_.end()) return;
      entry = std::move(found->second);
      memories_.erase(found);
    }
    (void)or_no_memory([&]() -> status {
      release(base, *entry);
      return {};
    });
  }

 private:
  struct ending {
    status why;
    bool handed_over = false;
  };
  // An extent of a job or of a caller.
  struct extent {
    source::source* file;
    std::byte* memory;
    std::uint64_t offset;
    std::uint64_t length;
    bool is_write;
  };

  static std::string unaligned_write() {
    return fmt::format(
        "the write is not aligned to {}, so libcufile would rewrite whole blocks and could undo a concurrent write to adjacent bytes",
        direct_alignment);
  }

  status load(device::session& session) {
    const current_context current(session);
    if (!current.error().ok()) return current.error();
    auto loaded = cufile_library::load(*kernel_, library_name_, parameters_);
    if (loaded) {
      library_ = std::move(*loaded);
    } else {
      why_no_library_ = loaded.error();
      is_useless_.store(true, std::memory_order_relaxed);
    }
    loaded_with_.store(&session, std::memory_order_release);
    return {};
  }

  // The entry's address does not change until forget().
  registration& registration_of(const source::source& file) {
    const std::lock_guard guard(lock_);
    auto& entry = registrations_[&file];
    if (entry == nullptr) entry = std::make_unique<registration>();
    return *entry;
  }

  status register_file(registration& entry, source::source& file, device::session& session) {
    const current_context current(session);
    if (!current.error().ok()) return current.error();
    auto handle = library_->register_file(file.descriptors().direct);
    if (handle) {
      entry.handle = *handle;
      entry.session = &session;
    } else {
      entry.why_not = handle.error();
    }
    return {};
  }

  // If the context can no longer be made current, its handles no longer exist, or libcufile does not need it.
  void release(registration& entry) {
    if (entry.handle == nullptr) return;
    const current_context current(*entry.session);
    library_->deregister_file(std::exchange(entry.handle, nullptr));
  }

  // Does the same for memory. libcufile does not specify what happens to a transfer whose memory is deregistered, so the transfers end
  // first.
  void release(std::byte* base, known_memory& entry) {
    const std::unique_lock quiet(entry.in_use);
    if (!entry.registered) return;
    const current_context current(*entry.session);
    library_->deregister_buffer(base);
  }

  // Returns the base of the registered memory that contains a job's memory. It is not deregistered while `kept` is held. The first job
  // registers it with libcufile. Returns null if there is none, or if libcufile refused it.
  template <class Tell>
  std::byte* registered_base(const extent& item, std::shared_lock<std::shared_mutex>& kept, Tell did_without) {
    std::unique_lock guard(lock_);
    const auto after = memories_.upper_bound(item.memory);
    if (after == memories_.begin()) return nullptr;
    auto* const base = std::prev(after)->first;
    auto& entry = *std::prev(after)->second;
    if (item.length > entry.bytes || static_cast<std::uint64_t>(item.memory - base) > entry.bytes - item.length) return nullptr;
    kept = std::shared_lock(entry.in_use);  // never waits, because deregistering first removes it from the map
    guard.unlock();
    (void)entry.asked.ask([&]() -> status {
      const auto refusal = library_->register_buffer(base, entry.bytes);
      entry.registered = refusal.ok();
      if (!refusal.ok()) did_without(refusal.with_context("direct"));
      return {};
    });
    return entry.registered ? base : nullptr;
  }

  // Returns the registered handle of a file that refuses() has accepted; null for any other.
  cufile_handle handle_of(const source::source& file) {
    const std::lock_guard guard(lock_);
    const auto found = registrations_.find(&file);
    return found == registrations_.end() ? nullptr : found->second->handle;
  }

  // Transfers as much as possible, counted in item.moved. run() then calls the owner, after the thread's own context has been restored.
  ending carry(job& item) {
    item.moved = 0;
    if (!item.ranges.empty()) return give_up({errc::unsupported, "many small ranges are faster through a slab"});
    const auto handle = handle_of(*item.file);
    if (handle == nullptr) return give_up({errc::unsupported, "the file is not registered with libcufile"});
    if (item.is_write && !source::aligned(item.memory, item.length, item.offset)) {
      return give_up({errc::unsupported, unaligned_write()});
    }
    const current_context current(item.place.via->session());
    if (!current.error().ok()) return give_up(current.error());
    std::shared_lock<std::shared_mutex> kept;
    const extent all{item.file, item.memory, item.offset, item.length, item.is_write};
    auto* const base = registered_base(all, kept, [&](const status& why) { item.owner->did_without(item, why); });
    while (item.moved < item.length) {
      if (auto stop = item.owner->stopped(); !stop.ok()) return {std::move(stop)};
      const auto wanted = std::min(piece_bytes_, item.length - item.moved);
      auto moved = move_piece(all, item.moved, handle, base, wanted);
      if (!moved) return give_up(at(moved.error(), all, item.moved, wanted));
      const auto counted = std::min<std::uint64_t>(*moved, wanted);
      item.moved += counted;
      if (counted < wanted) {
        auto why = short_count(all, item.moved, wanted - counted);
        return why.ok() ? ending() : give_up(std::move(why));
      }
    }
    return {};
  }

  // base: of registered memory, or null.
  result<std::size_t> move_piece(const extent& of, std::uint64_t done, cufile_handle handle, std::byte* base, std::uint64_t bytes) {
    std::byte* const start = of.memory + done;
    const auto memory = base == nullptr ? cufile_memory{start, 0} : cufile_memory{base, static_cast<std::uint64_t>(start - base)};
    const auto file_offset = of.offset + done;
    return of.is_write ? library_->write(handle, memory, bytes, file_offset) : library_->read(handle, memory, bytes, file_offset);
  }

  // Returns ok if the file ends here. After any other short read, the next path continues. It also does so after a short write, whose
  // remainder may be unaligned.
  static status short_count(const extent& of, std::uint64_t done, std::uint64_t missing) {
    if (of.is_write) return at({errc::io, "libcufile wrote less than requested"}, of, done, missing);
    const auto ended = of.file->ends_at(of.offset + done);
    if (!ended) return ended.error();
    if (*ended) return {};
    return at({errc::io, "libcufile read less than requested, before the end of the file"}, of, done, missing);
  }

  static ending give_up(status why) { return {std::move(why), true}; }

  static status at(const status& error, const extent& of, std::uint64_t done, std::uint64_t bytes) {
    return error.with_context(fmt::format("{} {} at {} of {}", of.is_write ? "write" : "read", bytes, of.offset + done, of.file->name()));
  }

  const std::shared_ptr<sys::kernel> kernel_;
  const std::string library_name_;
  const cufile_parameters parameters_;
  const std::uint64_t piece_bytes_;
  asked_once loaded_;
  std::unique_ptr<cufile_library> library_;  // this and the next are set by loaded_
  status why_no_library_;
  std::atomic<bool> is_useless_{false};                 // there is no library
  std::atomic<device::session*> loaded_with_{nullptr};  // the session whose context was used to load libcufile
  std::mutex lock_;                                     // guards the maps; an entry is guarded by its own asked_once
  std::unordered_map<const source::source*, std::unique_ptr<registration>> registrations_;
  std::multimap<std::byte*, std::unique_ptr<known_memory>> memories_;  // by base
};

}  // namespace

constinit const declaration declared_direct{
    .name = "direct",
    .rank = 10,
    .successor = "staged",
    .gpu_direct = true,
    .carries = portion::whole_requests,
    .most_carried_now = std::uint64_t{128} << 10,
    .alignment = direct_alignment,
    .reason = "GPUDirect supports this file",
    .make = [](const services& with) -> std::unique_ptr<data_path> { return std::make_unique<direct>(with); },
};

}  // namespace penstock::path
