// The state of the cuFile library in this process: whether it is open, and what callers have registered. Translation only: the work is done
// by the engine that all of Penstock's faces share. Thread-safe. A forked child gets a fresh state, in which the parent's handles are
// stale.
#pragma once

#include <array>
#include <atomic>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <shared_mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "cufile/batch.hpp"
#include "cufile/buffers.hpp"
#include "cufile/counters.hpp"
#include "cufile/cufile.h"
#include "cufile/log.hpp"
#include "cufile/nvidia_fs.hpp"
#include "cufile/open_file.hpp"
#include "cufile/settings.hpp"
#include "cufile/settings_effects.hpp"
#include "cufile/slots.hpp"
#include "penstock/engine.hpp"

namespace penstock::cufile {

// The version that cuFileGetVersion reports, 1000 * major + 10 * minor, unless PENSTOCK_CUFILE_VERSION selects another. It decides the
// layout of the stats structs. A caller does not say which header it was built with, and with this layout the library never writes past a
// buffer of a client that was built against any header from CUDA 13.0 on.
inline constexpr int advertised_version = 1170;

// "1.19" as 1190. Nothing for what is no version from 1.15 to 1.20: the structs of earlier ones are others, those of later ones not known.
std::optional<int> parse_version(std::string_view text) noexcept;

// The descriptors that have a handle. A number that was closed and given to another file is another descriptor. Thread-safe.
class descriptor_set {
  struct member {
    int number;   // as the caller knows it
    int witness;  // stays open on the file that was registered: a duplicate, or the number itself
    file_identity file;
  };

 public:
  // A place in the set, given up when it dies.
  class claim {
   public:
    claim() noexcept = default;
    claim(claim&& other) noexcept : set_(std::exchange(other.set_, nullptr)), place_(other.place_) {}
    claim& operator=(claim&&) = delete;
    ~claim() {
      if (set_ != nullptr) set_->release(place_);
    }
    explicit operator bool() const noexcept { return set_ != nullptr; }

   private:
    friend class descriptor_set;
    claim(descriptor_set& set, std::list<member>::iterator place) noexcept : set_(&set), place_(place) {}
    descriptor_set* set_ = nullptr;
    std::list<member>::iterator place_;
  };

  // Empty for a descriptor that is in the set already. witness: see member.
  claim add(int number, int witness, const file_identity& file);

 private:
  void release(std::list<member>::iterator place) noexcept;
  std::mutex lock_;                                     // guards members_
  std::unordered_map<int, std::list<member>> members_;  // by number
};

// Destroyed from the last member to the first: the descriptor can have a new handle when nothing runs on this one any more.
struct registered_file {
  descriptor_set::claim descriptor;
  file target;
  // Where there was no room for a duplicate: what the caller's own descriptor was open on. It is looked at before each use.
  std::optional<file_identity> lent_as;
};

class driver {
 public:
  static driver& current() noexcept;

  // --- life. Errors of the first: DRIVER_INVALID_PROPS (the settings file cannot be read), or what the engine answered.
  CUfileError_t open();
  CUfileError_t open_if_closed();
  CUfileError_t close();  // DRIVER_NOT_INITIALIZED when no use is left
  // The engine to work with from the next opening on, instead of the one that all faces share (nothing: that one). The library is closed.
  void work_with(std::optional<engine> owner);
  [[nodiscard]] bool is_open() const noexcept { return open_.load(std::memory_order_acquire); }
  [[nodiscard]] long uses();
  // A number of this opening that no other has, in no process that was forked from this one; 0 while it is closed. What was found out under
  // another number is stale.
  [[nodiscard]] std::uint64_t opening() const noexcept { return opening_.load(std::memory_order_acquire); }

  // --- valid once open
  [[nodiscard]] const engine& owner() const noexcept { return *engine_; }
  // What every transfer is asked for with; and a blocking one of so many bytes.
  [[nodiscard]] io_options options() const noexcept { return options_of(rules_.load()); }
  [[nodiscard]] io_options options(std::uint64_t length, bool is_write, bool aligned) const noexcept {
    return options_of(rules_.load(), length, is_write, aligned);
  }
  // True where nvidia-fs may carry transfers: it is there, and the settings do not rule it out.
  [[nodiscard]] bool may_be_direct() const { return rules_.load().direct && engine_->gpu_direct_status().ok(); }
  // What nvidia-fs tells, which is nothing where it may carry none.
  [[nodiscard]] nvidia_fs_facts nvidia_fs() const { return may_be_direct() ? read_nvidia_fs(nvidia_fs_folder_) : nvidia_fs_facts(); }
  // Where that is, on a machine that has no /proc of its own. The library is closed.
  void look_for_nvidia_fs_in(std::string folder) { nvidia_fs_folder_ = std::move(folder); }
  [[nodiscard]] bool allows_streams() const noexcept { return allows_streams_; }

