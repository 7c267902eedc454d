// Memory runs out in the middle of every call: its first allocation fails, then its second, and so on, on the calling thread or the
// engine's threads, once or permanently. Whatever fails, the call is either completely right or returns out_of_memory; no exception
// escapes; callbacks run exactly once; the same call works afterwards; the file closes; and no descriptor stays open.
#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <exception>
#include <functional>
#include <memory>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "memory/failing_allocations.hpp"
#include "penstock/penstock.hpp"
#include "support/engines.hpp"
#include "support/open_descriptors.hpp"
#include "support/pattern.hpp"
#include "support/stored_file.hpp"
#include "support/temp_dir.hpp"
#include "support/thread_watchdog.hpp"

namespace penstock::testing::allocation {
namespace {

using namespace std::chrono_literals;

constexpr std::size_t kib = 1024;
constexpr std::size_t mib = 1024 * kib;
constexpr std::size_t file_bytes = 4 * mib;
constexpr std::size_t small = 5000;
constexpr std::size_t large = 3 * mib + 100;
constexpr std::uint64_t seed = 51;

// What is under way, for who reads how the process died.
std::string& current_trial() {
  static std::string name;
  return name;
}

[[noreturn]] void tell_and_abort() {
  std::fprintf(stderr, "\nterminate: in %s\n", current_trial().c_str());
  std::abort();
}

// The files of all trials: one to read, whose content is known, and one to write.
struct known_files {
  known_files() {
    const auto content = pattern::make(file_bytes, seed);
    for (const auto& name : {to_read, to_write}) store_file(name, content);
    store_file(tensors, std::as_bytes(std::span(tensor_file)));
    store_file(index, std::as_bytes(std::span(index_file)));
  }
  static known_files& shared() {
    static known_files made;
    return made;
  }
  temp_dir directory = temp_dir::on_build_disk();
  const std::string to_read = directory.file("read");
  const std::string to_write = directory.file("write");
  const std::string tensors = directory.file("tensors");
  const std::string index = directory.file("index.json");
  const std::string index_file =
      R"({"weight_map": {"a tensor with a long name, 1": "tensors", "a tensor with a long name, 2": "tensors"}})";
  const std::string tensor_file = [] {
    std::vector<tensor_facts> all;
    for (int i = 0; i < 40; ++i) all.push_back({fmt::format("a tensor with a long name, {}", i), tensor_type::u8, {1}});
    return *make_safetensors(all, tensor_metadata{{"k", "v"}}) + std::string(40, 'x');
  }();
  const std::vector<std::byte> zeros = std::vector<std::byte>(file_bytes);
};

// One run of a call with one allocation failing; and all that it needs, made before.
class trial {
 public:
  trial(allocations_of whose, std::uint64_t nth, bool lasting, std::size_t budget_bytes) : whose_(whose), nth_(nth), lasting_(lasting) {
    auto options = without_cuda(2);
    options.pinned_budget_bytes = budget_bytes;
    kept_engine = made_engine(options);
    from = opened_file(engine_of(), files.to_read, {});
    to = opened_file(engine_of(), files.to_write);
    auto memory = engine_of().allocate("host:0", file_bytes);
    EXPECT_TRUE(memory.ok()) << memory.error().message();
    device_memory = *std::move(memory);
    host_memory.assign(file_bytes, std::byte{});
  }

  engine& engine_of() { return *kept_engine; }
  std::byte* memory(bool on_device) { return on_device ? static_cast<std::byte*>(device_memory.data()) : host_memory.data(); }

  // The call itself: nothing of the test's may allocate in it.
  template <class Call>
  void call(Call it) {
    try {
      const failing_allocations armed(whose_ == allocations_of::the_caller ? whose_ : allocations_of::nobody, nth_, lasting_);
      it();
    } catch (const std::bad_alloc&) {
      ADD_FAILURE() << "std::bad_alloc escaped";
    } catch (const std::exception& wrong) {
      ADD_FAILURE() << "escaped: " << wrong.what();
    }
  }

