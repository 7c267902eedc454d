// Reads of bytes that are not in the page cache: the path, the number of threads, the output of explain() and the counters, and which
// option decides.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <mutex>
#include <set>
#include <thread>

#include "contract/contract_fixture.hpp"
#include "core/request/decide.hpp"
#include "support/forwarding_kernel.hpp"

namespace penstock::testing::cache_use_tests {
namespace {

constexpr std::size_t size = 24 * mib + 5;

// Tells of memory what the test wants; counts those who read through the page cache at once, and may keep them waiting.
class watched_kernel final : public forwarding_kernel {
 public:
  std::atomic<std::uint64_t> total_bytes{64ULL << 30};
  std::atomic<std::uint64_t> available_bytes{48ULL << 30};
  std::atomic<bool> says_nothing{false};
  std::atomic<bool> all_resident{false};        // as it says
  std::atomic<std::uint64_t> brought_bytes{0};  // of which it was said that they are to be in the page cache

  result<std::uint64_t> resident_bytes(int fd, std::uint64_t offset, std::uint64_t length) override {
    return all_resident ? result<std::uint64_t>(length) : inner().resident_bytes(fd, offset, length);
  }

  status read_into_cache(int fd, std::uint64_t offset, std::uint64_t length) override {
    brought_bytes += length;
    return inner().read_into_cache(fd, offset, length);
  }

  result<sys::memory_state> memory_now() override {
    if (says_nothing) return status(errc::unsupported, "memory is not told of");
    return sys::memory_state{total_bytes, available_bytes};
  }
  // As on a machine with many.
  unsigned usable_cores() override { return 16; }

  result<std::size_t> pread(int fd, void* target, std::size_t length, std::uint64_t offset) override {
    if (length < mib || (inner().descriptor_flags(fd).value_or(0) & O_DIRECT) != 0) return inner().pread(fd, target, length, offset);
    {
      std::unique_lock guard(lock_);
      most_ = std::max(most_, ++inside_);
      changed_.notify_all();
      changed_.wait(guard, [this] { return open_; });
    }
    auto got = inner().pread(fd, target, length, offset);
    const std::lock_guard guard(lock_);
    --inside_;
    return got;
  }
  // Those who read at least 1 MiB at once through the page cache wait, or go on.
  void set_open(bool open) {
    const std::lock_guard guard(lock_);
    open_ = open;
    changed_.notify_all();
  }
  void await(unsigned readers) {
    std::unique_lock guard(lock_);
    changed_.wait(guard, [&] { return inside_ == readers; });
  }
  [[nodiscard]] unsigned most() {
    const std::lock_guard guard(lock_);
    return most_;
  }

 private:
  std::mutex lock_;  // guards what follows
  std::condition_variable changed_;
  bool open_ = true;
  unsigned inside_ = 0;
  unsigned most_ = 0;
};

core::seams doors_of(std::shared_ptr<sys::kernel> kernel, bool shared_memory = false) {
  return {std::move(kernel), nullptr, device::make_host_driver(1, shared_memory)};
}

class cache_use_contract : public ::testing::Test {
 protected:
  void SetUp() override {
    content_ = pattern::make(size, 3);
    store_file(name_, content_);
    auto probe = house_.engine().open(name_);
    ASSERT_TRUE(probe.ok()) << told(probe.error());
    if (!probe->core()->source().direct_problem().ok()) GTEST_SKIP() << directory_.path() << " has no direct I/O";
    cool();
    if (resident() != 0) GTEST_SKIP() << directory_.path() << " keeps its pages";
  }