  // --- files. A descriptor has one handle, which works through a duplicate: the caller may close the descriptor, and whatever is opened
  // under its number then is another file, which gets a handle of its own.
  CUfileError_t register_file(int descriptor, CUfileHandle_t* handle);
  // Waits for what runs on the file, also when another thread is deregistering it.
  void deregister_file(CUfileHandle_t handle) { counters_.count(counted::handle_deregister, release_file(handle)); }
  // As deregister_file(), uncounted. True for the thread that released it.
  bool release_file(CUfileHandle_t handle) noexcept { return files_.remove(handle); }
  // Empty for an unknown handle, and for a handle without a duplicate whose descriptor was closed.
  [[nodiscard]] slots<registered_file>::user find_file(CUfileHandle_t handle) noexcept;

  // --- memory
  // True for host memory where the settings do not allow it. May call the GPU's driver, but not where they do.
  [[nodiscard]] bool refuses(const void* memory) const;
  CUfileError_t register_buffer(const void* base, std::size_t length, buffer_use use = buffer_use::both);
  // DRIVER_CLOSING when the library was closed, or is being closed: then once that has ended, and nothing runs any more.
  CUfileError_t deregister_buffer(const void* base);
  [[nodiscard]] const buffers& memory() const noexcept { return buffers_; }

  // --- batches
  [[nodiscard]] unsigned most_batch_entries() const noexcept { return most_batch_entries_; }
  [[nodiscard]] slots<batch_state>& batches() noexcept { return batches_; }
  // Cancels what runs and waits for it, also when another thread is doing so. True for the thread that destroyed the batch.
  bool destroy_batch(CUfileBatchHandle_t batch) noexcept {
    return batches_.remove(batch, [](batch_state& each) { each.stop(); });
  }

  // --- streams: the flags that one was registered with; 0 for an unknown one
  CUfileError_t register_stream(CUstream stream, unsigned flags);
  CUfileError_t deregister_stream(CUstream stream);
  [[nodiscard]] unsigned flags_of(CUstream stream);

  // The version to stand for: of an open library, what the environment said when it was opened.
  [[nodiscard]] int version() const;
  [[nodiscard]] stats_layout layout() const { return version() < 1190 ? stats_layout::of_1_15 : stats_layout::of_1_19; }

  // Whether there is an engine to tell what was done.
  [[nodiscard]] bool was_used();

  [[nodiscard]] settings_book& settings() noexcept { return settings_; }
  [[nodiscard]] counters& stats() noexcept { return counters_; }
  // Finds out what carries that which is GPU-direct, of an open library whose statistics have a level.
  void note_direct_way();
  // Counts the outcome of a call, and hands it on.
  CUfileError_t counted_as(counted what, CUfileError_t outcome);
  // A line that says what a call failed with. May be called from the driver's threads.
  void log_failure(const char* call, const status& outcome) noexcept;
  // A setting that does not act as the user wrote it: to the log at its default level, or, where nobody asked for a log, to stderr, once.
  void warn(std::string text);
  [[nodiscard]] log& lines() noexcept { return log_; }

  // --- how GPUs and storage reach each other: kept and given back, since the engine finds its ways by itself
  CUfileError_t set_p2p(int storage, int flags);
  CUfileError_t get_p2p(int storage, CUfileP2PFlags_t* flags);

 private:
  driver() = default;
  CUfileError_t open_locked();
  CUfileError_t find_engine();
  void take_settings();
  void say_once(std::string text);
  // lent_as: as registered_file's.
  result<file> adopt(int descriptor, std::optional<file_identity>& lent_as);
  [[nodiscard]] std::string denial_of(int descriptor);
  void release_all();
  [[nodiscard]] status refusal(const file& target) const;

  std::mutex lock_;  // guards opening and closing, uses_ and was_open_
  long uses_ = 0;
  std::atomic<bool> open_{false};
  std::atomic<std::uint64_t> opening_{0};
  std::atomic<bool> was_open_{false};
  std::optional<engine> engine_;  // stays once made
  // As the settings say; a thread may ask while another opens the library anew.
  std::atomic<request_rules> rules_{request_rules{}};
  std::atomic<bool> only_direct_files_{false};  // others are refused as they are registered
  std::atomic<bool> past_cache_{false};         // files are written so
  std::atomic<unsigned> most_batch_entries_{256};
  std::shared_mutex denied_lock_;  // guards denied_
  deny_lists denied_;
  std::atomic<bool> allows_streams_{true};
  std::atomic<bool> allows_host_memory_{true};
  std::atomic<int> version_{advertised_version};
  std::string nvidia_fs_folder_ = nvidia_fs_folder;

  descriptor_set descriptors_;
  slots<registered_file> files_;
  buffers buffers_;
  slots<batch_state> batches_;
  std::shared_mutex streams_lock_;
  std::unordered_map<CUstream, unsigned> streams_;
  settings_book settings_;
  counters counters_;
  log log_;
  std::mutex said_lock_;  // guards said_
  std::set<std::string> said_;
  std::array<std::atomic<int>, CU_FILE_MAX_TARGET_TYPES> p2p_{};
};

}  // namespace penstock::cufile
