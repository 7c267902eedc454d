// Background requests: others overtake them, they still end, and they are like all other requests in every other way.
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <vector>

#include "contract/contract_fixture.hpp"
#include "support/forwarding_kernel.hpp"

namespace penstock::testing {
namespace {

const io_options in_background{.priority = request_priority::background};

// Keeps whoever comes there waiting while it is shut. Thread-safe.
class priority_gate {
 public:
  void shut() {
    const std::lock_guard guard(lock_);
    shut_ = true;
  }
  void open() {
    const std::lock_guard guard(lock_);
    shut_ = false;
    changed_.notify_all();
  }
  void pass() {
    std::unique_lock guard(lock_);
    if (!shut_) return;
    ++waiting_;
    changed_.notify_all();
    changed_.wait(guard, [this] { return !shut_; });
    --waiting_;
  }
  void await_somebody() {
    std::unique_lock guard(lock_);
    changed_.wait(guard, [this] { return waiting_ > 0; });
  }

 private:
  std::mutex lock_;  // guards what follows
  std::condition_variable changed_;
  bool shut_ = false;
  std::size_t waiting_ = 0;
};

// Few cores: one thread for the background.
class two_gates_kernel final : public forwarding_kernel {
 public:
  two_gates_kernel(priority_gate& reads, priority_gate& writes) : reads_(reads), writes_(writes) {}
  result<std::size_t> pread(int fd, void* target, std::size_t length, std::uint64_t offset) override {
    reads_.pass();
    return forwarding_kernel::pread(fd, target, length, offset);
  }
  result<std::size_t> pwrite(int fd, const void* source, std::size_t length, std::uint64_t offset) override {
    writes_.pass();
    return forwarding_kernel::pwrite(fd, source, length, offset);
  }
  unsigned usable_cores() override { return 2; }

 private:
  priority_gate& reads_;
  priority_gate& writes_;
};

class priority_contract : public ::testing::TestWithParam<memory_place> {
 protected:
  static constexpr std::uint64_t length = 4 * mib;

  priority_contract() {
    content_ = pattern::make(length, 1);
    store_file(directory_.file("read"), content_);
    engine_options options;
    options.pinned_budget_bytes = std::size_t{36} << 20;  // the least
    auto doors = core::real_seams(options);
    doors.kernel = std::make_shared<two_gates_kernel>(reads_, writes_);
    house_.emplace(options, std::move(doors));
    read_ = open("read", {});
    written_ = open("written", {.read = true, .write = true, .create = true});
  }
  ~priority_contract() override {
    reads_.open();
    writes_.open();
  }

  file open(const std::string& name, const open_options& options) {
    auto opened = house_->engine().open(directory_.file(name), options);
    EXPECT_TRUE(opened.ok()) << told(opened.error());
    return opened.ok() ? *std::move(opened) : file();
  }
  // More than there are lanes and slabs for, one after the other in the file.
  std::vector<operation> write_behind(guarded_memory& from, std::size_t count) {
    from.fill(content_);
    std::vector<operation> made;
    for (std::size_t i = 0; i < count; ++i)
      made.push_back(written_.write_async(from.data(), length, static_cast<std::int64_t>(i * length), in_background));
    return made;
  }
  void expect_written(std::size_t count) {
    const auto seen = contents_of(directory_.file("written"));
    ASSERT_EQ(seen.size(), count * length);
    for (std::size_t i = 0; i < count; ++i) EXPECT_EQ(std::memcmp(seen.data() + i * length, content_.data(), length), 0) << "write " << i;
  }

