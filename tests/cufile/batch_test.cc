// cuFile batches: life cycle, reuse, cancellation, timeouts and errors.
#include <thread>

#include "batch_fixture.hpp"

namespace penstock::testing {
namespace {

TEST_F(cufile_batch_test, a_batch_writes_then_reads_on_the_same_handle) {
  constexpr std::size_t piece = 64 * kib;
  const auto file = handle_of(make_file("x", 0));
  const auto memory = device_memory(8 * piece);
  store(memory.data(), pattern::make(4 * piece, file_seed));
  const auto batch = set_up(4);
  std::vector<CUfileIOParams_t> entries;
  for (std::size_t i = 0; i < 4; ++i) {
    const auto at = static_cast<off_t>(i * piece);
    entries.push_back(entry(file, memory.data(), piece, at, at, cookie(i), CUFILE_WRITE));
  }
  ASSERT_EQ(cuFileBatchIOSubmit(batch, 4, entries.data(), 0).err, CU_FILE_SUCCESS);
  for (const auto& event : collect(batch, 4)) {
    EXPECT_EQ(event.status, CUFILE_COMPLETE);
    EXPECT_EQ(event.ret, piece);
  }
  for (auto& each : entries) {
    each.opcode = CUFILE_READ;
    each.u.batch.devPtr_offset += static_cast<off_t>(4 * piece);
  }
  ASSERT_EQ(cuFileBatchIOSubmit(batch, 4, entries.data(), 0).err, CU_FILE_SUCCESS);
  const auto events = collect(batch, 4);
  ASSERT_EQ(events.size(), 4U);
  for (std::size_t i = 0; i < 4; ++i) EXPECT_EQ(events[i].cookie, cookie(i));
  expect_pattern(static_cast<std::byte*>(memory.data()) + 4 * piece, 4 * piece, 0);
  cuFileBatchIODestroy(batch);
}

TEST_F(cufile_batch_test, many_small_entries_and_a_few_large_ones_run_together) {
  constexpr std::size_t large = 2 * mib;
  const auto file = handle_of(make_file("x", 8 * mib));
  const auto memory = device_memory(8 * mib);
  const auto batch = set_up(128);
  std::vector<CUfileIOParams_t> entries;
  for (std::size_t i = 0; i < 126; ++i) {
    const auto at = static_cast<off_t>(i * 4096 + i % 3);
    entries.push_back(entry(file, memory.data(), 4096 - i % 3, at, at, cookie(i)));
  }
  for (std::size_t i = 126; i < 128; ++i) {
    const auto at = static_cast<off_t>((i - 125) * large);
    entries.push_back(entry(file, memory.data(), large, at, at, cookie(i)));
  }
  ASSERT_EQ(cuFileBatchIOSubmit(batch, 128, entries.data(), 0).err, CU_FILE_SUCCESS);
  const auto events = collect(batch, 128);
  ASSERT_EQ(events.size(), 128U);
  for (std::size_t i = 0; i < 128; ++i) {
    EXPECT_EQ(events[i].status, CUFILE_COMPLETE) << i;
    EXPECT_EQ(events[i].ret, entries[i].u.batch.size) << i;
    expect_pattern(static_cast<std::byte*>(memory.data()) + entries[i].u.batch.devPtr_offset, entries[i].u.batch.size,
                   static_cast<std::uint64_t>(entries[i].u.batch.file_offset));
  }
  cuFileBatchIODestroy(batch);
}

TEST_F(cufile_batch_test, set_up_checks_its_size) {
  CUfileBatchHandle_t batch = nullptr;
  EXPECT_EQ(cuFileBatchIOSetUp(&batch, 0).err, CU_FILE_INVALID_VALUE);
  EXPECT_EQ(cuFileBatchIOSetUp(&batch, 257).err, CU_FILE_INVALID_VALUE);
  EXPECT_EQ(cuFileBatchIOSetUp(nullptr, 1).err, CU_FILE_INVALID_VALUE);
  EXPECT_EQ(cuFileBatchIOSetUp(&batch, 256).err, CU_FILE_SUCCESS);
  cuFileBatchIODestroy(batch);
}

TEST_F(cufile_batch_test, a_submission_that_is_wrong_runs_nothing) {
  const auto file = handle_of(make_file("x", mib));
  std::vector<std::byte> memory(4096, std::byte{3});
  const auto batch = set_up(2);
  const auto good = entry(file, memory.data(), 4096, 0, 0, nullptr);
  auto wrong_mode = good;
  const int nine = 9;
  std::memcpy(&wrong_mode.mode, &nine, sizeof nine);
  auto wrong_file = good;
  wrong_file.fh = reinterpret_cast<CUfileHandle_t>(0x77);
  const auto fails = [&](std::vector<CUfileIOParams_t> entries) {
    return cuFileBatchIOSubmit(batch, static_cast<unsigned>(entries.size()), entries.data(), 0).err == CU_FILE_INTERNAL_BATCH_SUBMIT_ERROR;
  };
  EXPECT_TRUE(fails({}));
  EXPECT_TRUE(fails({good, good, good}));
  EXPECT_TRUE(fails({good, wrong_mode}));
  EXPECT_TRUE(fails({good, wrong_file}));
  auto one = good;
  EXPECT_EQ(cuFileBatchIOSubmit(nullptr, 1, &one, 0).err, CU_FILE_INTERNAL_BATCH_SUBMIT_ERROR);
  EXPECT_EQ(cuFileBatchIOSubmit(batch, 1, nullptr, 0).err, CU_FILE_INTERNAL_BATCH_SUBMIT_ERROR);
  EXPECT_EQ(cuFileBatchIOSubmit(batch, 1, &one, 1).err, CU_FILE_INVALID_VALUE);
  EXPECT_EQ(memory, std::vector<std::byte>(4096, std::byte{3}));
  cuFileBatchIODestroy(batch);
}

TEST_F(cufile_batch_test, entries_fail_one_by_one) {
  const auto file = handle_of(make_file("x", 10'000), O_RDONLY);
  std::vector<std::byte> memory(16 * kib);
  const auto batch = set_up(8);
  std::vector<CUfileIOParams_t> entries = {
      entry(file, memory.data(), 4096, 0, 0, cookie(0)),
      entry(file, memory.data(), 4096, 0, 0, cookie(1)),
      entry(file, memory.data(), 4096, 0, 0, cookie(2), CUFILE_WRITE),
      entry(file, nullptr, 4096, 0, 0, cookie(3)),
      entry(file, memory.data(), 4096, 1 << 20, 0, cookie(4)),
      entry(file, memory.data(), 4096, -5, 0, cookie(5)),
      entry(file, memory.data(), 8192, 8192, 0, cookie(6)),
      entry(file, memory.data(), 0, 0, 0, cookie(7)),
  };
  const int five = 5;
  std::memcpy(&entries[1].opcode, &five, sizeof five);
  ASSERT_EQ(cuFileBatchIOSubmit(batch, 8, entries.data(), 0).err, CU_FILE_SUCCESS);
  const auto events = collect(batch, 8);
  ASSERT_EQ(events.size(), 8U);
  for (const std::size_t failed : {1, 2, 3, 5}) {
    EXPECT_EQ(events[failed].status, CUFILE_FAILED) << failed;
    EXPECT_LT(static_cast<ssize_t>(events[failed].ret), 0) << failed;
  }
  EXPECT_EQ(static_cast<ssize_t>(events[1].ret), -EIO);
  EXPECT_EQ(static_cast<ssize_t>(events[2].ret), -CU_FILE_INVALID_FILE_OPEN_FLAG);
  for (const auto& [index, bytes] : {std::pair<std::size_t, std::size_t>{0, 4096}, {4, 0}, {6, 1808}, {7, 0}}) {
    EXPECT_EQ(events[index].status, CUFILE_COMPLETE) << index;
    EXPECT_EQ(events[index].ret, bytes) << index;
  }
  cuFileBatchIODestroy(batch);
}

TEST_F(cufile_batch_test, places_are_free_again_once_events_are_collected) {
  const auto file = handle_of(make_file("x", mib));
  std::vector<std::byte> memory(2 * 4096);
  const auto batch = set_up(2);
  auto one = entry(file, memory.data(), 4096, 0, 0, cookie(1));
  auto other = entry(file, memory.data() + 4096, 4096, 0, 0, cookie(2));
  ASSERT_EQ(cuFileBatchIOSubmit(batch, 1, &one, 0).err, CU_FILE_SUCCESS);
  ASSERT_EQ(cuFileBatchIOSubmit(batch, 1, &other, 0).err, CU_FILE_SUCCESS);
  EXPECT_EQ(cuFileBatchIOSubmit(batch, 1, &one, 0).err, CU_FILE_INTERNAL_BATCH_SUBMIT_ERROR);
  EXPECT_EQ(collect(batch, 2).size(), 2U);
  EXPECT_EQ(cuFileBatchIOSubmit(batch, 1, &one, 0).err, CU_FILE_SUCCESS);
  EXPECT_EQ(collect(batch, 1).size(), 1U);
  cuFileBatchIODestroy(batch);
}

TEST_F(cufile_batch_test, asking_for_events_checks_its_arguments_and_never_waits_for_what_cannot_come) {
  const auto batch = set_up(4);
  std::vector<CUfileIOEvents_t> events(4);
  unsigned count = 4;
  EXPECT_EQ(cuFileBatchIOGetStatus(batch, 5, &count, events.data(), nullptr).err, CU_FILE_INVALID_VALUE);
  EXPECT_EQ(cuFileBatchIOGetStatus(batch, 1, nullptr, events.data(), nullptr).err, CU_FILE_INVALID_VALUE);
  EXPECT_EQ(cuFileBatchIOGetStatus(batch, 1, &count, nullptr, nullptr).err, CU_FILE_INVALID_VALUE);
  EXPECT_EQ(cuFileBatchIOGetStatus(nullptr, 1, &count, events.data(), nullptr).err, CU_FILE_INTERNAL_BATCH_GETSTATUS_ERROR);
  EXPECT_EQ(cuFileBatchIOGetStatus(batch, 4, &count, events.data(), nullptr).err, CU_FILE_SUCCESS);
  EXPECT_EQ(count, 0U);
  cuFileBatchIODestroy(batch);
}

TEST_F(cufile_batch_test, time_limits_that_are_none_do_not_fail) {
  const auto file = handle_of(make_file("x", mib));
  std::vector<std::byte> memory(4096);
  const auto batch = set_up(1);
  for (timespec limit : {timespec{0, 0}, timespec{5, -1}, timespec{-3, 5}, timespec{1000, 1'999'999'999}, timespec{1, 0}}) {
    auto one = entry(file, memory.data(), 4096, 0, 0, cookie(1));
    ASSERT_EQ(cuFileBatchIOSubmit(batch, 1, &one, 0).err, CU_FILE_SUCCESS);
    std::size_t got = collect(batch, 1, &limit).size();
    while (got == 0) got = collect(batch, 1).size();
    EXPECT_EQ(got, 1U);
  }
  cuFileBatchIODestroy(batch);
}

TEST_F(cufile_batch_test, cancelling_leaves_no_events_and_room_for_new_entries) {
  constexpr unsigned count = 16;
  const auto file = handle_of(make_file("x", 16 * mib), O_RDONLY);
  const auto memory = device_memory(count * mib);
  const auto batch = set_up(count);
  std::vector<CUfileIOParams_t> entries;
  for (std::size_t i = 0; i < count; ++i) {
    const auto at = static_cast<off_t>(i * mib);
    entries.push_back(entry(file, memory.data(), mib, at, at, cookie(i)));
  }
  ASSERT_EQ(cuFileBatchIOSubmit(batch, count, entries.data(), 0).err, CU_FILE_SUCCESS);
  EXPECT_EQ(cuFileBatchIOCancel(batch).err, CU_FILE_SUCCESS);
  std::array<CUfileIOEvents_t, count> events{};
  unsigned got = count;
  EXPECT_EQ(cuFileBatchIOGetStatus(batch, count, &got, events.data(), nullptr).err, CU_FILE_SUCCESS);
  EXPECT_EQ(got, 0U);
  store(memory.data(), pattern::make(count * mib, file_seed + 1));
  ASSERT_EQ(cuFileBatchIOSubmit(batch, count, entries.data(), 0).err, CU_FILE_SUCCESS);
  for (const auto& event : collect(batch, count)) EXPECT_TRUE(event.status == CUFILE_COMPLETE && event.ret == mib);
  expect_pattern(memory.data(), count * mib, 0);
  EXPECT_EQ(cuFileBatchIOCancel(nullptr).err, CU_FILE_SUCCESS);
  cuFileBatchIODestroy(batch);
}

TEST_F(cufile_batch_test, destroying_a_running_batch_leaves_memory_quiet) {
  const auto file = handle_of(make_file("x", 16 * mib), O_RDONLY);
  for (int round = 0; round < 10; ++round) {
    std::vector<std::byte> memory(16 * mib);
    const auto batch = set_up(16);
    std::vector<CUfileIOParams_t> entries;
    for (std::size_t i = 0; i < 16; ++i)
      entries.push_back(entry(file, memory.data(), mib, static_cast<off_t>(i * mib), static_cast<off_t>(i * mib), nullptr));
    ASSERT_EQ(cuFileBatchIOSubmit(batch, 16, entries.data(), 0).err, CU_FILE_SUCCESS);
    cuFileBatchIODestroy(batch);
    const auto after = memory;
    std::this_thread::yield();
    EXPECT_EQ(memory, after);
    cuFileBatchIODestroy(batch);
  }
}

TEST_F(cufile_batch_test, a_batch_is_counted) {
  const auto file = handle_of(make_file("x", mib));
  std::vector<std::byte> memory(8192);
  ASSERT_EQ(cuFileSetStatsLevel(1).err, CU_FILE_SUCCESS);
  ASSERT_EQ(cuFileStatsReset().err, CU_FILE_SUCCESS);
  ASSERT_EQ(cuFileStatsStart().err, CU_FILE_SUCCESS);
  const auto batch = set_up(2);
  std::vector<CUfileIOParams_t> entries = {entry(file, memory.data(), 4096, 0, 0, cookie(0)),
                                           entry(file, memory.data(), 100, 0, 4096, cookie(1), CUFILE_WRITE)};
  ASSERT_EQ(cuFileBatchIOSubmit(batch, 2, entries.data(), 0).err, CU_FILE_SUCCESS);
  EXPECT_EQ(collect(batch, 2).size(), 2U);
  cuFileBatchIODestroy(batch);
  CUfileStatsLevel1_t seen{};
  ASSERT_EQ(cuFileGetStatsL1(&seen).err, CU_FILE_SUCCESS);
  EXPECT_EQ(seen.batch_setup_ops.ok, 1U);
  EXPECT_EQ(seen.batch_submit_ops.ok, 1U);
  EXPECT_EQ(seen.batch_complete_ops.ok, 2U);
  EXPECT_EQ(seen.batch_read_bytes, 4096U);
  EXPECT_EQ(seen.batch_write_bytes, 100U);
  EXPECT_EQ(seen.batch_destroy_ops.ok, 1U);
}

TEST_F(cufile_batch_test, several_threads_may_collect_from_one_batch) {
  constexpr unsigned count = 64;
  const auto file = handle_of(make_file("x", mib), O_RDONLY);
  const auto memory = device_memory(mib);
  const auto batch = set_up(count);
  std::vector<CUfileIOParams_t> entries;
  for (std::size_t i = 0; i < count; ++i)
    entries.push_back(entry(file, memory.data(), 4096, static_cast<off_t>(i * 4096), static_cast<off_t>(i * 4096), cookie(i)));
  std::atomic<unsigned> got{0};
  ASSERT_EQ(cuFileBatchIOSubmit(batch, count, entries.data(), 0).err, CU_FILE_SUCCESS);
  std::vector<std::thread> collectors;
  for (int t = 0; t < 4; ++t) {
    collectors.emplace_back([&] {
      while (got.load() < count) got += static_cast<unsigned>(collect(batch, count / 4).size());
    });
  }
  for (auto& each : collectors) each.join();
  EXPECT_EQ(got.load(), count);
  cuFileBatchIODestroy(batch);
}

}  // namespace
}  // namespace penstock::testing
