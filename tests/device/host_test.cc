// Promises of the host device beyond the contract of all drivers: it detects mistakes that a GPU might not.
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <thread>

#include "device/device_fixture.hpp"
#include "device/host_memory.hpp"
#include "device/host_pins.hpp"
#include "support/child.hpp"
#include "sys/page_size.hpp"

namespace penstock::testing {
namespace {

using device::host_memory;
using device::memory_type;

class host_device : public ::testing::Test {
 protected:
  void SetUp() override { session_ = value_of(driver_->open(0, nullptr)); }
  device::session& session() { return *session_; }

  std::shared_ptr<device::driver> driver_ = device::make_host_driver();
  device::session* session_ = nullptr;
};

using host_device_death = host_device;

TEST_F(host_device_death, the_cpu_cannot_touch_device_memory) {
  const device_memory memory(session(), 4096);
  volatile auto* bytes = reinterpret_cast<volatile unsigned char*>(memory.data());
  EXPECT_DEATH((void)bytes[0], "");
  EXPECT_DEATH(bytes[4095] = 1, "");
}

TEST_F(host_device, addresses_between_allocations_and_freed_ones_are_bad_memory) {
  auto* first = static_cast<std::byte*>(value_of(session().allocate(512)));
  const device_memory second(session(), 512);
  EXPECT_EQ(driver_->classify(first + 512).error().code(), errc::bad_memory);
  PENSTOCK_EXPECT_OK(session().release(first));
  EXPECT_EQ(driver_->classify(first).error().code(), errc::bad_memory);
  EXPECT_EQ(value_of(driver_->classify(second.data() + 511)).base, second.data());
}

TEST_F(host_device, only_the_start_of_an_allocation_can_be_freed) {
  const device_memory memory(session(), 4096);
  EXPECT_EQ(session().release(memory.data() + 512).code(), errc::bad_memory);
  EXPECT_EQ(session().release(this).code(), errc::bad_memory);
}

TEST_F(host_device, a_copy_past_the_end_of_an_allocation_fails_and_moves_nothing) {
  const device_memory memory(session(), 1000);
  pinned_memory host(session(), 4096);
  host.fill(std::byte{0x11});
  const scoped_stream stream(session());
  for (const std::size_t at : {0, 1, 999}) {
    PENSTOCK_EXPECT_OK(session().copy(memory.data() + at, host.data(), 1001 - at, stream));
    EXPECT_EQ(session().synchronize(stream).code(), errc::bad_memory) << at;
    PENSTOCK_EXPECT_OK(session().copy(host.data(), memory.data() + at, 1001 - at, stream));
    EXPECT_EQ(session().synchronize(stream).code(), errc::bad_memory) << at;
  }
  EXPECT_EQ(host.data()[0], std::byte{0x11});
  PENSTOCK_EXPECT_OK(session().copy(memory.data(), host.data(), 1000, stream));
  PENSTOCK_EXPECT_OK(session().synchronize(stream));
}

TEST_F(host_device, a_copy_across_two_allocations_fails) {
  const device_memory first(session(), 512);
  const device_memory second(session(), 512);
  pinned_memory host(session(), 4096);
  const auto distance = static_cast<std::size_t>(second.data() - first.data());
  EXPECT_EQ(session().copy_small(first.data(), host.data(), distance + 1, nullptr).code(), errc::bad_memory);
}

TEST_F(host_device, an_error_goes_to_the_first_event_after_it) {
  const device_memory memory(session(), 512);
  pinned_memory host(session(), 4096);
  const scoped_stream stream(session());
  const scoped_event before(session());
  const scoped_event after(session());
  const scoped_event later(session());
  PENSTOCK_EXPECT_OK(session().record(before, stream));
  PENSTOCK_EXPECT_OK(session().copy(memory.data(), host.data(), 513, stream));
  PENSTOCK_EXPECT_OK(session().record(after, stream));
  PENSTOCK_EXPECT_OK(session().copy(memory.data(), host.data(), 512, stream));
  PENSTOCK_EXPECT_OK(session().record(later, stream));
  PENSTOCK_EXPECT_OK(session().wait(later));
  PENSTOCK_EXPECT_OK(session().wait(before));
  EXPECT_EQ(session().wait(after).code(), errc::bad_memory);
  EXPECT_EQ(session().reached(after).error().code(), errc::bad_memory);
  PENSTOCK_EXPECT_OK(session().synchronize(stream));  // told already
}

TEST_F(host_device, synchronize_tells_an_error_that_no_event_told) {
  const device_memory memory(session(), 512);
  pinned_memory host(session(), 4096);
  const scoped_stream stream(session());
  const scoped_event event(session());
  PENSTOCK_EXPECT_OK(session().copy(memory.data(), host.data(), 513, stream));
  PENSTOCK_EXPECT_OK(session().record(event, stream));
  EXPECT_EQ(session().synchronize(stream).code(), errc::bad_memory);
  PENSTOCK_EXPECT_OK(session().synchronize(stream));
}

TEST_F(host_device, overlapping_pins_are_refused) {
  const pinned_memory memory(session(), 65536);
  for (const auto& [at, length] : {std::pair<int, std::size_t>{0, 1}, {65535, 1}, {4096, 4096}, {0, 65536}}) {
    const status refused = session().pin(memory.data() + at, length, false);
    EXPECT_EQ(refused.code(), errc::invalid_argument);
    EXPECT_NE(refused.message().find("already registered"), std::string_view::npos) << refused.message();
  }
}

TEST_F(host_device, what_is_not_mapped_host_memory_cannot_be_pinned) {
  const std::size_t page = sys::page_size();
  void* hole = ::mmap(nullptr, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(hole, MAP_FAILED);
  ASSERT_EQ(::munmap(static_cast<std::byte*>(hole) + page, page), 0);
  EXPECT_EQ(session().pin(hole, 2 * page, false).code(), errc::bad_memory);
  ::munmap(hole, page);
  const device_memory memory(session(), 4096);
  EXPECT_EQ(session().pin(memory.data(), 4096, false).code(), errc::bad_memory);
}

// A file mapped and pinned read-only.
class pinned_file {
 public:
  pinned_file(device::session& session, const std::vector<std::byte>& content)
      : session_(session), bytes_(content.size()), descriptor_(::memfd_create("pinned_file", MFD_CLOEXEC)) {
    EXPECT_EQ(::pwrite(descriptor_, content.data(), bytes_, 0), static_cast<ssize_t>(bytes_));
    data_ = static_cast<std::byte*>(::mmap(nullptr, bytes_, PROT_READ, MAP_SHARED, descriptor_, 0));
    EXPECT_NE(data_, MAP_FAILED);
    PENSTOCK_EXPECT_OK(session_.pin(data_, bytes_, true));
  }
  pinned_file(const pinned_file&) = delete;
  pinned_file& operator=(const pinned_file&) = delete;
  ~pinned_file() {
    PENSTOCK_EXPECT_OK(session_.unpin(data_));
    ::munmap(data_, bytes_);
    ::close(descriptor_);
  }
  [[nodiscard]] std::byte* data() const { return data_; }
  void truncate(std::size_t bytes) { EXPECT_EQ(::ftruncate(descriptor_, static_cast<off_t>(bytes)), 0); }

 private:
  device::session& session_;
  std::size_t bytes_;
  int descriptor_;
  std::byte* data_ = nullptr;
};

// The host device reads such memory by process_vm_readv, so that a file that became shorter ends nobody.
class host_device_and_files : public host_device {
 protected:
  void SetUp() override {
    host_device::SetUp();
    char here = 0;
    char there = 0;
    if (!device::host_pins::read_safely(&here, &there, 1).ok())
      GTEST_SKIP() << "process_vm_readv is missing, by which the host device reads";
  }
};

TEST_F(host_device_and_files, a_pinned_file_mapping_is_read) {
  const auto content = random_bytes(3 << 20, 20);
  const pinned_file file(session(), content);
  EXPECT_EQ(value_of(driver_->classify(file.data() + 5)).type, memory_type::pinned);
  const device_memory memory(session(), content.size());
  std::vector<std::byte> back(content.size());
  PENSTOCK_EXPECT_OK(session().copy(memory.data(), file.data(), content.size(), nullptr));
  PENSTOCK_EXPECT_OK(session().copy_small(back.data(), memory.data(), back.size(), nullptr));
  EXPECT_EQ(back, content);
}

TEST_F(host_device_and_files, a_mapping_whose_file_became_shorter_is_an_error_and_no_crash) {
  pinned_file file(session(), random_bytes(1 << 20, 21));
  const device_memory memory(session(), 1 << 20);
  const scoped_stream stream(session());
  file.truncate(8192);
  PENSTOCK_EXPECT_OK(session().copy(memory.data(), file.data(), 1 << 20, stream));
  EXPECT_EQ(session().synchronize(stream).code(), errc::io);
  PENSTOCK_EXPECT_OK(session().copy(memory.data(), file.data(), 8192, stream));
  PENSTOCK_EXPECT_OK(session().synchronize(stream));
}

TEST_F(host_device_and_files, memory_pinned_read_only_is_not_written) {
  const pinned_file file(session(), random_bytes(8192, 22));
  const device_memory memory(session(), 8192);
  EXPECT_EQ(session().copy_small(file.data() + 100, memory.data(), 100, nullptr).code(), errc::bad_memory);
}

TEST_F(host_device, a_flag_in_pageable_memory_is_refused) {
  std::uint32_t flag = 1;
  EXPECT_EQ(session().wait_value(nullptr, &flag, 1).code(), errc::bad_memory);
}

TEST_F(host_device, handles_that_are_none_are_refused) {
  device::stream stream = value_of(session().make_stream());
  device::event event = value_of(session().make_event());
  PENSTOCK_EXPECT_OK(session().destroy_stream(stream));
  PENSTOCK_EXPECT_OK(session().destroy_event(event));
  EXPECT_EQ(session().destroy_stream(stream).code(), errc::invalid_argument);
  EXPECT_EQ(session().destroy_event(event).code(), errc::invalid_argument);
  EXPECT_EQ(session().synchronize(stream).code(), errc::invalid_argument);
  EXPECT_EQ(session().record(event, nullptr).code(), errc::invalid_argument);
  EXPECT_EQ(session().wait(event).code(), errc::invalid_argument);
  EXPECT_EQ(session().reached(event).error().code(), errc::invalid_argument);
  EXPECT_EQ(session().destroy_stream(nullptr).code(), errc::invalid_argument) << "the default stream is not ours to destroy";
  EXPECT_EQ(driver_->open(0, this).error().code(), errc::invalid_argument);
}

TEST_F(host_device, destroying_the_driver_finishes_queued_work) {
  std::atomic<int> calls{0};
  for (int i = 0; i < 3; ++i) {
    device::stream stream = value_of(session().make_stream());
    for (int j = 0; j < 100; ++j) {
      PENSTOCK_EXPECT_OK(session().call(
          stream, [](void* argument) { ++*static_cast<std::atomic<int>*>(argument); }, &calls));
    }
  }
  driver_.reset();
  EXPECT_EQ(calls.load(), 300);
}

TEST_F(host_device, a_stream_takes_only_so_much_work) {
  pinned_memory flag(session(), 4096);
  flag.fill(std::byte{0});
  auto* value = reinterpret_cast<std::uint32_t*>(flag.data());
  const scoped_stream stream(session());
  const scoped_event event(session());
  PENSTOCK_EXPECT_OK(session().wait_value(stream, value, 1));
  status refused;
  int queued = 0;
  for (; refused.ok() && queued < 200000; ++queued)
    refused = session().call(
        stream, [](void*) {}, nullptr);
  EXPECT_EQ(refused.code(), errc::out_of_memory);
  EXPECT_EQ(session().record(event, stream).code(), errc::out_of_memory);
  EXPECT_TRUE(value_of(session().reached(event))) << "a recording that was refused did not happen";
  std::atomic_ref(*value).store(1);
  PENSTOCK_EXPECT_OK(session().synchronize(stream));
  PENSTOCK_EXPECT_OK(session().record(event, stream));
  PENSTOCK_EXPECT_OK(session().wait(event));
}

TEST_F(host_device, stream_threads_have_a_name_and_take_no_signals) {
  struct facts {
    char name[16] = {};
    sigset_t blocked = {};
  } seen;
  const scoped_stream stream(session());
  PENSTOCK_EXPECT_OK(session().call(
      stream,
      [](void* argument) {
        auto* into = static_cast<facts*>(argument);
        pthread_getname_np(pthread_self(), into->name, sizeof into->name);
        pthread_sigmask(SIG_BLOCK, nullptr, &into->blocked);
      },
      &seen));
  PENSTOCK_EXPECT_OK(session().synchronize(stream));
  EXPECT_STREQ(seen.name, "penstock-host");
  for (const int signal : {SIGINT, SIGTERM, SIGUSR1, SIGALRM}) EXPECT_EQ(sigismember(&seen.blocked, signal), 1) << signal;
}

TEST(host_memory_test, allocations_are_aligned_apart_and_reused) {
  host_memory memory;
  std::vector<std::byte*> blocks;
  for (const std::uint64_t bytes : {1, 511, 512, 513, 4096, 1 << 20}) {
    blocks.push_back(static_cast<std::byte*>(value_of(memory.allocate(bytes))));
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(blocks.back()) % host_memory::granule_bytes, 0U);
    EXPECT_EQ(value_of(memory.find(blocks.back())).bytes, bytes);
    EXPECT_FALSE(memory.find(blocks.back() + bytes).ok());
  }
  for (std::byte* each : blocks) PENSTOCK_EXPECT_OK(memory.release(each));
  // All gaps have grown together again.
  EXPECT_EQ(value_of(memory.allocate(value_of(memory.capacity()) / 2)), blocks.front());
}

TEST(host_memory_test, capacity_is_a_limit_for_all_allocations_together) {
  host_memory memory;
  const auto capacity = value_of(memory.capacity());
  void* most = value_of(memory.allocate(capacity / 2));
  EXPECT_EQ(memory.allocate(capacity / 2 + 4096).error().code(), errc::out_of_memory);
  PENSTOCK_EXPECT_OK(memory.release(most));
  PENSTOCK_EXPECT_OK(memory.release(value_of(memory.allocate(capacity / 2 + 4096))));
  EXPECT_EQ(memory.allocate(UINT64_MAX).error().code(), errc::out_of_memory);
  EXPECT_EQ(memory.allocate(0).error().code(), errc::invalid_argument);
}

TEST(host_memory_test, freed_pages_go_back_to_the_system) {
  constexpr std::size_t bytes = 1 << 20;
  host_memory memory;
  void* block = value_of(memory.allocate(bytes));
  std::byte* where = value_of(memory.bytes_of(block, bytes));
  std::memset(where, 1, bytes);
  std::vector<unsigned char> resident(bytes / sys::page_size());
  ASSERT_EQ(::mincore(where, bytes, resident.data()), 0);
  EXPECT_EQ(std::count(resident.begin(), resident.end(), 1), static_cast<long>(resident.size()));
  PENSTOCK_EXPECT_OK(memory.release(block));
  ASSERT_EQ(::mincore(where, bytes, resident.data()), 0);
  EXPECT_EQ(std::count(resident.begin(), resident.end(), 1), 0);
}

constexpr int limit_ignored = 77;

// An emulated machine may take a limit on addresses and not keep it.
bool keeps_limit(decltype(RLIMIT_AS) which, rlim_t limit) {
  rlimit now{};
  return ::getrlimit(which, &now) == 0 && now.rlim_cur == limit;
}

// 0 when a device under this limit works and stays below `most`.
int allocates_under(decltype(RLIMIT_AS) which, rlim_t limit, rlim_t most) {
  const rlimit both{limit, limit};
  if (::setrlimit(which, &both) != 0) return 1;
  if (!keeps_limit(which, limit)) return limit_ignored;
  host_memory memory;
  const auto capacity = memory.capacity();
  if (!capacity) return 2;
  if (*capacity > most) return 3;
  const auto block = memory.allocate(1 << 20);
  if (!block) return 4;
  const auto where = memory.bytes_of(*block, 1 << 20);
  if (!where) return 5;
  std::memset(*where, 1, 1 << 20);
  return memory.release(*block).ok() ? 0 : 6;
}

// A core dump would read all of the region, of which a page takes memory once it is read.
TEST(host_memory_test, is_no_part_of_core_dumps) {
  host_memory memory;
  ASSERT_TRUE(memory.allocate(4096).ok());
  std::ifstream maps("/proc/self/smaps");
  bool is_its_own = false;
  std::size_t seen = 0;
  for (std::string line; std::getline(maps, line);) {
    if (line.find('-') < line.find(' ')) is_its_own = line.find("penstock-host-device") != std::string::npos;
    if (!is_its_own || !line.starts_with("VmFlags:")) continue;
    ++seen;
    EXPECT_NE(line.find(" dd"), std::string::npos) << line;
  }
  if (seen == 0) GTEST_SKIP() << "the kernel does not show the flags of mappings";
}

TEST(host_memory_test, a_limit_on_file_size_does_not_matter) {
  for (const rlim_t limit : {rlim_t{0}, rlim_t{4096}, rlim_t{1} << 30}) {
    EXPECT_EQ(run_in_child([limit] { return allocates_under(RLIMIT_FSIZE, limit, host_memory::largest_region_bytes); }), 0) << limit;
  }
}

TEST(host_memory_test, a_limit_on_addresses_makes_the_device_smaller) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer's own mappings are over any limit";
#else
  // On top of what is mapped already: a CUDA driver in the process alone maps more than any such limit.
  std::uint64_t mapped_pages = 0;
  std::ifstream("/proc/self/statm") >> mapped_pages;
  const rlim_t limit = mapped_pages * static_cast<rlim_t>(::sysconf(_SC_PAGESIZE)) + (rlim_t{4} << 30);
  const int outcome = run_in_child([limit] { return allocates_under(RLIMIT_AS, limit, limit); });
  if (outcome == limit_ignored) GTEST_SKIP() << "limits on addresses are not kept here, as in emulation";
  EXPECT_EQ(outcome, 0);
#endif
}

TEST(host_memory_test, no_room_at_all_is_out_of_memory) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer's own mappings are over any limit";
#else
  const int outcome = run_in_child([] {
    host_memory memory;
    const rlimit none{4096, 4096};
    if (::setrlimit(RLIMIT_AS, &none) != 0) return 1;
    if (!keeps_limit(RLIMIT_AS, 4096)) return limit_ignored;
    return memory.allocate(1).error().code() == errc::out_of_memory ? 0 : 2;
  });
  if (outcome == limit_ignored) GTEST_SKIP() << "limits on addresses are not kept here, as in emulation";
  EXPECT_EQ(outcome, 0);
#endif
}

