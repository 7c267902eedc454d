#include "core/engine_core.hpp"

#include <algorithm>
#include <mutex>
#include <string_view>
#include <system_error>

#include <fmt/format.h>

#include "base/no_memory.hpp"
#include "base/output.hpp"
#include "base/printable.hpp"
#include "core/config.hpp"
#include "core/gate.hpp"
#include "core/preparation.hpp"
#include "core/request/admission.hpp"
#include "path/cufile_library.hpp"
#include "remote/net/url.hpp"
#include "source/local_file.hpp"
#include "staging/worker.hpp"
#include "stats/advisor.hpp"
#include "stats/summary.hpp"
#include "sys/memory_share.hpp"
#include "sys/nvtx.hpp"

namespace penstock::core {

namespace {

// The last engine whose thread calls the driver in the background. The exit handler below waits for that thread. Exit handlers registered
// after the driver's run before it.
constinit std::atomic<engine_core*> preparing_core{nullptr};  // NOLINT(cppcoreguidelines-avoid-non-const-global-variables)

// Beyond this number, file systems share mounts.
constexpr std::size_t most_mounts = 64;

void warn_that_nvtx_is_missing() noexcept {
  static std::once_flag once;
  std::call_once(once, [] {
    print_error(
        "penstock: PENSTOCK_NVTX (use_nvtx, profile.nvtx) has no effect: this library was built without the NVTX headers. "
        "Install nvidia-nvtx or the CUDA toolkit and rebuild.\n");
  });
}

}  // namespace

result<std::shared_ptr<engine_core>> engine_core::make(const engine_options& options, seams doors) {
  if (options.pinned_budget_bytes < staging::least_budget_bytes) {
    return status(errc::invalid_argument, fmt::format("pinned_budget_bytes is {}; it must be at least {}", options.pinned_budget_bytes,
                                                      staging::least_budget_bytes));
  }
  if (options.gpu_direct_piece_bytes % (std::size_t{64} << 10) != 0) {
    return status(errc::invalid_argument,
                  fmt::format("gpu_direct_piece_bytes is {}; it must be a multiple of 64 KiB", options.gpu_direct_piece_bytes));
  }
  if (options.lanes > 64) return status(errc::invalid_argument, fmt::format("lanes is {}; it must be at most 64", options.lanes));
  if (options.use_nvtx && !sys::has_nvtx()) warn_that_nvtx_is_missing();
  auto within = options;
  within.pinned_budget_bytes = sys::share_of_memory(*doors.kernel, options.pinned_budget_bytes, staging::least_budget_bytes);
  std::shared_ptr<engine_core> made(new engine_core(within, std::move(doors)), &engine_core::destroy);
  gate::add(made);
  return made;
}

// The last handle may be destroyed on a lane (in a callback), which cannot join itself. The watcher thread, which exists whenever a lane
// does, destroys the engine in that case. A forked child has none of these threads.
void engine_core::destroy(engine_core* core) {
  if (core->forked()) return;
  core->log_summary();
  core->stats().end_telling();
  const bool waits_for_itself = staging::on_worker_thread();
  if (waits_for_itself && core->feeders().end_with([](void* ended) { delete static_cast<engine_core*>(ended); }, core)) return;
  delete core;
}

engine_core::~engine_core() {
  await_preparation();
  auto* here = this;
  preparing_core.compare_exchange_strong(here, nullptr);
}

void engine_core::await_preparation() noexcept {
  if (forked()) return;
  const std::lock_guard guard(preparing_);
  if (preparer_.joinable()) preparer_.join();
}

// If a thread is still preparing another context, this context is not prepared.
void engine_core::prepare() noexcept {
  if (forked() || is_preparing_.load()) return;
  const auto current = memory().current_context();
  if (!current) return;
  (void)or_no_memory([&]() -> status {
    const std::lock_guard guard(preparing_);
    if (is_preparing_.exchange(true)) return {};
    if (preparer_.joinable()) preparer_.join();  // it has finished
    preparing_core.store(this);
    static const int registered = std::atexit([] {
      if (auto* const last = preparing_core.load(); last != nullptr) last->await_preparation();
    });
    (void)registered;
    try {
      preparer_ = std::thread([this, at = *current] {
        staging::become_worker("penstock-warm");
        (void)or_no_memory([&]() -> status {
          const auto via = memory().link_to_context(at);
          if (via) prepare_here(**via);
          return via.error();
        });
        is_preparing_.store(false);
      });
    } catch (const std::system_error& problem) {
      is_preparing_.store(false);
      return staging::no_worker(problem);
    } catch (...) {
      is_preparing_.store(false);
      throw;
    }
    return {};
  });
}

mount& engine_core::mount_of(std::uint64_t device) {
  const std::lock_guard guard(lock_);
  const auto known = std::find_if(mounts_.begin(), mounts_.end(), [&](const auto& each) { return each->device() == device; });
  if (known != mounts_.end()) return **known;
  if (mounts_.size() == most_mounts) return *mounts_[device % most_mounts];
  mounts_.push_back(std::make_unique<mount>(*this, device));
  if (mounts_.size() > 1) widen_pools();
  return *mounts_.back();
}

result<std::shared_ptr<file_core>> engine_core::open(const std::string& path, const open_options& options) {
  if (forked()) return status(errc::forked, fmt::format("open {}: the engine belongs to the parent process", path));
  if (source::remote::is_url(path)) return open_remote(path, {}, options);
  auto opened = source::local_file::open(kernel(), source::remote::file_path_of(path), options);
  if (!opened) return opened.error();
  return open(*std::move(opened), options);
}

result<std::shared_ptr<file_core>> engine_core::open_remote(const std::string& url, const remote_options& how,
                                                            const open_options& options) {
  const auto refuse = [&](errc code, std::string_view why) {
    return status(code, fmt::format("open {}: {}", source::remote::shown_text(url), why));
  };
  if (forked()) return refuse(errc::forked, "the engine belongs to the parent process");
  if (options.write || options.create || options.truncate)
    return refuse(errc::unsupported, "objects on servers can only be opened for reading");
  auto opened = servers().open(url, how);
  if (!opened) return opened.error().with_context("open");
  return open(*std::move(opened), {.cache = options.cache, .bytes_per_second = options.bytes_per_second});
}

result<std::shared_ptr<file_core>> engine_core::adopt(int descriptor, const adopt_options& options, std::string not_direct) {
  if (forked()) return status(errc::forked, "adopt: the engine belongs to the parent process");
  auto lent = source::local_file::adopt(kernel(), descriptor,
                                        {.name = options.name, .direct_writes = options.direct_writes, .duplicate = options.duplicate});
  if (!lent) return lent.error();
  return open(*std::move(lent), {.cache = options.cache, .bytes_per_second = options.bytes_per_second}, std::move(not_direct));
}

std::shared_ptr<file_core> engine_core::open(std::unique_ptr<source::source> from, const open_options& options, std::string not_direct) {
  auto& on = mount_of(from->facts().device);
  mount_parts parts{&on, &on.lanes(), &on.waiting(false), &on.cold_speeds(), nullptr, nullptr};
  if (from->facts().from_server) {
    parts.answer_times = &on.answer_times();
    parts.thread_answer_times = &on.thread_answer_times();
    const auto most = kernel().most_read_at_once(on.device());
    for (auto* times : {parts.answer_times, parts.thread_answer_times}) times->set_most_read(most);
  }
  return file_core::make(shared_from_this(), parts, std::move(from), options, std::move(not_direct));
}

std::size_t engine_core::trim() {
  memory_left().forget();
  give_up_pinned_pages_where_short();
  (void)kept_pages().trim();
  trim_paths();
  ahead().give_back();
  const std::size_t trimmed = trim_pools();
  feeders().trim();
  const std::lock_guard guard(lock_);
  for (const auto& each : mounts_) each->disk().release_trimmed();
  return trimmed;
}

// cuda-checkpoint does not support CUDA IPC.
std::string engine_core::obstacle() const {
  const auto count = forked() ? 0 : memory().opened_shared();
  return count > 0 ? fmt::format("the device memory of another process ({} in use)", count) : std::string();
}

status engine_core::rest(deadline_clock::time_point until) {
  if (forked()) return {};
  await_preparation();
  if (auto late = rest_servers(until); !late.ok()) return late;
  status problem;
  {
    const std::lock_guard guard(lock_);
    for (const auto& each : mounts_) {
      if (auto stays = each->rest(); !stays.ok()) problem = std::move(stays);
    }
  }
  auto stays = rest_shared();
  return problem.ok() ? stays : problem;
}

void engine_core::wake() noexcept {
  if (!forked()) wake_shared();
}

stats::board_teller::answer engine_core::tell() {
  const auto seen = snapshot();
  return {seen.pinned_bytes, seen.pinned_peak_bytes, seen.pinned_file_bytes, seen.pinned_file_drops, under_way()};
}

std::vector<request_info> engine_core::under_way() {
  auto all = admission::under_way(*this);
  if (beside() != nullptr && !forked()) beside()->add_under_way(all);
  return all;
}

std::string engine_core::summary() {
  auto gpu_direct = forked() ? status(errc::forked, "the engine belongs to the parent process") : path::cufile_library::possible(kernel());
  return stats::summarize(snapshot(), paths(), gpu_direct);
}

std::vector<penstock::advice> engine_core::advice() const {
  auto seen = snapshot();
  seen.usage.copy_ns_per_mib = stats::measured_copy_ns_per_mib();
  return stats::advise(seen, {});
}

// Reads only counters, because calls to the GPU driver are not safe while the process exits.
void engine_core::log_summary() noexcept {
  if (!options().log_summary || forked() || logged_.exchange(true)) return;
  (void)or_no_memory([&]() -> status {
    const std::string lines = summary() + stats::advice_lines(advice());
    std::string text;
    for (std::string_view rest = lines; !rest.empty();) {
      const auto line = rest.substr(0, rest.find('\n'));
      text += fmt::format("penstock: {}\n", printable_text(std::string(line)));  // file names may contain any character
      rest.remove_prefix(line.size() + 1);
    }
    print_error(text);
    return {};
  });
}

seams real_seams(const engine_options& options) {
  seams doors{sys::make_kernel(), options.use_cuda ? device::make_cuda_driver() : nullptr, device::make_host_driver()};
  if (options.use_board) doors.board = stats::board::of_process();
  doors.web = read_web_environment();
  doors.variable = &environment_variable;
  return doors;
}

}  // namespace penstock::core