  // How something ended that may have been struck.
  void saw(const status& outcome) {
    if (outcome.ok()) return;
    EXPECT_EQ(outcome.code(), errc::out_of_memory) << to_string(outcome.code()) << ": " << outcome.message();
    failed_ = true;
    why_ = outcome;
  }
  void saw(const io_result& outcome, std::size_t length) {
    saw(outcome.error);
    EXPECT_LE(outcome.bytes_done, length);
    EXPECT_TRUE(!outcome.ok() || outcome.bytes_done == length) << outcome.bytes_done << " of " << length;
  }
  // The memory holds what the file does.
  void compare(bool on_device, std::size_t at, std::size_t length, std::size_t file_offset) {
    std::vector<std::byte> seen(length);
    const auto copied = engine_of().copy(seen.data(), memory(on_device) + at, length);
    EXPECT_TRUE(copied.ok()) << copied.message();
    EXPECT_EQ(pattern::first_difference(seen, seed, file_offset), std::nullopt) << "of " << length;
  }
  // Both memories hold zeros, as they do at first.
  void blank() {
    if (is_blank_) return;
    std::memset(host_memory.data(), 0, host_memory.size());
    const auto copied = engine_of().copy(device_memory.data(), files.zeros.data(), files.zeros.size());
    EXPECT_TRUE(copied.ok()) << copied.message();
  }
  [[nodiscard]] bool failed() const { return failed_; }
  [[nodiscard]] std::string_view why() const { return why_.message(); }

  // From now on nothing fails. The engine is the one that has seen the failure.
  void calm() {
    whose_ = allocations_of::nobody;
    failed_ = false;
    is_blank_ = false;
  }

  void close() {
    for (auto* each : {&from, &to}) {
      const auto closed = each->close();
      EXPECT_TRUE(closed.ok() || closed.code() == errc::closed) << closed.message();
    }
  }

  known_files& files = known_files::shared();
  std::optional<engine> kept_engine;
  file from;
  file to;
  device_buffer device_memory;
  std::vector<std::byte> host_memory;

 private:
  allocations_of whose_;
  const std::uint64_t nth_;
  const bool lasting_;
  bool failed_ = false;
  bool is_blank_ = true;
  status why_;
};

// With the least budget, requests wait for staging buffers, which are all of the largest size: the kernel zeroes 36 MiB for each engine.
constexpr std::size_t least_budget = 36 * mib;
constexpr std::size_t usual_budget = 64 * mib;

struct call_kind {
  std::string name;
  std::function<void(trial&)> run;
  std::size_t budget_bytes = usual_budget;
};

// --- what calls back

// What a late callback writes lives as long as it.
class calls_seen {
 public:
  io_callback callback() {
    return [kept = kept_](const io_result& outcome) { kept->note(outcome); };
  }
  item_callback each() {
    return [kept = kept_](std::size_t, const io_result& outcome) { kept->note(outcome); };
  }
  void expect(int calls) const {
    EXPECT_EQ(kept_->count.load(), calls) << "calls of the callback";
    EXPECT_FALSE(kept_->wrong.load()) << "the callback was told another error";
  }

