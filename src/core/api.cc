// The public classes: thin handles over the core.
#include <array>
#include <atomic>
#include <new>
#include <utility>

#include <fmt/format.h>

#include "base/no_memory.hpp"
#include "base/shown_urls.hpp"
#include "core/engine_core.hpp"
#include "core/explain.hpp"
#include "core/gate.hpp"
#include "core/pinned_entry.hpp"
#include "core/preparation.hpp"
#include "core/request/asynchronous.hpp"
#include "core/request/batch_request.hpp"
#include "core/request/blocking.hpp"
#include "core/request/collector.hpp"
#include "core/stream/stream_queue.hpp"
#include "core/upload_core.hpp"
#include "path/cufile_library.hpp"
#include "penstock/engine.hpp"
#include "remote/net/url.hpp"

namespace penstock {

namespace {

using namespace std::chrono_literals;

status closed_file() { return {errc::closed, "the file is closed"}; }
status left_behind() { return {errc::forked, "the request is running in the parent process"}; }
status no_engine() { return {errc::closed, "the engine was moved from"}; }
status no_upload() { return {errc::closed, "the upload was discarded"}; }

core::transfer reading(void* memory, std::uint64_t length, std::int64_t offset) {
  return {static_cast<std::byte*>(memory), length, static_cast<std::uint64_t>(offset), false};
}

core::transfer writing(const void* memory, std::uint64_t length, std::int64_t offset) {
  // Writes only read the memory, so both directions share one type.
  return {static_cast<std::byte*>(const_cast<void*>(memory)), length, static_cast<std::uint64_t>(offset), true};
}

std::chrono::steady_clock::time_point after(std::chrono::nanoseconds timeout) {
  const auto now = std::chrono::steady_clock::now();
  const auto most = std::chrono::steady_clock::time_point::max() - now;
  return timeout < most ? now + timeout : std::chrono::steady_clock::time_point::max();
}

// Reports a request that cannot start to its callback before the call returns.
core::operation* refuse(const status& why, const io_callback& callback) {
  if (callback) callback({0, why});
  return core::refused(why);
}

io_result without_memory() { return {0, no_memory()}; }

operation begin(const std::shared_ptr<core::file_core>& file, const core::transfer& what, const io_options& options,
                io_callback& callback) {
  const core::calling call;
  if (file == nullptr) return operation(refuse(closed_file(), callback));
  return operation(or_without_memory([&] { return core::begin(file->runtime(), file, what, options, callback); },
                                     [&] { return refuse(no_memory(), callback); }));
}

void release(core::operation* state) {
  if (state != nullptr) state->release();
}

// engine::shared(). Never destroyed, because it may be used after any static destructor. Takes no lock, because a fork could leave it
// locked in the child.
constinit std::atomic<std::shared_ptr<core::engine_core>*> shared_core{
    nullptr};  // NOLINT(cppcoreguidelines-avoid-non-const-global-variables)

[[gnu::destructor]] void log_shared_summary() {
  if (auto* const seen = shared_core.load(std::memory_order_acquire); seen != nullptr) (*seen)->log_summary();
}

}  // namespace

// --- operation and batch

operation::operation(operation&& other) noexcept : state_(std::exchange(other.state_, nullptr)) {}
operation& operation::operator=(operation&& other) noexcept {
  std::swap(state_, other.state_);
  return *this;
}
operation::~operation() { release(state_); }

io_result operation::wait() {
  if (state_ == nullptr) return {0, {errc::closed, "no operation"}};
  state_->wait(state_->spin());
  if (!state_->done()) return {0, left_behind()};
  return state_->outcome();
}
bool operation::wait_for(std::chrono::nanoseconds timeout) {
  return state_ == nullptr || state_->wait_until(after(timeout), state_->spin());
}
bool operation::done() const noexcept { return state_ == nullptr || state_->done(); }
void operation::cancel() noexcept {
  if (state_ != nullptr) state_->cancel();
}

batch::batch(batch&& other) noexcept : state_(std::exchange(other.state_, nullptr)), count_(std::exchange(other.count_, 0)) {}
batch& batch::operator=(batch&& other) noexcept {
  std::swap(state_, other.state_);
  std::swap(count_, other.count_);
  return *this;
}
batch::~batch() { release(state_); }

std::vector<io_result> batch::wait() {
  if (state_ == nullptr) return {};
  if (auto* engine = state_->runtime_if_any()) {
    static_cast<core::batch_request*>(state_)->help();
    state_->wait(engine->batch_spin());
  }
  if (!state_->done()) return std::vector<io_result>(count_, {0, left_behind()});
  if (state_->item_count() < count_) return std::vector<io_result>(count_, state_->outcome());  // // not enough memory to start
  return state_->items();
}
bool batch::wait_for(std::chrono::nanoseconds timeout) {
  if (state_ == nullptr) return true;
  auto* const engine = state_->runtime_if_any();
  return engine == nullptr || state_->wait_until(after(timeout), engine->batch_spin());
}
bool batch::done() const noexcept { return state_ == nullptr || state_->done(); }
void batch::cancel() noexcept {
  if (state_ != nullptr) state_->cancel();
}

// --- pinned_range

std::uint64_t pinned_range::size() const noexcept { return held_ == nullptr ? 0 : held_->size(); }

status pinned_range::problem() const { return held_ == nullptr ? status(errc::closed, "nothing is pinned") : held_->problem(); }

// --- file

file::file(file&&) noexcept = default;
file& file::operator=(file&& other) noexcept {
  if (this != &other) {
    if (core_ != nullptr) (void)core_->close();
    core_ = std::move(other.core_);
  }
  return *this;
}
file::~file() {
  if (core_ != nullptr) (void)core_->close();
}

io_result file::read(void* memory, std::uint64_t length, std::int64_t offset, const io_options& options) const {
  const core::calling call;
  if (core_ == nullptr) return {0, closed_file()};
  return or_without_memory([&] { return core::run(core_->runtime(), *core_, reading(memory, length, offset), options); }, &without_memory);
}

io_result file::write(const void* memory, std::uint64_t length, std::int64_t offset, const io_options& options) const {
  const core::calling call;
  if (core_ == nullptr) return {0, closed_file()};
  return or_without_memory([&] { return core::run(core_->runtime(), *core_, writing(memory, length, offset), options); }, &without_memory);
}

operation file::read_async(void* memory, std::uint64_t length, std::int64_t offset, const io_options& options, io_callback callback) const {
  return begin(core_, reading(memory, length, offset), options, callback);
}

operation file::write_async(const void* memory, std::uint64_t length, std::int64_t offset, const io_options& options,
                            io_callback callback) const {
  return begin(core_, writing(memory, length, offset), options, callback);
}

bool file::starts_without_blocking(std::uint64_t length, const io_options& options) const noexcept {
  return core_ != nullptr && core::starts_at_once(*core_, length, options);
}

status file::read_on_stream(const stream_request& request) const {
  const core::calling call;
  if (core_ == nullptr) return closed_file();
  return or_no_memory([&] { return core::queue_on_stream(core_->runtime().shared_from_this(), core_, request, false); });
}

status file::write_on_stream(const stream_request& request) const {
  const core::calling call;
  if (core_ == nullptr) return closed_file();
  return or_no_memory([&] { return core::queue_on_stream(core_->runtime().shared_from_this(), core_, request, true); });
}

status file::sync() const {
  const core::calling call;
  if (core_ == nullptr) return closed_file();
  return or_no_memory([&] { return core_->sync(); });
}

status file::truncate(std::uint64_t size) const {
  const core::calling call;
  if (core_ == nullptr) return closed_file();
  return or_no_memory([&] { return core_->truncate(size); });
}
result<int> file::descriptor() const {
  if (core_ == nullptr) return closed_file();
  return or_no_memory([&] { return core_->descriptor(); });
}
result<std::uint64_t> file::size() const {
  const core::calling call;
  if (core_ == nullptr) return closed_file();
  return or_no_memory([&] { return core_->size(); });
}

result<pinned_range> file::pin(std::uint64_t offset, std::uint64_t length) const {
  const core::calling call;
  if (core_ == nullptr) return closed_file();
  return or_no_memory([&]() -> result<pinned_range> {
    auto pinned = core::pinned_entry::make(*core_, offset, length);
    if (!pinned) return pinned.error();
    return pinned_range(*std::move(pinned));
  });
}

status file::prepare(std::string_view device) const {
  const core::calling call;
  if (core_ == nullptr) return closed_file();
  return or_no_memory([&] { return core::prepare(*core_, device); });
}

const std::string& file::path() const noexcept {
  static const std::string none;
  return core_ == nullptr ? none : core_->name();
}

status file::close() {
  const core::calling call;
  return core_ == nullptr ? closed_file() : core_->close();
}

// --- engine

engine::engine(engine&&) noexcept = default;
engine& engine::operator=(engine&&) noexcept = default;
engine::~engine() = default;

bool is_url(std::string_view name) noexcept { return source::remote::is_url(name); }

std::string file_path(std::string_view name) { return source::remote::file_path_of(name); }

std::string shown_name(std::string_view name) {
  if (!is_url(name)) return without_url_secrets(name);
  const auto parsed = source::remote::parse_remote_url(name);
  return parsed ? parsed->shown() : source::remote::shown_text(name);
}

result<engine> engine::create(const engine_options& options) {
  return or_no_memory([&] { return core::make_engine(options, core::real_seams(options)); });
}

result<engine> engine::create() {
  return or_no_memory([]() -> result<engine> {
    const auto options = engine_options::from_environment();
    if (!options) return options.error();
    return create(*options);
  });
}

result<engine> engine::shared() {
  return shared([](engine_options&) {});
}

result<engine> engine::shared(const std::function<void(engine_options&)>& change) {
  for (;;) {
    auto* seen = shared_core.load(std::memory_order_acquire);
    if (seen != nullptr && !(*seen)->forked()) return engine(*seen);
    auto made = or_no_memory([&]() -> result<engine> {
      auto options = engine_options::from_environment();
      if (!options) return options.error();
      change(*options);
      return create(*options);
    });
    if (!made) return made.error();
    auto* fresh = new (std::nothrow) std::shared_ptr<core::engine_core>(made->core_);
    if (fresh == nullptr) return no_memory();
    if (!shared_core.compare_exchange_strong(seen, fresh)) delete fresh;
  }
}

result<file> engine::open(const std::string& path, const open_options& options) const {
  const core::calling call;
  if (core_ == nullptr) return no_engine();
  return or_no_memory([&]() -> result<file> {
    auto opened = core_->open(path, options);
    if (!opened) return opened.error();
    return file(std::move(*opened));
  });
}

result<file> engine::open_remote(const std::string& url, const remote_options& how, const open_options& options) const {
  const core::calling call;
  if (core_ == nullptr) return no_engine();
  return or_no_memory([&]() -> result<file> {
    auto opened = core_->open_remote(url, how, options);
    if (!opened) return opened.error();
    return file(std::move(*opened));
  });
}

result<std::vector<remote_object>> engine::list_remote(const std::string& url, const remote_options& how, bool one_level,
                                                       std::size_t most) const {
  const core::calling call;
  if (core_ == nullptr) return no_engine();
  return or_no_memory([&]() -> result<std::vector<remote_object>> {
    if (core_->forked()) return status(errc::forked, "list: the engine belongs to the parent process");
    return core_->servers().list(url, how, one_level, most);
  });
}

result<upload> engine::begin_upload(const std::string& url, const remote_options& how) const {
  const core::calling call;
  if (core_ == nullptr) return no_engine();
  return or_no_memory([&]() -> result<upload> {
    auto begun = core::upload_core::begin(core_, url, how);
    if (!begun) return begun.error();
    return upload(std::move(*begun));
  });
}

result<file> upload::open(std::uint64_t bytes_per_second) const {
  const core::calling call;
  if (core_ == nullptr) return no_upload();
  return or_no_memory([&]() -> result<file> {
    auto opened = core_->open(bytes_per_second);
    if (!opened) return opened.error();
    return file(std::move(*opened));
  });
}

status upload::publish(bool replace) const {
  const core::calling call;
  if (core_ == nullptr) return no_upload();
  return or_no_memory([&] { return core_->publish(replace); });
}

const std::string& upload::url() const noexcept {
  static const std::string none;
  return core_ == nullptr ? none : core_->name();
}

result<file> engine::adopt(int descriptor, cache_use cache) const { return adopt(descriptor, adopt_options{.cache = cache}); }

result<file> engine::adopt(int descriptor, const adopt_options& options) const { return detail::adopt(*this, descriptor, options, {}); }

result<file> detail::adopt(const engine& by, int descriptor, const adopt_options& options, const std::string& not_direct) {
  const core::calling call;
  if (by.core() == nullptr) return no_engine();
  return or_no_memory([&]() -> result<file> {
    auto adopted = by.core()->adopt(descriptor, options, not_direct);
    if (!adopted) return adopted.error();
    return file(std::move(*adopted));
  });
}

std::vector<device_info> engine::devices() const { return core_ == nullptr ? std::vector<device_info>() : core_->memory().devices(); }

status engine::cuda_status() const {
  if (core_ == nullptr) return no_engine();
  return or_no_memory([&] { return core_->memory().cuda_status(); });
}

result<device_buffer> engine::allocate(std::string_view device, std::size_t bytes) const {
  const core::calling call;
  if (core_ == nullptr) return no_engine();
  return or_no_memory([&]() -> result<device_buffer> {
    auto release = [from = core_, name = std::string(device)](void* memory) { from->release_memory(name, memory); };
    const auto memory = core_->memory().allocate(device, bytes);
    if (!memory) return memory.error();
    return device_buffer(std::shared_ptr<void>(*memory, std::move(release)), bytes);
  });
}

result<detail::shared_allocation> detail::share_memory(const engine& of, const void* memory) {
  if (of.core() == nullptr) return no_engine();
  return or_no_memory([&] { return of.core()->memory().share(memory); });
}

result<device_buffer> detail::open_shared_memory(const engine& by, std::string_view device, const shared_allocation& what,
                                                 std::size_t bytes, std::int64_t process) {
  if (by.core() == nullptr) return no_engine();
  return or_no_memory([&]() -> result<device_buffer> {
    const auto base = by.core()->memory().open_shared(device, what, bytes, process);
    if (!base) return base.error();
    auto release = [from = by.core(), name = std::string(device), base = *base](void*) { from->release_shared(name, base); };
    return device_buffer(std::shared_ptr<void>(static_cast<std::byte*>(*base) + what.offset, std::move(release)), bytes);
  });
}

status detail::add_to_digest(const engine& by, std::span<const digest_part> parts, std::uint64_t* sums, void* stream) {
  const core::calling call;
  if (by.core() == nullptr) return no_engine();
  return or_no_memory([&] { return by.core()->memory().add_to_digest(parts, sums, stream); });
}

result<memory_facts> engine::describe(const void* memory) const {
  if (core_ == nullptr) return no_engine();
  return or_no_memory([&] { return core_->memory().describe(memory); });
}

result<void*> engine::cpu_address(const void* memory, std::size_t bytes) const {
  if (core_ == nullptr) return no_engine();
  return or_no_memory([&] { return core_->memory().cpu_address(memory, bytes); });
}

std::vector<pci_device> engine::pci_devices() const {
  std::vector<pci_device> found;
  if (core_ == nullptr) return found;
  for (const auto& address : core_->kernel().pci_addresses()) found.push_back(core_->kernel().describe_pci(address));
  return found;
}

status engine::copy(void* target, const void* source, std::size_t bytes) const {
  const core::calling call;
  if (core_ == nullptr) return no_engine();
  return or_no_memory([&] { return core_->memory().copy(target, source, bytes); });
}

result<registration> engine::register_memory(void* memory, std::size_t bytes) const {
  const core::calling call;
  if (core_ == nullptr) return no_engine();
  return or_no_memory([&]() -> result<registration> {
    if (auto problem = core_->register_memory(memory, bytes); !problem.ok()) return problem;
    return registration(std::shared_ptr<void>(memory, [from = core_](void* base) { from->unregister_memory(base); }));
  });
}

batch engine::submit(std::span<const io_request> requests, const io_options& options, io_callback callback, item_callback each) const {
  const core::calling call;
  const auto refuse_all = [&](const status& why) {
    if (each) {
      for (std::size_t i = 0; i < requests.size(); ++i) each(i, {0, why});
    }
    if (callback) callback({0, why});
    return core::refused(why);
  };
  if (core_ == nullptr) return {refuse_all(no_engine()), requests.size()};
  return {or_without_memory([&] { return core::batch_request::begin(*core_, requests, options, callback, each); },
                            [&] { return refuse_all(no_memory()); }),
          requests.size()};
}

result<plan> engine::explain(const file& target, std::string_view device, std::uint64_t length, std::int64_t offset, bool is_write,
                             const io_options& options) const {
  const core::calling call;
  if (core_ == nullptr) return no_engine();
  if (target.core() == nullptr) return closed_file();
  auto what = reading(nullptr, length, offset);
  what.is_write = is_write;
  return or_no_memory([&] { return core::explain(*core_, *target.core(), device, what, options); });
}

std::vector<request_info> engine::requests() const { return core_ == nullptr ? std::vector<request_info>() : core_->under_way(); }

engine_stats engine::stats() const { return core_ == nullptr ? engine_stats{} : core_->snapshot(); }

std::string engine::summary() const { return core_ == nullptr ? std::string() : core_->summary(); }

std::vector<penstock::advice> engine::advice() const { return core_ == nullptr ? std::vector<penstock::advice>() : core_->advice(); }

std::size_t engine::trim() const {
  const core::calling call;
  return core_ == nullptr || core_->forked() ? 0 : core_->trim();
}

void engine::prepare() const noexcept {
  const core::calling call;
  if (core_ != nullptr) core_->prepare();
}
void detail::await_preparation(const engine& of) noexcept {
  if (of.core() != nullptr) of.core()->await_preparation();
}

void detail::note_call(const engine& in, noted_call what, bool ok) noexcept {
  struct places {
    std::size_t good, bad;
  };
  using stats::place_of;
  constexpr std::array<places, 3> of{places{place_of(&usage_stats::handle_registers), place_of(&usage_stats::handle_register_errors)},
                                     places{place_of(&usage_stats::buffer_registers), place_of(&usage_stats::buffer_register_errors)},
                                     places{place_of(&usage_stats::batch_submits), place_of(&usage_stats::batch_submit_errors)}};
  const auto& [good, bad] = of[static_cast<std::size_t>(what)];
  if (in.core() != nullptr && !in.core()->forked()) in.core()->stats().count_one(ok ? good : bad);
}

status engine::gpu_direct_status() const {
  if (core_ == nullptr) return no_engine();
  if (core_->forked()) return {errc::forked, "the engine belongs to the parent process"};
  return or_no_memory([&] { return path::cufile_library::possible(core_->kernel()); });
}

const engine_options& engine::options() const noexcept {
  static const engine_options defaults;
  return core_ == nullptr ? defaults : core_->options();
}

namespace core {

result<engine> make_engine(const engine_options& options, seams doors) {
  return or_no_memory([&]() -> result<engine> {
    auto made = engine_core::make(options, std::move(doors));
    if (!made) return made.error();
    return engine(std::move(*made));
  });
}

result<file> open_source(const engine& with, std::unique_ptr<source::source> from) {
  if (with.core() == nullptr) return no_engine();
  return or_no_memory([&]() -> result<file> {
    if (with.core()->forked()) return status(errc::forked, from->name() + ": the engine belongs to the parent process");
    return file(with.core()->open(std::move(from)));
  });
}

}  // namespace core

}  // namespace penstock
