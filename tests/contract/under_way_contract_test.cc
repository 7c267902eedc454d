// The list of requests under way: an iteration sees each of them, with consistent values, and none that has ended.
#include <sys/wait.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <random>
#include <set>
#include <thread>

#include "contract/contract_fixture.hpp"
#include "device/device_fixture.hpp"
#include "support/forwarding_kernel.hpp"

namespace penstock::testing {
namespace {

using namespace std::chrono_literals;

// While it is shut, no read or write of a file gets on.
class stalling_kernel final : public forwarding_kernel {
 public:
  void shut() { set(true); }
  void open() { set(false); }

  result<std::size_t> pread(int fd, void* target, std::size_t length, std::uint64_t offset) override {
    wait();
    return forwarding_kernel::pread(fd, target, length, offset);
  }
  result<std::size_t> pwrite(int fd, const void* source, std::size_t length, std::uint64_t offset) override {
    wait();
    return forwarding_kernel::pwrite(fd, source, length, offset);
  }
  result<std::unique_ptr<sys::ring>> make_ring(unsigned) override { return status(errc::unsupported, "no rings here"); }

 private:
  void set(bool shut) {
    const std::lock_guard guard(lock_);
    shut_ = shut;
    changed_.notify_all();
  }
  void wait() {
    std::unique_lock guard(lock_);
    changed_.wait(guard, [this] { return !shut_; });
  }

  std::mutex lock_;
  std::condition_variable changed_;
  bool shut_ = false;
};

class under_way_contract : public ::testing::Test {
 protected:
  void SetUp() override {
    store_file(name_, pattern::make(16 * mib, 1));
    auto opened = house_.engine().open(name_, {.read = true, .write = true});
    ASSERT_TRUE(opened.ok()) << told(opened.error());
    file_ = *std::move(opened);
  }
  void TearDown() override { kernel_->open(); }

  engine& engine_of() { return house_.engine(); }
  std::vector<request_info> listed() { return house_.engine().requests(); }
  // Waits for so many; fewer if they do not come.
  std::vector<request_info> listed(std::size_t count) {
    const auto until = std::chrono::steady_clock::now() + 20s;
    while (listed().size() != count && std::chrono::steady_clock::now() < until) std::this_thread::sleep_for(1ms);
    return listed();
  }
  // One is listed, with these values; and nothing else, but those that are not looked up yet may tell no device.
  void expect_listed(const std::vector<request_info>& seen, std::int64_t offset, std::uint64_t length, bool is_write,
                     const std::string& device) {
    for (const auto& each : seen) {
      if (each.offset != offset) continue;
      EXPECT_EQ(each.file, name_);
      EXPECT_EQ(each.length, length);
      EXPECT_EQ(each.is_write, is_write);
      if (!each.device.empty() || length > 128 * kib) {
        EXPECT_EQ(each.device, device);
      }
      const auto age = std::chrono::steady_clock::now().time_since_epoch().count() - each.since_ns;
      EXPECT_GE(age, 0);
      EXPECT_LT(age, std::chrono::nanoseconds(1h).count());
      return;
    }
    ADD_FAILURE() << "of " << seen.size() << " requests none is at " << offset;
  }