 private:
  struct counts {
    std::atomic<int> count{0};
    std::atomic<bool> wrong{false};
    void note(const io_result& outcome) {
      if (!outcome.ok() && outcome.error.code() != errc::out_of_memory && outcome.error.code() != errc::cancelled) wrong = true;
      ++count;
    }
  };
  std::shared_ptr<counts> kept_ = std::make_shared<counts>();
};

// --- the calls

void transfer(trial& t, std::size_t length, bool on_device, bool is_write, const io_options& how = {}) {
  if (!is_write) t.blank();
  io_result outcome;
  t.call([&] { outcome = is_write ? t.to.write(t.memory(on_device), length, 7, how) : t.from.read(t.memory(on_device), length, 7, how); });
  t.saw(outcome, length);
  if (outcome.ok() && !is_write) t.compare(on_device, 0, length, 7);
}

void transfer_async(trial& t, std::size_t length, bool on_device, bool is_write, bool with_callback) {
  if (!is_write) t.blank();
  calls_seen calls;
  auto callback = with_callback ? calls.callback() : io_callback();
  operation made;
  t.call([&] {
    made = is_write ? t.to.write_async(t.memory(on_device), length, 7, {}, std::move(callback))
                    : t.from.read_async(t.memory(on_device), length, 7, {}, std::move(callback));
  });
  const auto outcome = made.wait();
  t.saw(outcome, length);
  if (outcome.ok() && !is_write) t.compare(on_device, 0, length, 7);
  if (with_callback) calls.expect(1);
}

// Many of them that come together travel together.
void many_async(trial& t, bool on_device) {
  constexpr std::size_t count = 40;
  t.blank();
  calls_seen calls;
  std::vector<io_callback> callbacks;
  for (std::size_t i = 0; i < count; ++i) callbacks.push_back(calls.callback());
  std::vector<operation> made(count);
  t.call([&] {
    for (std::size_t i = 0; i < count; ++i) {
      made[i] =
          t.from.read_async(t.memory(on_device) + i * small, small, static_cast<std::int64_t>(i * small), {}, std::move(callbacks[i]));
    }
  });
  for (std::size_t i = 0; i < count; ++i) {
    const auto outcome = made[i].wait();
    t.saw(outcome, small);
    if (outcome.ok()) t.compare(on_device, i * small, small, i * small);
  }
  calls.expect(static_cast<int>(count));
}

void submit(trial& t, const std::vector<std::size_t>& lengths, bool on_device, bool is_write) {
  if (!is_write) t.blank();
  std::vector<io_request> asked;
  std::size_t at = 0;
  for (const auto length : lengths) {
    asked.push_back({is_write ? &t.to : &t.from, t.memory(on_device) + at, length, static_cast<std::int64_t>(at), is_write});
    at += length;
  }
  calls_seen calls;
  calls_seen items;
  auto callback = calls.callback();
  auto each = items.each();
  batch made;
  t.call([&] { made = t.engine_of().submit(asked, {}, std::move(callback), std::move(each)); });
  const auto outcomes = made.wait();
  EXPECT_EQ(outcomes.size(), asked.size());
  if (outcomes.size() != asked.size()) return;
  for (std::size_t i = 0; i < asked.size(); ++i) {
    t.saw(outcomes[i], asked[i].length);
    const auto offset = static_cast<std::size_t>(asked[i].offset);
    if (outcomes[i].ok() && !is_write) t.compare(on_device, offset, asked[i].length, offset);
  }
  calls.expect(1);
  items.expect(static_cast<int>(asked.size()));
}

void on_stream(trial& t, std::size_t length, bool is_write) {
  if (!is_write) t.blank();
  struct {
    std::size_t length = 0;
    std::int64_t offset = 7;
    std::int64_t bytes_done = -77;
    std::atomic<int> ended{0};
    io_result outcome;
  } values;
  values.length = length;
  stream_request asked{.memory = t.memory(true), .length = &values.length, .offset = &values.offset, .bytes_done = &values.bytes_done};
  asked.ended = [seen = &values](const io_result& outcome) {
    seen->outcome = outcome;
    ++seen->ended;
  };
  status queued;
  t.call([&] { queued = is_write ? t.to.write_on_stream(asked) : t.from.read_on_stream(asked); });
  t.saw(queued);
  if (!queued.ok()) {
    EXPECT_EQ(values.ended.load(), 0) << "nothing was queued";
    return;
  }
  while (values.ended.load() == 0) std::this_thread::yield();
  t.saw(values.outcome, length);
  EXPECT_EQ(values.bytes_done, values.outcome.ok() ? static_cast<std::int64_t>(length) : -1);
  if (values.outcome.ok() && !is_write) t.compare(true, 0, length, 7);
}

// An unfinished request, and a call on it.
template <class Call>
void on_operation(trial& t, std::size_t length, Call it) {
  t.blank();
  calls_seen calls;
  auto made = t.from.read_async(t.memory(true), length, 7, {}, calls.callback());
  t.call([&] { it(made); });
  const auto outcome = made.wait();
  if (outcome.error.code() != errc::cancelled) {
    t.saw(outcome, length);
    if (outcome.ok()) t.compare(true, 0, length, 7);
  }
  calls.expect(1);
}

// A call that gives a status or a result.
template <class Call>
void question(trial& t, Call it) {
  std::optional<decltype(it())> answer;
  t.call([&] { answer.emplace(it()); });
  if (!answer) return;
  if constexpr (std::is_same_v<decltype(it()), status>) {
    t.saw(*answer);
  } else {
    t.saw(answer->error());
  }
}

// A call that gives a value, which is empty when it fails.
template <class Call>
void value(trial& t, Call it) {
  std::optional<decltype(it())> answer;
  t.call([&] {
    try {
      answer.emplace(it());
    } catch (const std::bad_alloc&) {  // which has no other way to say so
    }
  });
}

void with_sizes(std::vector<call_kind>& all) {
  for (const bool is_large : {false, true}) {
    for (const bool on_device : {false, true}) {
      for (const bool is_write : {false, true}) {
        const auto length = is_large ? large : small;
        const auto end = fmt::format("{}_{}_{}", is_write ? "write" : "read", is_large ? "large" : "small", on_device ? "device" : "host");
        all.push_back({end, [=](trial& t) { transfer(t, length, on_device, is_write); }});
        all.push_back({"async_" + end, [=](trial& t) { transfer_async(t, length, on_device, is_write, false); }});
        all.push_back({"async_callback_" + end, [=](trial& t) { transfer_async(t, length, on_device, is_write, true); }});
        const std::vector<std::size_t> lengths(is_large ? 3 : 30, is_large ? mib + 5 : small);
        all.push_back({"batch_" + end, [=](trial& t) { submit(t, lengths, on_device, is_write); }});
      }
    }
    for (const bool is_write : {false, true}) {
      all.push_back({fmt::format("stream_{}_{}", is_write ? "write" : "read", is_large ? "large" : "small"),
                     [=](trial& t) { on_stream(t, is_large ? large : small, is_write); }});
    }
  }
}

std::vector<call_kind> make_kinds() {
  std::vector<call_kind> all;
  with_sizes(all);
  for (const bool on_device : {false, true}) {
    const auto* where = on_device ? "device" : "host";
    all.push_back({fmt::format("many_async_{}", where), [=](trial& t) { many_async(t, on_device); }});
    all.push_back({fmt::format("batch_mixed_{}", where), [=](trial& t) {
                     submit(t, {small, 2 * mib, 100, 4096, mib, small}, on_device, false);
                   }});
  }
  for (const bool kept : {false, true}) {
    all.push_back({kept ? "kept_read_large_device" : "cold_read_large_device",
                   [kept](trial& t) {
                     const int fd = ::open(t.files.to_read.c_str(), O_RDONLY | O_CLOEXEC);
                     (void)::fdatasync(fd);
                     (void)::posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
                     ::close(fd);
                     transfer(t, large, true, false, {.cache = kept ? cache_use::fill : cache_use::bypass});
                   },
                   least_budget});
  }
  all.push_back({"open", [](trial& t) { question(t, [&] { return t.engine_of().open(t.files.to_read); }); }});
  all.push_back({"open_what_is_not_there", [](trial& t) {
                   const std::string name = t.files.directory.file("there is nothing of this name");
                   std::optional<result<file>> made;
                   t.call([&] { made.emplace(t.engine_of().open(name)); });
                   if (made && made->error().code() != errc::not_found) t.saw(made->error());
                 }});
  all.push_back({"adopt", [](trial& t) {
                   const int fd = ::open(t.files.to_read.c_str(), O_RDONLY | O_CLOEXEC);
                   question(t, [&] { return t.engine_of().adopt(fd); });
                   ::close(fd);
                 }});
  all.push_back({"explain", [](trial& t) { question(t, [&] { return t.engine_of().explain(t.from, "host:0", large, 7); }); }});
  all.push_back({"register_memory",
                 [](trial& t) { question(t, [&] { return t.engine_of().register_memory(t.host_memory.data(), t.host_memory.size()); }); }});
  all.push_back({"allocate", [](trial& t) { question(t, [&] { return t.engine_of().allocate("host:0", mib); }); }});
  all.push_back({"describe", [](trial& t) { question(t, [&] { return t.engine_of().describe(t.memory(true)); }); }});
  all.push_back({"copy", [](trial& t) { question(t, [&] { return t.engine_of().copy(t.memory(true), t.memory(false), mib); }); }});
  all.push_back({"size", [](trial& t) { question(t, [&] { return t.from.size(); }); }});
  all.push_back({"sync", [](trial& t) { question(t, [&] { return t.to.sync(); }); }});
  all.push_back({"devices", [](trial& t) { value(t, [&] { return t.engine_of().devices(); }); }});
  all.push_back({"pci_devices", [](trial& t) { value(t, [&] { return t.engine_of().pci_devices(); }); }});
  all.push_back({"stats", [](trial& t) { value(t, [&] { return t.engine_of().stats(); }); }});
  all.push_back({"summary", [](trial& t) { value(t, [&] { return t.engine_of().summary(); }); }});
  all.push_back({"cuda_status", [](trial& t) { value(t, [&] { return t.engine_of().cuda_status(); }); }});
  all.push_back({"gpu_direct_status", [](trial& t) { value(t, [&] { return t.engine_of().gpu_direct_status(); }); }});
  for (const auto length : {small, large}) {
    const auto* size = length == small ? "small" : "large";
    all.push_back({fmt::format("wait_{}", size), [=](trial& t) { on_operation(t, length, [](operation& made) { (void)made.wait(); }); }});
    all.push_back({fmt::format("wait_for_{}", size), [=](trial& t) {
                     on_operation(t, length, [](operation& made) {
                       (void)made.wait_for(0ms);
                       (void)made.wait_for(1ms);
                     });
                   }});
    all.push_back({fmt::format("cancel_{}", size), [=](trial& t) { on_operation(t, length, [](operation& made) { made.cancel(); }); }});
    all.push_back({fmt::format("close_{}", size), [=](trial& t) {
                     auto again = t.engine_of().open(t.files.to_read);
                     ASSERT_TRUE(again.ok()) << again.error().message();
                     auto made = again->read_async(t.memory(true), length, 7);
                     status closed;
                     t.call([&] { closed = again->close(); });
                     t.saw(closed);
                     t.saw(made.wait(), length);
                   }});
  }
  all.push_back({"batch_wait", [](trial& t) {
                   const std::vector<io_request> asked(20, {&t.from, t.memory(true), small, 0, false});
                   auto made = t.engine_of().submit(asked);
                   value(t, [&] { return made.wait(); });
                   const auto outcomes = made.wait();
                   EXPECT_EQ(outcomes.size(), asked.size());
                   for (const auto& each : outcomes) t.saw(each, small);
                 }});
  all.push_back({"read_safetensors", [](trial& t) {
                   auto tensors = t.engine_of().open(t.files.tensors);
                   ASSERT_TRUE(tensors.ok()) << tensors.error().message();
                   question(t, [&] { return read_safetensors(*tensors); });
                 }});
  all.push_back({"open_a_model", [](trial& t) {
                   const std::vector<std::string> paths = {t.files.index};
                   question(t, [&] { return model::open(t.engine_of(), paths); });
                 }});
  all.push_back({"load_a_model", [](trial& t) {
                   const auto from = model::open(t.engine_of(), {t.files.tensors});
                   ASSERT_TRUE(from.ok()) << from.error().message();
                   question(t, [&] { return lay_out(*from); });
                   const auto layout = lay_out(*from);
                   void* const there = t.memory(true);
                   question(t, [&] { return load_model(t.engine_of(), *layout, {&there, 1}); });
                   load_watch watch;
                   watch.names = {"a memory with a name that is not short"};
                   watch.proceed = [](std::span<const load_progress>) { return true; };
                   question(t, [&] { return load_model(t.engine_of(), *layout, {&there, 1}, {}, watch); });
                 }});
  all.push_back({"make_safetensors", [](trial& t) {
                   std::vector<tensor_facts> all(3, {"", tensor_type::f32, {7}});
                   for (std::size_t i = 0; i < all.size(); ++i) all[i].name = fmt::format("a tensor with a long name, {}", i);
                   question(t, [&] { return make_safetensors(all); });
                 }});
  all.push_back({"create_and_destroy", [](trial& t) {
                   engine_options options;
                   options.use_cuda = false;
                   question(t, [&] { return engine::create(options); });
                   t.call([&] { t.from = file(); });
                 }});
  return all;
}

const std::vector<call_kind>& all_kinds() {
  static const std::vector<call_kind> all = make_kinds();
  return all;
}

class allocations : public ::testing::TestWithParam<std::size_t> {
 protected:
  static const call_kind& kind() { return all_kinds()[GetParam()]; }

