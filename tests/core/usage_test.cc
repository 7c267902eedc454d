// Programs that do one thing that makes them slow get that advice and no other; a program that does none gets no advice. Only counts
// matter, not times: the advisor runs with all limits at zero.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "core/cache/cold_reads.hpp"
#include "core/engine_core.hpp"
#include "stats/advisor.hpp"
#include "stats/processes.hpp"
#include "support/engines.hpp"
#include "support/forwarding_kernel.hpp"
#include "support/stored_file.hpp"
#include "support/temp_dir.hpp"
#include "sys/page_size.hpp"

namespace penstock::testing {
namespace {

using codes = std::set<std::string>;

// Nothing is in the page cache, as this one tells it; and the machine has two NUMA nodes where the test says so.
class told_kernel final : public forwarding_kernel {
 public:
  bool cold = false;
  std::atomic<int> thread_node{-1};
  int memory_node = -1;
  int device_node = -1;

  result<std::uint64_t> resident_bytes(int fd, std::uint64_t offset, std::uint64_t length) override {
    return cold ? result<std::uint64_t>(0) : inner().resident_bytes(fd, offset, length);
  }
  int current_node() noexcept override { return thread_node.load(); }
  int node_of_memory(const void* /*address*/) noexcept override { return memory_node; }
  pci_device describe_pci(const std::string& /*address*/) override {
    pci_device told;
    told.numa_node = device_node;
    return told;
  }
};

// The host device with a place on a bus.
class placed_driver final : public device::driver {
 public:
  [[nodiscard]] std::string_view kind() const override { return inner_->kind(); }
  result<int> count() override { return inner_->count(); }
  result<device::device_facts> describe(int ordinal) override {
    auto facts = inner_->describe(ordinal);
    if (facts) facts->pci_bus_id = "0000:01:00.0";
    return facts;
  }
  result<device::memory_info> classify(const void* memory) override { return inner_->classify(memory); }
  result<std::byte*> cpu_address(const void* memory, std::uint64_t length) override { return inner_->cpu_address(memory, length); }
  result<device::session*> open(int ordinal, void* context) override { return inner_->open(ordinal, context); }

 private:
  const std::shared_ptr<device::driver> inner_ = device::make_host_driver();
};

class advised_programs : public ::testing::Test {
 protected:
  static constexpr std::uint64_t kib = 1024;
  static constexpr std::uint64_t mib = 1024 * kib;
  static constexpr std::uint64_t file_bytes = 8 * mib;
  static constexpr unsigned lanes = 8;

  void SetUp() override { store_pattern(name_, file_bytes, 1); }

  // What is cold is read past the page cache.
  engine make(engine_options options = without_cuda(lanes)) {
    options.cache = cache_use::bypass;
    auto made = core::make_engine(options, {kernel_, nullptr, std::make_shared<placed_driver>()});
    EXPECT_TRUE(made.ok()) << made.error().message();
    return *std::move(made);
  }
  static device_buffer memory_of(const engine& with, std::uint64_t bytes) {
    auto made = with.allocate("host:0", bytes);
    EXPECT_TRUE(made.ok()) << made.error().message();
    return made.ok() ? *std::move(made) : device_buffer();
  }
  // What is advised where every loss counts, and copying costs next to nothing.
  static codes advised(const engine& with) {
    auto stats = with.stats();
    stats.usage.copy_ns_per_mib = 1;
    codes found;
    for (const auto& each : stats::advise(stats, {0, 0})) {
      found.insert(each.code);
      EXPECT_FALSE(each.text.empty());
      EXPECT_FALSE(each.remedy.empty());
    }
    return found;
  }
  // Reads more at once than its budget for pinned memory holds, until that has been noticed often enough.
  void read_until_slabs_run_out(const engine& with) const {
    const auto from = opened_file(with, name_);
    const auto target = memory_of(with, 8 * file_bytes);
    while (with.stats().usage.slab_waits < 16) {
      std::vector<operation> under_way;
      for (std::uint64_t i = 0; i < 8; ++i)
        under_way.push_back(from.read_async(static_cast<std::byte*>(target.data()) + i * file_bytes, file_bytes, 0));
      for (auto& each : under_way) EXPECT_TRUE(each.wait().ok());
    }
  }
  static void read(const file& from, void* memory, std::uint64_t length, std::uint64_t offset) {
    const auto outcome = from.read(memory, length, static_cast<std::int64_t>(offset));
    EXPECT_TRUE(outcome.ok()) << outcome.error.message();
    EXPECT_EQ(outcome.bytes_done, length);
  }
  // Whether files there can be read past the page cache at all.
  bool has_direct_io() {
    const auto with = make();
    const auto opened = opened_file(with, name_);
    return opened.core()->source().direct_problem().ok();
  }