  void cool() { drop_cache(name_); }
  // Most of it is in the page cache. Not all need be: other programs want memory too.
  void expect_kept() { EXPECT_GE(resident(), size / 2); }
  [[nodiscard]] std::uint64_t resident() {
    const int fd = ::open(name_.c_str(), O_RDWR | O_CLOEXEC);
    const auto bytes = kernel_->resident_bytes(fd, 0, size);
    ::close(fd);
    EXPECT_TRUE(bytes.ok()) << told(bytes.error());
    return bytes.value_or(0);
  }
  file open(const open_options& options = {}) { return open_in(house_.engine(), options); }
  file open_in(const engine& with, const open_options& options = {}) {
    auto opened = with.open(name_, options);
    EXPECT_TRUE(opened.ok()) << told(opened.error());
    return opened.ok() ? *std::move(opened) : file();
  }
  // All reasons of a read of all, which is cold.
  std::set<std::string> reasons(const file& of, const io_options& how = {}) {
    std::set<std::string> told_reasons;
    const auto plan = house_.engine().explain(of, "host:0", size, 0, false, how);
    EXPECT_TRUE(plan.ok()) << told(plan.error());
    if (!plan) return {};
    for (const auto& part : plan->parts) told_reasons.insert(part.reason);
    return told_reasons;
  }
  void expect_reason(const file& of, const std::string& words, const io_options& how = {}) {
    const auto all = reasons(of, how);
    ASSERT_EQ(all.size(), 1U);
    EXPECT_NE(all.begin()->find(words), std::string::npos) << *all.begin();
  }
  void read_all(const file& from, const io_options& how = {}) {
    guarded_memory memory(house_, memory_place::device, size);
    const auto outcome = from.read(memory.data(), size, 0, how);
    EXPECT_TRUE(outcome.ok()) << told(outcome.error);
    EXPECT_EQ(outcome.bytes_done, size);
    memory.expect(content_);
  }
  [[nodiscard]] usage_stats usage() { return house_.engine().stats().usage; }

  static engine_options options() {
    engine_options made;
    made.use_cuda = false;
    made.lanes = 8;
    return made;
  }