  temp_dir directory_ = temp_dir::on_build_disk();
  bytes content_;
  priority_gate reads_;
  priority_gate writes_;
  std::optional<open_house> house_;
  file read_;
  file written_;
};

TEST_P(priority_contract, reads_of_all_kinds_pass_background_writes_that_get_nowhere) {
  constexpr std::size_t count = 12;
  guarded_memory from(*house_, GetParam(), length);
  guarded_memory to(*house_, GetParam(), length);
  writes_.shut();
  auto behind = write_behind(from, count);
  writes_.await_somebody();
  const auto called = read_.read(to.data(), length, 0);
  EXPECT_TRUE(called.ok()) << told(called.error);
  const auto asynchronous = read_.read_async(to.data(), length, 0).wait();
  EXPECT_TRUE(asynchronous.ok()) << told(asynchronous.error);
  const auto small = read_.read_async(to.data(), 4 * kib, 0).wait();
  EXPECT_TRUE(small.ok()) << told(small.error);
  const std::array requests{io_request{&read_, to.data(), mib, 0}, io_request{&read_, to.data() + mib, 4 * kib, mib}};
  for (const auto& each : house_->engine().submit(requests).wait()) EXPECT_TRUE(each.ok()) << told(each.error);
  to.expect(content_);
  for (const auto& each : behind) EXPECT_FALSE(each.done());
  writes_.open();
  for (auto& each : behind) {
    const auto outcome = each.wait();
    EXPECT_TRUE(outcome.ok()) << told(outcome.error);
    EXPECT_EQ(outcome.bytes_done, length);
  }
  expect_written(count);
}

TEST_P(priority_contract, background_requests_end_beside_normal_ones_that_get_nowhere) {
  guarded_memory from(*house_, GetParam(), length);
  guarded_memory to(*house_, GetParam(), length);
  reads_.shut();
  auto held_up = read_.read_async(to.data(), length, 0);
  reads_.await_somebody();
  auto behind = write_behind(from, 2);
  for (auto& each : behind) {
    const auto outcome = each.wait();
    EXPECT_TRUE(outcome.ok()) << told(outcome.error);
  }
  EXPECT_FALSE(held_up.done());
  reads_.open();
  const auto outcome = held_up.wait();
  EXPECT_TRUE(outcome.ok()) << told(outcome.error);
  expect_written(2);
  const auto seen = house_->engine().stats().usage;
  EXPECT_EQ(seen.background_requests, 2U);
  EXPECT_EQ(seen.background_bytes, 2 * length);
  // On a slow machine each piece may come when it is its time anyway.
  EXPECT_EQ(seen.background_waits > 0, seen.background_wait_ns > 0);
}

TEST_P(priority_contract, all_kinds_of_background_requests_move_their_bytes) {
  for (const bool bypass : {false, true}) {
    SCOPED_TRACE(bypass ? "bypass" : "auto");
    auto options = in_background;
    if (bypass) options.cache = cache_use::bypass;
    drop_cache(directory_.file("read"));
    auto both = open("both", {.read = true, .write = true, .create = true, .truncate = true, .direct_writes = bypass});
    guarded_memory memory(*house_, GetParam(), length);
    const auto called = read_.read(memory.data(), length, 0, options);
    EXPECT_TRUE(called.ok()) << told(called.error);
    memory.expect(content_);
    std::vector<io_request> requests;
    for (std::uint64_t at = 0; at < length; at += 64 * kib)
      requests.push_back({&both, memory.data() + at, 64 * kib, static_cast<std::int64_t>(at), true});
    for (const auto& each : house_->engine().submit(requests, options).wait()) EXPECT_TRUE(each.ok()) << told(each.error);
    expect_file(directory_.file("both"), content_);
    const auto written = both.write(memory.data(), length, length, options);
    EXPECT_TRUE(written.ok()) << told(written.error);
    const auto small = both.write_async(memory.data(), 4 * kib, 2 * length, options).wait();
    EXPECT_TRUE(small.ok()) << told(small.error);
    auto expected = content_;
    overlay(expected, length, content_);
    overlay(expected, 2 * length, std::span(content_).first(4 * kib));
    expect_file(directory_.file("both"), expected);
  }
}

TEST_P(priority_contract, cancelled_background_writes_end_beside_one_that_gets_nowhere) {
  guarded_memory from(*house_, GetParam(), length);
  writes_.shut();
  auto behind = write_behind(from, 6);
  writes_.await_somebody();
  for (std::size_t i = 2; i < behind.size(); ++i) {
    behind[i].cancel();
    EXPECT_EQ(behind[i].wait().error.code(), errc::cancelled);
  }
  writes_.open();
  for (std::size_t i = 0; i < 2; ++i) EXPECT_TRUE(behind[i].wait().ok());
}

TEST_P(priority_contract, background_requests_hold_to_their_deadline) {
  guarded_memory from(*house_, GetParam(), length);
  guarded_memory to(*house_, GetParam(), length);
  reads_.shut();
  auto occupies_the_lane = read_.read_async(to.data(), length, 0, in_background);
  reads_.await_somebody();
  auto late = in_background;
  late.deadline = deadline_clock::now() + std::chrono::milliseconds(1);
  EXPECT_EQ(written_.write_async(from.data(), length, 0, late).wait().error.code(), errc::timed_out);
  reads_.open();
  EXPECT_TRUE(occupies_the_lane.wait().ok());
}

TEST_P(priority_contract, the_list_of_requests_tells_their_priority) {
  guarded_memory from(*house_, GetParam(), length);
  writes_.shut();
  auto behind = write_behind(from, 1);
  writes_.await_somebody();
  const auto seen = house_->engine().requests();
  ASSERT_EQ(seen.size(), 1U);
  EXPECT_EQ(seen.front().priority, request_priority::background);
  writes_.open();
  EXPECT_TRUE(behind.front().wait().ok());
}

TEST_P(priority_contract, closing_waits_for_background_writes) {
  guarded_memory from(*house_, GetParam(), length);
  auto behind = write_behind(from, 3);
  EXPECT_TRUE(written_.close().ok());
  expect_written(3);
  for (auto& each : behind) EXPECT_TRUE(each.wait().ok());
}

TEST_P(priority_contract, a_plan_tells_of_the_background) {
  const auto where = GetParam() == memory_place::device ? house_->device() : std::string("host");
  const auto told_of = house_->engine().explain(written_, where, length, 0, true, in_background);
  ASSERT_TRUE(told_of.ok()) << told(told_of.error());
  const auto remarks = told_of->remarks;
  EXPECT_TRUE(std::any_of(remarks.begin(), remarks.end(), [](const std::string& each) { return each.starts_with("in the background"); }));
}

INSTANTIATE_TEST_SUITE_P(memory, priority_contract, ::testing::Values(memory_place::pageable, memory_place::device),
                         [](const auto& info) { return to_string(info.param); });

}  // namespace
}  // namespace penstock::testing
