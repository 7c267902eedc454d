#include "support/faulty_device.hpp"
#include "support/reliable.hpp"

#include <utility>

namespace penstock::testing {

using device::digest_part;
using device::event;
using device::segment;
using device::stream;

class faulty_driver::faulty_session final : public device::session {
 public:
  faulty_session(faulty_driver& owner, device::session& inner) : owner_(owner), inner_(inner) {}
  [[nodiscard]] int ordinal() const override { return inner_.ordinal(); }
  [[nodiscard]] bool shares_host_memory() const override { return inner_.shares_host_memory(); }

  result<void*> allocate(std::size_t bytes) override {
    return make<void*>("allocate", &live_counts::allocations, [&] { return inner_.allocate(bytes); });
  }
  status release(void* memory) override {
    return drop("release", &live_counts::allocations, [&] { return inner_.release(memory); });
  }
  status pin(void* base, std::size_t length, bool read_only) override {
    if (auto error = owner_.enter("pin")) return *std::move(error);
    status pinned = inner_.pin(base, length, read_only);
    if (pinned.ok()) owner_.change(&live_counts::pinned_ranges, 1);
    return pinned;
  }
  status unpin(void* base) override {
    return drop("unpin", &live_counts::pinned_ranges, [&] { return inner_.unpin(base); });
  }
  result<stream> make_stream() override {
    return make<stream>("make_stream", &live_counts::streams, [&] { return inner_.make_stream(); });
  }
  status destroy_stream(stream target) override {
    return drop("destroy_stream", &live_counts::streams, [&] { return inner_.destroy_stream(target); });
  }
  std::uint64_t identity_of(stream target) override { return inner_.identity_of(target); }
  result<event> make_event() override {
    return make<event>("make_event", &live_counts::events, [&] { return inner_.make_event(); });
  }
  status destroy_event(event target) override {
    return drop("destroy_event", &live_counts::events, [&] { return inner_.destroy_event(target); });
  }
  status copy(void* target, const void* source, std::size_t bytes, stream on) override {
    owner_.note_copy(on);
    return pass("copy", [&] { return inner_.copy(target, source, bytes, on); });
  }
  status prepare_scatter() override {
    return pass("prepare_scatter", [&] { return inner_.prepare_scatter(); });
  }
  status scatter(const segment* table, std::size_t count, stream on) override {
    return pass("scatter", [&] { return inner_.scatter(table, count, on); });
  }
  status scatter_short(std::span<const segment> table, stream on) override {
    return pass("scatter_short", [&] { return inner_.scatter_short(table, on); });
  }
  status add_to_digest(std::span<const digest_part> parts, std::uint64_t* sums, stream on) override {
    return pass("add_to_digest", [&] { return inner_.add_to_digest(parts, sums, on); });
  }
  status record(event target, stream on) override {
    return pass("record", [&] { return inner_.record(target, on); });
  }
  status wait_event(stream on, event until) override {
    return pass("wait_event", [&] { return inner_.wait_event(on, until); });
  }
  status call(stream on, void (*function)(void*), void* argument) override {
    return pass("call", [&] { return inner_.call(on, function, argument); });
  }
  status wait_value(stream on, std::uint32_t* flag, std::uint32_t value) override {
    return pass("wait_value", [&] { return inner_.wait_value(on, flag, value); });
  }
  status write_value(stream on, std::uint32_t* flag, std::uint32_t value) override {
    return pass("write_value", [&] { return inner_.write_value(on, flag, value); });
  }
  result<bool> idle(stream target) override {
    if (auto error = owner_.enter("idle")) return *std::move(error);
    return inner_.idle(target);
  }
  result<bool> reached(event target) override {
    if (auto error = owner_.enter("reached")) return *std::move(error);
    return inner_.reached(target);
  }
  status wait(event target) override {
    return done_anyway("wait", [&] { return inner_.wait(target); });
  }
  status synchronize(stream target) override {
    return done_anyway("synchronize", [&] { return inner_.synchronize(target); });
  }
  status copy_small(void* target, const void* source, std::size_t bytes, stream on) override {
    return pass("copy_small", [&] { return inner_.copy_small(target, source, bytes, on); });
  }
  status copy_beside(void* target, const void* source, std::size_t bytes, stream on) override {
    return pass("copy_beside", [&] { return inner_.copy_beside(target, source, bytes, on); });
  }
  bool allow_copies_from(session& other) override { return inner_.allow_copies_from(static_cast<faulty_session&>(other).inner_); }
  result<void*> network_address(void* memory, std::uint64_t bytes) override {
    if (auto error = owner_.enter("network_address")) return *std::move(error);
    return inner_.network_address(memory, bytes);
  }
  result<device::shared_memory> share(const void* memory) override {
    if (auto error = owner_.enter("share")) return *std::move(error);
    return inner_.share(memory);
  }
  result<sys::owned_descriptor> export_shared(const void* memory) override {
    if (auto error = owner_.enter("export_shared")) return *std::move(error);
    return inner_.export_shared(memory);
  }
  result<void*> open_shared(std::string_view handle, std::int64_t process, int descriptor) override {
    return make<void*>("open_shared", &live_counts::imports, [&] { return inner_.open_shared(handle, process, descriptor); });
  }
  status close_shared(void* memory) override {
    return drop("close_shared", &live_counts::imports, [&] { return inner_.close_shared(memory); });
  }
  status make_current() override {
    auto made = pass("make_current", [&] { return inner_.make_current(); });
    if (made.ok()) owner_.change(&live_counts::current_contexts, 1);
    return made;
  }
  void restore_current() override {
    inner_.restore_current();
    owner_.change(&live_counts::current_contexts, -1);
  }

