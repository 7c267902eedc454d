// file::pin(): pinned ranges are read through their registration, and never return anything but the content of the file. On the host
// device, over a kernel and a driver that count and fail.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <functional>
#include <optional>
#include <thread>

#include "contract/contract_fixture.hpp"
#include "support/faulty_device.hpp"
#include "support/faulty_kernel.hpp"
#include "support/forwarding_kernel.hpp"

namespace penstock::testing::pinned_range_tests {
namespace {

constexpr std::size_t size = 9 * mib + 5;

// Tells of memory what the test wants.
class told_kernel final : public forwarding_kernel {
 public:
  std::atomic<std::uint64_t> total_bytes{64ULL << 30};
  std::atomic<std::uint64_t> available_bytes{48ULL << 30};
  result<sys::memory_state> memory_now() override { return sys::memory_state{total_bytes, available_bytes}; }
};

class pinned_ranges : public ::testing::Test {
 protected:
  pinned_ranges() {
    content_ = pattern::make(size, 3);
    store_file(name_, content_);
  }
  void SetUp() override { skip_without_reads_of_processes(); }
  ~pinned_ranges() override {
    kernel_->disarm();
    device_->clear_faults();
    house_.reset();
    EXPECT_TRUE(device_->live().none());
    EXPECT_EQ(kernel_->mapped_bytes(), 0);
    EXPECT_EQ(kernel_->open_descriptors(), 0);
  }

  engine& owner() { return house_->engine(); }
  file open(const open_options& options = {.read = true, .write = true}) {
    auto opened = owner().open(name_, options);
    EXPECT_TRUE(opened.ok()) << told(opened.error());
    return opened.ok() ? *std::move(opened) : file();
  }
  static pinned_range pin(const file& of, std::uint64_t offset = 0, std::uint64_t length = ~std::uint64_t{0}) {
    auto pinned = of.pin(offset, length);
    EXPECT_TRUE(pinned.ok()) << told(pinned.error());
    return pinned.ok() ? *std::move(pinned) : pinned_range();
  }
  // Reads all and compares it with what the file ought to hold. before: what happens at the first call of that name while it is read.
  void read_all(const file& from, const bytes& expected, std::string_view call = {}, const std::function<void()>& before = {}) {
    guarded_memory memory(*house_, memory_place::device, size);
    std::atomic<bool> done{before == nullptr};
    if (before != nullptr) {
      device_->set_hook([&](std::string_view name, std::uint64_t) -> std::optional<status> {
        if (name == call && !done.exchange(true)) before();
        return std::nullopt;
      });
    }
    const auto outcome = from.read(memory.data(), size, 0);
    if (before != nullptr) device_->clear_faults();
    EXPECT_TRUE(done.load());
    EXPECT_TRUE(outcome.ok()) << told(outcome.error);
    EXPECT_EQ(outcome.bytes_done, expected.size());
    memory.expect(expected);
  }
  void read_all(const file& from) { read_all(from, content_); }
  std::uint64_t mapped() { return owner().stats().path(path_kind::mapped).bytes; }
  std::string reason(const file& of) {
    const auto plan = owner().explain(of, "host:0", size, 0);
    EXPECT_TRUE(plan.ok()) << told(plan.error());
    return plan.ok() && !plan->parts.empty() ? plan->parts[0].reason : "";
  }
  bool remarks_say(const file& of, const std::string& words) {
    const auto plan = owner().explain(of, "host:0", size, 0);
    EXPECT_TRUE(plan.ok()) << told(plan.error());
    return plan.ok() && std::any_of(plan->remarks.begin(), plan->remarks.end(),
                                    [&](const std::string& remark) { return remark.find(words) != std::string::npos; });
  }
  // Something else in the middle of the file, by somebody else.
  void change_file() {
    content_[4 * mib] ^= std::byte{1};
    store_file(name_, content_);
  }

  static engine_options options() {
    engine_options made;
    made.use_cuda = false;
    made.pinned_file_budget_bytes = 64 * mib;
    return made;
  }