  // True when an allocation was made to fail.
  bool try_one(allocations_of whose, std::uint64_t nth, bool lasting) {
    current_trial() = fmt::format("{}: allocation {} of the {}{} fails", kind().name, nth,
                                  whose == allocations_of::the_caller ? "caller" : "workers", lasting ? " and those after it" : "");
    SCOPED_TRACE(current_trial());
    watch_.feed(current_trial());
    const auto before = failed_allocations();
    trial now(whose, nth, lasting, kind().budget_bytes);
    {
      const failing_allocations armed(whose == allocations_of::the_workers ? whose : allocations_of::nobody, nth, lasting);
      kind().run(now);
    }
    const bool struck = failed_allocations() > before;
    EXPECT_TRUE(struck || !now.failed()) << "failed without a cause";
    watch_.feed(current_trial() + ", then again");
    now.calm();
    kind().run(now);
    EXPECT_FALSE(now.failed()) << "the same call does not work afterwards: " << now.why();
    now.close();
    return struck;
  }

  // Each allocation that the steps come to, until there are no more.
  void try_all(allocations_of whose, std::uint64_t most, std::uint64_t step = 1, std::uint64_t lasting_step = 1) {
    const auto old_handler = std::set_terminate(tell_and_abort);
    const auto open_before = descriptor_names_now();
    std::uint64_t struck = 0;
    for (const bool lasting : {false, true}) {
      // Which thread does what is a matter of chance: more than one run without a failure means that there are no more.
      int unharmed = 0;
      for (std::uint64_t nth = 1; nth <= most && unharmed < 2 && !HasFailure(); nth += lasting ? lasting_step : step) {
        if (try_one(whose, nth, lasting)) {
          ++struck;
          unharmed = 0;
        } else {
          ++unharmed;
        }
      }
    }
    RecordProperty("struck", static_cast<int>(struck));
    wait_until_nothing_opened_since(open_before);
    std::set_terminate(old_handler);
  }

  // An engine ends on its own time. The watchdog names the descriptors that nobody closes, and ends the process.
  void wait_until_nothing_opened_since(const descriptor_names& before) {
    std::string seen;
    for (auto left = opened_since(before, descriptor_names_now()); !left.empty(); left = opened_since(before, descriptor_names_now())) {
      if (left != seen) watch_.feed("all is closed, and descriptors are left open: " + left);
      seen = std::move(left);
      std::this_thread::yield();
    }
  }

  thread_watchdog watch_{"allocations", 60s};
};

TEST_P(allocations, of_the_caller_may_fail) { try_all(allocations_of::the_caller, 300); }
TEST_P(allocations, of_the_workers_may_fail) { try_all(allocations_of::the_workers, 300, 2, 4); }
TEST_P(allocations, long_each_of_the_workers_may_fail) { try_all(allocations_of::the_workers, 300); }

INSTANTIATE_TEST_SUITE_P(calls, allocations, ::testing::Range(std::size_t{0}, all_kinds().size()),
                         [](const auto& info) { return all_kinds()[info.param].name; });

}  // namespace
}  // namespace penstock::testing::allocation
