#include "cufile/driver.hpp"

#include <pthread.h>
#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <utility>

#include <fmt/format.h>

#include "cufile/addresses.hpp"
#include "cufile/denial.hpp"
#include "cufile/errors.hpp"
#include "cufile/raw.hpp"

namespace penstock::cufile {

namespace {

std::atomic<driver*> the_driver{nullptr};

// Threads that do not exist in the child may hold the parent's locks, so the child takes no lock and abandons the old state.
void forget_parent() { the_driver.store(nullptr); }

// Runs when the library is loaded, not on the first call: a child forked during that call would wait for it forever.
[[maybe_unused]] const int registered = pthread_atfork(nullptr, nullptr, forget_parent);

constexpr const char* version_variable = "PENSTOCK_CUFILE_VERSION";

// Returns null if the variable is not set.
const char* asked_version() {
  const char* text = std::getenv(version_variable);  // NOLINT(concurrency-mt-unsafe): read only
  return text == nullptr || *text == '\0' ? nullptr : text;
}

int version_now() {
  const char* text = asked_version();
  return text == nullptr ? advertised_version : parse_version(text).value_or(advertised_version);
}

// Per process, not per driver: a forked child continues counting, so its numbers never match any of the parent's.
std::uint64_t next_opening() {
  static std::atomic<std::uint64_t> latest{0};
  return latest.fetch_add(1) + 1;
}

// Translates an adopt() error into cuFile's codes.
CUfileError_t registration_error(const status& problem) {
  if (problem.domain() == error_domain::os && problem.native() == EBADF) return answer(CU_FILE_INVALID_VALUE);
  if (problem.code() == errc::invalid_argument) return answer(CU_FILE_INVALID_FILE_OPEN_FLAG);
  return answer(problem);
}

// The kernel assigns each descriptor the lowest free number.
bool in_last_quarter(int descriptor) {
  rlimit most{};
  return ::getrlimit(RLIMIT_NOFILE, &most) == 0 && static_cast<rlim_t>(descriptor) >= most.rlim_cur - most.rlim_cur / 4;
}

}  // namespace

std::optional<int> parse_version(std::string_view text) noexcept {
  constexpr int least = 15;
  constexpr int most = 20;
  int minor = 0;
  if (!text.starts_with("1.")) return {};
  const auto [end, problem] = std::from_chars(text.data() + 2, text.data() + text.size(), minor);
  if (problem != std::errc() || end != text.data() + text.size() || minor < least || minor > most) return {};
  return 1000 + 10 * minor;
}

int driver::version() const { return is_open() ? version_.load() : version_now(); }

// Never destroyed: clients call it from their own static destructors.
driver& driver::current() noexcept {
  auto* seen = the_driver.load(std::memory_order_acquire);
  if (seen != nullptr) return *seen;
  auto* fresh = new driver;
  if (the_driver.compare_exchange_strong(seen, fresh)) return *fresh;
  delete fresh;
  return *seen;
}

// --- lifetime

CUfileError_t driver::open() {
  const std::lock_guard guard(lock_);
  const auto opened = open_locked();
  if (opened.err == CU_FILE_SUCCESS) ++uses_;
  return opened;
}

CUfileError_t driver::open_if_closed() {
  if (is_open()) return answer(CU_FILE_SUCCESS);
  const std::lock_guard guard(lock_);
  const auto opened = open_locked();
  if (opened.err == CU_FILE_SUCCESS && uses_ == 0) uses_ = 1;
  return opened;
}

CUfileError_t driver::open_locked() {
  if (is_open()) return answer(CU_FILE_SUCCESS);
  const auto opening = settings_.open();
  take_settings();
  for (const auto& remark : opening.remarks) warn(remark);
  version_ = version_now();
  if (const char* asked = asked_version(); asked != nullptr && !parse_version(asked)) {
    warn(fmt::format("environment variable {}={}: expected 1.15 to 1.20; using {} instead", version_variable, asked, version_.load()));
  }
  if (!opening.problem.ok()) {
    log_.write(log_level::error, "{}", opening.problem.message());
    say_once(fmt::format("cuFile cannot open: {} (5002, CU_FILE_DRIVER_INVALID_PROPS)", opening.problem.message()));
    settings_.close();
    log_.close();
    return answer(CU_FILE_DRIVER_INVALID_PROPS);
  }
  if (const auto found = find_engine(); found.err != CU_FILE_SUCCESS) {
    settings_.close();
    log_.close();
    return found;
  }
  note_direct_way();
  opening_.store(next_opening(), std::memory_order_release);
  open_.store(true, std::memory_order_release);
  was_open_.store(true);
  log_.write(log_level::info, "open");
  engine_->prepare();
  return answer(CU_FILE_SUCCESS);
}

// The shared engine keeps the settings of whichever caller opened it first.
CUfileError_t driver::find_engine() {
  const auto now = settings_.values();
  if (!engine_) {
    auto made = engine::shared([&](engine_options& options) { apply(now, options); });
    if (!made) {
      log_.write(log_level::error, "{}", made.error().message());
      return answer(made.error());
    }
    engine_ = std::move(*made);
  }
  for (auto& remark : not_applied(now, engine_->options())) warn(std::move(remark));
  return answer(CU_FILE_SUCCESS);
}

// Does nothing unless statistics are on, because this reads files in /proc.
void driver::note_direct_way() {
  if (counters_.level() > 0) counters_.set_direct_way(nvidia_fs().major_version > 0 ? direct_way::nvidia_fs : direct_way::p2pdma);
}

void driver::take_settings() {
  const auto now = settings_.values();
  (void)log_.open(now);  // silent on failure: a log that cannot be written must not stop the program's I/O
  const auto rules = rules_of(now);
  rules_ = rules;
  only_direct_files_ = rules.direct && !now[CUFILE_PARAM_PROPERTIES_ALLOW_COMPAT_MODE];
  past_cache_ = wants_direct_io(now);
  most_batch_entries_ = cufile::most_batch_entries(now);
  {
    const std::unique_lock guard(denied_lock_);
    denied_ = now.denied;
  }
  allows_host_memory_ = now[CUFILE_PARAM_PROPERTIES_ALLOW_SYSTEM_MEMORY];
  allows_streams_ = now[CUFILE_PARAM_EXECUTION_PARALLEL_IO] && now[CUFILE_PARAM_EXECUTION_MAX_IO_THREADS] > 0;
  const auto level = static_cast<int>(now[CUFILE_PARAM_PROFILE_STATS]);
  if (level > 0) {
    counters_.set_level(level);
    counters_.start();
  }
}

CUfileError_t driver::close() {
  const std::lock_guard guard(lock_);
  if (uses_ == 0) return answer(CU_FILE_DRIVER_NOT_INITIALIZED);
  if (--uses_ > 0) return answer(CU_FILE_SUCCESS);
  open_.store(false, std::memory_order_release);
  if (engine_) detail::await_preparation(*engine_);  // the program may be about to destroy its CUDA context
  opening_.store(0, std::memory_order_release);
  release_all();
  settings_.close();
  log_.write(log_level::info, "closed");
  log_.close();
  return answer(CU_FILE_SUCCESS);
}

void driver::work_with(std::optional<engine> owner) {
  const std::lock_guard guard(lock_);
  engine_ = std::move(owner);
}

// Each step waits for calls that still use the objects that it releases.
void driver::release_all() {
  batches_.remove_all([](batch_state& each) { each.stop(); });
  files_.remove_all([](registered_file&) {});
  buffers_.clear();
  const std::unique_lock guard(streams_lock_);
  streams_.clear();
}

long driver::uses() {
  const std::lock_guard guard(lock_);
  return uses_;
}

void driver::log_failure(const char* call, const status& outcome) noexcept {
  if (!outcome.ok() && log_.wants(log_level::error)) log_.write(log_level::error, "{}: {}", call, outcome.message());
}

void driver::warn(std::string text) {
  if (log_.wants(log_level::notice)) return log_.write(log_level::error, "{}", text);
  say_once(fmt::format("cuFile: {}", text));
}

void driver::say_once(std::string text) {
  constexpr std::size_t most_lines = 256;
  const std::lock_guard guard(said_lock_);
  if (said_.size() < most_lines && said_.insert(text).second) say_on_stderr(text);
}

bool driver::was_used() {
  const std::lock_guard guard(lock_);
  return engine_.has_value();
}

CUfileError_t driver::counted_as(counted what, CUfileError_t outcome) {
  const bool ok = outcome.err == CU_FILE_SUCCESS;
  counters_.count(what, ok);
  if (!is_open()) return outcome;
  if (what == counted::handle_register) detail::note_call(owner(), detail::noted_call::handle_register, ok);
  if (what == counted::buffer_register) detail::note_call(owner(), detail::noted_call::buffer_register, ok);
  if (what == counted::batch_submit) detail::note_call(owner(), detail::noted_call::batch_submit, ok);
  return outcome;
}

// --- files

descriptor_set::claim descriptor_set::add(int number, int witness, const file_identity& file) {
  const std::lock_guard guard(lock_);
  auto& known = members_[number];
  const bool taken = std::ranges::any_of(
      known, [&](const member& each) { return each.file == file && (each.witness == number || share_open_file(each.witness, number)); });
  if (taken) return {};
  known.push_back({number, witness, file});
  return {*this, std::prev(known.end())};
}

void descriptor_set::release(std::list<member>::iterator place) noexcept {
  const std::lock_guard guard(lock_);
  const auto known = members_.find(place->number);
  known->second.erase(place);
  if (known->second.empty()) members_.erase(known);
}

// Uses a duplicate unless descriptors are scarce: the last quarter of the descriptors is left to programs that register nearly as many
// files as they may open.
result<file> driver::adopt(int descriptor, bool may_lend, std::optional<file_identity>& lent_as) {
  adopt_options how{.direct_writes = past_cache_, .duplicate = true};
  const auto not_direct = denial_of(descriptor);
  auto adopted = detail::adopt(owner(), descriptor, how, not_direct);
  if (!may_lend) return adopted;
  const bool is_scarce = adopted ? in_last_quarter(adopted->descriptor().value_or(0))
                                 : adopted.error().native() == EMFILE || adopted.error().native() == ENFILE;
  if (!is_scarce) return adopted;
  how.duplicate = false;
  lent_as = identity_of(descriptor);
  return detail::adopt(owner(), descriptor, how, not_direct);
}

CUfileError_t driver::register_file(int descriptor, CUfileHandle_t* handle, bool may_lend, status* reason) {
  std::optional<file_identity> lent_as;
  auto adopted = adopt(descriptor, may_lend, lent_as);
  const auto opened_as = identity_of(descriptor);
  auto claimed =
      adopted && opened_as ? descriptors_.add(descriptor, adopted->descriptor().value_or(descriptor), *opened_as) : descriptor_set::claim();
  if (adopted && !claimed) return answer(CU_FILE_HANDLE_ALREADY_REGISTERED);
  const status problem = adopted ? refusal(*adopted) : adopted.error();
  if (!problem.ok()) {
    log_.write(log_level::error, "cuFileHandleRegister: {}", problem.message());
    if (reason != nullptr) *reason = problem;
    return adopted ? answer(CU_FILE_IO_NOT_SUPPORTED) : registration_error(problem);
  }
  auto target = std::make_shared<file>(std::move(*adopted));
  auto* made = files_.add(std::unique_ptr<registered_file>(new registered_file{std::move(claimed), std::move(target), lent_as}));
  if (made == nullptr) return answer(CU_FILE_NOMEM_ERROR);
  *handle = made;
  return answer(CU_FILE_SUCCESS);
}

slots<registered_file>::user driver::find_file(CUfileHandle_t handle) noexcept {
  auto found = files_.find(handle);
  if (found && found->lent_as && found->lent_as != identity_of(found->target->descriptor().value_or(-1))) return {};
  return found;
}

std::string driver::denial_of(int descriptor) {
  const std::shared_lock guard(denied_lock_);
  return denied_.empty() ? std::string() : denial(denied_, place_of(descriptor));
}

// Without compatibility mode, a program requires GPU-direct transfers. Checks a single block, because the result depends neither on the
// file's size nor on how it was opened. If no GPU is in use, this only determines whether GPU-direct is allowed; the first transfer
// determines the rest.
status driver::refusal(const file& target) const {
  if (!only_direct_files_) return {};
  constexpr std::uint64_t block = 4096;
  const std::string_view device = owner().cuda_status().ok() ? "cuda:0" : "host:0";
  auto asked = options();
  asked.cufile.only_gpu_direct = true;
  const auto planned = owner().explain(target, device, block, 0, true, asked);
  return planned ? status() : planned.error().with_context("allow_compat_mode is false");
}

// --- memory

bool driver::refuses(const void* memory) const {
  if (allows_host_memory_) return false;
  const auto facts = owner().describe(memory);
  return facts && facts->kind != memory_kind::device;
}

CUfileError_t driver::register_buffer(const void* base, std::size_t length, buffer_use use) {
  int gpu = counters::no_gpu;
  const auto outcome = buffers_.add(owner(), base, length, use, allows_host_memory_, gpu);
  counters_.count_buffer(gpu, counted::buffer_register, outcome.err == CU_FILE_SUCCESS);
  return outcome;
}

CUfileError_t driver::deregister_buffer(const void* base) {
  if (base == nullptr) return answer(CU_FILE_INVALID_VALUE);
  if (!is_open()) {
    const std::lock_guard until_closed(lock_);
    if (!is_open()) return answer(was_open_.load() ? CU_FILE_DRIVER_CLOSING : CU_FILE_DRIVER_NOT_INITIALIZED);
  }
  int gpu = counters::no_gpu;
  const auto outcome = buffers_.remove(base, gpu);
  counters_.count_buffer(gpu, counted::buffer_deregister, outcome.err == CU_FILE_SUCCESS);
  return outcome;
}

// --- streams

CUfileError_t driver::register_stream(CUstream stream, unsigned flags) {
  constexpr unsigned known = CU_FILE_STREAM_FIXED_BUF_OFFSET | CU_FILE_STREAM_FIXED_FILE_OFFSET | CU_FILE_STREAM_FIXED_FILE_SIZE |
                             CU_FILE_STREAM_PAGE_ALIGNED_INPUTS;
  if ((flags & ~known) != 0) return answer(CU_FILE_INVALID_VALUE);
  const std::unique_lock guard(streams_lock_);
  return answer(streams_.emplace(stream, flags).second ? CU_FILE_SUCCESS : CU_FILE_INVALID_VALUE);
}

CUfileError_t driver::deregister_stream(CUstream stream) {
  const std::unique_lock guard(streams_lock_);
  return answer(streams_.erase(stream) == 1 ? CU_FILE_SUCCESS : CU_FILE_INVALID_VALUE);
}

unsigned driver::flags_of(CUstream stream) {
  const std::shared_lock guard(streams_lock_);
  const auto found = streams_.find(stream);
  return found == streams_.end() ? 0 : found->second;
}

// --- peer to peer

CUfileError_t driver::set_p2p(int storage, int flags) {
  if (storage < 0 || storage >= CU_FILE_MAX_TARGET_TYPES) return answer(CU_FILE_INVALID_VALUE);
  if (is_open()) return answer(CU_FILE_DRIVER_ALREADY_OPEN);
#if defined(__aarch64__)
  constexpr int allowed = 1 << CUFILE_C2C;
#else
  constexpr int allowed = 1 << CUFILE_P2PDMA;
#endif
  if ((flags & ~allowed) != 0) return answer(CU_FILE_INVALID_VALUE);
  p2p_[static_cast<std::size_t>(storage)].store(flags);
  return answer(CU_FILE_SUCCESS);
}

CUfileError_t driver::get_p2p(int storage, CUfileP2PFlags_t* flags) {
  if (!is_writable(flags) || storage < 0 || storage >= CU_FILE_MAX_TARGET_TYPES) return answer(CU_FILE_INVALID_VALUE);
  store_raw(flags, p2p_[static_cast<std::size_t>(storage)].load());
  return answer(CU_FILE_SUCCESS);
}

}  // namespace penstock::cufile
