// Processes with missing permissions, and processes that run everything at once, exit, or fork in the middle of it.
#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "core/engine_core.hpp"
#include "fault/round_trip.hpp"
#include "fault/watchdog.hpp"
#include "penstock/kv.hpp"
#include "support/child.hpp"
#include "support/engines.hpp"
#include "support/faulty_device.hpp"
#include "support/lacking.hpp"
#include "support/pattern.hpp"
#include "support/stored_file.hpp"
#include "support/temp_dir.hpp"

namespace penstock::testing::environment {

namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t seed = 21;
constexpr std::size_t mib = std::size_t{1} << 20;
constexpr unsigned nobody = 65534;

// Runs body in a child, which says what went wrong; empty: nothing.
void expect_in_child(const std::function<std::string()>& body) {
  const watchdog watch(::testing::UnitTest::GetInstance()->current_test_info()->name());
  const int code = run_in_child([&] {
    alarm(120);  // a hang of the child ends it, and fails the test
    const auto wrong = body();
    if (!wrong.empty()) std::fprintf(stderr, "child: %s\n", wrong.c_str());
    return wrong.empty() ? 0 : 1;
  });
  EXPECT_EQ(code, 0);
}

std::string set_limit(int which, rlim_t value) {
  const rlimit limit{value, value};
  return setrlimit(static_cast<__rlimit_resource>(which), &limit) == 0 ? "" : fmt::format("setrlimit: errno {}", errno);
}

std::string become_nobody() {
  return setresgid(nobody, nobody, nobody) == 0 && setresuid(nobody, nobody, nobody) == 0 ? "" : fmt::format("setresuid: errno {}", errno);
}

// A directory that nobody may use, too.
temp_dir dir_of_nobody() {
  temp_dir made;
  fs::permissions(made.path(), fs::perms::all);
  return made;
}

std::string try_round_trip(const std::string& path) {
  auto made = engine::create(without_cuda());
  return made ? round_trip(*made, path).run() : std::string(made.error().message());
}

bool remarks_say(const plan& told, std::string_view words) {
  return std::any_of(told.remarks.begin(), told.remarks.end(), [&](const auto& each) { return each.find(words) != std::string::npos; });
}

// --- things that are refused

TEST(restricted_process, without_io_uring_all_goes_by_plain_calls_and_explain_says_so) {
  PENSTOCK_SKIP_IF(lacks_filters());
  const auto dir = temp_dir::on_build_disk();
  expect_in_child([&]() -> std::string {
    if (!deny_system_call(SYS_io_uring_setup, EPERM)) return "cannot set a seccomp filter";
    auto made = engine::create(without_cuda());
    if (auto wrong = round_trip(*made, dir.file("x")).run(); !wrong.empty()) return wrong;
    auto opened = made->open(dir.file("x"));
    const auto told = made->explain(*opened, "host:0", mib, 0);
    if (!told) return std::string(told.error().message());
    return remarks_say(*told, "io_uring cannot be used") ? "" : "explain says nothing of io_uring";
  });
}

TEST(restricted_process, with_rings_that_can_be_made_but_not_used_all_goes_by_plain_calls) {
  PENSTOCK_SKIP_IF(lacks_filters());
  const auto dir = temp_dir::on_build_disk();
  store_pattern(dir.file("cold"), 8 * mib, seed);
  expect_in_child([&]() -> std::string {
    if (!deny_system_call(SYS_io_uring_enter, EPERM)) return "cannot set a seccomp filter";
    auto made = engine::create(without_cuda());
    if (auto wrong = round_trip(*made, dir.file("x")).run(); !wrong.empty()) return wrong;
    auto opened = made->open(dir.file("cold"), {.read = true, .write = true, .direct_writes = true});
    auto memory = made->allocate("host:0", 8 * mib);
    if (!opened || !memory) return "no file or no memory";
    const int fd = ::open(dir.file("cold").c_str(), O_RDONLY | O_CLOEXEC);
    ::fdatasync(fd);
    ::posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    ::close(fd);
    if (const auto read = opened->read(memory->data(), 8 * mib, 0, {.cache = cache_use::bypass}); read.bytes_done != 8 * mib)
      return std::string(read.error.message());
    if (const auto put = opened->write(memory->data(), 8 * mib, 0); put.bytes_done != 8 * mib) return std::string(put.error.message());
    const auto told = made->explain(*opened, "host:0", mib, 0);
    return remarks_say(*told, "io_uring cannot be used") ? "" : "explain says nothing of io_uring";
  });
}

TEST(restricted_process, a_file_size_limit_leaves_the_host_device_as_it_is) {
  for (const rlim_t limit : {rlim_t{0}, rlim_t{1} << 20}) {
    expect_in_child([&]() -> std::string {
      if (auto wrong = set_limit(RLIMIT_FSIZE, limit); !wrong.empty()) return wrong;
      auto made = engine::create(without_cuda());
      if (!made) return std::string(made.error().message());
      if (made->devices().empty()) return "no device is listed";
      const auto memory = made->allocate("host:0", mib);
      return memory ? "" : std::string(memory.error().message());
    });
  }
}

// SIGXFSZ has its default action here, which ends the process: what the library writes of its own accord does not raise it.
TEST(restricted_process, a_file_size_limit_does_not_matter_to_reads) {
  const auto dir = temp_dir::on_build_disk();
  store_pattern(dir.file("x"), 2 * mib, seed);
  for (const rlim_t limit : {rlim_t{0}, rlim_t{100}}) {
    expect_in_child([&]() -> std::string {
      if (auto wrong = set_limit(RLIMIT_FSIZE, limit); !wrong.empty()) return wrong;
      auto made = engine::create(without_cuda());
      auto opened = made->open(dir.file("x"));
      std::vector<std::byte> bytes(2 * mib);
      const auto got = opened->read(bytes.data(), bytes.size(), 0);
      if (got.bytes_done != bytes.size()) return std::string(got.error.message());
      const auto refused = kv::store::open(*made, dir.file("store"), {.capacity_bytes = 8 * mib});
      if (refused || refused.error().native() != EFBIG) return "a store was made in spite of the limit";
      return pattern::first_difference(bytes, seed, 0) ? "read wrong bytes" : "";
    });
  }
}

TEST(restricted_process, a_data_set_of_somebody_else_is_read_past_the_page_cache) {
  PENSTOCK_SKIP_IF(lacks_user_ids());
  if (geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  const auto dir = temp_dir::on_build_disk();
  store_pattern(dir.file("shared"), 32 * mib, seed);
  const int fd = ::open(dir.file("shared").c_str(), O_RDONLY | O_CLOEXEC);
  const int direct = ::open(dir.file("shared").c_str(), O_RDONLY | O_DIRECT | O_CLOEXEC);
  if (direct < 0) GTEST_SKIP() << "the build's file system has no O_DIRECT";
  ::close(direct);
  ASSERT_EQ(::fdatasync(fd), 0);
  ASSERT_EQ(::posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED), 0);
  expect_in_child([&]() -> std::string {
    if (auto wrong = become_nobody(); !wrong.empty()) return wrong;
    auto made = engine::create(without_cuda());
    auto lent = made->adopt(fd, cache_use::bypass);
    const auto told = made->explain(*lent, "host:0", 32 * mib, 0);
    if (!told) return std::string(told.error().message());
    if (told->cached_bytes != 0U) return told->cached_bytes ? "it seems to be cached" : "it is not known whether it is cached";
    if (told->parts.size() != 1 || told->parts[0].reason.find("direct I/O, as requested") == std::string::npos)
      return told->parts[0].reason;
    auto memory = made->allocate("host:0", 32 * mib);
    const auto read = lent->read(memory->data(), 32 * mib, 0);
    if (read.bytes_done != 32 * mib) return std::string(read.error.message());
    return made->explain(*lent, "host:0", 32 * mib, 0)->cached_bytes == 0U ? "" : "reading it has filled the page cache";
  });
  ::close(fd);
}

TEST(restricted_process, with_little_lockable_memory_everything_works) {
  PENSTOCK_SKIP_IF(lacks_user_ids());
  if (geteuid() != 0) GTEST_SKIP() << "only root can become another user, to whom the limit applies";
  const auto dir = dir_of_nobody();
  expect_in_child([&] {
    auto wrong = set_limit(RLIMIT_MEMLOCK, 8 * mib);
    if (wrong.empty()) wrong = become_nobody();
    return wrong.empty() ? try_round_trip(dir.file("x")) : wrong;
  });
}

TEST(restricted_process, without_cachestat_everything_works) {
  PENSTOCK_SKIP_IF(lacks_filters());
  const auto dir = temp_dir::on_build_disk();
  expect_in_child([&] {
    constexpr long cachestat = 451;
    return deny_system_call(cachestat, EPERM) ? try_round_trip(dir.file("x")) : "cannot set a seccomp filter";
  });
}

TEST(restricted_process, without_descriptors_open_says_so_and_works_again_later) {
  const auto dir = temp_dir::on_build_disk();
  store_pattern(dir.file("x"), mib, seed);
  expect_in_child([&]() -> std::string {
    auto made = engine::create(without_cuda());
    // The undefined-behaviour sanitizer needs descriptors to look at an object's type for the first time: let it see all that is used.
    if (auto wrong = round_trip(*made, dir.file("y")).run(); !wrong.empty()) return wrong;
    (void)made->explain(*made->open(dir.file("x")), "host:0", mib, 0);
    (void)made->open(dir.file("missing"));
    std::vector<file> open_files;
    if (auto wrong = set_limit(RLIMIT_NOFILE, 40); !wrong.empty()) return wrong;
    status refused;
    while (refused.ok()) {
      auto opened = made->open(dir.file("x"));
      refused = opened.error();
      if (opened) open_files.push_back(std::move(*opened));
    }
    if (refused.code() != errc::out_of_memory || refused.native() != EMFILE) return "the wrong error: " + std::string(refused.message());
    if (refused.message().find(dir.file("x")) == std::string_view::npos) return "the error does not name the file";
    if (open_files.empty()) return "not one file could be opened";
    // No descriptor is left for direct I/O: slower, no failure.
    std::vector<std::byte> bytes(mib);
    const auto done = open_files.back().read(bytes.data(), mib, 0);
    if (!done.ok() || done.bytes_done != mib || pattern::first_difference(bytes, seed, 0)) return "a read without a second descriptor";
    const auto told = made->explain(open_files.back(), "host:0", mib, 0);
    if (!told || !remarks_say(*told, "no direct I/O")) return "explain says nothing of direct I/O";
    open_files.clear();
    return made->open(dir.file("x")).ok() ? "" : "no file can be opened after all were closed";
  });
}

TEST(restricted_process, a_file_size_limit_ends_a_write_with_a_true_count) {
  const auto dir = temp_dir::on_build_disk();
  expect_in_child([&]() -> std::string {
    constexpr std::size_t limit = 2 * mib;
    constexpr std::size_t length = 5 * mib;
    auto made = engine::create(without_cuda());
    auto memory = made->allocate("host:0", length);  // before the limit, which holds for the device's memory too
    const auto source = pattern::make(length, seed);
    if (!memory || !made->copy(memory->data(), source.data(), length).ok()) return "no memory";
    std::signal(SIGXFSZ, SIG_IGN);
    if (auto wrong = set_limit(RLIMIT_FSIZE, limit); !wrong.empty()) return wrong;
    for (const auto* from : {static_cast<const void*>(source.data()), static_cast<const void*>(memory->data())}) {
      open_options wanted;
      wanted.write = wanted.create = wanted.truncate = true;
      auto opened = made->open(dir.file("x"), wanted);
      if (!opened) return std::string(opened.error().message());
      const auto done = opened->write(from, length, 0);
      if (done.error.code() != errc::no_space || done.error.native() != EFBIG) return "wrong error: " + std::string(done.error.message());
      std::vector<std::byte> back(done.bytes_done);
      if (done.bytes_done > limit || !opened->read(back.data(), back.size(), 0).ok()) return "wrong count";
      if (pattern::first_difference(back, seed, 0)) return "wrong bytes before the end";
    }
    return {};
  });
}

TEST(large_offsets, are_an_error_and_write_nothing) {
  const auto dir = temp_dir::on_build_disk();
  store_pattern(dir.file("x"), 1000, seed);
  auto made = engine::create(without_cuda());
  open_options wanted;
  wanted.write = true;
  auto opened = made->open(dir.file("x"), wanted);
  ASSERT_TRUE(opened.ok());
  std::vector<std::byte> bytes(8192);
  const auto past = opened->write(bytes.data(), bytes.size(), std::int64_t{1} << 62);
  EXPECT_EQ(past.error.code(), errc::no_space) << past.error.message();
  EXPECT_EQ(past.bytes_done, 0U);
  const auto over = opened->write(bytes.data(), bytes.size(), std::numeric_limits<std::int64_t>::max() - 5);
  EXPECT_EQ(over.error.code(), errc::invalid_argument) << over.error.message();
  const auto read = opened->read(bytes.data(), bytes.size(), std::int64_t{1} << 62);
  EXPECT_TRUE(read.ok()) << read.error.message();
  EXPECT_EQ(read.bytes_done, 0U);
  EXPECT_EQ(opened->size().value_or(0), 1000U);
}

TEST(restricted_process, without_threads_host_memory_works_and_the_rest_says_why) {
  PENSTOCK_SKIP_IF(lacks_user_ids());
  if (geteuid() != 0) GTEST_SKIP() << "only root can become another user, to whom the limit applies";
  const auto dir = dir_of_nobody();
  store_pattern(dir.file("x"), 6 * mib, seed);
  fs::permissions(dir.file("x"), fs::perms::all);
  expect_in_child([&]() -> std::string {
    auto wrong = set_limit(RLIMIT_NPROC, 0);
    if (wrong.empty()) wrong = become_nobody();
    if (!wrong.empty()) return wrong;
    try {
      std::thread([] {}).join();
      return "threads can be made in spite of the limit";
    } catch (const std::system_error&) {
    }
    auto made = engine::create(without_cuda());
    open_options wanted;
    wanted.write = true;
    auto opened = made->open(dir.file("x"), wanted);
    if (!opened) return std::string(opened.error().message());
    std::vector<std::byte> bytes(6 * mib);
    for (const std::size_t length : {std::size_t{5000}, 6 * mib}) {
      const auto done = opened->read(bytes.data(), length, 0);
      if (!done.ok() || done.bytes_done != length) return "read: " + std::string(done.error.message());
      if (pattern::first_difference(std::span(bytes).first(length), seed, 0)) return "read wrong bytes";
      if (const auto put = opened->write(bytes.data(), length, 0); !put.ok()) return "write: " + std::string(put.error.message());
    }
    // What needs a thread either goes without or is refused; nothing waits for a thread that never comes.
    std::atomic<int> calls{0};
    const auto async = opened->read_async(bytes.data(), bytes.size(), 0, {}, [&](const io_result&) { ++calls; }).wait();
    if (!async.ok() && async.error.code() != errc::out_of_memory) return "async: " + std::string(async.error.message());
    if (calls != 1) return "the callback did not come";
    const std::vector<io_request> requests(40, {&*opened, bytes.data(), 100, 0, false});
    for (const auto& done : made->submit(requests).wait()) {
      if (!done.ok() && done.error.code() != errc::out_of_memory) return "batch: " + std::string(done.error.message());
    }
    auto memory = made->allocate("host:0", 6 * mib);
    if (!memory) return std::string(memory.error().message());
    for (const std::size_t length : {std::size_t{5000}, 6 * mib}) {
      for (const auto code :
           {opened->read(memory->data(), length, 0).error.code(), opened->write(memory->data(), length, 0).error.code()}) {
        if (code != errc::ok && code != errc::out_of_memory) return "device: " + std::string(to_string(code));
      }
    }
    return {};
  });
}

// As on a GPU, whose streams need no threads: the embedded device alone gets its own.
TEST(restricted_process, without_threads_blocking_device_transfers_work) {
  PENSTOCK_SKIP_IF(lacks_user_ids());
  if (geteuid() != 0) GTEST_SKIP() << "only root can become another user, to whom the limit applies";
  const auto dir = dir_of_nobody();
  expect_in_child([&]() -> std::string {
    if (auto wrong = become_nobody(); !wrong.empty()) return wrong;
    const auto device = make_faulty_driver(device::make_host_driver());
    device->set_hook([](std::string_view call, std::uint64_t /*number*/) -> std::optional<status> {
      rlimit limit{};
      getrlimit(RLIMIT_NPROC, &limit);
      limit.rlim_cur = call == "make_stream" ? limit.rlim_max : 0;
      setrlimit(RLIMIT_NPROC, &limit);
      return std::nullopt;
    });
    auto made = core::make_engine(without_cuda(), core::seams{sys::make_kernel(), nullptr, device});
    auto memory = made->allocate("host:0", 6 * mib);
    open_options wanted;
    wanted.write = wanted.create = true;
    const auto content = pattern::make(6 * mib, seed);
    for (const bool direct : {false, true}) {
      wanted.direct_writes = direct;
      auto opened = made->open(dir.file("x"), wanted);
      if (!opened || !memory || !made->copy(memory->data(), content.data(), content.size()).ok()) return "no memory or no file";
      for (const std::size_t length : {std::size_t{5000}, 6 * mib}) {
        const auto put = opened->write(memory->data(), length, 0);
        if (!put.ok()) return "write: " + std::string(put.error.message());
        const auto got = opened->read(memory->data(), length, 0);
        if (!got.ok() || got.bytes_done != length) return "read: " + std::string(got.error.message());
      }
      std::vector<std::byte> back(6 * mib);
      if (!made->copy(back.data(), memory->data(), back.size()).ok() || back != content) return "wrong bytes";
    }
    return {};
  });
}

// --- a lot at once

TEST(many, threads_on_one_file_all_read_right) {
  const watchdog watch("128 threads on one file");
  constexpr unsigned threads = 128;
  constexpr std::size_t file_bytes = 16 * mib + 5;
  constexpr std::size_t most = 300 << 10;
  const auto dir = temp_dir::on_build_disk();
  store_pattern(dir.file("x"), file_bytes, seed);
  auto made = engine::create(without_cuda());
  ASSERT_TRUE(made.ok());
  auto opened = made->open(dir.file("x"));
  auto memory = made->allocate("host:0", threads * most);
  ASSERT_TRUE(opened.ok() && memory.ok());
  const auto content = pattern::make(file_bytes, seed);
  std::atomic<int> wrong{0};
  std::vector<std::thread> running;
  for (unsigned i = 0; i < threads; ++i) {
    running.emplace_back([&, i] {
      std::mt19937 random(i);
      std::vector<std::byte> bytes(most);
      auto* mine = static_cast<std::byte*>(memory->data()) + i * most;
      for (int turn = 0; turn < 6; ++turn) {
        const std::size_t length = 1 + random() % most;
        const std::size_t offset = random() % file_bytes;
        const std::size_t there = std::min(length, file_bytes - offset);
        const bool on_device = turn % 2 == 0;
        const auto done = opened->read(on_device ? mine : bytes.data(), length, static_cast<std::int64_t>(offset));
        if (!done.ok() || done.bytes_done != there) ++wrong;
        if (on_device && !made->copy(bytes.data(), mine, there).ok()) ++wrong;
        if (!std::equal(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(there),
                        content.begin() + static_cast<std::ptrdiff_t>(offset))) {
          ++wrong;
        }
      }
    });
  }
  for (auto& each : running) each.join();
  EXPECT_EQ(wrong, 0);
}

TEST(many, files_are_open_at_once) {
  const watchdog watch("2000 open files");
  constexpr std::size_t count = 2000;
  constexpr std::size_t bytes = 3000;
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  if (limit.rlim_max < 3 * count) GTEST_SKIP() << "only " << limit.rlim_max << " descriptors are allowed";
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
  const temp_dir dir;
  const auto content = pattern::make(count + bytes, seed);
  auto made = engine::create(without_cuda());
  auto memory = made->allocate("host:0", count * bytes);
  ASSERT_TRUE(made.ok() && memory.ok());
  std::vector<file> files;
  std::vector<io_request> requests;
  open_options wanted;
  wanted.write = wanted.create = true;
  for (std::size_t i = 0; i < count; ++i) {
    auto opened = made->open(dir.file(std::to_string(i)), wanted);
    ASSERT_TRUE(opened.ok()) << opened.error().message();
    files.push_back(std::move(*opened));
    ASSERT_TRUE(files.back().write(content.data() + i, bytes, 0).ok());
  }
  for (std::size_t i = 0; i < count; ++i)
    requests.push_back({&files[i], static_cast<std::byte*>(memory->data()) + i * bytes, bytes, 0, false});
  const auto outcomes = made->submit(requests).wait();
  std::vector<std::byte> got(count * bytes);
  ASSERT_TRUE(made->copy(got.data(), memory->data(), got.size()).ok());
  for (std::size_t i = 0; i < count; ++i) {
    ASSERT_TRUE(outcomes[i].ok()) << outcomes[i].error.message();
    ASSERT_TRUE(std::equal(content.begin() + static_cast<std::ptrdiff_t>(i), content.begin() + static_cast<std::ptrdiff_t>(i + bytes),
                           got.begin() + static_cast<std::ptrdiff_t>(i * bytes)))
        << "file " << i;
  }
}

// --- the end of a process, and its doubling, with transfers under way

constexpr std::size_t busy_bytes = 32 * mib;

// Transfers of every kind, begun and not waited for.
struct busy_engine {
  explicit busy_engine(const std::string& path) {
    made.emplace(std::move(*engine::create(without_cuda())));
    memory.emplace(std::move(*made->allocate("host:0", 2 * busy_bytes)));
    open_options wanted;
    wanted.write = true;
    opened.emplace(std::move(*made->open(path, wanted)));
    for (std::size_t i = 0; i < 4; ++i) begin(i);
  }