  std::shared_ptr<told_kernel> kernel_ = std::make_shared<told_kernel>();
  temp_dir directory_ = temp_dir::on_build_disk();
  std::string name_ = directory_.file("data");
  std::vector<std::byte> memory_ = std::vector<std::byte>(file_bytes);
};

TEST_F(advised_programs, one_that_reads_as_it_should_gets_none) {
  const auto with = make();
  const auto from = opened_file(with, name_);
  const auto target = memory_of(with, file_bytes);
  auto* const memory = static_cast<std::byte*>(target.data());
  {
    const auto kept = with.register_memory(target.data(), target.size());
    for (std::uint64_t at = 0; at < file_bytes; at += mib) read(from, memory + at, mib, at);
    for (std::uint64_t at = 0; at < file_bytes; at += mib) read(from, memory_.data() + at, mib, at);
    std::vector<io_request> many;
    for (std::uint64_t at = 0; at < mib; at += 4 * kib) many.push_back({&from, memory + at, 4 * kib, static_cast<std::int64_t>(at), false});
    for (const auto& each : with.submit(many).wait()) EXPECT_TRUE(each.ok());
    const auto write = from.write(memory, 4 * mib, 0);
    EXPECT_TRUE(write.ok()) << write.error.message();
  }
  EXPECT_EQ(advised(with), codes{});
  EXPECT_EQ(with.stats().usage.registrations, 1U);
  EXPECT_EQ(with.stats().usage.short_registrations, 0U);
  EXPECT_TRUE(with.advice().empty());
}

TEST_F(advised_programs, one_that_reads_little_by_little_in_file_order) {
  const auto with = make();
  const auto from = opened_file(with, name_);
  for (std::uint64_t at = 0; at < file_bytes; at += 4 * kib) read(from, memory_.data(), 4 * kib, at);
  EXPECT_EQ(advised(with), codes{"tiny-sequential-calls"});
  const auto usage = with.stats().usage;
  EXPECT_EQ(usage.sequential_read_bytes, usage.sequential_reads * 4 * kib);
  EXPECT_LT(usage.sequential_reads, file_bytes / (4 * kib));  // the first goes on from none
  EXPECT_EQ(usage.lone_reads, 0U);
}

TEST_F(advised_programs, one_that_reads_little_by_little_into_a_device) {
  const auto with = make();
  const auto from = opened_file(with, name_);
  const auto target = memory_of(with, 4 * kib);
  // A call of more than 50 us is taken for one that has waited: on machines where waking a thread takes that long few are quicker.
  constexpr std::uint64_t most_rounds = 100;
  constexpr std::uint64_t enough = 100;
  for (std::uint64_t round = 0; round < most_rounds && with.stats().usage.sequential_reads < enough; ++round) {
    for (std::uint64_t at = 0; at < file_bytes; at += 4 * kib) read(from, target.data(), 4 * kib, at);
  }
  if (with.stats().usage.sequential_reads < enough) GTEST_SKIP() << "no call ends in 50 us here, as in emulation";
  EXPECT_EQ(advised(with), codes{"tiny-sequential-calls"});
}

TEST_F(advised_programs, one_that_writes_little_by_little) {
  const auto with = make();
  const auto to = opened_file(with, name_);
  for (std::uint64_t at = 0; at < mib; at += 512) EXPECT_TRUE(to.write(memory_.data(), 512, static_cast<std::int64_t>(at)).ok());
  EXPECT_EQ(advised(with), codes{"tiny-sequential-calls"});
  EXPECT_EQ(with.stats().usage.sequential_reads, 0U);
}

TEST_F(advised_programs, one_whose_one_thread_jumps_about_in_a_hot_file) {
  const auto with = make();
  const auto from = opened_file(with, name_);
  for (std::uint64_t at = file_bytes; at > 0; at -= 4 * kib) read(from, memory_.data(), 4 * kib, at - 4 * kib);
  EXPECT_EQ(advised(with), codes{"one-thread-on-a-hot-file"});
  EXPECT_EQ(with.stats().usage.sequential_reads, 0U);
}

TEST_F(advised_programs, threads_that_take_turns_are_not_one) {
  const auto with = make();
  const auto from = opened_file(with, name_);
  for (std::uint64_t at = 0; at < 64 * 4 * kib; at += 4 * kib) std::thread([&] { read(from, memory_.data(), 4 * kib, at); }).join();
  EXPECT_EQ(advised(with), codes{});
}

TEST_F(advised_programs, one_that_registers_in_a_loop) {
  const auto with = make();
  const auto from = opened_file(with, name_);
  const auto target = memory_of(with, mib);
  for (int i = 0; i < 32; ++i) {
    const auto kept = with.register_memory(target.data(), target.size());
    EXPECT_TRUE(kept.ok());
    read(from, target.data(), mib, 0);
  }
  EXPECT_EQ(advised(with), codes{"register-in-a-loop"});
  const auto usage = with.stats().usage;
  EXPECT_EQ(usage.registrations, 32U);
  EXPECT_EQ(usage.short_registrations, 32U);
  EXPECT_EQ(usage.short_registration_requests, 32U);
}

TEST_F(advised_programs, a_registration_that_fails_is_none) {
  const auto with = make();
  EXPECT_EQ(with.register_memory(nullptr, 1).error().code(), errc::invalid_argument);
  EXPECT_EQ(with.stats().usage.registrations, 0U);
}

TEST_F(advised_programs, one_whose_records_lie_across_blocks_of_a_cold_file) {
  if (!has_direct_io()) GTEST_SKIP() << directory_.path() << " has no direct I/O";
  kernel_->cold = true;
  const auto with = make();
  const auto from = opened_file(with, name_);
  const auto target = memory_of(with, mib);
  std::vector<io_request> records;
  for (std::uint64_t i = 0; i < 128; ++i) {
    records.push_back(
        {&from, static_cast<std::byte*>(target.data()) + i * 4 * kib, 4 * kib, static_cast<std::int64_t>(i * 16 * kib + 512), false});
  }
  for (const auto& each : with.submit(records).wait()) EXPECT_TRUE(each.ok()) << each.error.message();
  EXPECT_EQ(advised(with), codes{"unaligned"});
  EXPECT_EQ(with.stats().usage.block_extra_bytes, 128 * 4 * kib);
  EXPECT_EQ(with.stats().usage.cold_read_bytes, 128 * 4 * kib);
}

TEST_F(advised_programs, one_whose_direct_writes_begin_anywhere) {
  if (!has_direct_io()) GTEST_SKIP() << directory_.path() << " has no direct I/O";
  const auto with = make();
  const auto to = opened_file(with, name_, {.read = true, .write = true, .direct_writes = true});
  const auto source = memory_of(with, 2 * mib);
  EXPECT_TRUE(to.write(source.data(), 2 * mib, 0).ok());
  EXPECT_EQ(with.stats().usage.unaligned_pieces, 0U);
  EXPECT_TRUE(to.write(source.data(), 2 * mib, 100).ok());  // two edges
  EXPECT_EQ(with.stats().usage.unaligned_pieces, 2U);
  EXPECT_TRUE(to.write(source.data(), mib, 100).ok());  // too little is left between them: all goes through the page cache
  EXPECT_EQ(with.stats().usage.unaligned_bytes, sys::page_size() + mib);
  EXPECT_EQ(advised(with), codes{"unaligned"});
}

TEST_F(advised_programs, one_that_reads_a_cold_file_twice) {
  if (!has_direct_io()) GTEST_SKIP() << directory_.path() << " has no direct I/O";
  kernel_->cold = true;
  const auto with = make();
  const auto target = memory_of(with, file_bytes);
  read(opened_file(with, name_), target.data(), file_bytes, 0);
  EXPECT_EQ(advised(with), codes{});
  EXPECT_EQ(with.stats().usage.cold_read_bytes, file_bytes);
  read(opened_file(with, name_), target.data(), file_bytes, 0);
  EXPECT_EQ(advised(with), codes{"cold-file-read-twice"});
  EXPECT_EQ(with.stats().usage.reread_bytes, file_bytes);
}

TEST_F(advised_programs, what_was_written_in_between_is_not_read_twice) {
  if (!has_direct_io()) GTEST_SKIP() << directory_.path() << " has no direct I/O";
  kernel_->cold = true;
  const auto with = make();
  const auto target = memory_of(with, file_bytes);
  const auto both = opened_file(with, name_);
  read(both, target.data(), file_bytes, 0);
  EXPECT_TRUE(both.write(target.data(), file_bytes, 0).ok());
  read(both, target.data(), file_bytes, 0);
  EXPECT_EQ(with.stats().usage.reread_bytes, 0U);
  // By somebody else.
  const std::array<timespec, 2> times{timespec{1, 0}, timespec{1, 0}};
  ASSERT_EQ(::utimensat(AT_FDCWD, name_.c_str(), times.data(), 0), 0);
  read(opened_file(with, name_), target.data(), file_bytes, 0);
  EXPECT_EQ(with.stats().usage.reread_bytes, 0U);
  EXPECT_EQ(advised(with), codes{});
}

TEST_F(advised_programs, one_far_from_its_device) {
  kernel_->thread_node = 1;
  kernel_->device_node = 0;
  const auto with = make();
  const auto from = opened_file(with, name_);
  const auto target = memory_of(with, file_bytes);
  for (int i = 0; i < 8; ++i) read(from, target.data(), file_bytes, 0);
  EXPECT_EQ(advised(with), codes{"wrong-numa-node"});
  EXPECT_EQ(with.stats().usage.far_bytes, 8 * file_bytes);
  EXPECT_EQ(with.stats().usage.near_pieces, 0U);
  kernel_->thread_node = 0;
  read(from, target.data(), file_bytes, 0);
  EXPECT_EQ(with.stats().usage.near_bytes, file_bytes);
  read(from, target.data(), 4 * kib, 0);  // by the caller
  EXPECT_EQ(with.stats().usage.near_bytes, file_bytes + 4 * kib);
}

TEST_F(advised_programs, one_far_from_its_buffer) {
  kernel_->thread_node = 1;
  kernel_->memory_node = 0;
  const auto with = make();
  const auto from = opened_file(with, name_);
  for (int i = 0; i < 8; ++i) read(from, memory_.data(), file_bytes, 0);
  EXPECT_EQ(advised(with), codes{"wrong-numa-node"});
  kernel_->memory_node = 1;
  const auto other = make();
  read(opened_file(other, name_), memory_.data(), file_bytes, 0);
  EXPECT_EQ(advised(other), codes{});
  EXPECT_EQ(other.stats().usage.near_bytes, file_bytes);
}

TEST_F(advised_programs, one_whose_budget_for_pinned_memory_is_used_up) {
  auto options = without_cuda(lanes);
  options.pinned_budget_bytes = std::size_t{36} << 20;
  const auto with = make(options);
  read_until_slabs_run_out(with);
  EXPECT_EQ(advised(with), codes{"pinned-budget-exhausted"});
  EXPECT_GT(with.stats().usage.slab_wait_ns, 0U);
}

TEST_F(advised_programs, disk_lanes_wait_for_it_too) {
  if (!has_direct_io()) GTEST_SKIP() << directory_.path() << " has no direct I/O";
  kernel_->cold = true;
  auto options = without_cuda(lanes);
  options.pinned_budget_bytes = std::size_t{36} << 20;
  const auto with = make(options);
  read_until_slabs_run_out(with);
  EXPECT_TRUE(advised(with).contains("pinned-budget-exhausted"));
}

TEST_F(advised_programs, the_summary_is_printed_when_the_engine_ends_and_only_where_it_was_asked_for) {
  const auto told = [&](bool asked) {
    ::testing::internal::CaptureStderr();
    {
      auto options = without_cuda(lanes);
      options.log_summary = asked;
      const auto with = make(options);
      const auto from = opened_file(with, name_);
      // Until the loss is one.
      do {
        for (std::uint64_t at = 0; at < file_bytes; at += 512) read(from, memory_.data(), 512, at);
      } while (with.advice().empty());
    }
    return ::testing::internal::GetCapturedStderr();
  };
  EXPECT_EQ(told(false), "");
  const auto lines = told(true);
  EXPECT_EQ(lines.find("penstock: posix: "), 0U) << lines;
  EXPECT_NE(lines.find("\npenstock: advice: "), std::string::npos) << lines;
  EXPECT_NE(lines.find(" sequential reads of 512 bytes on average came from one thread"), std::string::npos) << lines;
  EXPECT_EQ(lines.substr(lines.size() - 25), " [tiny-sequential-calls]\n");
}

TEST_F(advised_programs, the_variable_for_the_summary_is_read_and_a_wrong_word_named) {
  EXPECT_FALSE(engine_options::from_environment()->log_summary);
  ::setenv("PENSTOCK_LOG", "summary", 1);
  EXPECT_TRUE(engine_options::from_environment()->log_summary);
  ::setenv("PENSTOCK_LOG", "loud", 1);
  EXPECT_NE(engine_options::from_environment().error().message().find("PENSTOCK_LOG=loud: expected summary"), std::string_view::npos);
  ::unsetenv("PENSTOCK_LOG");
}

TEST_F(advised_programs, the_board_has_what_the_engine_counts_also_when_that_has_ended) {
  const auto folder = sys::make_board_folder(directory_.path().string());
  const auto on = std::make_shared<stats::board>(folder);
  engine_stats own;
  {
    core::seams doors{kernel_, nullptr, device::make_host_driver()};
    doors.board = on;
    const auto with = *core::make_engine(without_cuda(lanes), std::move(doors));
    const auto from = opened_file(with, name_);
    for (std::uint64_t at = 0; at < file_bytes; at += 4 * kib) read(from, memory_.data(), 4 * kib, at);
    own = with.stats();
    const auto seen = stats::observe_process(*folder, getpid(), false)->stats.usage;
    EXPECT_EQ(seen.sequential_reads, own.usage.sequential_reads);
    EXPECT_EQ(seen.sequential_read_ns, own.usage.sequential_read_ns);
    EXPECT_EQ(seen.lanes, lanes);
    EXPECT_GT(seen.copy_ns_per_mib, 0U);
  }
  const auto left = stats::observe_process(*folder, getpid(), false)->stats.usage;
  EXPECT_EQ(left.sequential_reads, own.usage.sequential_reads);
  EXPECT_EQ(left.lanes, lanes);
}

TEST(cold_reads, counts_what_is_more_than_there_is) {
  core::cold_reads::record seen(640 * 4096);  // regions of ten blocks
  EXPECT_EQ(seen.add(0, 640 * 4096), 0U);
  EXPECT_EQ(seen.add(0, 4096), 4096U);
  EXPECT_EQ(seen.add(9 * 4096, 2 * 4096), 2 * 4096U);  // in two of them
  EXPECT_EQ(seen.add(639 * 4096, 100 * 4096), 4096U);  // behind the end
  EXPECT_EQ(seen.add(1000 * 4096, 4096), 0U);
  seen.forget();
  EXPECT_EQ(seen.add(0, 4096), 0U);
}

TEST(cold_reads, keeps_files_apart_and_forgets_those_that_changed_or_were_not_asked_for) {
  core::cold_reads all;
  const auto first = all.of({1, 2, 3}, 4096);
  EXPECT_EQ(all.of({1, 2, 3}, 4096), first);
  EXPECT_NE(all.of({1, 3, 3}, 4096), first);
  EXPECT_NE(all.of({2, 2, 3}, 4096), first);
  EXPECT_NE(all.of({1, 2, 4}, 4096), first);     // modified
  const auto changed = all.of({1, 2, 4}, 8192);  // grown
  EXPECT_NE(changed, all.of({1, 3, 3}, 4096));
  for (std::uint64_t i = 0; i < core::cold_reads::most_files; ++i) (void)all.of({3, i, 0}, 4096);
  EXPECT_NE(all.of({1, 2, 4}, 8192), changed);
}

}  // namespace
}  // namespace penstock::testing