  std::shared_ptr<told_kernel> memory_ = std::make_shared<told_kernel>();
  std::shared_ptr<faulty_kernel> kernel_ = std::make_shared<faulty_kernel>(memory_);
  std::shared_ptr<faulty_driver> device_ = make_faulty_driver(device::make_host_driver());
  std::optional<open_house> house_{std::in_place, options(), core::seams{kernel_, nullptr, device_}};
  temp_dir directory_ = temp_dir::on_build_disk();
  std::string name_ = directory_.file("data");
  bytes content_;
};

TEST_F(pinned_ranges, are_read_from_their_registration_which_is_made_once) {
  const auto from = open();
  const auto pinned = pin(from);
  EXPECT_EQ(pinned.size(), size);
  EXPECT_TRUE(pinned.problem().ok());
  EXPECT_EQ(owner().stats().pinned_file_bytes, size);
  EXPECT_NE(reason(from).find("pinned"), std::string::npos) << reason(from);
  for (int i = 0; i < 3; ++i) read_all(from);
  EXPECT_EQ(mapped(), 3 * size);
  EXPECT_EQ(kernel_->count("map_file"), 1U);
  EXPECT_EQ(owner().stats().path(path_kind::mapped).fallbacks, 0U);
}

// As when a model is loaded into one tensor after another.
TEST_F(pinned_ranges, serve_neighbouring_reads_of_a_batch) {
  constexpr std::size_t each = 2 * mib;
  const auto from = open();
  const auto pinned = pin(from);
  guarded_memory memory(*house_, memory_place::device, 4 * each);
  std::vector<io_request> asked;
  bytes expected(4 * each);
  for (std::size_t i = 0; i < 4; ++i) {
    const auto place = (3 - i) * each;  // the last part of the file comes first in memory
    asked.push_back({&from, memory.data() + place, each, static_cast<std::int64_t>(i * each), false});
    overlay(expected, place, std::span(content_).subspan(i * each, each));
  }
  for (const auto& outcome : owner().submit(asked).wait()) EXPECT_TRUE(outcome.ok()) << told(outcome.error);
  memory.expect(expected);
  EXPECT_EQ(mapped(), 4 * each);
}

TEST_F(pinned_ranges, end_with_their_owner) {
  const auto from = open();
  {
    const auto pinned = pin(from);
    read_all(from);
  }
  EXPECT_EQ(owner().stats().pinned_file_bytes, 0U);
  EXPECT_EQ(kernel_->mapped_bytes() > 0, owner().stats().pinned_bytes > 0) << "slabs only";
  const auto before = mapped();
  read_all(from);
  EXPECT_EQ(mapped(), before);
  EXPECT_EQ(owner().stats().pinned_file_drops, 0U);
}

TEST_F(pinned_ranges, serve_a_part_of_a_read_and_the_rest_goes_its_way) {
  const auto from = open();
  const auto pinned = pin(from, 2 * mib + 3, 4 * mib);
  EXPECT_EQ(pinned.size(), 4 * mib);
  read_all(from);
  EXPECT_EQ(mapped(), 4 * mib);
  guarded_memory memory(*house_, memory_place::device, 3 * mib);
  EXPECT_EQ(from.read(memory.data(), 3 * mib, 3 * mib).bytes_done, 3 * mib);
  memory.expect(std::span(content_).subspan(3 * mib, 3 * mib));
  EXPECT_EQ(mapped(), 7 * mib);
}

TEST_F(pinned_ranges, serve_every_file_over_the_same_bytes_and_outlive_theirs) {
  auto first = open();
  const auto pinned = pin(first);
  EXPECT_TRUE(first.close().ok());
  const auto second = open();
  read_all(second);
  EXPECT_EQ(mapped(), size);
}

TEST_F(pinned_ranges, requests_of_every_kind_are_right) {
  const auto from = open();
  const auto pinned = pin(from);
  guarded_memory memory(*house_, memory_place::device, size);
  EXPECT_EQ(from.read_async(memory.data(), size, 0).wait().bytes_done, size);
  memory.expect(content_);
  guarded_memory other(*house_, memory_place::device, size);
  const std::vector<io_request> asked{{&from, other.data(), 5 * mib, 0, false},
                                      {&from, other.data() + 5 * mib, 4096, 5 * mib, false},
                                      {&from, other.data() + 5 * mib + 4096, size - 5 * mib - 4096, 5 * mib + 4096, false}};
  for (const auto& each : owner().submit(asked).wait()) EXPECT_TRUE(each.ok()) << told(each.error);
  other.expect(content_);
  EXPECT_EQ(from.read(other.data(), mib, size - 100).bytes_done, 100U) << "past the end";
  guarded_memory host(*house_, memory_place::pageable, size);
  EXPECT_EQ(from.read(host.data(), size, 0).bytes_done, size);
  host.expect(content_);
}

TEST_F(pinned_ranges, overlapping_ones_are_counted_each_and_one_within_another_shares_it) {
  const auto from = open();
  auto whole = pin(from, 0, 6 * mib);
  const auto inner = pin(from, mib, 2 * mib);
  EXPECT_EQ(owner().stats().pinned_file_bytes, 6 * mib);
  const auto over = pin(from, 5 * mib, 4 * mib);
  EXPECT_EQ(owner().stats().pinned_file_bytes, 10 * mib);
  EXPECT_EQ(kernel_->count("map_file"), 2U);
  read_all(from);
  whole = pinned_range();
  EXPECT_EQ(inner.size(), 2 * mib);
  EXPECT_EQ(owner().stats().pinned_file_bytes, 10 * mib) << "the one within holds it";
  const auto before = mapped();
  read_all(from);
  EXPECT_EQ(mapped() - before, 6 * mib) << "what is asked for, not what is registered";
}

TEST_F(pinned_ranges, the_budget_is_named_where_it_is_exceeded) {
  open_house small(
      [] {
        auto made = options();
        made.pinned_file_budget_bytes = 8 * mib;
        return made;
      }(),
      core::seams{kernel_, nullptr, device_});
  auto opened = small.engine().open(name_);
  ASSERT_TRUE(opened.ok()) << told(opened.error());
  const auto refused = opened->pin();
  EXPECT_EQ(refused.error().code(), errc::out_of_memory);
  EXPECT_NE(refused.error().message().find("PENSTOCK_PINNED_FILE_MIB"), std::string_view::npos) << told(refused.error());
  EXPECT_NE(refused.error().message().find(name_), std::string_view::npos) << told(refused.error());
  const auto most = opened->pin(0, 8 * mib);
  EXPECT_TRUE(most.ok()) << told(most.error());
  EXPECT_EQ(opened->pin(8 * mib, 1).error().code(), errc::out_of_memory);
}

TEST_F(pinned_ranges, a_quarter_of_all_memory_may_be_pinned_unless_asked_otherwise) {
  auto made = options();
  made.pinned_file_budget_bytes = 0;
  memory_->total_bytes = 32 * mib;
  memory_->available_bytes = 32 * mib;
  open_house other(made, core::seams{kernel_, nullptr, device_});
  auto opened = other.engine().open(name_);
  ASSERT_TRUE(opened.ok()) << told(opened.error());
  EXPECT_EQ(opened->pin().error().code(), errc::out_of_memory);
  EXPECT_TRUE(opened->pin(0, 8 * mib).ok());
}

TEST_F(pinned_ranges, the_environment_sets_the_budget) {
  ::setenv("PENSTOCK_PINNED_FILE_MIB", "48", 1);
  const auto asked = engine_options::from_environment();
  ::setenv("PENSTOCK_PINNED_FILE_MIB", "much", 1);
  const auto wrong = engine_options::from_environment();
  ::unsetenv("PENSTOCK_PINNED_FILE_MIB");
  ASSERT_TRUE(asked.ok()) << told(asked.error());
  EXPECT_EQ(asked->pinned_file_budget_bytes, 48 * mib);
  EXPECT_EQ(wrong.error().code(), errc::invalid_argument);
}

TEST_F(pinned_ranges, are_given_up_where_memory_is_short_and_that_is_said) {
  const auto from = open();
  const auto pinned = pin(from);
  read_all(from);
  memory_->available_bytes = size + (memory_->total_bytes / 16) - 1;  // what is pinned counts as available
  (void)owner().trim();
  EXPECT_EQ(pinned.size(), 0U);
  EXPECT_EQ(pinned.problem().code(), errc::out_of_memory) << told(pinned.problem());
  EXPECT_EQ(owner().stats().pinned_file_bytes, 0U);
  EXPECT_EQ(owner().stats().pinned_file_drops, 1U);
  EXPECT_TRUE(remarks_say(from, "memory ran short"));
  const auto before = mapped();
  read_all(from);
  EXPECT_EQ(mapped(), before);
  EXPECT_EQ(from.pin().error().code(), errc::out_of_memory) << "it would be given up at once";
  memory_->available_bytes = memory_->total_bytes.load();
  (void)owner().trim();
  const auto again = pin(from);
  EXPECT_EQ(again.size(), size);
}

TEST_F(pinned_ranges, trim_leaves_them_where_memory_is_plenty) {
  const auto from = open();
  const auto pinned = pin(from);
  read_all(from);
  (void)owner().trim();
  EXPECT_EQ(pinned.size(), size);
}

TEST_F(pinned_ranges, of_a_file_that_has_changed_are_given_up_before_they_are_read) {
  const auto from = open();
  const auto pinned = pin(from);
  read_all(from);
  change_file();
  read_all(from);
  EXPECT_EQ(mapped(), size);
  EXPECT_EQ(pinned.size(), 0U);
  EXPECT_NE(pinned.problem().message().find("has changed"), std::string_view::npos) << told(pinned.problem());
  EXPECT_TRUE(remarks_say(from, "has changed"));
  EXPECT_EQ(pin(from).size(), size) << "anew";
}

TEST_F(pinned_ranges, are_given_up_where_their_own_file_is_written) {
  const auto both = open();
  const auto pinned = pin(both);
  guarded_memory memory(*house_, memory_place::device, mib);
  const auto fresh = pattern::make(mib, 99);
  memory.fill(fresh);
  EXPECT_EQ(both.write(memory.data(), mib, 3 * mib).bytes_done, mib);
  overlay(content_, 3 * mib, fresh);
  read_all(both);
  EXPECT_EQ(pinned.size(), 0U);
}

// Cut and written anew under a read that has begun: other pages take the place of those that are registered.
TEST_F(pinned_ranges, a_file_that_changes_under_a_read_is_read_again_the_usual_way) {
  const auto from = open();
  const auto pinned = pin(from);
  const auto after = pattern::make(size, 77);
  read_all(from, after, "copy", [&] {
    EXPECT_EQ(::truncate(name_.c_str(), 0), 0);
    store_file(name_, after);
  });
  EXPECT_EQ(pinned.size(), 0U);
  EXPECT_EQ(owner().stats().path(path_kind::mapped).fallbacks, 1U);
  EXPECT_EQ(owner().stats().pinned_file_drops, 1U);
}

TEST_F(pinned_ranges, a_file_that_becomes_shorter_under_a_read_ends_there) {
  const auto from = open();
  const auto pinned = pin(from);
  guarded_memory memory(*house_, memory_place::device, size);
  std::atomic<bool> changed{false};
  device_->set_hook([&](std::string_view call, std::uint64_t) -> std::optional<status> {
    if (call == "copy" && !changed.exchange(true)) {
      EXPECT_EQ(::truncate(name_.c_str(), 5 * mib + 7), 0);
    }
    return std::nullopt;
  });
  const auto outcome = from.read(memory.data(), size, 0);
  device_->clear_faults();
  EXPECT_TRUE(changed.load());
  EXPECT_TRUE(outcome.ok()) << told(outcome.error);
  EXPECT_EQ(outcome.bytes_done, 5 * mib + 7);
  content_.resize(5 * mib + 7);
  auto seen = memory.content();  // behind the end there may be anything that was there, as zeros of the last page
  seen.resize(content_.size());
  EXPECT_TRUE(seen == content_);
  read_all(from, content_);
}

TEST_F(pinned_ranges, what_cannot_be_mapped_registered_or_looked_at_is_no_range_and_leaves_nothing) {
  const auto from = open();
  guarded_memory memory(*house_, memory_place::device, 1);  // the device is in use: registered at once
  for (const char* call : {"describe", "map_file", "file_size"}) {
    kernel_->fail({.call = call, .nth = 1, .error = EIO});
    const auto refused = from.pin();
    EXPECT_EQ(refused.error().code(), errc::io) << call;
    EXPECT_NE(refused.error().message().find(name_), std::string_view::npos) << call << ": " << told(refused.error());
    kernel_->disarm();
  }
  kernel_->fail({.call = "describe", .nth = 2, .error = EIO});
  EXPECT_EQ(from.pin().error().code(), errc::io) << "after it was mapped";
  kernel_->disarm();
  device_->fail("pin", 1, {errc::out_of_memory, "the test refuses"});
  EXPECT_EQ(from.pin().error().code(), errc::out_of_memory);
  device_->clear_faults();
  EXPECT_EQ(owner().stats().pinned_file_bytes, 0U);
  EXPECT_EQ(pin(from).size(), size);
}

TEST_F(pinned_ranges, what_a_read_cannot_do_with_them_goes_the_usual_way) {
  const auto from = open();
  for (const char* call : {"pin", "make_stream", "make_event", "copy", "record", "reached"}) {
    SCOPED_TRACE(call);
    house_.reset();
    house_.emplace(options(), core::seams{kernel_, nullptr, device_});
    const auto here = open();
    const auto pinned = pin(here);
    guarded_memory memory(*house_, memory_place::device, size);
    // The first of its kind is that of the registration: no slab has been wanted yet.
    device_->fail(call, 1, {errc::device, "the test refuses"});
    const auto outcome = here.read(memory.data(), size, 0);
    device_->clear_faults();
    EXPECT_TRUE(outcome.ok()) << told(outcome.error);
    memory.expect(content_);
    EXPECT_EQ(owner().stats().path(path_kind::mapped).fallbacks, 1U);
    EXPECT_EQ(pinned.size(), std::string_view(call) == "pin" ? 0U : size) << "given up only where it cannot be registered";
  }
}

TEST_F(pinned_ranges, a_file_that_cannot_be_looked_at_is_read_the_usual_way) {
  const auto from = open();
  const auto pinned = pin(from);
  guarded_memory memory(*house_, memory_place::device, size);
  for (const std::uint64_t nth : {1, 2, 3}) {  // by the plan, before the copy, and after it
    auto again = pin(from);
    kernel_->fail({.call = "describe", .nth = nth, .error = EIO});
    const auto outcome = from.read(memory.data(), size, 0);
    kernel_->disarm();
    EXPECT_TRUE(outcome.ok()) << told(outcome.error);
    memory.expect(content_);
    EXPECT_EQ(again.size(), 0U) << nth;
  }
}

TEST_F(pinned_ranges, nothing_is_pinned_of_nothing) {
  const auto from = open();
  EXPECT_EQ(from.pin(size).error().code(), errc::invalid_argument);
  EXPECT_EQ(from.pin(0, 0).error().code(), errc::invalid_argument);
  EXPECT_EQ(file().pin().error().code(), errc::closed);
  auto closed = open();
  EXPECT_TRUE(closed.close().ok());
  EXPECT_EQ(closed.pin().error().code(), errc::closed);
  EXPECT_EQ(pinned_range().size(), 0U);
  EXPECT_EQ(pinned_range().problem().code(), errc::closed);
}

TEST_F(pinned_ranges, files_open_for_writing_only_and_sources_without_pages_are_refused) {
  EXPECT_EQ(open({.read = false, .write = true}).pin().error().code(), errc::permission_denied);
  memory_files in_memory(true);
  in_memory.put("x", content_);
  auto source = in_memory.open(owner(), "x", {});
  ASSERT_TRUE(source.ok()) << told(source.error());
  EXPECT_EQ(source->pin().error().code(), errc::unsupported);
}

TEST_F(pinned_ranges, may_end_while_they_are_read) {
  const auto from = open();
  auto pinned = pin(from);
  read_all(from, content_, "record", [&] { pinned = pinned_range(); });  // a copy is under way
  EXPECT_EQ(mapped(), size);
  EXPECT_EQ(owner().stats().pinned_file_bytes, 0U);
}

TEST_F(pinned_ranges, keep_their_engine) {
  pinned_range pinned;
  {
    const auto from = open();
    pinned = pin(from);
  }
  house_.reset();
  EXPECT_EQ(pinned.size(), size);
}

TEST_F(pinned_ranges, many_threads_read_pin_and_let_go_at_once) {
  const auto from = open();
  std::vector<std::thread> threads;
  threads.reserve(4);
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] {
      for (int round = 0; round < 5; ++round) {
        const auto mine = pin(from, static_cast<std::uint64_t>(i) * mib, 5 * mib);
        EXPECT_EQ(mine.size(), 5 * mib);
        read_all(from);
      }
    });
  }
  for (auto& each : threads) each.join();
  EXPECT_EQ(owner().stats().pinned_file_bytes, 0U);
  EXPECT_EQ(owner().stats().pinned_file_drops, 0U);
}

}  // namespace
}  // namespace penstock::testing::pinned_range_tests