  void begin(std::size_t i) {
    auto* at = static_cast<std::byte*>(memory->data());
    const std::size_t part = busy_bytes / 4;
    const auto offset = static_cast<std::int64_t>(i * part);
    under_way.push_back(opened->read_async(at + i * part, part, offset));
    under_way.push_back(opened->read_async(host.data() + i * part, part, offset));
  }

  std::optional<engine> made;
  std::optional<device_buffer> memory;
  std::vector<std::byte> host = std::vector<std::byte>(busy_bytes);
  std::optional<file> opened;  // goes before memory: it waits for what is under way
  std::vector<operation> under_way;
};

class ending_process : public ::testing::Test {
 protected:
  void SetUp() override { store_pattern(path_, busy_bytes, seed); }

  // What the child that runs body exits with.
  static int code_of(const std::function<void()>& body) {
    const watchdog watch("a process that ends with transfers under way");
    return run_in_child([&] {
      alarm(120);
      body();
      return 99;
    });
  }

  const temp_dir dir_ = temp_dir::on_build_disk();
  const std::string path_ = dir_.file("x");
};

TEST_F(ending_process, by_exit_with_an_engine_that_is_never_destroyed) {
  EXPECT_EQ(code_of([this] {
              static busy_engine* forgotten = new busy_engine(path_);
              std::exit(forgotten->under_way.empty() ? 1 : 7);
            }),
            7);
}

TEST_F(ending_process, by_exit_with_an_engine_that_statics_destroy) {
  EXPECT_EQ(code_of([this] {
              static std::optional<busy_engine> last;
              last.emplace(path_);
              std::exit(8);
            }),
            8);
}

TEST_F(ending_process, by_exit_with_the_shared_engine) {
  EXPECT_EQ(code_of([this] {
              setenv("PENSTOCK_CUDA", "0", 1);
              auto shared = engine::shared();
              static std::vector<std::byte> bytes(busy_bytes);
              static auto opened = std::move(*shared->open(path_));
              static auto under_way = opened.read_async(bytes.data(), bytes.size(), 0);
              std::exit(9);
            }),
            9);
}

TEST_F(ending_process, at_once) {
  EXPECT_EQ(code_of([this] {
              const busy_engine busy(path_);
              _exit(10);
            }),
            10);
}

class forking_process : public ending_process {
 protected:
#if defined(__SANITIZE_ADDRESS__)
  // A thread may hold a lock of its allocator when the process forks, and the child waits for it for ever.
  void SetUp() override { GTEST_SKIP() << "the allocator of AddressSanitizer (g++ 12) does not survive a fork of several threads"; }
#endif

