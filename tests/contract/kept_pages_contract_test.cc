// Registrations made by reads that save CPU time stay for later reads until the memory is needed, and never hold anything but the content
// of the file. On the host device.
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <optional>
#include <thread>

#include "contract/contract_fixture.hpp"
#include "path/kept_pages.hpp"
#include "source/local_file.hpp"
#include "support/faulty_device.hpp"
#include "support/faulty_kernel.hpp"
#include "support/forwarding_kernel.hpp"
#include "support/lacking.hpp"

namespace penstock::testing::kept_pages_tests {
namespace {

constexpr std::size_t size = 9 * mib + 5;
constexpr std::uint64_t piece = 64 * mib;  // what is registered at once ends at multiples of it
constexpr std::uint64_t before = 8 * mib;
constexpr io_options sparing{.prefer = preference::cpu};

class told_kernel final : public forwarding_kernel {
 public:
  std::atomic<std::uint64_t> available_bytes{48ULL << 30};
  std::atomic<bool> changes_always = false;
  // All files are an hour older than they are: nothing is kept of what was changed seconds ago.
  result<sys::file_info> describe(int fd) override {
    auto told = forwarding_kernel::describe(fd);
    constexpr std::int64_t hour_ns = 3'600'000'000'000;
    if (told && !changes_always) {
      told->modified_ns -= hour_ns;
      told->changed_ns -= hour_ns;
    }
    return told;
  }
  result<sys::memory_state> memory_now() override { return sys::memory_state{64ULL << 30, available_bytes}; }
};

class kept_pages : public ::testing::Test {
 protected:
  void SetUp() override { PENSTOCK_SKIP_IF(lacks_reads_of_processes()); }
  kept_pages() {
    content_ = pattern::make(size, 3);
    store_file(name_, content_);
  }
  ~kept_pages() override {
    kernel_->disarm();
    device_->clear_faults();
    house_.reset();
    EXPECT_TRUE(device_->live().none());
    EXPECT_EQ(kernel_->mapped_bytes(), 0);
    EXPECT_EQ(kernel_->open_descriptors(), 0);
  }

  static engine_options options() {
    engine_options made;
    made.use_cuda = false;
    made.pinned_file_budget_bytes = 64 * mib;
    return made;
  }
  engine& owner() { return house_->engine(); }
  file open(const std::string& name) {
    auto opened = owner().open(name, {.read = true, .write = true});
    EXPECT_TRUE(opened.ok()) << told(opened.error());
    return opened.ok() ? *std::move(opened) : file();
  }
  void read_all(const file& from, const io_options& how = sparing) {
    guarded_memory memory(*house_, memory_place::device, size);
    const auto outcome = from.read(memory.data(), size, 0, how);
    EXPECT_TRUE(outcome.ok()) << told(outcome.error);
    EXPECT_EQ(outcome.bytes_done, content_.size());
    memory.expect(content_);
  }
  std::uint64_t registered() { return owner().stats().pinned_file_bytes; }
  path_stats mapped() { return owner().stats().path(path_kind::mapped); }