  temp_dir directory_ = temp_dir::on_build_disk();
  std::string name_ = directory_.file("data");
  std::shared_ptr<stalling_kernel> kernel_ = std::make_shared<stalling_kernel>();
  open_house house_{engine_options{}, core::seams{kernel_, nullptr, device::make_host_driver()}};
  file file_;
};

TEST_F(under_way_contract, blocking_requests_are_listed_until_they_return) {
  guarded_memory on_device(house_, memory_place::device, 9 * mib);
  bytes on_host(4 * mib);
  kernel_->shut();
  std::vector<std::thread> callers;
  const auto call = [&](std::byte* memory, std::uint64_t length, std::int64_t offset, bool is_write) {
    callers.emplace_back([this, memory, length, offset, is_write] {
      const auto done = is_write ? file_.write(memory, length, offset) : file_.read(memory, length, offset);
      EXPECT_EQ(done.bytes_done, length) << told(done.error);
    });
  };
  call(on_host.data(), 4096, 0, false);
  call(on_host.data() + mib, 3 * mib, 4096, false);
  call(on_device.data(), 4096, 8192, false);
  call(on_device.data() + mib, 8 * mib, mib, false);
  call(on_host.data() + 8192, 100, 12 * mib, true);
  const auto seen = listed(5);
  EXPECT_EQ(seen.size(), 5U);
  expect_listed(seen, 0, 4096, false, "host");
  expect_listed(seen, 4096, 3 * mib, false, "host");
  expect_listed(seen, 8192, 4096, false, "host:0");
  expect_listed(seen, mib, 8 * mib, false, "host:0");
  expect_listed(seen, 12 * mib, 100, true, "host");
  kernel_->open();
  for (auto& each : callers) each.join();
  EXPECT_TRUE(listed().empty());
}

TEST_F(under_way_contract, asynchronous_requests_are_listed_until_they_have_ended) {
  guarded_memory on_device(house_, memory_place::device, 9 * mib);
  bytes on_host(4 * mib);
  kernel_->shut();
  std::vector<operation> all;
  for (int i = 0; i < 40; ++i) all.push_back(file_.read_async(on_device.data() + i * 4096, 4096, i * 4096));
  all.push_back(file_.read_async(on_host.data(), 4096, 5 * mib));
  all.push_back(file_.read_async(on_device.data() + mib, 8 * mib, 6 * mib));
  all.push_back(file_.write_async(on_host.data() + mib, 3 * mib, 12 * mib));
  const auto seen = listed();
  EXPECT_EQ(seen.size(), all.size());
  for (int i = 0; i < 40; ++i) expect_listed(seen, i * 4096, 4096, false, "host:0");
  expect_listed(seen, 5 * mib, 4096, false, "host");
  expect_listed(seen, 6 * mib, 8 * mib, false, "host:0");
  expect_listed(seen, 12 * mib, 3 * mib, true, "host");
  kernel_->open();
  for (auto& each : all) EXPECT_TRUE(each.wait().ok());
  EXPECT_TRUE(listed().empty()) << "handles of what has ended are still there";
}

TEST_F(under_way_contract, each_request_of_a_batch_is_listed_until_all_have_ended) {
  guarded_memory on_device(house_, memory_place::device, 9 * mib);
  bytes on_host(mib);
  kernel_->shut();
  std::vector<io_request> asked;
  for (int i = 0; i < 100; ++i) asked.push_back({&file_, on_device.data() + i * 4096, 4096, i * 8192, false});
  asked.push_back({&file_, on_host.data(), 100, 4 * mib, true});
  asked.push_back({&file_, on_device.data() + mib, 2 * mib, 6 * mib, false});  // travels alone
  asked.push_back({&file_, on_host.data(), 0, 7 * mib, false});                // ends at once
  asked.push_back({&file_, nullptr, 100, 8 * mib, false});                     // likewise
  auto running = engine_of().submit(asked);
  const auto seen = listed();
  EXPECT_EQ(seen.size(), 102U);
  for (int i = 0; i < 100; ++i) expect_listed(seen, i * 8192, 4096, false, "host:0");
  expect_listed(seen, 4 * mib, 100, true, "host");
  expect_listed(seen, 6 * mib, 2 * mib, false, "host:0");
  std::set<std::int64_t> beginnings;
  for (const auto& each : seen) beginnings.insert(each.since_ns);
  EXPECT_LE(beginnings.size(), 2U) << "of the batch, and of the one that travels alone";
  kernel_->open();
  const auto outcomes = running.wait();
  EXPECT_EQ(outcomes.at(103).error.code(), errc::bad_memory);
  EXPECT_TRUE(listed().empty());
  // A batch of one, which ends while it is submitted.
  const io_request wrong{&file_, nullptr, 100, 0, false};
  auto ended = engine_of().submit(std::span(&wrong, 1));
  EXPECT_TRUE(listed().empty());
  EXPECT_EQ(engine_of().stats().failed, 2U);
}

TEST_F(under_way_contract, the_first_of_a_batch_that_travels_alone_leaves_the_others_listed) {
  guarded_memory memory(house_, memory_place::device, 9 * mib);
  kernel_->shut();
  const std::vector<io_request> asked = {{&file_, memory.data(), 2 * mib, 6 * mib},
                                         {&file_, memory.data() + 2 * mib, 2 * mib, 6 * mib, false, 0},  // waits for it
                                         {&file_, memory.data() + 4 * mib, 4096, 12345}};
  auto running = engine_of().submit(asked);
  const auto seen = listed();
  EXPECT_EQ(seen.size(), 3U);
  expect_listed(seen, 6 * mib, 2 * mib, false, "host:0");
  expect_listed(seen, 12345, 4096, false, "host:0");
  kernel_->open();
  for (const auto& each : running.wait()) EXPECT_TRUE(each.ok()) << told(each.error);
  EXPECT_TRUE(listed().empty());
}

TEST_F(under_way_contract, a_walk_sees_copies_while_they_become_reads) {
  guarded_memory memory(house_, memory_place::device, mib);
  bytes on_host(4096);
  std::vector<io_request> asked = {{&file_, on_host.data(), on_host.size(), 77}};
  for (int i = 0; i < 64; ++i) asked.push_back({&file_, memory.data() + i * 4096, 4096, 77, false, 0});  // not from there
  std::atomic<bool> over{false};
  std::thread walker([&] {
    while (!over) {
      for (const auto& each : listed()) EXPECT_EQ(each.offset, 77);
    }
  });
  for (int round = 0; round < 200; ++round) {
    for (const auto& each : engine_of().submit(asked).wait()) EXPECT_EQ(each.bytes_done, 4096U) << told(each.error);
  }
  over = true;
  walker.join();
}

TEST_F(under_way_contract, a_stream_ordered_request_is_listed_before_and_after_its_stream_reaches_it) {
  guarded_memory memory(house_, memory_place::device, 2 * mib);
  auto& session = house_.session();
  auto stream = session.make_stream();
  ASSERT_TRUE(stream.ok());
  pinned_memory flag(session, 4096);
  flag.fill(std::byte{0});
  PENSTOCK_EXPECT_OK(session.wait_value(*stream, reinterpret_cast<std::uint32_t*>(flag.data()), 1));
  std::size_t length = 2 * mib;
  std::int64_t offset = 4096;
  kernel_->shut();
  ASSERT_TRUE(file_.read_on_stream({.stream = *stream, .memory = memory.data(), .length = &length, .offset = &offset}).ok());
  auto seen = listed();
  ASSERT_EQ(seen.size(), 1U);
  expect_listed(seen, -1, 2 * mib, false, "host:0");
  length = mib;
  std::atomic_ref(*reinterpret_cast<std::uint32_t*>(flag.data())).store(1, std::memory_order_release);
  const auto until = std::chrono::steady_clock::now() + 20s;
  for (seen = listed(); seen.size() == 1 && seen[0].offset < 0 && std::chrono::steady_clock::now() < until; seen = listed())
    std::this_thread::sleep_for(1ms);
  ASSERT_EQ(seen.size(), 1U);
  expect_listed(seen, 4096, mib, false, "host:0");
  kernel_->open();
  PENSTOCK_EXPECT_OK(session.synchronize(*stream));
  EXPECT_TRUE(listed().empty());
  PENSTOCK_EXPECT_OK(session.destroy_stream(*stream));
}

TEST_F(under_way_contract, refused_requests_are_not_listed) {
  bytes memory(mib);
  file closed;
  (void)closed.read(memory.data(), 1, 0);
  auto other = engine_of().open(name_);
  ASSERT_TRUE(other.ok() && other->close().ok());
  const auto small = other->read_async(memory.data(), 1, 0);
  const auto large = other->read_async(memory.data(), mib, 0);
  const io_request asked{&*other, memory.data(), 1, 0, false};
  auto of_closed = engine_of().submit(std::span(&asked, 1));
  EXPECT_TRUE(listed().empty());
}

TEST_F(under_way_contract, a_forked_child_sees_none) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the thread sanitizer allows no threads in a child of a process that has some";
#endif
  bytes memory(4096);
  kernel_->shut();
  auto running = file_.read_async(memory.data(), 4096, 0);
  ASSERT_EQ(listed().size(), 1U);
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(100);
    ::_exit(engine_of().requests().empty() ? 0 : 1);
  }
  int outcome = -1;
  ASSERT_EQ(::waitpid(child, &outcome, 0), child);
  EXPECT_EQ(outcome, 0);
  kernel_->open();
  EXPECT_TRUE(running.wait().ok());
}

