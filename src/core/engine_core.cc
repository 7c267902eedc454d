#include "core/engine_core.hpp"

#include <algorithm>
#include <cstring>
#include <functional>
#include <mutex>

#include <fmt/format.h>

#include "base/checked.hpp"
#include "base/no_memory.hpp"
#include "core/batch_request.hpp"
#include "core/small_requests.hpp"
#include "core/stream_operation.hpp"
#include "path/cufile_library.hpp"
#include "path/file_io.hpp"
#include "staging/worker.hpp"

namespace penstock::core {

namespace {

using namespace std::chrono_literals;

constexpr std::uint64_t tmpfs_magic = 0x01021994;
// Calls up to this are split over lanes that are still awake, and the caller lends a hand.
constexpr std::uint64_t helped_request_bytes = std::uint64_t{16} << 20;
constexpr std::uint64_t spun_request_bytes = std::uint64_t{64} << 20;
constexpr std::uint64_t small_host_request_bytes = std::uint64_t{1} << 20;

// One GPU is fed by 8 threads where a core copies 7 GB/s out of the page cache, by 10 where it copies 5; what they do not need they sleep.
unsigned choose_lanes(const engine_options& options, unsigned cores) {
  return options.lanes != 0 ? options.lanes : std::clamp(cores * 5 / 8, 2U, 16U);
}

// Further file systems share the lanes of others.
constexpr std::size_t most_mounts = 64;

// For each file system: enough for a link's 55 GB/s over the 1.5 ms that filling and sending a slab take, and for callers that read for
// themselves; but never all of the budget, so that a file system that stalls leaves something for others.
std::size_t cpu_share(const engine_options& options, unsigned lanes) {
  return std::min(std::max(std::size_t{64} << 20, std::size_t{lanes} * (std::size_t{12} << 20)), options.pinned_budget_bytes / 2);
}

std::size_t disk_share(const engine_options& options, unsigned cores) {
  const std::size_t wanted =
      mount::disk_lane_count(cores) * staging::disk_lanes::tasks_in_flight * (std::size_t{12} << 20);  // read into, or sent
  return std::min(wanted, options.pinned_budget_bytes / 4);
}

// Counts what is under way.
struct in_use {
  std::atomic<unsigned>* count;
  explicit in_use(std::atomic<unsigned>* counter) : count(counter) {
    if (count != nullptr) count->fetch_add(1);
  }
  in_use(const in_use&) = delete;
  in_use& operator=(const in_use&) = delete;
  ~in_use() {
    if (count != nullptr) count->fetch_sub(1);
  }
};

// Gives a slab back.
struct slab_return {
  staging::slab_pool* to;
  staging::slab lent;
  slab_return(staging::slab_pool* pool, const staging::slab& taken) : to(pool), lent(taken) {}
  slab_return(const slab_return&) = delete;
  slab_return& operator=(const slab_return&) = delete;
  ~slab_return() { to->give_back(lent); }
};

}  // namespace

std::int64_t engine_core::now_ns() noexcept {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

result<std::shared_ptr<engine_core>> engine_core::make(const engine_options& options, seams doors) {
  if (options.pinned_budget_bytes < staging::least_budget_bytes) {
    return status(errc::invalid_argument,
                  fmt::format("pinned_budget_bytes is {}; the least is {}", options.pinned_budget_bytes, staging::least_budget_bytes));
  }
  if (options.lanes > 64) return status(errc::invalid_argument, fmt::format("lanes is {}, more than 64", options.lanes));
  return std::shared_ptr<engine_core>(new engine_core(options, std::move(doors)), &engine_core::destroy);
}

// The last handle may go on a lane (in a callback), which cannot wait for itself: the watcher can, and is there wherever a lane is. A
// forked child has none of the threads.
void engine_core::destroy(engine_core* core) {
  if (core->forked()) return;
  const bool waits_for_itself = staging::on_worker_thread();
  if (waits_for_itself && core->feeders_.end_with([](void* ended) { delete static_cast<engine_core*>(ended); }, core)) return;
  delete core;
}

engine_core::engine_core(const engine_options& options, seams doors)
    : options_(options),
      doors_(std::move(doors)),
      cores_(doors_.kernel->usable_cores()),
      lane_count_(choose_lanes(options, cores_)),
      budget_(options.pinned_budget_bytes),
      cuda_pool_(*doors_.kernel, budget_, cpu_share(options_, lane_count_), disk_share(options_, cores_)),
      host_pool_(*doors_.kernel, budget_, cpu_share(options_, lane_count_), disk_share(options_, cores_)),
      memory_(doors_.cuda, doors_.host, *doors_.kernel, feeders_, cuda_pool_, host_pool_, fork_guard_),
      callbacks_(1, !few_cores() ? 50us : 0us, nullptr, "penstock-cb") {
  paths_ = path::make_paths({doors_.kernel, &feeders_}, options_.cufile_library);
}

engine_core::~engine_core() {
  mounts_.clear();  // runs what is left, copies too
  while (feeders_.outstanding()) feeders_.pump();
  paths_.clear();
}

mount& engine_core::mount_of(std::uint64_t device) {
  const std::lock_guard guard(mounts_lock_);
  const auto known = std::find_if(mounts_.begin(), mounts_.end(), [&](const auto& each) { return each->device() == device; });
  if (known != mounts_.end()) return **known;
  if (mounts_.size() == most_mounts) return *mounts_[device % most_mounts];
  mounts_.push_back(std::make_unique<mount>(*this, device));
  if (mounts_.size() > 1) {
    for (auto* pool : {&cuda_pool_, &host_pool_}) pool->widen(cpu_share(options_, lane_count_), disk_share(options_, cores_));
  }
  return *mounts_.back();
}

engine_stats engine_core::snapshot() const {
  if (forked()) return {};  // a lock may have been taken when the process forked
  auto seen = stats_.snapshot();
  seen.pinned_bytes = budget_.used_bytes.load();
  seen.pinned_peak_bytes = budget_.peak_bytes.load();
  return seen;
}

void engine_core::forget(const path::file_view& closing) {
  if (forked()) return;
  for (auto& each : paths_) {
    if (each != nullptr) each->forget(closing);
  }
}

// --- memory

std::vector<pci_device> engine_core::pci_devices() {
  std::vector<pci_device> found;
  for (const auto& address : kernel().pci_addresses()) found.push_back(kernel().describe_pci(address));
  return found;
}

// --- requests

status engine_core::check(const transfer& what, const io_options& options) const {
  if (what.memory == nullptr && what.length > 0) return {errc::bad_memory, "null pointer"};
  if (options.deadline != deadline_clock::time_point::max() && deadline_clock::now() >= options.deadline) {
    return {errc::timed_out, "the deadline has passed"};
  }
  return check_range(static_cast<std::int64_t>(what.offset), what.length);
}

status engine_core::settle(const staging::place& place, bool is_write, const io_options& options) {
  return options.after_default_stream && is_write && place.on_device() ? place.via->session().synchronize(nullptr) : status();
}

status engine_core::admit(const transfer& what, const io_options& options, staging::place& place) {
  if (auto problem = check(what, options); !problem.ok() || what.length == 0) return problem;
  const auto found = memory_.place_of(what.memory, what.length);
  if (!found) return found.error();
  place = *found;
  return settle(place, what.is_write, options);
}

io_result engine_core::run(file_core& file, const transfer& what, const io_options& options) {
  auto use = file.use(what.is_write);
  if (!use) return {0, use.error()};
  io_result outcome;
  staging::place place;
  outcome.error = admit(what, options, place);
  if (!outcome.ok() || what.length == 0) {
    outcome.error = in_context(outcome.error, what, file);
    stats_.count_request(what.is_write, outcome);
    return outcome;
  }
  const auto forced = forced_path(options);
  const bool inline_path = forced == path_kind::automatic || forced == (place.on_device() ? path_kind::staged : path_kind::posix);
  if (inline_path && what.length <= (place.on_device() ? small_request_bytes : small_host_request_bytes)) {
    outcome = or_without_memory([&] { return run_small(file, what, place, options); }, [] { return io_result{0, no_memory()}; });
    outcome.error = in_context(outcome.error, what, file);
    stats_.count_request(what.is_write, outcome);
    return outcome;
  }
  return run_pieces(file, *std::move(use), what, place, options);
}

io_result engine_core::run_small(file_core& file, const transfer& what, const staging::place& place, const io_options& options) {
  const auto began = now_ns();
  const auto& view = file.view();
  io_result outcome;
  path_kind kind = path_kind::posix;
  if (!place.on_device()) {
    outcome = what.is_write ? path::write_fully(kernel(), view, what.memory, what.length, what.offset)
                            : path::read_fully(kernel(), view, what.memory, what.length, what.offset);
  } else {
    kind = path_kind::staged;
    outcome = run_small_on_device(file, what, place, options);
  }
  if (!outcome.ok()) outcome.error = outcome.error.with_context(to_string(kind));
  stats_.count_piece(kind, outcome.bytes_done, {began, now_ns()}, !outcome.ok());
  return outcome;
}

io_result engine_core::run_small_on_device(file_core& file, const transfer& what, const staging::place& place, const io_options& options) {
  const auto& view = file.view();
  auto& session = place.via->session();
  auto& pool = place.via->pool();
  const auto stream = place.via->small_stream();
  if (!stream) return {0, stream.error()};
  staging::slab slab;
  while (!slab) {
    auto taken = pool.try_take(what.length, session, staging::slab_user::cpu);
    if (!taken) return {0, taken.error()};
    slab = *taken;
    if (slab || file.mount().lanes().help_urgent() || feeders_.pump()) continue;
    if (deadline_clock::now() >= options.deadline) return {0, {errc::timed_out, "the deadline has passed"}};
    pool.wait_for_return(100us);
  }
  const slab_return back{&pool, slab};
  io_result outcome;
  if (what.is_write) {
    outcome.error = session.copy_small(slab.data, what.memory, what.length, *stream);
    if (outcome.ok()) outcome = path::write_fully(kernel(), view, slab.data, what.length, what.offset);
  } else {
    outcome = path::read_fully(kernel(), view, slab.data, what.length, what.offset);
    if (outcome.bytes_done > 0) {
      if (auto copied = session.copy_small(what.memory, slab.data, outcome.bytes_done, *stream); !copied.ok())
        outcome = {0, std::move(copied)};
    }
  }
  return outcome;
}

result<reach> engine_core::readable(file_core& file, const transfer& what) {
  const auto size = kernel().file_size(file.any_descriptor());
  if (!size) return size.error();
  if (*size > what.offset) return reach{std::min(what.length, *size - what.offset), false};
  const auto ends = path::ends_at(kernel(), file.view(), what.offset);
  if (!ends) return ends.error();
  return reach{*ends ? 0 : std::min<std::uint64_t>(what.length, staging::mib), true};  // one piece
}

result<std::vector<planned_piece>> engine_core::plan_request(file_core& file, const transfer& what, const transfer& whole,
                                                             const staging::place& place, const io_options& options, const cutting& how) {
  const auto& view = file.view();
  plan_input input;
  input.offset = what.offset;
  input.length = what.length;
  input.continues = what.offset > whole.offset;
  input.is_continued = what.offset + what.length < whole.offset + whole.length && what.length == request::section_bytes;
  input.is_write = what.is_write;
  input.on_device = place.on_device();
  input.emulated_device = place.emulated();
  input.direct_writes = file.wants_direct_writes();
  input.has_cached = view.cached_fd >= 0;
  input.has_direct = view.direct_fd >= 0;
  input.forced = forced_path(options);
  input.prefer = options.prefer != preference::automatic ? options.prefer : options_.prefer;
  input.lanes = how.lanes;
  input.shared_link = how.shared_link;
  input.few_cores = few_cores();
  input.memory_file_system = file.facts().filesystem_magic == tmpfs_magic;
  input.most_bytes = most_piece_bytes();
  input.refuses = [&](path_kind kind) -> std::optional<std::string> {
    if (kind == path_kind::direct && !options.gpu_direct) return "this request asks not to be GPU-direct";
    return path(kind).refuses({&view, &place, what.is_write, what.offset, what.length});
  };
  input.resident = [&](std::uint64_t offset, std::uint64_t length) -> std::optional<std::uint64_t> {
    const auto bytes = kernel().resident_bytes(view.cached_fd, offset, length);
    return bytes ? std::optional(*bytes) : std::nullopt;
  };
  return make_plan(input);
}

io_result engine_core::run_pieces(file_core& file, file_use use, const transfer& what, const staging::place& place,
                                  const io_options& options) {
  // Where many callers are at work on a device, each reads its own slabs: splitting would only make the copies smaller.
  const in_use counted(place.on_device() ? &active_ : nullptr);
  const unsigned active = active_.load();
  const bool crowded = place.on_device() && !what.is_write && active > 2 && active + lane_count_ > cores_ + cores_ / 4;
  auto* op = new request(shared_from_this(), file, nullptr, what, options);
  op->hold(std::move(use));
  op->lies_in(place);
  op->retain();
  auto planned = or_no_memory([&] { return op->plan({crowded ? 1 : lane_count_, active > 2}); });
  const auto pieces = op->pieces();
  // Disks are slow, and what is waited for long should be slept for.
  const bool soon_over = what.length <= spun_request_bytes && planned.ok() &&
                         std::none_of(pieces.begin(), pieces.end(), [](const planned_piece& piece) { return piece.bypass_cache; });
  if (!planned.ok()) {
    op->fail(std::move(planned));
  } else {
    const auto on_caller = [](const planned_piece& piece) { return piece.path == path_kind::staged && !piece.bypass_cache; };
    const bool alone = (crowded && std::all_of(pieces.begin(), pieces.end(), on_caller)) ||
                       (pieces.size() == 1 && pieces.front().path == path_kind::mapped);
    op->start(alone);
    if (!alone && what.length <= helped_request_bytes) op->help();
  }
  op->wait(soon_over && cores_ > 2 ? 2000us : 0us);
  io_result outcome = op->outcome();
  op->release();
  return outcome;
}

pending* engine_core::run_async(const std::shared_ptr<file_core>& file, const transfer& what, const io_options& options,
                                io_callback& callback) {
  if (only_queues(what.length, options)) return run_small_async(file, what, options, callback);
  auto* op = new request(shared_from_this(), *file, file, what, options);
  op->set_callback(std::move(callback));  // from here on its end is told by calling back
  op->retain();
  auto problem = or_no_memory([&]() -> status {
    auto use = file->use(what.is_write);
    if (!use) return use.error();
    op->hold(*std::move(use));
    if (auto threads = file->mount().lanes().ready(); !threads.ok()) return threads;
    staging::place place;
    if (auto refused = admit(what, options, place); !refused.ok()) return refused;
    op->lies_in(place);
    return op->plan({lane_count_, false});
  });
  if (problem.ok()) {
    op->start(false);
  } else {
    op->fail(std::move(problem));
  }
  return op;
}

pending* engine_core::run_small_async(const std::shared_ptr<file_core>& file, const transfer& what, const io_options& options,
                                      io_callback& callback) {
  auto* op = new small_request(shared_from_this(), file, what);
  op->set_deadline(options.deadline);
  op->set_callback(std::move(callback));
  op->retain();
  auto problem = or_no_memory([&]() -> status {
    auto use = file->use(what.is_write);
    if (!use) return use.error();
    op->hold(*std::move(use));
    if (auto refused = check(what, options); !refused.ok()) return refused;
    if (auto threads = file->mount().lanes().ready(); !threads.ok()) return threads;
    return op->watch();
  });
  if (problem.ok() && what.length > 0) {
    file->mount().small().add(*op);
  } else {
    op->end({0, std::move(problem)});
  }
  return op;
}

result<plan> engine_core::explain(file_core& file, memory_kind memory, const transfer& what, const io_options& options) {
  if (auto problem = check_range(static_cast<std::int64_t>(what.offset), what.length); !problem.ok()) return problem;
  const auto use = file.use();  // a question: the file need not be open for it
  if (!use) return use.error();
  const auto place = memory == memory_kind::device ? memory_.any_device_place() : staging::place{};
  transfer part = what;
  if (!what.is_write) {
    const auto size = kernel().file_size(file.any_descriptor());
    if (!size) return in_context(size.error(), what, file);
    part.length = *size > what.offset ? std::min(what.length, *size - what.offset) : 0;
  }
  auto pieces = plan_request(file, part, part, place, options, {lane_count_, false});
  plan told;
  if (pieces) {
    for (const auto& piece : *pieces) {
      const auto reason = core::describe(piece.reason);
      if (!told.parts.empty() && told.parts.back().path == piece.path && told.parts.back().reason == reason) {
        told.parts.back().length += piece.length;
      } else {
        told.parts.push_back({piece.offset, piece.length, piece.path, reason});
      }
    }
    remark(told, file, place, what);
  }
  if (!pieces) return in_context(pieces.error(), what, file);
  return told;
}

void engine_core::remark(plan& told, file_core& file, const staging::place& place, const transfer& what) {
  const auto& view = file.view();
  if (const auto cached = kernel().resident_bytes(file.any_descriptor(), what.offset, what.length)) told.cached_bytes = *cached;
  if (place.on_device()) {
    if (place.emulated()) told.remarks.push_back(fmt::format("no GPU: {}", memory_.cuda_status().message()));
    for (const auto kind : {path_kind::direct, path_kind::mapped}) {
      if (auto why = path(kind).refuses({&view, &place, what.is_write, what.offset, what.length})) {
        told.remarks.push_back(fmt::format("{} is not used: {}", to_string(kind), *why));
      }
    }
  }
  if (!file.direct_problem().ok()) told.remarks.push_back(fmt::format("no direct I/O: {}", file.direct_problem().message()));
  if (!file.cached_problem().ok()) told.remarks.push_back(fmt::format("no page cache: {}", file.cached_problem().message()));
  if (auto rings = file.mount().disk().available(); !rings.ok()) {
    told.remarks.push_back(
        fmt::format("io_uring cannot be used ({}): direct reads go by plain system calls, with more CPU time", rings.message()));
  }
  if (few_cores()) told.remarks.push_back(fmt::format("this process may use {} cores: copies through the CPU are bound by them", cores_));
}

status engine_core::gpu_direct_status() {
  if (forked()) return {errc::forked, "the engine belongs to the parent process"};
  return path::cufile_library::possible(kernel());
}

std::chrono::microseconds engine_core::batch_spin() const noexcept { return !few_cores() ? 1000us : 0us; }

pending* engine_core::submit(std::span<const io_request> requests, const std::vector<std::shared_ptr<file_core>>& files,
                             const io_options& options, io_callback& callback, item_callback& each) {
  auto* made = new batch_request(shared_from_this(), requests.size());
  made->set_item_callback(std::move(each));  // from here on their ends are told by calling back
  made->set_deadline(options.deadline);
  made->set_callback(std::move(callback));
  made->retain();
  made->start(requests, files, options);
  return made;
}

status engine_core::run_on_stream(const std::shared_ptr<file_core>& file, const stream_request& what, bool is_write) {
  return stream_operation::queue(shared_from_this(), file, what, is_write);
}

seams real_seams(const engine_options& options) {
  return {sys::make_kernel(), options.use_cuda ? device::make_cuda_driver() : nullptr, device::make_host_driver()};
}

}  // namespace penstock::core
