// The state of the cuFile library in this process: whether it is open, and what callers have registered. It only translates calls; the work
// is done by the engine that all of Penstock's interfaces share. Thread-safe. A forked child gets new state, in which the parent's handles
// are stale.
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

// The version that cuFileGetVersion reports, 1000 * major + 10 * minor, unless PENSTOCK_CUFILE_VERSION selects another. It determines the
// layout of the stats structs. The library cannot tell which header a caller was built with; with this layout it never writes past the
// buffer of a client built against any header since CUDA 13.0.
inline constexpr int advertised_version = 1170;

// Returns 1190 for "1.19". Returns nothing unless the version is 1.15 to 1.20: earlier versions have different structs, and those of later
// versions are unknown.
std::optional<int> parse_version(std::string_view text) noexcept;

// The descriptors that have a handle. A descriptor number that was closed and reused for another file is treated as a different descriptor.
// Thread-safe.
class descriptor_set {
  struct member {
    int number;   // the caller's descriptor
    int witness;  // stays open on the registered file: a duplicate, or the caller's own descriptor
    file_identity file;
  };

 public:
  // Membership in the set; ends on destruction.
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

  // Returns an empty claim if the descriptor is already in the set. witness: see member.
  claim add(int number, int witness, const file_identity& file);

 private:
  void release(std::list<member>::iterator place) noexcept;
  std::mutex lock_;                                     // guards members_
  std::unordered_map<int, std::list<member>> members_;  // by number
};

// Members are destroyed last to first, so the descriptor can get a new handle only when nothing runs on the old one.
struct registered_file {
  descriptor_set::claim descriptor;
  // Python's File objects share it. The registration closes it, which waits for their requests; later ones fail with errc::closed.
  std::shared_ptr<file> target;
  // Set if there was no room for a duplicate: the file behind the caller's own descriptor. Checked before each use.
  std::optional<file_identity> lent_as;
  ~registered_file() { (void)target->close(); }
};

class driver {
 public:
  static driver& current() noexcept;

  // --- lifetime. Errors of open: DRIVER_INVALID_PROPS (the settings file cannot be read), and those of the engine.
  CUfileError_t open();
  CUfileError_t open_if_closed();
  CUfileError_t close();  // DRIVER_NOT_INITIALIZED if it is not open
  // Call while the library is closed. Later openings use this engine instead of the shared one; nullopt: the shared one.
  void work_with(std::optional<engine> owner);
  [[nodiscard]] bool is_open() const noexcept { return open_.load(std::memory_order_acquire); }
  [[nodiscard]] long uses();
  // Returns a number that is unique to this opening, even among forked processes; 0 while closed. Data cached under another number is
  // stale.
  [[nodiscard]] std::uint64_t opening() const noexcept { return opening_.load(std::memory_order_acquire); }

  // --- valid once open
  [[nodiscard]] const engine& owner() const noexcept { return *engine_; }
  // Return the options for every transfer, and for a blocking transfer of this length.
  [[nodiscard]] io_options options() const noexcept { return options_of(rules_.load()); }
  [[nodiscard]] io_options options(std::uint64_t length, bool is_write, bool aligned) const noexcept {
    return options_of(rules_.load(), length, is_write, aligned);
  }
  // Returns true if nvidia-fs may be used: it is loaded, and the settings allow it.
  [[nodiscard]] bool may_be_direct() const { return rules_.load().direct && engine_->gpu_direct_status().ok(); }
  // Returns what nvidia-fs reports; zeros if it may not be used.
  [[nodiscard]] nvidia_fs_facts nvidia_fs() const { return may_be_direct() ? read_nvidia_fs(nvidia_fs_folder_) : nvidia_fs_facts(); }
  // Replaces the nvidia-fs folder, for tests on a machine whose /proc lacks it. Call while the library is closed.
  void look_for_nvidia_fs_in(std::string folder) { nvidia_fs_folder_ = std::move(folder); }
  [[nodiscard]] bool allows_streams() const noexcept { return allows_streams_; }