 private:
  using counted = std::int64_t live_counts::*;

  template <class Call>
  status pass(std::string_view name, Call call_it) {
    if (auto error = owner_.enter(name)) return *std::move(error);
    return call_it();
  }
  template <class T, class Call>
  result<T> make(std::string_view name, counted what, Call call_it) {
    if (auto error = owner_.enter(name)) return *std::move(error);
    result<T> made = call_it();
    if (made) owner_.change(what, 1);
    return made;
  }
  template <class Call>
  status drop(std::string_view name, counted what, Call call_it) {
    return done_anyway(name, [&] {
      status dropped = call_it();
      if (dropped.ok()) owner_.change(what, -1);
      return dropped;
    });
  }
  template <class Call>
  status done_anyway(std::string_view name, Call call_it) {
    auto error = owner_.enter(name);
    status outcome = call_it();
    return error ? *std::move(error) : outcome;
  }

  faulty_driver& owner_;
  device::session& inner_;
};

faulty_driver::faulty_driver(std::shared_ptr<device::driver> inner) : inner_(std::move(inner)) {}
faulty_driver::~faulty_driver() = default;

void faulty_driver::set_hook(hook ask) {
  const keeping_books spared;
  const std::lock_guard guard(lock_);
  hook_ = std::move(ask);
}

void faulty_driver::fail_any(std::uint64_t nth, status error, std::uint64_t times) { fail({}, nth, std::move(error), times); }

void faulty_driver::fail(std::string_view call, std::uint64_t nth, status error, std::uint64_t times) {
  const keeping_books spared;
  const std::lock_guard guard(lock_);
  faults_.push_back({std::string(call), nth - 1, times, std::move(error)});
}

void faulty_driver::clear_faults() {
  const keeping_books spared;
  const std::lock_guard guard(lock_);
  faults_.clear();
  hook_ = nullptr;
}

std::uint64_t faulty_driver::calls() const {
  const keeping_books spared;
  const std::lock_guard guard(lock_);
  return all_calls_;
}

std::uint64_t faulty_driver::calls(std::string_view call) const {
  const keeping_books spared;
  const std::lock_guard guard(lock_);
  const auto found = calls_.find(call);
  return found == calls_.end() ? 0 : found->second;
}

std::uint64_t faulty_driver::injected() const {
  const keeping_books spared;
  const std::lock_guard guard(lock_);
  return injected_;
}

faulty_driver::live_counts faulty_driver::live() const {
  const keeping_books spared;
  const std::lock_guard guard(lock_);
  return live_;
}

// Counts the call for every fault that matches it, even if another fault makes it fail.
std::optional<status> faulty_driver::next_fault(std::string_view call) {
  std::optional<status> chosen;
  for (fault& each : faults_) {
    if ((!each.call.empty() && each.call != call) || each.times == 0) continue;
    if (each.skip > 0) {
      --each.skip;
      continue;
    }
    if (each.times != always) --each.times;
    if (!chosen) chosen = each.error;
  }
  return chosen;
}

std::optional<status> faulty_driver::enter(std::string_view call) {
  hook ask;
  std::uint64_t number = 0;
  std::optional<status> chosen;
  {
    const keeping_books spared;
    const std::lock_guard guard(lock_);
    ++all_calls_;
    number = ++calls_[std::string(call)];
    chosen = next_fault(call);
    ask = hook_;
  }
  if (!chosen && ask) chosen = ask(call, number);
  if (!chosen) return std::nullopt;
  const keeping_books spared;
  const std::lock_guard guard(lock_);
  ++injected_;
  return chosen;
}

void faulty_driver::note_copy(device::stream on) {
  const keeping_books spared;
  const std::lock_guard guard(lock_);
  streams_of_copies_.insert(on);
}

std::size_t faulty_driver::streams_of_copies() const {
  const keeping_books spared;
  const std::lock_guard guard(lock_);
  return streams_of_copies_.size();
}

void faulty_driver::change(std::int64_t live_counts::*what, std::int64_t by) {
  const keeping_books spared;
  const std::lock_guard guard(lock_);
  live_.*what += by;
}

result<int> faulty_driver::count() {
  if (auto error = enter("count")) return *std::move(error);
  return inner_->count();
}

result<device::device_facts> faulty_driver::describe(int ordinal) {
  if (auto error = enter("describe")) return *std::move(error);
  return inner_->describe(ordinal);
}

result<device::memory_info> faulty_driver::classify(const void* memory) {
  if (auto error = enter("classify")) return *std::move(error);
  return inner_->classify(memory);
}

result<std::byte*> faulty_driver::cpu_address(const void* memory, std::uint64_t length) {
  if (auto error = enter("cpu_address")) return *std::move(error);
  return inner_->cpu_address(memory, length);
}

result<device::session*> faulty_driver::open(int ordinal, void* context) {
  if (auto error = enter("open")) return *std::move(error);
  const auto inside = inner_->open(ordinal, context);
  if (!inside) return inside.error();
  const keeping_books spared;
  const std::lock_guard guard(lock_);
  auto& wrapped = sessions_[*inside];
  if (wrapped == nullptr) wrapped = std::make_unique<faulty_session>(*this, **inside);
  return static_cast<device::session*>(wrapped.get());
}

std::shared_ptr<faulty_driver> make_faulty_driver(std::shared_ptr<device::driver> inner) {
  return std::make_shared<faulty_driver>(std::move(inner));
}

}  // namespace penstock::testing