// Offset, length and direction of what is asked for here belong together, so that a torn one is seen.
class storm_of_requests {
 public:
  storm_of_requests(engine& with, const file& target, open_house& house, unsigned number)
      : engine_(with), file_(target), memory_(house, memory_place::device, most * room), random_(number) {}
  static std::uint64_t length_of(std::int64_t offset) { return 1 + static_cast<std::uint64_t>(offset) % 997 * (offset % 5 == 0 ? 257 : 3); }

  void step() {
    switch (random_() % 4) {
      case 0: {
        const auto asked = any(memory_.data(), 0);
        EXPECT_TRUE(file_.read(asked.memory, asked.length, asked.offset).ok());
        return;
      }
      case 1: {
        const auto asked = any(host_.data(), 0);
        EXPECT_TRUE(file_.read(asked.memory, asked.length, asked.offset).ok());
        return;
      }
      case 2: {
        std::vector<operation> all;
        for (std::size_t i = 0; i < 20; ++i) {
          const auto asked = any(i % 2 == 0 ? memory_.data() : host_.data(), i);
          all.push_back(file_.read_async(asked.memory, asked.length, asked.offset));
        }
        for (auto& each : all) EXPECT_TRUE(each.wait().ok());
        return;
      }
      default: {
        std::vector<io_request> all;
        for (std::size_t i = 0; i < most; ++i) all.push_back(any(memory_.data(), i));
        for (const auto& each : engine_.submit(all).wait()) EXPECT_TRUE(each.ok());
      }
    }
  }

