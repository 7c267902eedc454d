// Batches that read a file once for several devices: requests that copy earlier ones.
#include <algorithm>
#include <atomic>
#include <functional>
#include <string>
#include <vector>

#include "contract/contract_fixture.hpp"
#include "support/faulty_device.hpp"
#include "support/faulty_kernel.hpp"

namespace penstock::testing {
namespace {

constexpr std::uint64_t file_bytes = 40 * mib + 12345;

class copies_contract : public ::testing::Test {
 protected:
  void SetUp() override {
    content_ = pattern::make(file_bytes, 3);
    store_file(directory_.file("data"), content_);
    open_options both;
    both.write = true;
    file_ = engine_.open(directory_.file("data"), both);
    ASSERT_TRUE(file_.ok()) << told(file_.error());
    for (int device = 0; device < 3; ++device) {
      auto buffer = engine_.allocate("host:" + std::to_string(device), file_bytes + mib);
      ASSERT_TRUE(buffer.ok()) << told(buffer.error());
      buffers_.push_back(*std::move(buffer));
    }
  }

  static engine_options four_lanes() {
    engine_options options;
    options.lanes = 4;
    return options;
  }
  std::byte* memory(int device) { return static_cast<std::byte*>(buffers_[static_cast<std::size_t>(device)].data()); }
  std::span<std::byte> seen(int device) {
    auto* const at = engine_.cpu_address(memory(device), file_bytes + mib).value_or(nullptr);
    return {static_cast<std::byte*>(at), file_bytes + mib};
  }

  // All of the file in pieces of a length into each device: that of the first device, then copies of those of the device before.
  std::vector<io_request> chain(std::uint64_t piece, int devices = 3) {
    std::vector<io_request> asked;
    for (int device = 0; device < devices; ++device) {
      const auto before = asked.size();
      for (std::uint64_t at = 0; at < file_bytes; at += piece) {
        const auto length = std::min(piece, file_bytes - at);
        asked.push_back({&*file_, memory(device) + at, length, static_cast<std::int64_t>(at)});
      }
      const auto count = asked.size() - before;
      for (std::size_t i = before; device > 0 && i < asked.size(); ++i) asked[i].copy_of = static_cast<std::uint32_t>(i - count);
    }
    return asked;
  }

  void clear() {
    for (int device = 0; device < 3; ++device) std::ranges::fill(seen(device), std::byte{0x5a});
  }
  void expect_content(int devices = 3) {
    for (int device = 0; device < devices; ++device) {
      EXPECT_EQ(std::memcmp(seen(device).data(), content_.data(), file_bytes), 0) << "on device " << device;
      EXPECT_EQ(seen(device)[file_bytes], std::byte{0x5a}) << "behind it on device " << device;
    }
  }
  static void expect_whole(const std::vector<io_result>& results, const std::vector<io_request>& asked) {
    ASSERT_EQ(results.size(), asked.size());
    for (std::size_t i = 0; i < results.size(); ++i) {
      EXPECT_TRUE(results[i].ok()) << i << ": " << told(results[i].error);
      EXPECT_EQ(results[i].bytes_done, asked[i].length) << i;
    }
  }
  std::uint64_t bytes_from_files() {
    std::uint64_t bytes = 0;
    const auto stats = engine_.stats();
    for (const auto& each : stats.by_path) bytes += each.bytes;
    return bytes;
  }
  std::uint64_t fallbacks() {
    std::uint64_t count = 0;
    const auto stats = engine_.stats();
    for (const auto& each : stats.by_path) count += each.fallbacks;
    return count;
  }

