// When a release call of cuFile returns, the caller owns the memory again, even if another thread was releasing the same object or closing
// the library.
#include <atomic>
#include <functional>
#include <thread>

#include "batch_fixture.hpp"
#include "fault/watchdog.hpp"

namespace penstock::testing {
namespace {

constexpr std::byte poison{0xa5};

bool is_poisoned(const std::vector<std::byte>& memory) {
  return std::all_of(memory.begin(), memory.end(), [](std::byte each) { return each == poison; });
}

class cufile_release_test : public cufile_batch_test {
 protected:
  static constexpr unsigned pieces = 16;
  static constexpr int rounds = 40;

  // Two calls at once, while a batch reads into memory. Each tells whether it promises that nothing runs any more; the first that does
  // overwrites the memory, and nothing may land there after that.
  struct released {
    CUfileBatchHandle_t batch;
    CUfileHandle_t file;
    void* memory;
  };
  using call = std::function<bool(const released&)>;
  void expect_quiet_after(const call& one, const call& other) {
    const watchdog limit(::testing::UnitTest::GetInstance()->current_test_info()->name());
    const auto name = make_file("x", pieces * mib);
    for (int round = 0; round < rounds; ++round) {
      std::vector<std::byte> memory(pieces * mib);
      ASSERT_EQ(cuFileBufRegister(memory.data(), memory.size(), 0).err, CU_FILE_SUCCESS);
      const auto file = handle_of(name, O_RDONLY);
      const auto batch = set_up(pieces);
      std::vector<CUfileIOParams_t> entries;
      for (std::size_t i = 0; i < pieces; ++i) {
        const auto at = static_cast<off_t>(i * mib);
        entries.push_back(entry(file, memory.data(), mib, at, at, cookie(i)));
      }
      ASSERT_EQ(cuFileBatchIOSubmit(batch, pieces, entries.data(), 0).err, CU_FILE_SUCCESS);
      std::atomic<int> ready{0};
      std::atomic<bool> overwritten{false};
      const auto act = [&](const call& what) {
        for (++ready; ready.load() < 2;) std::this_thread::yield();
        if (what({batch, file, memory.data()}) && !overwritten.exchange(true)) std::fill(memory.begin(), memory.end(), poison);
      };
      std::thread second([&] { act(other); });
      act(one);
      second.join();
      ASSERT_TRUE(!overwritten.load() || is_poisoned(memory)) << "round " << round;
      while (cuFileUseCount() > 0) ASSERT_EQ(cuFileDriverClose().err, CU_FILE_SUCCESS);
      ::close(descriptors_.back());
      descriptors_.pop_back();
    }
  }

  static bool destroy(const released& what) {
    cuFileBatchIODestroy(what.batch);
    return true;
  }
  static bool deregister(const released& what) {
    cuFileHandleDeregister(what.file);
    return true;
  }
  static bool close_library(const released& /*what*/) {
    EXPECT_EQ(cuFileDriverClose().err, CU_FILE_SUCCESS);
    return true;
  }
};

// The call, once another thread has begun to close the library.
template <class Call>
auto while_closing(Call call) {
  return [call](const auto& what) {
    CUfileStatsLevel1_t ignored;
    while (cuFileGetStatsL1(&ignored).err != CU_FILE_DRIVER_NOT_INITIALIZED) std::this_thread::yield();
    return call(what);
  };
}

TEST_F(cufile_release_test, two_threads_destroy_one_batch) { expect_quiet_after(destroy, destroy); }
TEST_F(cufile_release_test, a_batch_is_destroyed_while_the_library_closes) { expect_quiet_after(close_library, while_closing(destroy)); }
TEST_F(cufile_release_test, two_threads_deregister_one_file) { expect_quiet_after(deregister, deregister); }
TEST_F(cufile_release_test, a_file_is_deregistered_while_the_library_closes) {
  expect_quiet_after(close_library, while_closing(deregister));
}

TEST_F(cufile_release_test, memory_is_deregistered_while_the_library_closes) {
  expect_quiet_after(close_library, while_closing([](const released& what) {
                       EXPECT_EQ(cuFileBufDeregister(what.memory).err, CU_FILE_DRIVER_CLOSING);
                       return true;
                     }));
}

// Each thread destroys its batches together with a neighbour, while another closes and opens the library all the time.
TEST_F(cufile_release_test, memory_stays_quiet_in_a_storm) {
  constexpr int clients = 3;
  constexpr unsigned count = 8;
  constexpr std::size_t piece = 256 * kib;
  const watchdog limit("memory_stays_quiet_in_a_storm");
  const auto name = make_file("x", count * piece);
  std::atomic<int> left{clients};
  std::atomic<int> dirty{0};
  const auto run = [&] {
    std::vector<std::byte> memory(count * piece);
    const int descriptor = ::open(name.c_str(), O_RDONLY | O_CLOEXEC);
    for (int round = 0; round < 150; ++round) {
      CUfileHandle_t file = nullptr;
      CUfileBatchHandle_t batch = nullptr;
      (void)try_register(descriptor, file);
      (void)cuFileBatchIOSetUp(&batch, count);
      std::vector<CUfileIOParams_t> entries;
      for (std::size_t i = 0; i < count; ++i) {
        const auto at = static_cast<off_t>(i * piece);
        entries.push_back(entry(file, memory.data(), piece, at, at, cookie(i)));
      }
      // Fails where the library was closed meanwhile.
      (void)cuFileBatchIOSubmit(batch, count, entries.data(), 0);
      std::thread neighbour([&] { cuFileBatchIODestroy(batch); });
      cuFileBatchIODestroy(batch);
      std::fill(memory.begin(), memory.end(), poison);
      neighbour.join();
      cuFileHandleDeregister(file);
      dirty += !is_poisoned(memory);
    }
    ::close(descriptor);
    --left;
  };
  std::vector<std::thread> threads;
  for (int i = 0; i < clients; ++i) threads.emplace_back(run);
  while (left.load() > 0) {
    (void)cuFileDriverClose();
    std::this_thread::yield();
  }
  for (auto& each : threads) each.join();
  EXPECT_EQ(dirty.load(), 0);
}

}  // namespace
}  // namespace penstock::testing