  std::shared_ptr<told_kernel> memory_ = std::make_shared<told_kernel>();
  std::shared_ptr<faulty_kernel> kernel_ = std::make_shared<faulty_kernel>(memory_);
  std::shared_ptr<faulty_driver> device_ = make_faulty_driver(device::make_host_driver());
  std::optional<open_house> house_{std::in_place, options(), core::seams{kernel_, nullptr, device_}};
  temp_dir directory_ = temp_dir::on_build_disk();
  std::string name_ = directory_.file("data");
  bytes content_;
};

TEST_F(kept_pages, serve_the_next_reads_of_the_file_whoever_opens_it) {
  {
    const auto first = open(name_);
    read_all(first);
  }
  EXPECT_EQ(registered(), size);
  const auto maps = kernel_->count("map_file");
  const auto again = open(name_);
  read_all(again);
  read_all(again, {.prefer = preference::speed});
  EXPECT_EQ(mapped().bytes, 3 * size);
  EXPECT_EQ(mapped().fallbacks, 0U);
  EXPECT_EQ(kernel_->count("map_file"), maps);
  EXPECT_EQ(registered(), size);
}

TEST_F(kept_pages, go_with_trim_and_nobody_is_told_that_they_were_given_up) {
  const auto from = open(name_);
  read_all(from);
  (void)owner().trim();
  EXPECT_EQ(registered(), 0U);
  EXPECT_EQ(owner().stats().pinned_file_drops, 0U);
  read_all(from);
  EXPECT_EQ(registered(), size);
}

TEST_F(kept_pages, of_a_file_that_has_changed_are_not_read_from) {
  const auto from = open(name_);
  read_all(from);
  content_[4 * mib] ^= std::byte{1};
  store_file(name_, content_);
  read_all(from);
  EXPECT_EQ(owner().stats().pinned_file_drops, 0U);
}

TEST_F(kept_pages, are_none_of_a_file_whose_next_change_might_not_be_noticed) {
  const auto from = open(name_);
  memory_->changes_always = true;
  read_all(from);
  EXPECT_EQ(mapped().bytes, size);
  EXPECT_EQ(registered(), 0U);
}

TEST_F(kept_pages, are_none_where_memory_is_short) {
  const auto from = open(name_);
  memory_->available_bytes = 1 * mib;
  (void)owner().trim();  // asks anew how much there is
  read_all(from);
  EXPECT_EQ(mapped().bytes, size);
  EXPECT_EQ(registered(), 0U);
}

TEST_F(kept_pages, go_before_what_users_have_pinned_where_memory_becomes_short) {
  const auto other = directory_.file("other");
  store_file(other, pattern::make(size, 4));
  const auto pinned_file = open(other);
  const auto pinned = pinned_file.pin();
  ASSERT_TRUE(pinned.ok()) << told(pinned.error());
  read_all(open(name_));
  EXPECT_EQ(registered(), 2 * size);
  memory_->available_bytes = (64ULL << 30) / 16 + size;  // enough for one of them
  (void)owner().trim();
  EXPECT_EQ(pinned->size(), size);
  EXPECT_EQ(registered(), size);
}

TEST_F(kept_pages, do_not_keep_a_child_of_this_process_from_ending) {
  const auto from = open(name_);
  read_all(from);
  const auto child = ::fork();
  if (child == 0) std::exit(0);
  int ended = -1;
  EXPECT_EQ(::waitpid(child, &ended, 0), child);
  EXPECT_TRUE(WIFEXITED(ended) && WEXITSTATUS(ended) == 0);
  read_all(from);
}

TEST_F(kept_pages, leave_what_users_pin_its_room) {
  house_.reset();
  auto tight = options();
  tight.pinned_file_budget_bytes = 2 * size;
  house_.emplace(tight, core::seams{kernel_, nullptr, device_});
  const auto other = directory_.file("other");
  store_file(other, pattern::make(2 * size, 4));
  const auto wanted = open(other);
  const auto from = open(name_);
  read_all(from);
  EXPECT_EQ(registered(), size);
  const auto pinned = wanted.pin();
  EXPECT_TRUE(pinned.ok()) << told(pinned.error());
  EXPECT_EQ(registered(), 2 * size);
}

TEST_F(kept_pages, a_failure_to_map_or_register_hands_the_read_on_and_leaves_nothing) {
  const auto from = open(name_);
  for (const char* call : {"describe", "map_file"}) {
    (void)owner().trim();
    kernel_->fail({.call = call, .nth = 1, .error = EIO});
    read_all(from);
    kernel_->disarm();
    EXPECT_EQ(registered(), 0U) << call;
  }
  for (const char* call : {"pin", "copy", "record", "reached"}) {
    (void)owner().trim();
    guarded_memory memory(*house_, memory_place::device, size);
    device_->fail(call, 1, {errc::device, "the test refuses"});
    const auto outcome = from.read(memory.data(), size, 0, sparing);
    device_->clear_faults();
    EXPECT_TRUE(outcome.ok()) << told(outcome.error);
    memory.expect(content_);
  }
  EXPECT_EQ(mapped().fallbacks, 6U);
}

// Two pieces; while the first is copied, others read a little each.
TEST_F(kept_pages, no_more_is_registered_while_others_copy) {
  const auto big = directory_.file("big");
  store_file(big, pattern::make(2 * before, 9));
  bytes whole(piece - before);  // a hole
  {
    const auto tail = pattern::make(2 * before, 9);
    whole.insert(whole.end(), tail.begin(), tail.end());
    store_file(big, whole);
  }
  const auto from = open(big);
  const auto small = open(name_);
  guarded_memory few(*house_, memory_place::device, 4096);
  guarded_memory memory(*house_, memory_place::device, 2 * before);
  std::atomic<bool> done{false};
  device_->set_hook([&](std::string_view name, std::uint64_t) -> std::optional<status> {
    if (name == "pin" && !done.exchange(true)) {
      for (int i = 0; i < 8; ++i) EXPECT_EQ(small.read(few.data(), 4096, 0).bytes_done, 4096U);
    }
    return std::nullopt;
  });
  const auto outcome = from.read(memory.data(), 2 * before, piece - before, sparing);
  device_->clear_faults();
  EXPECT_TRUE(done.load());
  EXPECT_TRUE(outcome.ok()) << told(outcome.error);
  memory.expect(std::span(whole).subspan(piece - before));
  EXPECT_EQ(mapped().bytes, before);
  EXPECT_EQ(mapped().fallbacks, 1U);
  EXPECT_NE(mapped().last_fallback.find("delay other copies"), std::string::npos) << mapped().last_fallback;
}

TEST_F(kept_pages, many_may_read_and_trim_at_once) {
  const auto from = open(name_);
  std::vector<std::jthread> readers;
  for (int i = 0; i < 4; ++i) {
    readers.emplace_back([&, i] {
      for (int round = 0; round < 4; ++round) {
        read_all(from);
        if (i == 0) (void)owner().trim();
      }
    });
  }
}

// Nothing is read from them any more: they go by themselves.
TEST(kept_pages_by_themselves, go_once_they_were_idle_for_too_long_and_where_too_much_is_kept) {
  PENSTOCK_SKIP_IF(lacks_reads_of_processes());
  const temp_dir directory = temp_dir::on_build_disk();
  const auto name = directory.file("data");
  store_file(name, pattern::make(mib, 3));
  const auto kernel = sys::make_kernel();
  const auto driver = device::make_host_driver();
  auto& session = **driver->open(0, nullptr);
  const auto file = *source::local_file::open(*kernel, name, {});
  const sys::fork_guard fork;
  for (const bool idle : {true, false}) {
    path::pinned_pages all(*kernel, fork);
    std::atomic<std::uint64_t> most{mib};
    path::kept_pages kept(
        all, fork, [&] { return most.load(); }, idle ? std::chrono::milliseconds(1) : std::chrono::hours(1));
    {
      const auto made = all.make(*file, 0, mib, {&session, true});
      ASSERT_TRUE(made.ok()) << told(made.error());
      EXPECT_TRUE(kept.keep(made->held));
      EXPECT_FALSE(kept.keep(made->held)) << "no room";
    }
    most = 0;
    while (all.used_bytes() > 0) std::this_thread::yield();
    EXPECT_EQ(all.find_whole(*file, 0, mib), nullptr);
  }
}

}  // namespace
}  // namespace penstock::testing::kept_pages_tests