  // --- files. A descriptor has one handle. The handle uses a duplicate: the caller may close the descriptor, and a file opened later under
  // the same number gets its own handle.
  // may_lend: the handle may use the caller's own descriptor if few are left. reason: set if the file is refused.
  CUfileError_t register_file(int descriptor, CUfileHandle_t* handle, bool may_lend = true, status* reason = nullptr);
  // Waits for requests on the file, even if another thread is deregistering it.
  void deregister_file(CUfileHandle_t handle) { counters_.count(counted::handle_deregister, release_file(handle)); }
  // Like deregister_file(), but not counted. Returns true on the thread that released the file.
  bool release_file(CUfileHandle_t handle) noexcept { return files_.remove(handle); }
  // Returns an empty user for an unknown handle, and for a handle without a duplicate whose descriptor was closed.
  [[nodiscard]] slots<registered_file>::user find_file(CUfileHandle_t handle) noexcept;

  // --- memory
  // Returns true for host memory if the settings forbid it. Calls the GPU driver only if the settings do.
  [[nodiscard]] bool refuses(const void* memory) const;
  CUfileError_t register_buffer(const void* base, std::size_t length, buffer_use use = buffer_use::both);
  // Returns DRIVER_CLOSING if the library is closed or being closed. If it is being closed, waits until that is done and nothing runs any
  // more.
  CUfileError_t deregister_buffer(const void* base);
  [[nodiscard]] const buffers& memory() const noexcept { return buffers_; }

  // --- batches
  [[nodiscard]] unsigned most_batch_entries() const noexcept { return most_batch_entries_; }
  [[nodiscard]] slots<batch_state>& batches() noexcept { return batches_; }
  // Cancels running entries and waits for them, even if another thread is destroying the batch. Returns true on the thread that destroyed
  // the batch.
  bool destroy_batch(CUfileBatchHandle_t batch) noexcept {
    return batches_.remove(batch, [](batch_state& each) { each.stop(); });
  }

  // --- streams: the flags that a stream was registered with; 0 for an unknown one
  CUfileError_t register_stream(CUstream stream, unsigned flags);
  CUfileError_t deregister_stream(CUstream stream);
  [[nodiscard]] unsigned flags_of(CUstream stream);

  // Returns the version to emulate. For an open library, it is the one that the environment selected when it was opened.
  [[nodiscard]] int version() const;
  [[nodiscard]] stats_layout layout() const { return version() < 1190 ? stats_layout::of_1_15 : stats_layout::of_1_19; }

  // Returns true if there is an engine that can report what was done.
  [[nodiscard]] bool was_used();

  [[nodiscard]] settings_book& settings() noexcept { return settings_; }
  [[nodiscard]] counters& stats() noexcept { return counters_; }
  // Determines how GPU-direct transfers are made. Call on an open library; does nothing at statistics level 0.
  void note_direct_way();
  // Counts the outcome of a call and returns it.
  CUfileError_t counted_as(counted what, CUfileError_t outcome);
  // Logs the failure of a call. The driver's threads may call it.
  void log_failure(const char* call, const status& outcome) noexcept;
  // Reports a setting that does not take effect as written: to the log at its default level or, without a log, once to stderr.
  void warn(std::string text);
  [[nodiscard]] log& lines() noexcept { return log_; }

  // --- P2P flags: only stored and returned, because the engine chooses its paths itself
  CUfileError_t set_p2p(int storage, int flags);
  CUfileError_t get_p2p(int storage, CUfileP2PFlags_t* flags);

 private:
  driver() = default;
  CUfileError_t open_locked();
  CUfileError_t find_engine();
  void take_settings();
  void say_once(std::string text);
  // lent_as: see registered_file.
  result<file> adopt(int descriptor, bool may_lend, std::optional<file_identity>& lent_as);
  [[nodiscard]] std::string denial_of(int descriptor);
  void release_all();
  [[nodiscard]] status refusal(const file& target) const;

  std::mutex lock_;  // guards opening and closing, uses_ and was_open_
  long uses_ = 0;
  std::atomic<bool> open_{false};
  std::atomic<std::uint64_t> opening_{0};
  std::atomic<bool> was_open_{false};
  std::optional<engine> engine_;  // kept after the library is closed
  // From the settings. Threads may read these while another thread reopens the library.
  std::atomic<request_rules> rules_{request_rules{}};
  std::atomic<bool> only_direct_files_{false};  // other files are rejected at registration
  std::atomic<bool> past_cache_{false};         // for file writes
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