  // Forks in the middle of transfers. What the child says is wrong; empty: nothing.
  void fork_and(const std::function<std::string(busy_engine&)>& in_child) {
    busy_engine busy(path_);
    expect_in_child([&] { return in_child(busy); });
    for (auto& each : busy.under_way) {
      const auto done = each.wait();
      EXPECT_TRUE(done.ok()) << done.error.message();
      EXPECT_EQ(done.bytes_done, busy_bytes / 4);
    }
    EXPECT_EQ(pattern::first_difference(busy.host, seed, 0), std::nullopt);
    std::vector<std::byte> got(busy_bytes);
    ASSERT_TRUE(busy.made->copy(got.data(), busy.memory->data(), got.size()).ok());
    EXPECT_EQ(pattern::first_difference(got, seed, 0), std::nullopt);
  }
};

TEST_F(forking_process, the_parent_goes_on_and_the_child_is_told) {
  fork_and([this](busy_engine& busy) -> std::string {
    std::byte bytes[100];
    std::string wrong;
    const auto must_be_forked = [&](const char* what, const status& seen) {
      if (seen.code() != errc::forked) wrong += fmt::format("{}: {} {}; ", what, to_string(seen.code()), seen.message());
    };
    auto& opened = *busy.opened;
    void* device = busy.memory->data();
    must_be_forked("read", opened.read(bytes, sizeof bytes, 0).error);
    must_be_forked("read to device", opened.read(device, 100, 0).error);
    must_be_forked("write", opened.write(bytes, sizeof bytes, 0).error);
    must_be_forked("read_async", opened.read_async(bytes, sizeof bytes, 0).wait().error);
    must_be_forked("an operation of the parent", busy.under_way.back().wait().error);
    const std::size_t length = 5;
    const std::int64_t offset = 0;
    must_be_forked("read_on_stream", opened.read_on_stream({nullptr, device, &length, &offset, nullptr, nullptr}));
    must_be_forked("open", busy.made->open(path_).error());
    must_be_forked("allocate", busy.made->allocate("host:0", 100).error());
    must_be_forked("copy", busy.made->copy(bytes, device, 100));
    must_be_forked("register_memory", busy.made->register_memory(bytes, sizeof bytes).error());
    must_be_forked("explain", busy.made->explain(opened, "host:0", 100, 0).error());
    const std::vector<io_request> requests(3, {&opened, bytes, 100, 0, false});
    for (const auto& done : busy.made->submit(requests).wait()) must_be_forked("submit", done.error);
    int calls = 0;
    (void)opened.read_async(bytes, sizeof bytes, 0, {},
                            [&](const io_result& done) { calls += done.error.code() == errc::forked ? 1 : 100; });
    if (calls != 1) wrong += fmt::format("{} for the calls of a callback; ", calls);
    (void)opened.close();
    busy.under_way.clear();
    busy.opened.reset();
    busy.memory.reset();
    busy.made.reset();
    return wrong;
  });
}

#if !defined(__SANITIZE_THREAD__)  // which does not support new threads in a forked child
TEST_F(forking_process, the_child_can_have_an_engine_of_its_own) {
  setenv("PENSTOCK_CUDA", "0", 1);
  auto before = engine::shared();
  ASSERT_TRUE(before.ok());
  fork_and([this](busy_engine& /*busy*/) -> std::string {
    auto mine = engine::shared();
    if (!mine) return std::string(mine.error().message());
    if (auto wrong = round_trip(*mine, dir_.file("mine")).run(); !wrong.empty()) return "shared: " + wrong;
    return try_round_trip(dir_.file("mine"));
  });
}
#endif

// --- callbacks that let go of the last handle

class last_handle : public ::testing::Test {
 protected:
  void SetUp() override { store_pattern(path_, 2 * mib, seed); }

