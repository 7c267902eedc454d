// Transfers end without a waiting thread: the caller only polls, cancels, or leaves. On cached and uncached files, small and large: each
// entry of a batch ends with one event.
#include <fcntl.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <string>
#include <thread>

#include "batch_fixture.hpp"
#include "fault/watchdog.hpp"

namespace penstock::testing {
namespace {

// What a caller does instead of waiting.
enum class manner { looks, looks_for_one, looks_for_a_millisecond, waits_for_one, cancels, destroys };

struct nobody_waits_case {
  std::size_t length;
  bool is_cold;
  bool on_device;
  manner how;
};

std::string name_of(const nobody_waits_case& each) {
  constexpr std::array names = {"looks", "looks_for_one", "looks_for_a_millisecond", "waits_for_one", "cancels", "destroys"};
  return std::string(names[static_cast<std::size_t>(each.how)]) + (each.on_device ? "_device_" : "_host_") +
         (each.is_cold ? "cold_" : "warm_") + std::to_string(each.length / kib) + "KiB";
}

std::vector<nobody_waits_case> all_cases() {
  std::vector<nobody_waits_case> all;
  for (const std::size_t length : {4 * kib, 24 * kib, 128 * kib, mib}) {
    for (const bool is_cold : {false, true}) {
      for (const bool on_device : {false, true}) {
        for (const manner how : {manner::looks, manner::looks_for_one, manner::looks_for_a_millisecond, manner::waits_for_one,
                                 manner::cancels, manner::destroys}) {
          all.push_back({length, is_cold, on_device, how});
        }
      }
    }
  }
  return all;
}

class cufile_nobody_waits : public cufile_batch_test {
 protected:
  static constexpr std::size_t file_size = 16 * mib;
  static constexpr unsigned capacity = 64;

  // At most a file's worth at a time, so that no two entries under way share memory.
  static unsigned per_batch(std::size_t length) { return static_cast<unsigned>(std::min<std::size_t>(capacity, file_size / length)); }

  void drop_cache() { EXPECT_EQ(::posix_fadvise(descriptors_.front(), 0, 0, POSIX_FADV_DONTNEED), 0); }

  void prepare(const nobody_waits_case& how) {
    file_ = handle_of(make_file("x", file_size), O_RDONLY);
    ASSERT_EQ(::fdatasync(descriptors_.front()), 0);  // pages that are dirty stay in the cache
    if (how.on_device) {
      device_ = device_memory(file_size);
      memory_ = static_cast<std::byte*>(device_.data());
    } else {
      host_.resize(file_size);
      memory_ = host_.data();
    }
  }

  void submit(CUfileBatchHandle_t batch, std::size_t length, unsigned count) {
    std::vector<CUfileIOParams_t> entries;
    for (std::size_t i = 0; i < count; ++i) {
      const auto at = static_cast<off_t>(i * length);
      entries.push_back(entry(file_, memory_, length, at, at, cookie(i)));
    }
    ASSERT_EQ(cuFileBatchIOSubmit(batch, count, entries.data(), 0).err, CU_FILE_SUCCESS);
  }

  // Until every event has come; each must come once. None comes after a cancellation.
  void collect_all(CUfileBatchHandle_t batch, const nobody_waits_case& how, unsigned count) {
    timespec none{0, 0};
    timespec millisecond{0, 1'000'000};
    const bool waits = how.how == manner::waits_for_one;
    timespec* const limit = waits ? nullptr : how.how == manner::looks_for_a_millisecond ? &millisecond : &none;
    const unsigned at_least = how.how == manner::looks ? 0 : 1;
    std::vector<int> seen(count);
    std::array<CUfileIOEvents_t, capacity> events{};
    for (unsigned got = 0; got < count;) {
      unsigned some = capacity;
      ASSERT_EQ(cuFileBatchIOGetStatus(batch, std::min(at_least, count - got), &some, events.data(), limit).err, CU_FILE_SUCCESS);
      ASSERT_TRUE(!waits || some > 0);
      got += some;
      for (unsigned i = 0; i < some; ++i) {
        const auto which = reinterpret_cast<std::size_t>(events[i].cookie);
        ASSERT_LT(which, count);
        EXPECT_EQ(++seen[which], 1) << "entry " << which;
        const bool complete = events[i].status == CUFILE_COMPLETE && events[i].ret == how.length;
        EXPECT_TRUE(complete) << "entry " << which;
      }
    }
    unsigned more = capacity;
    EXPECT_EQ(cuFileBatchIOGetStatus(batch, 0, &more, events.data(), &none).err, CU_FILE_SUCCESS);
    EXPECT_EQ(more, 0U);
  }