TEST(host_memory_test, freed_ranges_join_and_are_used_again) {
  host_memory memory;
  std::vector<void*> blocks;
  for (int i = 0; i < 5; ++i) blocks.push_back(value_of(memory.allocate(1000)));
  void* const first = blocks.front();
  for (const std::size_t i : {1U, 3U, 2U, 0U, 4U}) PENSTOCK_EXPECT_OK(memory.release(blocks[i]));
  EXPECT_EQ(value_of(memory.allocate(1 << 20)), first) << "one gap again";
}

TEST(host_drivers, one_maps_what_another_shares) {
  const auto one = device::make_host_driver();
  const auto two = device::make_host_driver();
  auto& owner = *value_of(one->open(0, nullptr));
  auto& borrower = *value_of(two->open(0, nullptr));
  const device_memory first(owner, 10'000);
  const device_memory memory(owner, 100'000);
  pinned_memory host(owner, 100'000);
  const auto content = random_bytes(100'000, 7);
  host.fill(content);
  PENSTOCK_EXPECT_OK(owner.copy_small(memory.data(), host.data(), content.size(), nullptr));
  const auto shared = value_of(owner.share(memory.data() + 1000));
  EXPECT_EQ(shared.offset, 1000U);
  auto* const mapped = static_cast<std::byte*>(value_of(borrower.open_shared(shared.handle, getpid(), -1)));
  EXPECT_EQ(value_of(two->classify(mapped + 5)).type, memory_type::device);
  host.fill(std::byte{0});
  PENSTOCK_EXPECT_OK(borrower.copy_small(host.data(), mapped, content.size(), nullptr));
  EXPECT_TRUE(host.holds(content));
  EXPECT_EQ(borrower.copy_small(host.data(), mapped + 1, content.size(), nullptr).code(), errc::bad_memory) << "past its end";
  EXPECT_EQ(borrower.share(mapped).error().code(), errc::unsupported) << "it is not its own";
  PENSTOCK_EXPECT_OK(borrower.close_shared(mapped));
  EXPECT_EQ(two->classify(mapped).error().code(), errc::bad_memory);
  for (const char* wrong : {"", "host", "host 5 1 0 100", "host -1 1 0 100", "cuda", "host 0 0 0 99999999999999999999"}) {
    EXPECT_FALSE(borrower.open_shared(wrong, getpid(), -1).ok()) << wrong;
  }
  EXPECT_FALSE(borrower.open_shared(shared.handle, 1 << 30, -1).ok()) << "no such process";
  EXPECT_EQ(shared.length, 99'000U);
  const auto passed = owner.export_shared(memory.data());  // then the process need not be known
  ASSERT_TRUE(passed.ok()) << passed.error().message();
  auto* const again = static_cast<std::byte*>(value_of(borrower.open_shared(shared.handle, 1 << 30, passed->get())));
  PENSTOCK_EXPECT_OK(borrower.copy_small(host.data(), again, content.size(), nullptr));
  PENSTOCK_EXPECT_OK(borrower.close_shared(again));
  EXPECT_FALSE(borrower.open_shared(shared.handle, getpid(), 0).ok()) << "another file";
  EXPECT_EQ(owner.export_shared(&host).error().code(), errc::bad_memory);
  EXPECT_EQ(owner.share(&host).error().code(), errc::bad_memory);
}

TEST(host_drivers, do_not_know_each_other_s_memory) {
  const auto one = device::make_host_driver();
  const auto two = device::make_host_driver();
  const device_memory first(*value_of(one->open(0, nullptr)), 4096);
  const device_memory second(*value_of(two->open(0, nullptr)), 4096);
  EXPECT_EQ(value_of(one->classify(first.data())).type, memory_type::device);
  EXPECT_EQ(value_of(one->classify(second.data())).type, memory_type::host);
}

}  // namespace
}  // namespace penstock::testing