  // Ends when the engine over this kernel is gone.
  static void wait_for_the_end(const std::weak_ptr<sys::kernel>& kernel) {
    while (!kernel.expired()) std::this_thread::yield();
  }

  const watchdog watch_{"a callback that lets go of the last handle"};
  const temp_dir dir_ = temp_dir::on_build_disk();
  const std::string path_ = dir_.file("x");
};

struct handles {
  std::optional<engine> made;
  std::optional<file> opened;
  std::optional<device_buffer> memory;
  std::vector<std::byte> host = std::vector<std::byte>(2 * mib);
};

TEST_F(last_handle, goes_in_a_callback_without_a_deadlock) {
  for (const unsigned lanes : {1U, 2U}) {
    for (const bool on_device : {false, true}) {
      auto kernel = sys::make_kernel();
      const std::weak_ptr<sys::kernel> seen = kernel;
      auto options = without_cuda();
      options.lanes = lanes;
      auto all = std::make_shared<handles>();
      all->made.emplace(std::move(*core::make_engine(options, core::seams{std::move(kernel), nullptr, device::make_host_driver()})));
      all->opened.emplace(std::move(*all->made->open(path_)));
      all->memory.emplace(std::move(*all->made->allocate("host:0", 2 * mib)));
      std::promise<status> told;
      auto arrived = told.get_future();
      auto* target = on_device ? all->memory->data() : all->host.data();
      const auto& opened = *all->opened;
      // The callback owns everything there is.
      (void)opened.read_async(target, 2 * mib, 0, {}, [all = std::exchange(all, nullptr), &told](const io_result& done) mutable {
        all->opened.reset();
        all->memory.reset();
        all->made.reset();
        told.set_value(done.error);
      });
      EXPECT_EQ(arrived.get().message(), "");
      wait_for_the_end(seen);
    }
  }
}

TEST_F(last_handle, of_a_batch_goes_in_its_callback) {
  auto kernel = sys::make_kernel();
  const std::weak_ptr<sys::kernel> seen = kernel;
  auto all = std::make_shared<handles>();
  all->made.emplace(std::move(*core::make_engine(without_cuda(), core::seams{std::move(kernel), nullptr, device::make_host_driver()})));
  all->opened.emplace(std::move(*all->made->open(path_)));
  const std::vector<io_request> requests(30, {&*all->opened, all->host.data(), 3000, 0, false});
  std::promise<status> told;
  auto arrived = told.get_future();
  const auto& made = *all->made;
  (void)made.submit(requests, {}, [all = std::exchange(all, nullptr), &told](const io_result& done) mutable {
    all->opened.reset();
    all->made.reset();
    all.reset();
    told.set_value(done.error);
  });
  EXPECT_EQ(arrived.get().message(), "");
  wait_for_the_end(seen);
}

}  // namespace

}  // namespace penstock::testing::environment
