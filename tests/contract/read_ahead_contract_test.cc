// Files declared immutable: whatever is read ahead, every call returns the bytes, counts and errors that it would return without
// read-ahead.
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "contract/contract_fixture.hpp"
#include "core/file_core.hpp"
#include "support/faulty_device.hpp"
#include "support/forwarding_kernel.hpp"
#include "support/lacking.hpp"

namespace penstock::testing::read_ahead_tests {
namespace {

constexpr std::uint64_t file_bytes = 40 * mib + 12345;
constexpr std::uint64_t longest = 16 * mib;

// Counts what is read through it, and has it fail where a test wants.
class counting_kernel final : public forwarding_kernel {
 public:
  std::atomic<std::uint64_t> bytes_read{0};
  std::atomic<std::uint64_t> broken_at{~std::uint64_t{0}};  // reads of this byte fail

  result<std::uint64_t> resident_bytes(int, std::uint64_t, std::uint64_t length) override { return length; }
  // Room for lanes, on whatever machine.
  unsigned usable_cores() override { return 8; }
  // While no call is under way every third read fails.
  std::atomic<bool> breaks_between_calls{false};
  std::atomic<bool> in_call{false};
  std::atomic<unsigned> between_calls{0};

  result<std::size_t> pread(int fd, void* target, std::size_t length, std::uint64_t offset) override {
    if (breaks_between_calls && !in_call && ++between_calls % 3 == 0) return status::from_errno(EIO, "pread");
    if (const auto broken = broken_at.load(); broken >= offset && broken < offset + length) return status::from_errno(EIO, "pread");
    auto got = inner().pread(fd, target, length, offset);
    if (got && length > 1) bytes_read += *got;  // one byte asks where the file ends
    return got;
  }
};

class read_ahead_contract : public ::testing::Test {
 protected:
  read_ahead_contract() { store_file(name_, content_); }

  static engine_options with_budget(std::size_t bytes) {
    engine_options made;
    made.use_cuda = false;
    made.pinned_budget_bytes = bytes;
    return made;
  }
  file open(bool immutable = true) { return open_in(house_, immutable); }
  file open_in(open_house& house, bool immutable = true) {
    open_options how;
    how.immutable = immutable;
    auto opened = house.engine().open(name_, how);
    EXPECT_TRUE(opened.ok()) << told(opened.error());
    return opened.ok() ? *std::move(opened) : file();
  }
  static source::read_ahead& ahead_of(const file& of) { return *of.core()->ahead(); }
  // Until lanes have done what they were asked to: from then on what happens does not depend on them.
  static void settle(const file& of) {
    while (!ahead_of(of).idle()) std::this_thread::yield();
  }
  // One call, and its bytes compared.
  io_result read(const file& from, std::uint64_t offset, std::uint64_t length, const io_options& how = {}) {
    if (memory_.size() < length) memory_.resize(length);
    kernel_->in_call = true;
    auto outcome = from.read(target_.data(), length, static_cast<std::int64_t>(offset), how);
    kernel_->in_call = false;
    EXPECT_TRUE(house_.engine().copy(memory_.data(), target_.data(), outcome.bytes_done).ok());
    const std::uint64_t there = offset < content_.size() ? std::min<std::uint64_t>(length, content_.size() - offset) : 0;
    if (outcome.ok()) {
      EXPECT_EQ(outcome.bytes_done, there) << length << " at " << offset;
    }
    EXPECT_LE(outcome.bytes_done, there);
    EXPECT_EQ(pattern::first_difference(std::span(memory_).first(outcome.bytes_done), 5, offset), std::nullopt);
    return outcome;
  }
  void read_in_order(const file& from, std::uint64_t length, std::uint64_t first = 0, bool settled = true) {
    for (std::uint64_t at = first; at < content_.size(); at += length) {
      const auto outcome = read(from, at, length);
      EXPECT_TRUE(outcome.ok()) << told(outcome.error);
      if (settled) settle(from);
    }
  }
  // Up to a call that was served.
  std::uint64_t begin_in_order(const file& from) {
    for (std::uint64_t at = 0; at < 4 * mib; at += mib) {
      (void)read(from, at, mib);
      settle(from);
    }
    EXPECT_GT(ahead_of(from).filled_bytes(), 0U);
    return 4 * mib;
  }