  std::shared_ptr<watched_kernel> kernel_ = std::make_shared<watched_kernel>();
  open_house house_{options(), doors_of(kernel_)};
  temp_dir directory_ = temp_dir::on_build_disk();
  std::string name_ = directory_.file("data");
  bytes content_;
};

TEST_F(cache_use_contract, what_was_read_is_in_the_page_cache_the_second_time) {
  const auto from = open();
  expect_reason(from, "so that the next read finds it there");
  read_all(from);
  const auto kept = usage().kept_read_bytes;  // less than all where the kernel has read ahead of the plan
  EXPECT_GT(kept, size / 4);
  EXPECT_GT(usage().kept_read_ns, 0U);
  EXPECT_EQ(usage().cold_read_bytes, 0U);
  expect_kept();
  kernel_->all_resident = true;
  expect_reason(from, "in the page cache");
  read_all(from);
  EXPECT_EQ(usage().kept_read_bytes, kept) << "it was there";
}

TEST_F(cache_use_contract, a_device_that_shares_the_hosts_memory_leaves_nothing_in_the_page_cache_unless_asked) {
  open_house integrated(options(), doors_of(kernel_, true));
  EXPECT_TRUE(integrated.engine().devices().front().shares_host_memory);
  const auto from = open_in(integrated.engine());
  guarded_memory memory(integrated, memory_place::device, size);
  const auto plan = integrated.engine().explain(from, "host:0", size, 0);
  ASSERT_TRUE(plan.ok()) << told(plan.error());
  EXPECT_NE(plan->parts.front().reason.find("would hold the bytes twice"), std::string::npos) << plan->parts.front().reason;
  EXPECT_TRUE(from.read(memory.data(), size, 0).ok());
  memory.expect(content_);
  EXPECT_EQ(resident(), 0U);
  EXPECT_TRUE(from.read_async(memory.data(), size, 0).wait().ok());
  EXPECT_EQ(resident(), 0U);
  EXPECT_TRUE(from.read(memory.data(), size, 0, {.cache = cache_use::fill}).ok());
  expect_kept();
}

TEST_F(cache_use_contract, only_what_is_to_be_in_the_page_cache_is_brought_there_at_once) {
  const auto from = open();
  read_all(from, {.cache = cache_use::bypass});
  EXPECT_EQ(kernel_->brought_bytes, 0U);
  read_all(from);
  EXPECT_EQ(kernel_->brought_bytes, usage().kept_read_bytes);
  const auto brought = kernel_->brought_bytes.exchange(0);
  EXPECT_GT(brought, 0U);
  kernel_->all_resident = true;
  read_all(from);
  EXPECT_EQ(kernel_->brought_bytes, 0U);
}

TEST_F(cache_use_contract, four_threads_at_most_fill_the_cache_and_others_serve_what_is_in_it) {
  const auto hot_name = directory_.file("hot");
  const auto hot_content = pattern::make(512 * kib, 5);
  store_file(hot_name, hot_content);
  auto hot = house_.engine().open(hot_name);
  ASSERT_TRUE(hot.ok()) << told(hot.error());
  const auto cold = open();
  guarded_memory memory(house_, memory_place::device, size);
  kernel_->set_open(false);
  auto reading = cold.read_async(memory.data(), size, 0);
  kernel_->await(4);
  guarded_memory other(house_, memory_place::device, hot_content.size());
  const auto outcome = hot->read(other.data(), hot_content.size(), 0);
  EXPECT_TRUE(outcome.ok()) << told(outcome.error);
  other.expect(hot_content);
  kernel_->set_open(true);
  EXPECT_TRUE(reading.wait().ok());
  memory.expect(content_);
  EXPECT_EQ(kernel_->most(), 4U);
}

TEST_F(cache_use_contract, a_read_that_is_stopped_leaves_what_has_not_begun) {
  const auto cold = open();
  guarded_memory memory(house_, memory_place::device, size);
  kernel_->set_open(false);
  auto reading = cold.read_async(memory.data(), size, 0);
  kernel_->await(4);
  reading.cancel();
  kernel_->set_open(true);
  const auto outcome = reading.wait();
  EXPECT_EQ(outcome.error.code(), errc::cancelled) << told(outcome.error);
  EXPECT_LE(outcome.bytes_done, 4 * 4 * mib);
  memory.expect_old_or_new(content_, outcome.bytes_done);
}

TEST_F(cache_use_contract, bypass_leaves_nothing_in_the_page_cache_and_reads_there_what_is_in_it) {
  const io_options how{.cache = cache_use::bypass};
  const auto from = open();
  expect_reason(from, "direct I/O, as requested", how);
  read_all(from, how);
  EXPECT_EQ(resident(), 0U);
  EXPECT_EQ(usage().cold_read_bytes, size);
  EXPECT_EQ(usage().kept_read_bytes, 0U);
  // Small ones too, which their caller carries.
  guarded_memory small(house_, memory_place::device, 10000);
  EXPECT_EQ(from.read(small.data(), 10000, 777, how).bytes_done, 10000U);
  small.expect(std::span(content_).subspan(777, 10000));
  EXPECT_EQ(resident(), 0U);
  // A file's end that lies within the last block.
  guarded_memory end(house_, memory_place::device, 10000);
  EXPECT_EQ(from.read(end.data(), 10000, size - 100, how).bytes_done, 100U);
  end.expect(std::span(content_).last(100));

  read_all(from, {.cache = cache_use::fill});
  expect_kept();
  kernel_->all_resident = true;
  expect_reason(from, "in the page cache", how);
  const auto before = usage().cold_read_bytes;
  read_all(from, how);
  EXPECT_EQ(usage().cold_read_bytes, before);
}

TEST_F(cache_use_contract, what_is_asked_of_a_request_comes_before_what_is_asked_of_its_file_and_of_the_engine) {
  expect_reason(open({.cache = cache_use::bypass}), "direct I/O, as requested");
  expect_reason(open({.cache = cache_use::fill}), "read through it, as requested");
  expect_reason(open({.cache = cache_use::bypass}), "read through it, as requested", {.cache = cache_use::fill});
  expect_reason(open({.cache = cache_use::fill}), "direct I/O, as requested", {.cache = cache_use::bypass});
  auto asked = options();
  asked.cache = cache_use::bypass;
  open_house other(asked, doors_of(kernel_));
  for (const auto of_file : {cache_use::automatic, cache_use::fill}) {
    const auto plan = other.engine().explain(open_in(other.engine(), {.cache = of_file}), "host:0", size, 0);
    ASSERT_TRUE(plan.ok()) << told(plan.error());
    const auto* const words = of_file == cache_use::fill ? "read through it, as requested" : "direct I/O, as requested";
    EXPECT_NE(plan->parts.at(0).reason.find(words), std::string::npos) << plan->parts.at(0).reason;
  }
}

TEST_F(cache_use_contract, the_environment_sets_the_engines) {
  ::setenv("PENSTOCK_CACHE", "bypass", 1);
  const auto asked = engine_options::from_environment();
  ::setenv("PENSTOCK_CACHE", "sometimes", 1);
  const auto wrong = engine_options::from_environment();
  ::unsetenv("PENSTOCK_CACHE");
  ASSERT_TRUE(asked.ok()) << told(asked.error());
  EXPECT_EQ(asked->cache, cache_use::bypass);
  EXPECT_EQ(wrong.error().code(), errc::invalid_argument);
  EXPECT_NE(wrong.error().message().find("PENSTOCK_CACHE"), std::string_view::npos) << told(wrong.error());
}

TEST_F(cache_use_contract, a_file_that_memory_has_no_room_for_goes_past_the_cache) {
  kernel_->available_bytes = 8ULL << 30;  // an eighth has to be left
  expect_reason(open(), "memory has no room for the whole file");
  read_all(open());
  EXPECT_EQ(resident(), 0U);
  expect_reason(open(), "as requested", {.cache = cache_use::fill});
}

TEST_F(cache_use_contract, where_the_kernel_does_not_tell_of_memory_nothing_is_kept) {
  kernel_->says_nothing = true;
  expect_reason(open(), "does not report whether memory has room");
  read_all(open());
  EXPECT_EQ(resident(), 0U);
}

TEST_F(cache_use_contract, a_descriptor_that_was_opened_with_o_direct_stays_past_the_cache) {
  const int fd = ::open(name_.c_str(), O_RDONLY | O_DIRECT | O_CLOEXEC);
  ASSERT_GE(fd, 0);
  {
    auto lent = house_.engine().adopt(fd);
    ASSERT_TRUE(lent.ok()) << told(lent.error());
    expect_reason(*lent, "because its descriptor was opened with O_DIRECT");
    read_all(*lent);
    EXPECT_EQ(resident(), 0U);
    expect_reason(*lent, "read through it, as requested", {.cache = cache_use::fill});
  }
  ::close(fd);
}

TEST_F(cache_use_contract, small_reads_at_random_go_past_the_cache_and_those_in_order_are_kept) {
  const auto from = open();
  guarded_memory memory(house_, memory_place::device, mib);
  const auto read = [&](std::uint64_t offset) {
    EXPECT_EQ(from.read(memory.data(), mib, static_cast<std::int64_t>(offset)).bytes_done, mib);
    memory.expect(std::span(content_).subspan(offset, mib));
  };
  read(22 * mib);
  EXPECT_EQ(usage().cold_read_bytes, mib) << "far from the beginning";
  EXPECT_EQ(usage().kept_read_bytes, 0U);
  read(0);
  EXPECT_EQ(usage().cold_read_bytes, 2 * mib);
  read(mib);
  read(2 * mib);
  EXPECT_EQ(usage().cold_read_bytes, 2 * mib);
  EXPECT_GE(usage().kept_read_bytes, mib) << "the second may have been read ahead";
}

TEST_F(cache_use_contract, small_ranges_of_a_batch_go_past_the_cache_unless_their_file_shall_be_kept) {
  if (!kernel_->make_ring(4).ok()) GTEST_SKIP() << "there is no io_uring, without which small ranges go through the page cache";
  constexpr std::size_t count = 32;
  guarded_memory memory(house_, memory_place::device, count * 4096);
  for (const auto asked : {cache_use::automatic, cache_use::fill}) {
    const auto from = open({.cache = asked});
    std::vector<io_request> requests;
    bytes expected;
    for (std::size_t i = 0; i < count; ++i) {
      const auto offset = i * 512 * kib;
      requests.push_back({&from, memory.data() + i * 4096, 4096, static_cast<std::int64_t>(offset), false});
      expected.insert(expected.end(), content_.begin() + static_cast<std::ptrdiff_t>(offset),
                      content_.begin() + static_cast<std::ptrdiff_t>(offset + 4096));
    }
    for (const auto& each : house_.engine().submit(requests).wait()) EXPECT_TRUE(each.ok()) << told(each.error);
    memory.expect(expected);
    EXPECT_EQ(usage().cold_read_bytes, count * 4096) << "once, by the first of them";
    EXPECT_EQ(resident() >= count * 4096, asked == cache_use::fill);
  }
}

TEST_F(cache_use_contract, what_turned_out_to_be_faster_past_the_cache_goes_there) {
  const auto from = open();
  auto& speeds = from.core()->cold_speeds();
  speeds.note({false, core::cold_speeds::least_kept_bytes, 1, 1'000'000'000});
  speeds.note({true, core::cold_speeds::warm_up_bytes, 1, 1'000'000'000});
  speeds.note({true, core::cold_speeds::least_direct_bytes, 1'000'000'000, 1'000'000'001});
  expect_reason(from, "which has been faster here");
  read_all(from);
  EXPECT_EQ(resident(), 0U);
}

TEST_F(cache_use_contract, a_read_that_fails_says_what_and_where) {
  class failing_kernel final : public forwarding_kernel {
   public:
    result<std::size_t> pread(int fd, void* target, std::size_t length, std::uint64_t offset) override {
      if (offset == 8 * mib && length > 1) return status::from_errno(EIO, "pread");
      return inner().pread(fd, target, length, offset);
    }
  };
  open_house other(options(), doors_of(std::make_shared<failing_kernel>()));
  const auto from = open_in(other.engine());
  guarded_memory memory(other, memory_place::device, size);
  const auto outcome = from.read(memory.data(), size, 0, {.cache = cache_use::fill});
  EXPECT_EQ(outcome.error.code(), errc::io) << told(outcome.error);
  EXPECT_EQ(outcome.bytes_done, 8 * mib);
  EXPECT_NE(outcome.error.message().find(name_), std::string_view::npos) << told(outcome.error);
  memory.expect_old_or_new(content_, outcome.bytes_done);
}

// --- what a first long read finds out, by a file of 4 GiB that nobody reads: each section is planned as requests do it, and the disk is
// one that gives so many MiB a second either way

struct long_read {
  std::uint64_t tried = 0;     // bytes
  std::uint64_t tried_at = 0;  // in the file
  std::uint64_t bypassed = 0;
  std::uint64_t kept = 0;
};

class a_first_long_read : public cache_use_contract {
 protected:
  static constexpr std::uint64_t length = 4096 * mib;

  bool keeping_costs_cpu = false;

  long_read run(std::uint64_t kept_mib_a_second, std::uint64_t direct_mib_a_second, std::uint64_t bytes = length) {
    const auto long_name = directory_.file("long");
    const int fd = ::open(long_name.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    EXPECT_EQ(::ftruncate(fd, static_cast<off_t>(length)), 0);
    ::close(fd);
    open_house fresh(options(), doors_of(kernel_));
    auto from = fresh.engine().open(long_name);
    EXPECT_TRUE(from.ok()) << told(from.error());
    if (!from.ok()) return {};
    auto& file = *from->core();
    auto& speeds = file.cold_speeds();
    const auto place = file.runtime().memory().place_on("host:0");
    EXPECT_TRUE(place.ok()) << told(place.error());
    const core::transfer whole{nullptr, bytes, 0, false};
    long_read told_of;
    std::int64_t now = 1;
    for (auto rest = whole; rest.length > 0;) {
      const auto pieces = core::decide(file.runtime(), file, rest, whole, *place, {}, cache_use::automatic, {8, false});
      EXPECT_TRUE(pieces.ok()) << told(pieces.error());
      if (!pieces.ok()) return told_of;
      for (const auto& piece : *pieces) {
        if (piece.reason == core::plan_reason::bypass_tried) {
          if (told_of.tried == 0) told_of.tried_at = piece.offset;
          told_of.tried += piece.length;
          speeds.tries(piece.length);
        }
        if (piece.reason == core::plan_reason::bypass_faster) told_of.bypassed += piece.length;
        if (piece.reason == core::plan_reason::kept) told_of.kept += piece.length;
        const bool past_cache = piece.way == path::way::past_cache;
        const auto mib_a_second = past_cache ? direct_mib_a_second : kept_mib_a_second;
        const auto ends = now + static_cast<std::int64_t>(piece.length * 1000 / mib_a_second * 1000 / mib * 1000);
        speeds.begins(past_cache);
        constexpr int most_threads = 4;  // that keep at once; none of them waits where that is bound by the CPU
        speeds.note({past_cache, piece.length, now, ends, keeping_costs_cpu ? most_threads * (ends - now) : 0});
        now = ends;
      }
      rest.offset += core::length_of(*pieces);
      rest.length -= core::length_of(*pieces);
    }
    return told_of;
  }
};

TEST_F(a_first_long_read, tries_the_other_way_and_takes_it_for_its_rest_where_it_is_faster) {
  const auto seen = run(1000, 2400);
  EXPECT_EQ(seen.tried, core::cold_speeds::tried_bytes);
  EXPECT_GE(seen.tried_at, core::cold_speeds::least_kept_bytes);
  EXPECT_LE(seen.tried_at, core::cold_speeds::least_kept_bytes + 256 * mib);
  EXPECT_GE(seen.bypassed, length / 2);
  EXPECT_EQ(seen.kept + seen.tried + seen.bypassed, length);
}

TEST_F(a_first_long_read, takes_the_faster_way_within_64_mib_where_keeping_is_bound_by_the_cpu) {
  keeping_costs_cpu = true;
  const auto seen = run(1000, 3000, 1024 * mib);
  EXPECT_LE(seen.kept, 32 * mib);
  EXPECT_EQ(seen.tried, core::cold_speeds::warm_up_bytes + core::cold_speeds::least_direct_bytes);
  EXPECT_EQ(seen.kept + seen.tried + seen.bypassed, 1024 * mib);
  EXPECT_EQ(run(1000, 900, 1024 * mib).bypassed, 0U) << "the other way is slower";
}

TEST_F(a_first_long_read, stays_where_the_other_way_is_hardly_faster) {
  for (const std::uint64_t direct : {1000, 1200}) {
    const auto seen = run(1000, direct);
    EXPECT_EQ(seen.tried, core::cold_speeds::tried_bytes);
    EXPECT_EQ(seen.bypassed, 0U);
    EXPECT_EQ(seen.kept + seen.tried, length);
  }
}

TEST_F(a_first_long_read, tries_nothing_where_it_ends_before_enough_is_known) {
  const auto seen = run(1000, 2400, core::cold_speeds::least_kept_bytes);
  EXPECT_EQ(seen.tried, 0U);
  EXPECT_EQ(seen.kept, core::cold_speeds::least_kept_bytes);
}

}  // namespace
}  // namespace penstock::testing::cache_use_tests