  temp_dir directory_ = temp_dir::on_build_disk();
  bytes content_;
  std::shared_ptr<faulty_driver> driver_ = make_faulty_driver(device::make_host_driver(3));
  std::shared_ptr<faulty_kernel> kernel_ = std::make_shared<faulty_kernel>(sys::make_kernel());
  engine engine_ = *core::make_engine(four_lanes(), {kernel_, nullptr, driver_});
  result<file> file_ = status(errc::closed, "not opened yet");  // for reading and writing
  std::vector<device_buffer> buffers_;
};

TEST_F(copies_contract, three_devices_get_what_is_read_once) {
  for (const std::uint64_t piece : {32 * mib, 3 * mib + 7, 100 * kib}) {
    for (const bool cold : {false, true}) {
      SCOPED_TRACE(::testing::Message() << "pieces of " << piece << (cold ? " cold" : " hot"));
      if (cold) drop_cache(directory_.file("data"));
      clear();
      const auto asked = chain(piece);
      const auto before = bytes_from_files();
      std::vector<std::atomic<int>> told_of(asked.size());
      const io_options how{.cache = cold ? cache_use::bypass : cache_use::automatic};
      auto submitted = engine_.submit(asked, how, {}, [&](std::size_t index, const io_result&) { ++told_of[index]; });
      expect_whole(submitted.wait(), asked);
      for (const auto& each : told_of) EXPECT_EQ(each.load(), 1);
      EXPECT_EQ(bytes_from_files() - before, file_bytes);
      expect_content();
    }
  }
  EXPECT_EQ(fallbacks(), 0U);
}

TEST_F(copies_contract, one_request_may_have_many_copies_large_or_small) {
  clear();
  std::vector<io_request> asked;
  for (const std::uint64_t length : {std::uint64_t{1}, 4 * kib, 9 * mib}) {
    const auto source = static_cast<std::uint32_t>(asked.size());
    for (int device = 0; device < 3; ++device) {
      asked.push_back({&*file_, memory(device), length, 77});
      if (device > 0) asked.back().copy_of = source;
    }
    asked.push_back({&*file_, memory(0) + 20 * mib, length, 77, false, source});  // on the same device
    const auto before = bytes_from_files();
    expect_whole(engine_.submit(asked).wait(), asked);
    EXPECT_EQ(bytes_from_files() - before, length);
    for (int device = 0; device < 3; ++device) EXPECT_EQ(std::memcmp(seen(device).data(), &content_[77], length), 0) << device;
    EXPECT_EQ(std::memcmp(seen(0).data() + 20 * mib, &content_[77], length), 0);
    asked.clear();
  }
}

TEST_F(copies_contract, behind_the_end_of_the_file_all_are_short) {
  clear();
  std::vector<io_request> asked;
  for (int device = 0; device < 3; ++device) {
    for (const std::uint64_t offset : {file_bytes - 2 * mib, file_bytes - 1, file_bytes + 5}) {
      const auto index = asked.size();
      asked.push_back({&*file_, memory(device) + (index % 3) * 8 * mib, 4 * mib, static_cast<std::int64_t>(offset)});
      if (device > 0) asked.back().copy_of = static_cast<std::uint32_t>(index - 3);
    }
  }
  const auto results = engine_.submit(asked).wait();
  for (std::size_t i = 0; i < results.size(); ++i) {
    EXPECT_TRUE(results[i].ok()) << told(results[i].error);
    EXPECT_EQ(results[i].bytes_done, (std::array<std::uint64_t, 3>{2 * mib, 1, 0}[i % 3])) << i;
  }
  for (int device = 0; device < 3; ++device) EXPECT_EQ(std::memcmp(seen(device).data(), &content_[file_bytes - 2 * mib], 2 * mib), 0);
}

TEST_F(copies_contract, a_chain_may_be_long_where_the_file_has_ended_too) {
  for (const std::int64_t offset : {std::int64_t{1000}, static_cast<std::int64_t>(file_bytes) + 5}) {
    std::vector<io_request> asked(60'000, {&*file_, memory(0), 64, offset});
    for (std::uint32_t i = 1; i < asked.size(); ++i) {
      asked[i].memory = memory(static_cast<int>(i % 3)) + i * 64;
      asked[i].copy_of = i - 1;
    }
    for (const auto& each : engine_.submit(asked).wait()) {
      EXPECT_TRUE(each.ok()) << told(each.error);
      EXPECT_EQ(each.bytes_done, offset == 1000 ? 64U : 0U);
    }
  }
  EXPECT_EQ(fallbacks(), 0U);
}

// Each handle is dropped at once, so that a batch is gone as soon as its last copy is there.
TEST_F(copies_contract, batches_that_nobody_waits_for_end_while_their_copies_begin) {
  std::atomic<int> left{3000};
  const int all = left;
  for (int i = 0; i < all; ++i) {
    const auto place = i * 64;  // its own, since several are under way
    const std::vector<io_request> asked = {{&*file_, memory(0) + place, 64, 5}, {&*file_, memory(1) + place, 64, 5, false, 0}};
    (void)engine_.submit(asked, {}, [&](const io_result& outcome) {
      EXPECT_EQ(outcome.bytes_done, 128U) << told(outcome.error);
      if (--left == 0) left.notify_all();
    });
  }
  for (int seen = left; seen > 0; seen = left) left.wait(seen);
}

TEST_F(copies_contract, what_is_no_earlier_read_of_the_same_range_is_refused) {
  const auto other = engine_.open(directory_.file("data"));
  ASSERT_TRUE(other.ok());
  const io_request source{&*file_, memory(0), mib, 5};
  const auto with = [&](const std::function<void(io_request&)>& change) {
    io_request wrong{&*file_, memory(1), mib, 5, false, 0};
    change(wrong);
    return wrong;
  };
  const std::vector<io_request> wrongs = {
      with([](io_request& each) { each.copy_of = 1; }),  // itself
      with([](io_request& each) { each.copy_of = 7; }),       with([](io_request& each) { each.length -= 1; }),
      with([](io_request& each) { each.offset += 1; }),       with([](io_request& each) { each.is_write = true; }),
      with([&](io_request& each) { each.target = &*other; }),
  };
  for (const auto& wrong : wrongs) {
    clear();
    const auto results = engine_.submit(std::array{source, wrong}).wait();
    EXPECT_TRUE(results[0].ok()) << told(results[0].error);
    EXPECT_EQ(results[1].error.code(), errc::invalid_argument);
    EXPECT_NE(results[1].error.message().find("request 1 of the batch"), std::string_view::npos) << told(results[1].error);
    EXPECT_EQ(seen(1)[0], std::byte{0x5a});
  }
}

TEST_F(copies_contract, a_copy_that_is_refused_itself_holds_nothing_up) {
  clear();
  auto asked = chain(5 * mib);
  const std::size_t refused = asked.size() / 3 + 2;  // its own copies are read by themselves
  asked[refused].memory = nullptr;
  const auto results = engine_.submit(asked).wait();
  for (std::size_t i = 0; i < results.size(); ++i) {
    EXPECT_EQ(results[i].error.code(), i == refused ? errc::bad_memory : errc::ok) << i << ": " << told(results[i].error);
  }
  EXPECT_EQ(std::memcmp(seen(2).data(), content_.data(), file_bytes), 0);
}

TEST_F(copies_contract, from_and_to_memory_of_the_host_they_are_read_again_and_that_is_said) {
  clear();
  bytes on_host(file_bytes);
  std::vector<io_request> asked = {{&*file_, on_host.data(), file_bytes, 0},
                                   {&*file_, memory(1), file_bytes, 0, false, 0},
                                   {&*file_, memory(2), file_bytes, 0, false, 1}};
  expect_whole(engine_.submit(asked).wait(), asked);
  EXPECT_EQ(on_host, content_);
  EXPECT_EQ(std::memcmp(seen(1).data(), content_.data(), file_bytes), 0);
  EXPECT_EQ(std::memcmp(seen(2).data(), content_.data(), file_bytes), 0);
  EXPECT_EQ(fallbacks(), 1U);
}

TEST_F(copies_contract, where_a_copy_fails_the_file_is_read_again) {
  const auto asked = chain(4 * mib);
  for (const char* call : {"copy", "record", "make_stream", "make_event", "reached"}) {
    for (const std::uint64_t nth : {1U, 14U, 27U}) {
      SCOPED_TRACE(::testing::Message() << call << " " << nth);
      clear();
      driver_->fail(call, nth, status(errc::device, "broken"));
      const auto results = engine_.submit(asked).wait();
      driver_->clear_faults();
      for (std::size_t i = 0; i < asked.size(); ++i) {
        if (!results[i].ok()) {  // it was the copy from the slab
          EXPECT_EQ(results[i].error.code(), errc::device);
          continue;
        }
        EXPECT_EQ(results[i].bytes_done, asked[i].length);
        const auto device = static_cast<int>(i * 3 / asked.size());
        const auto at = static_cast<std::size_t>(asked[i].offset);
        EXPECT_EQ(std::memcmp(seen(device).data() + at, &content_[at], asked[i].length), 0) << i;
      }
    }
  }
}

TEST_F(copies_contract, what_could_not_be_read_is_tried_again_for_each) {
  clear();
  drop_cache(directory_.file("data"));
  const auto asked = chain(4 * mib);
  std::atomic<int> reads{0};
  kernel_->set_hook([&](std::string_view call, std::uint64_t) -> std::optional<int> {
    if (call != "pread" && call != "ring.read") return std::nullopt;
    return ++reads % 5 == 0 ? std::optional(EIO) : std::nullopt;
  });
  const auto results = engine_.submit(asked, {.cache = cache_use::fill}).wait();
  kernel_->disarm();
  EXPECT_GT(reads.load(), 5);
  for (std::size_t i = 0; i < asked.size(); ++i) {
    const auto device = static_cast<int>(i * 3 / asked.size());
    const auto at = static_cast<std::size_t>(asked[i].offset);
    if (results[i].ok()) {
      EXPECT_EQ(std::memcmp(seen(device).data() + at, &content_[at], asked[i].length), 0) << i;
    } else {
      EXPECT_EQ(results[i].error.native(), EIO) << told(results[i].error);
    }
  }
}

TEST_F(copies_contract, each_ends_once_when_the_batch_is_cancelled_or_late) {
  for (int round = 0; round < 24; ++round) {
    SCOPED_TRACE(round);
    const auto asked = chain(round % 2 == 0 ? mib : 8 * mib);
    std::vector<std::atomic<int>> told_of(asked.size());
    io_options how;
    if (round % 3 == 2) how.deadline = deadline_clock::now() + std::chrono::microseconds(200 * round);
    auto submitted = engine_.submit(asked, how, {}, [&](std::size_t index, const io_result&) { ++told_of[index]; });
    if (round % 3 != 2) submitted.cancel();
    const auto results = submitted.wait();
    for (std::size_t i = 0; i < asked.size(); ++i) {
      EXPECT_EQ(told_of[i].load(), 1) << i;
      const auto code = results[i].error.code();
      EXPECT_TRUE(code == errc::ok || code == errc::cancelled || code == errc::timed_out) << told(results[i].error);
      if (code != errc::ok) continue;
      const auto device = static_cast<int>(i * 3 / asked.size());
      const auto at = static_cast<std::size_t>(asked[i].offset);
      EXPECT_EQ(std::memcmp(seen(device).data() + at, &content_[at], asked[i].length), 0) << i;
    }
  }
}

// Whoever frees or changes the memory of a request as soon as it is told of must not be in the way of its copies.
TEST_F(copies_contract, memory_is_its_users_once_its_request_has_ended) {
  clear();
  const auto asked = chain(2 * mib);
  const auto first = seen(0);
  const auto second = seen(1);
  auto submitted = engine_.submit(asked, {}, {}, [&](std::size_t index, const io_result& outcome) {
    if (!outcome.ok() || index >= asked.size() * 2 / 3) return;
    const auto device = index * 3 / asked.size();
    const auto at = static_cast<std::size_t>(asked[index].offset);
    std::ranges::fill((device == 0 ? first : second).subspan(at, asked[index].length), std::byte{0xee});
  });
  expect_whole(submitted.wait(), asked);
  EXPECT_EQ(std::memcmp(seen(2).data(), content_.data(), file_bytes), 0);
}

TEST_F(copies_contract, nobody_has_to_wait) {
  clear();
  const auto asked = chain(8 * mib);
  std::atomic<bool> over{false};
  (void)engine_.submit(asked, {}, [&](const io_result& outcome) {
    EXPECT_TRUE(outcome.ok());
    EXPECT_EQ(outcome.bytes_done, 3 * file_bytes);
    over = true;
    over.notify_all();
  });
  over.wait(false);
  expect_content();
}

}  // namespace
}  // namespace penstock::testing