  void run(const nobody_waits_case& how, std::size_t entries) {
    const watchdog limit(name_of(how));
    ASSERT_NO_FATAL_FAILURE(prepare(how));
    const unsigned count = per_batch(how.length);
    CUfileBatchHandle_t batch = set_up(capacity);
    for (std::size_t done = 0; done < entries; done += count) {
      if (how.is_cold) drop_cache();
      ASSERT_NO_FATAL_FAILURE(submit(batch, how.length, count));
      if (how.how == manner::destroys) {
        cuFileBatchIODestroy(batch);
        batch = set_up(capacity);
        continue;
      }
      if (how.how == manner::cancels) {
        EXPECT_EQ(cuFileBatchIOCancel(batch).err, CU_FILE_SUCCESS);
      }
      ASSERT_NO_FATAL_FAILURE(collect_all(batch, how, how.how == manner::cancels ? 0 : count));
    }
    cuFileBatchIODestroy(batch);
    if (how.how != manner::cancels && how.how != manner::destroys) expect_pattern(memory_, count * how.length, 0);
  }

  // Stream-ordered reads, of which nothing but the byte count tells.
  void run_streams(std::size_t length, bool is_cold, std::size_t requests) {
    const watchdog limit("stream-ordered reads of " + std::to_string(length) + " bytes");
    ASSERT_NO_FATAL_FAILURE(prepare({length, is_cold, true, manner::looks}));
    const std::size_t most = per_batch(length);
    std::array<off_t, capacity> at{};
    std::array<ssize_t, capacity> bytes{};
    for (std::size_t done = 0; done < requests; done += most) {
      if (is_cold) drop_cache();
      for (std::size_t i = 0; i < most; ++i) {
        at[i] = static_cast<off_t>(i * length);
        bytes[i] = -7;
        ASSERT_EQ(cuFileReadAsync(file_, memory_, &length, &at[i], &at[i], &bytes[i], nullptr).err, CU_FILE_SUCCESS);
      }
      for (std::size_t i = 0; i < most; ++i) {
        const std::atomic_ref<ssize_t> told(bytes[i]);
        while (told.load() == -7) std::this_thread::yield();
        EXPECT_EQ(told.load(), static_cast<ssize_t>(length));
      }
    }
    cuFileHandleDeregister(file_);
    expect_pattern(memory_, most * length, 0);
  }

  CUfileHandle_t file_ = nullptr;
  device_buffer device_;
  std::vector<std::byte> host_;
  std::byte* memory_ = nullptr;
};

class cufile_nobody_waits_test : public cufile_nobody_waits, public ::testing::WithParamInterface<nobody_waits_case> {};
class long_cufile_nobody_waits_test : public cufile_nobody_waits, public ::testing::WithParamInterface<nobody_waits_case> {};

TEST_P(cufile_nobody_waits_test, every_event_comes_once) { run(GetParam(), GetParam().length < mib ? 2'000 : 256); }
TEST_P(long_cufile_nobody_waits_test, every_event_comes_once) { run(GetParam(), GetParam().length < mib ? 100'000 : 4'000); }

const auto param_name = [](const auto& chosen) { return name_of(chosen.param); };
INSTANTIATE_TEST_SUITE_P(all, cufile_nobody_waits_test, ::testing::ValuesIn(all_cases()), param_name);
INSTANTIATE_TEST_SUITE_P(all, long_cufile_nobody_waits_test, ::testing::ValuesIn(all_cases()), param_name);

TEST_F(cufile_nobody_waits, stream_ordered_reads_of_cached_files_end) { run_streams(4 * kib, false, 2'000); }
TEST_F(cufile_nobody_waits, stream_ordered_reads_of_large_ranges_end) { run_streams(mib, false, 64); }
TEST_F(cufile_nobody_waits, stream_ordered_reads_from_the_disk_end) { run_streams(64 * kib, true, 2'000); }
TEST_F(cufile_nobody_waits, long_stream_ordered_reads_from_the_disk_end) { run_streams(64 * kib, true, 100'000); }

}  // namespace
}  // namespace penstock::testing