  temp_dir directory_ = temp_dir::on_build_disk();
  std::string name_ = directory_.file("data");
  bytes content_ = pattern::make(file_bytes, 5);
  std::shared_ptr<counting_kernel> kernel_ = std::make_shared<counting_kernel>();
  std::shared_ptr<faulty_driver> driver_ = make_faulty_driver(device::make_host_driver());
  open_house house_{with_budget(512 * mib), {kernel_, nullptr, driver_}};
  device_buffer target_ = *house_.engine().allocate("host:0", longest + 1);
  bytes memory_;
};

TEST_F(read_ahead_contract, calls_in_order_read_each_byte_once) {
  for (const std::uint64_t length : {4 * kib, 100 * kib, 1 * mib, 5 * mib, 16 * mib}) {
    const auto from = open();
    std::uint64_t bytes_read = 0;
    // A second without a call, as on a machine that is busy with other things, gives the slabs back: then some are read twice.
    for (int attempt = 0; attempt < 3 && bytes_read != content_.size(); ++attempt) {
      const auto before = kernel_->bytes_read.load();
      read_in_order(from, length);
      bytes_read = kernel_->bytes_read.load() - before;
    }
    EXPECT_EQ(bytes_read, content_.size()) << length;
    if (length < 16 * mib) {
      EXPECT_GE(ahead_of(from).filled_bytes(), content_.size() / 2) << length;
    }
    EXPECT_TRUE(read(from, content_.size(), 100).ok());
  }
}

TEST_F(read_ahead_contract, calls_of_any_length_get_their_bytes) {
  const auto from = open();
  std::mt19937_64 random(17);
  std::uint64_t ahead_before = 0;
  for (unsigned pass = 0; pass < 4; ++pass) {
    for (std::uint64_t at = random() % 5000; at < content_.size();) {
      const std::uint64_t length = 1 + random() % (pass % 2 == 0 ? 3 * mib : 200 * kib);
      EXPECT_TRUE(read(from, at, length).ok());
      at += length;
    }
    EXPECT_GT(ahead_of(from).filled_bytes(), ahead_before);
    ahead_before = ahead_of(from).filled_bytes();
    settle(from);
  }
}

TEST_F(read_ahead_contract, calls_that_jump_get_their_bytes) {
  const auto from = open();
  std::mt19937_64 random(23);
  std::uint64_t at = 0;
  for (unsigned call = 0; call < 300; ++call) {
    const std::uint64_t length = 1 + random() % (call % 50 == 0 ? longest : mib);
    EXPECT_TRUE(read(from, at, length).ok());
    at = random() % 10 == 0 || at + length >= content_.size() ? random() % content_.size() : at + length;
  }
}

TEST_F(read_ahead_contract, counts_are_those_of_the_staged_path) {
  const auto from = open();
  const auto before = house_.engine().stats();
  read_in_order(from, mib);
  const auto after = house_.engine().stats();
  EXPECT_EQ(after.path(path_kind::staged).bytes - before.path(path_kind::staged).bytes, content_.size());
  EXPECT_EQ(after.read_bytes - before.read_bytes, content_.size());
  EXPECT_EQ(after.reads - before.reads, (content_.size() + mib - 1) / mib);
  EXPECT_EQ(after.path(path_kind::staged).fallbacks, before.path(path_kind::staged).fallbacks);
}

TEST_F(read_ahead_contract, an_error_is_told_to_the_call_that_needs_the_bytes) {
  kernel_->broken_at = 20 * mib + 5;
  const auto from = open();
  const auto plain = open(false);
  for (std::uint64_t at = 0; at < content_.size(); at += mib) {
    const auto outcome = read(from, at, mib);
    const auto usual = read(plain, at, mib);
    EXPECT_EQ(outcome.error.code(), usual.error.code()) << at;
    EXPECT_EQ(outcome.bytes_done, usual.bytes_done) << at;
    EXPECT_EQ(outcome.ok(), at != 20 * mib);
    EXPECT_EQ(outcome.error.message().find(name_) != std::string::npos, at == 20 * mib);
    settle(from);
  }
}

TEST_F(read_ahead_contract, an_error_that_passes_is_told_to_nobody) {
  const auto from = open();
  auto at = begin_in_order(from);
  kernel_->broken_at = at + 20 * mib;
  for (; at < 20 * mib; at += mib) {
    EXPECT_TRUE(read(from, at, mib).ok());
    settle(from);
  }
  kernel_->broken_at = ~std::uint64_t{0};
  read_in_order(from, mib, at);
}

TEST_F(read_ahead_contract, errors_of_what_nobody_has_asked_for_are_told_to_nobody) {
  kernel_->breaks_between_calls = true;
  const auto from = open();
  for (const std::uint64_t length : {64 * kib, 1 * mib, 3 * mib}) read_in_order(from, length);
  EXPECT_GE(kernel_->between_calls.load(), 3U);
}

TEST_F(read_ahead_contract, a_copy_that_fails_goes_the_usual_way) {
  for (const char* call : {"copy", "copy_small"}) {
    const auto from = open();
    const auto at = begin_in_order(from);
    const auto before = driver_->injected();
    driver_->fail(call, 1, status(errc::device, "no copy today"));
    EXPECT_TRUE(read(from, at, 6 * mib).ok()) << call;
    EXPECT_EQ(driver_->injected(), before + 1) << call;
    read_in_order(from, mib, at + 6 * mib);
  }
}

TEST_F(read_ahead_contract, a_call_without_a_stream_goes_the_usual_way) {
  const auto from = open();
  for (std::uint64_t at = 0; at < 3 * mib; at += mib) {
    EXPECT_TRUE(read(from, at, mib).ok());
    settle(from);
  }
  driver_->fail("make_stream", 1, status(errc::out_of_memory, "no stream"));
  read_in_order(from, mib, 3 * mib);
  EXPECT_EQ(driver_->injected(), 1U);
}

TEST_F(read_ahead_contract, nothing_is_read_ahead_where_nothing_can_be_pinned_for_it) {
  const auto from = open();
  EXPECT_TRUE(read(from, 0, mib).ok());
  settle(from);
  driver_->fail("pin", 1, status(errc::out_of_memory, "no more pinned memory"), faulty_driver::always);
  read_in_order(from, mib, mib);
  driver_->clear_faults();
}

TEST_F(read_ahead_contract, threads_that_share_a_file_get_their_bytes) {
  const auto from = open();
  std::atomic<std::uint64_t> next{0};
  std::atomic<unsigned> wrong{0};
  const auto work = [&](unsigned index) {
    auto target = *house_.engine().allocate("host:0", mib);
    bytes seen(mib);
    const auto one = [&](std::uint64_t at, std::uint64_t length) {
      const auto outcome = from.read(target.data(), length, static_cast<std::int64_t>(at));
      const auto there = std::min<std::uint64_t>(length, content_.size() - at);
      const bool right = outcome.ok() && outcome.bytes_done == there && house_.engine().copy(seen.data(), target.data(), there).ok() &&
                         !pattern::first_difference(std::span(seen).first(there), 5, at);
      wrong += right ? 0 : 1;
    };
    // Each in order by itself, and then all together.
    for (std::uint64_t at = index * 10 * mib; at < (index + 1) * 10 * mib; at += 300 * kib) one(at, 300 * kib);
    for (auto at = next.fetch_add(mib); at < content_.size(); at = next.fetch_add(mib)) one(at, mib);
  };
  std::vector<std::thread> crew;
  for (unsigned i = 0; i < 4; ++i) crew.emplace_back(work, i);
  for (auto& each : crew) each.join();
  EXPECT_EQ(wrong.load(), 0U);
}

TEST_F(read_ahead_contract, small_budgets_read_nothing_or_less_ahead) {
  for (const std::uint64_t budget : {36 * mib, 64 * mib, 100 * mib}) {
    open_house small(with_budget(budget), {kernel_, nullptr, device::make_host_driver()});
    const auto from = open_in(small);
    auto target = *small.engine().allocate("host:0", mib);
    bytes seen(mib);
    for (std::uint64_t at = 0; at < content_.size(); at += mib) {
      const auto outcome = from.read(target.data(), mib, static_cast<std::int64_t>(at));
      ASSERT_TRUE(outcome.ok()) << told(outcome.error);
      ASSERT_TRUE(small.engine().copy(seen.data(), target.data(), outcome.bytes_done).ok());
      EXPECT_EQ(pattern::first_difference(std::span(seen).first(outcome.bytes_done), 5, at), std::nullopt);
      settle(from);
    }
    EXPECT_EQ(ahead_of(from).filled_bytes() > 0, budget >= 64 * mib);
    EXPECT_LE(small.engine().stats().pinned_peak_bytes, budget);
  }
}

TEST_F(read_ahead_contract, trim_takes_back_what_is_read_ahead) {
  const auto from = open();
  const auto at = begin_in_order(from);
  EXPECT_GT(house_.engine().stats().pinned_bytes, 0U);
  EXPECT_GT(house_.engine().trim(), 0U);
  EXPECT_EQ(house_.engine().stats().pinned_bytes, 0U);
  read_in_order(from, mib, at);
}

TEST_F(read_ahead_contract, is_taken_back_when_nobody_goes_on) {
  const auto from = open();
  (void)begin_in_order(from);
  while (house_.engine().stats().pinned_bytes > 0) {
    std::this_thread::yield();
    // Chunks of which nothing is out are given back by this, and nothing else is.
    (void)from.core()->runtime().trim_pools();
  }
}

TEST_F(read_ahead_contract, a_file_is_closed_while_lanes_are_at_it) {
  for (unsigned round = 0; round < 20; ++round) {
    auto from = open();
    for (std::uint64_t at = 0; at < (3 + round % 5) * mib; at += mib) EXPECT_TRUE(read(from, at, mib).ok());
    EXPECT_TRUE(from.close().ok());
    EXPECT_EQ(read(from, 0, mib).error.code(), errc::closed);
  }
  EXPECT_GT(house_.engine().trim(), 0U);
  EXPECT_EQ(house_.engine().stats().pinned_bytes, 0U) << "nothing is held for closed files";
}

TEST_F(read_ahead_contract, a_file_that_changes_is_read_as_it_is_once_that_was_noticed) {
  const auto from = open();
  (void)begin_in_order(from);
  content_ = pattern::make(file_bytes, 5);
  bytes other = pattern::make(file_bytes, 6);
  const int fd = ::open(name_.c_str(), O_WRONLY | O_CLOEXEC);
  ASSERT_GE(fd, 0);
  ASSERT_EQ(::pwrite(fd, other.data(), other.size(), 0), static_cast<ssize_t>(other.size()));
  const timespec times[2] = {{1, 0}, {1, 0}};
  ASSERT_EQ(::futimens(fd, times), 0);
  ::close(fd);
  bytes seen(mib);
  for (unsigned pass = 0; ahead_of(from).problem().ok(); ++pass) {
    ASSERT_LT(pass, 3U);
    for (std::uint64_t at = 0; at < content_.size(); at += mib) {
      ASSERT_TRUE(from.read(target_.data(), mib, static_cast<std::int64_t>(at)).ok());
      settle(from);
    }
  }
  for (std::uint64_t at = 0; at < content_.size(); at += mib) {
    const auto outcome = from.read(target_.data(), mib, static_cast<std::int64_t>(at));
    ASSERT_TRUE(house_.engine().copy(seen.data(), target_.data(), outcome.bytes_done).ok());
    EXPECT_EQ(pattern::first_difference(std::span(seen).first(outcome.bytes_done), 6, at), std::nullopt);
  }
  const auto plan = house_.engine().explain(from, "host:0", mib, 0);
  ASSERT_TRUE(plan.ok());
  EXPECT_TRUE(std::any_of(plan->remarks.begin(), plan->remarks.end(), [](const std::string& each) {
    return each.find("the file has changed since it was opened") != std::string::npos;
  }));
}

TEST_F(read_ahead_contract, explain_says_whether_it_will_serve) {
  const auto told_of = [&](const file& of, const io_options& how = {}) {
    const auto plan = house_.engine().explain(of, "host:0", mib, 0, false, how);
    EXPECT_TRUE(plan.ok()) << told(plan.error());
    std::string all;
    for (const auto& each : plan->remarks) all += each + "\n";
    return all;
  };
  EXPECT_EQ(told_of(open(false)).find("immutable"), std::string::npos);
  const auto from = open();
  EXPECT_NE(told_of(from).find("up to 64 MiB that is read ahead"), std::string::npos);
  io_options spares;
  spares.prefer = preference::cpu;
  EXPECT_NE(told_of(from, spares).find("immutable, but not read ahead: saving CPU time was requested"), std::string::npos);
  io_options by_map;
  by_map.path = path_kind::mapped;
  EXPECT_NE(told_of(from, by_map).find("immutable, but not read ahead: a different path was requested"), std::string::npos);
  PENSTOCK_SKIP_IF(lacks_reads_of_processes());
  const auto kept = from.pin();
  ASSERT_TRUE(kept.ok()) << told(kept.error());
  EXPECT_NE(told_of(from).find("immutable, but not read ahead: it is pinned"), std::string::npos);
}

TEST_F(read_ahead_contract, a_file_for_writing_cannot_be_immutable) {
  open_options how;
  how.write = true;
  how.immutable = true;
  const auto opened = house_.engine().open(name_, how);
  EXPECT_EQ(opened.error().code(), errc::invalid_argument);
  EXPECT_NE(opened.error().message().find(name_), std::string::npos);
}

TEST_F(read_ahead_contract, a_call_whose_deadline_has_passed_moves_nothing) {
  const auto from = open();
  const auto at = begin_in_order(from);
  io_options late;
  late.deadline = deadline_clock::now() - std::chrono::seconds(1);
  const auto outcome = read(from, at, mib, late);
  EXPECT_EQ(outcome.error.code(), errc::timed_out);
  EXPECT_EQ(outcome.bytes_done, 0U);
  late.deadline = deadline_clock::now() + std::chrono::hours(1);
  EXPECT_TRUE(read(from, at, mib, late).ok());
}

TEST_F(read_ahead_contract, a_forked_child_is_refused_and_ends) {
  auto from = open();
  const auto at = begin_in_order(from);
  const pid_t child = ::fork();
  if (child == 0) {
    const auto code = from.read(target_.data(), mib, static_cast<std::int64_t>(at)).error.code();
    from = file();  // closes it
    ::_exit(code == errc::forked ? 7 : 8);
  }
  int ended = 0;
  ASSERT_EQ(::waitpid(child, &ended, 0), child);
  EXPECT_TRUE(WIFEXITED(ended) && WEXITSTATUS(ended) == 7) << ended;
  EXPECT_TRUE(read(from, at, mib).ok());
}

}  // namespace
}  // namespace penstock::testing::read_ahead_tests