 private:
  static constexpr std::size_t most = 60;
  static constexpr std::size_t room = 256 * kib;

  // Into a part of its own, since requests that run at once may not share memory.
  io_request any(std::byte* memory, std::size_t index) {
    const auto offset = static_cast<std::int64_t>(random_() % (8 * mib));
    return {&file_, memory + index * room, length_of(offset), offset, false};
  }

  engine& engine_;
  const file& file_;
  guarded_memory memory_;
  bytes host_ = bytes(20 * room);
  std::mt19937 random_;
};

TEST_F(under_way_contract, a_walk_sees_values_that_belong_together_while_requests_start_and_end) {
  constexpr unsigned threads = 4;
  std::atomic<bool> over{false};
  std::vector<std::thread> all;
  for (unsigned i = 0; i < threads; ++i) {
    all.emplace_back([&, i] {
      storm_of_requests mine(engine_of(), file_, house_, i);
      while (!over.load()) mine.step();
    });
  }
  std::size_t seen = 0;
  const auto until = std::chrono::steady_clock::now() + 2s;
  while (std::chrono::steady_clock::now() < until || seen == 0) {
    for (const auto& each : listed()) {
      ++seen;
      ASSERT_EQ(each.file, name_);
      ASSERT_EQ(each.length, storm_of_requests::length_of(each.offset));
      ASSERT_FALSE(each.is_write);
      ASSERT_TRUE(each.device == "host" || each.device == "host:0" || each.device.empty()) << each.device;
    }
  }
  over.store(true);
  for (auto& each : all) each.join();
  EXPECT_TRUE(listed().empty());
}

}  // namespace
}  // namespace penstock::testing
