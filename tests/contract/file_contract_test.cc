// Opening, closing and adopting files, and invalid files.
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "contract/contract_fixture.hpp"
#include "support/child.hpp"
#include "support/faulty_kernel.hpp"
#include "support/forwarding_kernel.hpp"

namespace penstock::testing {
namespace {

// Remembers how files were opened a second time, and what the descriptors promise that were written to. May refuse a second time.
class watching_kernel final : public forwarding_kernel {
 public:
  result<int> reopen(int fd, int flags) override {
    if (refuse_second) return status::from_errno(EACCES, "reopen refused by the test");
    if (refuse_noatime && (flags & O_NOATIME) != 0) return status::from_errno(EPERM, "O_NOATIME refused by the test");
    auto opened = inner().reopen(fd, flags);
    if (opened) second_flags = ::fcntl(*opened, F_GETFL);
    return opened;
  }
  result<std::size_t> pwrite(int fd, const void* source, std::size_t length, std::uint64_t offset) override {
    const std::lock_guard guard(lock_);
    written_flags.push_back(::fcntl(fd, F_GETFL));
    return inner().pwrite(fd, source, length, offset);
  }

  bool refuse_second = false;
  bool refuse_noatime = false;
  int second_flags = 0;
  std::vector<int> written_flags;

 private:
  std::mutex lock_;
};

// As drop_cache(), through a descriptor that is open: closing another one would drop record locks.
void drop_cache_of(int fd) {
  EXPECT_EQ(::fdatasync(fd), 0);
  EXPECT_EQ(::posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED), 0);
}

core::seams with_kernel(std::shared_ptr<sys::kernel> kernel) {
  auto doors = core::real_seams({});
  doors.kernel = std::move(kernel);
  return doors;
}

class file_contract : public contract_fixture {
 protected:
  errc open_error(const std::string& path, const open_options& options = {}) {
    const auto opened = engine_of().open(path, options);
    EXPECT_FALSE(opened.ok()) << path;
    if (opened.ok()) return errc::ok;
    if (!path.empty()) {
      EXPECT_NE(opened.error().message().find(path), std::string_view::npos) << told(opened.error());
    }
    return opened.error().code();
  }
  static constexpr open_options for_writing{.read = false, .write = true};
};

TEST_F(file_contract, what_is_not_there_is_not_found) {
  EXPECT_EQ(open_error(name("missing")), errc::not_found);
  EXPECT_EQ(open_error(name("missing"), for_writing), errc::not_found);
  EXPECT_EQ(open_error(name("missing") + "/file"), errc::not_found);
}

TEST_F(file_contract, a_directory_is_not_a_file) {
  EXPECT_EQ(open_error(directory_.path()), errc::not_a_file);
  EXPECT_EQ(open_error(directory_.path(), for_writing), errc::not_a_file);
}

TEST_F(file_contract, a_fifo_is_not_a_file_and_opening_it_does_not_wait) {
  ASSERT_EQ(::mkfifo(name("fifo").c_str(), 0600), 0);
  EXPECT_EQ(open_error(name("fifo")), errc::not_a_file);
  EXPECT_EQ(open_error(name("fifo"), for_writing), errc::not_a_file);
}

TEST_F(file_contract, devices_and_sockets_are_not_files) {
  EXPECT_EQ(open_error("/dev/null"), errc::not_a_file);
  EXPECT_EQ(open_error("/dev/null", for_writing), errc::not_a_file);
  const int listening = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  ASSERT_GE(listening, 0);
  const temp_dir short_names;  // a socket's name has at most 107 characters
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const auto path = short_names.file("s");
  ASSERT_LT(path.size(), sizeof address.sun_path);
  std::copy(path.begin(), path.end(), address.sun_path);
  ASSERT_EQ(::bind(listening, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  EXPECT_EQ(open_error(path), errc::not_a_file);
  ::close(listening);
}

TEST_F(file_contract, descriptors_that_are_no_files_are_not_adopted) {
  int pipe_ends[2];
  ASSERT_EQ(::pipe2(pipe_ends, O_CLOEXEC), 0);
  EXPECT_EQ(engine_of().adopt(pipe_ends[0]).error().code(), errc::not_a_file);
  ::close(pipe_ends[0]);
  ::close(pipe_ends[1]);
  EXPECT_FALSE(engine_of().adopt(-1).ok());
  EXPECT_FALSE(engine_of().adopt(pipe_ends[0]).ok()) << "closed";
  make_file("data", 100);
  const int append = ::open(name().c_str(), O_RDWR | O_APPEND | O_CLOEXEC);
  EXPECT_EQ(engine_of().adopt(append).error().code(), errc::invalid_argument) << "it would ignore the offset";
  ::close(append);
  const int path_only = ::open(name().c_str(), O_PATH | O_CLOEXEC);
  EXPECT_EQ(engine_of().adopt(path_only).error().code(), errc::invalid_argument);
  ::close(path_only);
}

TEST_F(file_contract, options_that_contradict_are_invalid_arguments) {
  make_file("data", 100);
  EXPECT_EQ(open_error(""), errc::invalid_argument);
  EXPECT_EQ(engine_of().open(std::string("a\0b", 3)).error().code(), errc::invalid_argument);
  EXPECT_EQ(open_error(name(), {.read = false, .write = false}), errc::invalid_argument);
  EXPECT_EQ(open_error(name(), {.read = true, .create = true}), errc::invalid_argument);
  EXPECT_EQ(open_error(name(), {.read = true, .truncate = true}), errc::invalid_argument);
  EXPECT_EQ(contents_of(name()).size(), 100U);
}

TEST_F(file_contract, files_are_created_and_emptied_when_asked) {
  const auto made = open("new", {.read = false, .write = true, .create = true, .mode = 0600});
  EXPECT_EQ(made.size().value_or(1), 0U);
  EXPECT_EQ(made.path(), name("new"));
  struct stat facts {};
  ASSERT_EQ(::stat(name("new").c_str(), &facts), 0);
  EXPECT_EQ(facts.st_mode & 0777U, 0600U);
  make_file("old", 5000);
  EXPECT_EQ(open("old", {.read = true, .write = true, .create = true}).size().value_or(0), 5000U);
  EXPECT_EQ(open("old", {.read = true, .write = true, .truncate = true}).size().value_or(1), 0U);
}

TEST_F(file_contract, a_closed_file_says_so_whatever_is_asked) {
  make_file("data", 4 * mib);
  auto closing = open_for_writing();
  guarded_memory memory(house_, memory_place::device, 4 * mib);
  EXPECT_TRUE(closing.close().ok());
  EXPECT_EQ(closing.close().code(), errc::closed);
  file moved_from = open("data");
  const file moved_to = std::move(moved_from);
  const file never;
  std::size_t length = 100;
  std::int64_t offset = 0;
  const stream_request on_stream{.memory = memory.data(), .length = &length, .offset = &offset};
  for (const file* target : std::initializer_list<const file*>{&closing, &moved_from, &never}) {
    for (const std::uint64_t bytes : {std::uint64_t{0}, std::uint64_t{10}, 4 * mib}) {
      EXPECT_EQ(target->read(memory.data(), bytes, 0).error.code(), errc::closed);
      EXPECT_EQ(target->write(memory.data(), bytes, 0).error.code(), errc::closed);
      EXPECT_EQ(target->read_async(memory.data(), bytes, 0).wait().error.code(), errc::closed);
      EXPECT_EQ(target->write_async(memory.data(), bytes, 0).wait().error.code(), errc::closed);
    }
    EXPECT_EQ(target->read_on_stream(on_stream).code(), errc::closed);
    EXPECT_EQ(target->write_on_stream(on_stream).code(), errc::closed);
    EXPECT_EQ(target->sync().code(), errc::closed);
    EXPECT_EQ(target->size().error().code(), errc::closed);
    EXPECT_EQ(engine_of().explain(*target, "", 10, 0).error().code(), errc::closed);
    const std::array<io_request, 1> asked{{{target, memory.data(), 10, 0, false}}};
    EXPECT_EQ(engine_of().submit(asked).wait().at(0).error.code(), errc::closed);
  }
  memory.expect_untouched();
  EXPECT_TRUE(moved_to.read(memory.data(), 10, 0).ok());
}

TEST_F(file_contract, closing_waits_for_what_is_under_way) {
  const auto content = make_file("data", 8 * mib);
  guarded_memory memory(house_, memory_place::device, 8 * mib);
  for (int round = 0; round < 5; ++round) {
    auto from = open("data");
    auto reading = from.read_async(memory.data(), 8 * mib, 0);
    EXPECT_TRUE(from.close().ok());
    memory.expect(content);
    EXPECT_TRUE(reading.wait().ok());
  }
}

TEST_F(file_contract, closing_while_others_begin_gives_each_its_bytes_or_closed) {
  const auto content = make_file("data", 64 * kib);
  for (int round = 0; round < 10; ++round) {
    auto from = open("data");
    std::vector<std::thread> crew;
    for (int t = 0; t < 4; ++t) {
      crew.emplace_back([&] {
        for (;;) {
          bytes target(64 * kib);
          const auto outcome = from.read(target.data(), target.size(), 0);
          if (outcome.ok()) {
            EXPECT_EQ(target, content);
            continue;
          }
          EXPECT_EQ(outcome.error.code(), errc::closed) << told(outcome.error);
          return;
        }
      });
    }
    EXPECT_TRUE(from.close().ok());
    for (auto& each : crew) each.join();
  }
}

TEST_F(file_contract, files_operations_and_buffers_outlive_the_engine_handle) {
  const auto content = make_file("data", 4 * mib);
  auto from = open("data");
  guarded_memory memory(house_, memory_place::pageable, 4 * mib);
  house_.end();
  bytes target(4 * mib);
  auto reading = from.read_async(target.data(), target.size(), 0);
  from = file();
  EXPECT_EQ(reading.wait().bytes_done, target.size());
  EXPECT_EQ(target, content);
}

TEST_F(file_contract, one_file_may_be_open_many_times) {
  auto content = make_file("data", 2 * mib);
  const auto writer = open_for_writing("data", true);
  const auto reader = open("data");
  const auto written = pattern::make(2 * mib, 9);
  EXPECT_TRUE(writer.write(written.data(), written.size(), 0).ok());
  guarded_memory memory(house_, memory_place::device, 2 * mib);
  EXPECT_TRUE(reader.read(memory.data(), 2 * mib, 0).ok());
  memory.expect(written);
}

TEST_F(file_contract, the_file_system_of_temporary_files_serves_too) {
  const temp_dir elsewhere;  // tmpfs on most machines: no direct I/O before Linux 6.6
  const auto path = elsewhere.file("data");
  const auto content = pattern::make(9 * mib + 5, 2);
  store_file(path, content);
  auto opened = engine_of().open(path, {.read = true, .write = true, .direct_writes = true});
  ASSERT_TRUE(opened.ok()) << told(opened.error());
  guarded_memory memory(house_, memory_place::device, content.size());
  const auto outcome = opened->read(memory.data(), content.size(), 0);
  EXPECT_TRUE(outcome.ok()) << told(outcome.error);
  memory.expect(content);
  EXPECT_EQ(opened->write(memory.data(), content.size(), 0).bytes_done, content.size());
  expect_file(path, content);
}

TEST_F(file_contract, the_second_descriptor_of_a_lent_file_promises_what_the_first_did) {
  const auto content = make_file("data", 8 * mib);
  for (const int promise : {O_DSYNC, O_SYNC, O_NOATIME, O_DSYNC | O_NOATIME, 0}) {
    for (const int kind : {O_DIRECT, 0}) {
      const int lent = ::open(name().c_str(), O_RDWR | O_CLOEXEC | kind | promise);
      if (lent < 0) GTEST_SKIP() << "the build's file system has no O_DIRECT";
      const auto kernel = std::make_shared<watching_kernel>();
      open_house house({}, with_kernel(kernel));
      auto adopted = house.engine().adopt(lent);
      ASSERT_TRUE(adopted.ok());
      guarded_memory memory(house, memory_place::device, 4 * mib);
      EXPECT_TRUE(adopted->write(content.data(), 100, 4096).ok());
      EXPECT_TRUE(adopted->write(memory.data(), 4 * mib - 100, 0).ok());
      constexpr int kept = O_SYNC | O_DSYNC | O_NOATIME;
      EXPECT_EQ(kernel->second_flags & kept, promise);
      EXPECT_EQ(kernel->second_flags & O_DIRECT, kind ^ O_DIRECT);
      EXPECT_FALSE(kernel->written_flags.empty());
      for (const int flags : kernel->written_flags) EXPECT_EQ(flags & kept, promise);
      EXPECT_TRUE(adopted->close().ok());
      ::close(lent);
    }
  }
}

TEST_F(file_contract, a_second_descriptor_that_may_not_leave_times_alone_still_syncs) {
  make_file("data", mib);
  const int lent = ::open(name().c_str(), O_RDWR | O_CLOEXEC | O_NOATIME | O_DSYNC);
  ASSERT_GE(lent, 0);
  const auto kernel = std::make_shared<watching_kernel>();
  kernel->refuse_noatime = true;
  open_house house({}, with_kernel(kernel));
  auto adopted = house.engine().adopt(lent);
  guarded_memory memory(house, memory_place::device, mib);
  EXPECT_TRUE(adopted->read(memory.data(), mib, 0).ok());
  EXPECT_EQ(kernel->second_flags & (O_DSYNC | O_NOATIME), O_DSYNC);
  EXPECT_TRUE(adopted->close().ok());
  ::close(lent);
}

TEST_F(file_contract, truncate_cuts_and_lengthens_a_file_that_is_open_for_writing) {
  const auto content = make_file("data", mib);
  const auto kernel = std::make_shared<faulty_kernel>();
  open_house house({}, with_kernel(kernel));
  auto file = house.engine().open(name(), {.read = true, .write = true});
  ASSERT_TRUE(file.ok());
  for (const std::uint64_t size : {std::uint64_t{1000}, 2 * mib, std::uint64_t{0}}) {
    EXPECT_TRUE(file->truncate(size).ok());
    EXPECT_EQ(file->size().value_or(1), size);
  }
  kernel->set_hook([](std::string_view call, std::uint64_t) { return call == "truncate" ? std::optional(ENOSPC) : std::nullopt; });
  const auto failed = file->truncate(mib);
  EXPECT_EQ(failed.code(), errc::no_space);
  EXPECT_NE(std::string(failed.message()).find(name()), std::string::npos);
  const auto descriptor = file->descriptor();
  ASSERT_TRUE(descriptor.ok());
  EXPECT_EQ(::lseek(*descriptor, 0, SEEK_END), 0);
  EXPECT_TRUE(file->close().ok());
  EXPECT_EQ(file->truncate(0).code(), errc::closed);
  EXPECT_EQ(file->descriptor().error().code(), errc::closed);
  const auto read_only = house.engine().open(name());
  EXPECT_EQ(read_only->truncate(0).code(), errc::permission_denied);
  EXPECT_EQ(penstock::file().truncate(0).code(), errc::closed);
  EXPECT_EQ(penstock::file().descriptor().error().code(), errc::closed);
}

TEST_F(file_contract, record_locks_of_the_program_outlive_files_and_the_engine) {
  make_file("data", 8 * mib);
  const int lent = ::open(name().c_str(), O_RDWR | O_CLOEXEC);
  const auto still_locked = [&] {
    return run_in_child([&] {
             struct flock asked {};
             asked.l_type = F_WRLCK;
             return ::fcntl(lent, F_GETLK, &asked) == 0 && asked.l_type != F_UNLCK ? 1 : 0;
           }) == 1;
  };
  struct flock range {};
  range.l_type = F_RDLCK;
  range.l_start = 4096;
  range.l_len = 100;
  ASSERT_EQ(::fcntl(lent, F_SETLK, &range), 0);
  auto house = std::make_unique<open_house>();
  for (int round = 0; round < 3; ++round) {
    auto adopted = house->engine().adopt(lent);
    guarded_memory memory(*house, memory_place::device, 8 * mib);
    EXPECT_TRUE(adopted->read(memory.data(), 8 * mib, 0).ok());
    drop_cache_of(lent);
    EXPECT_TRUE(adopted->read(memory.data(), 8 * mib, 0).ok());
    EXPECT_TRUE(adopted->write(memory.data(), 8 * mib, 0).ok());
    EXPECT_TRUE(adopted->close().ok());
    EXPECT_TRUE(still_locked()) << round;
    EXPECT_TRUE(house->engine().open(name())->close().ok());
    EXPECT_TRUE(still_locked()) << round;
  }
  house.reset();
  EXPECT_TRUE(still_locked());
  ::close(lent);
}

// mine has 1000 bytes; other is opened right behind its end, and is given the descriptor's number that is free then.
void ask_for_the_size_while_closing(file mine, const std::string& other) {
  std::atomic<bool> asking{false};
  std::thread asker([&] {
    for (;;) {
      const auto size = mine.size();
      asking = true;
      if (!size.ok()) {
        EXPECT_EQ(size.error().code(), errc::closed);
        return;
      }
      if (*size != 1000U) ADD_FAILURE() << *size;
    }
  });
  while (!asking) std::this_thread::yield();
  EXPECT_TRUE(mine.close().ok());
  const int taker = ::open(other.c_str(), O_RDONLY | O_CLOEXEC);
  asker.join();
  ::close(taker);
}

TEST_F(file_contract, the_size_of_a_file_being_closed_is_its_own_or_none) {
  make_file("mine", 1000);
  make_file("other", 77);
  for (int round = 0; round < 200; ++round) ask_for_the_size_while_closing(open("mine"), name("other"));
}

TEST_F(file_contract, long_the_size_of_a_file_being_closed_is_its_own_or_none) {
  make_file("mine", 1000);
  make_file("other", 77);
  for (int round = 0; round < 5000; ++round) ask_for_the_size_while_closing(open("mine"), name("other"));
}

TEST_F(file_contract, a_direct_descriptor_that_cannot_be_opened_again_serves_every_kind_of_request) {
  auto content = make_file("data", 4 * mib + 100);
  const int lent = ::open(name().c_str(), O_RDWR | O_CLOEXEC | O_DIRECT);
  if (lent < 0) GTEST_SKIP() << "the build's file system has no O_DIRECT";
  const auto kernel = std::make_shared<watching_kernel>();
  kernel->refuse_second = true;
  open_house house({}, with_kernel(kernel));
  auto adopted = house.engine().adopt(lent);
  ASSERT_TRUE(adopted.ok());
  const auto part = [&](std::uint64_t offset, std::uint64_t length) {
    return std::span(content).subspan(offset, std::min<std::uint64_t>(length, content.size() - offset));
  };
  for (const auto place : {memory_place::pageable, memory_place::aligned, memory_place::device}) {
    for (const auto& [offset, length] : {std::pair<std::uint64_t, std::uint64_t>{0, 4 * mib},
                                         {4096, 8192},
                                         {4097, 4095},
                                         {1, 3 * mib},
                                         {4 * mib, 4096},
                                         {mib - 5, 10 * mib}}) {
      SCOPED_TRACE(to_string(place) + " " + std::to_string(length) + " at " + std::to_string(offset));
      const auto at = static_cast<std::int64_t>(offset);
      const auto expected = part(offset, length);
      // The kernel itself fills up the last block with zeros.
      if (place == memory_place::aligned && offset % 4096 == 0 && expected.size() < length) continue;
      const std::size_t shift = place == memory_place::pageable ? 1 : 0;  // not aligned by chance
      guarded_memory memory(house, place, length, shift);
      const auto read = adopted->read(memory.data(), length, at);
      EXPECT_EQ(read.bytes_done, expected.size()) << told(read.error);
      memory.expect(expected);
      guarded_memory later(house, place, length, shift);
      EXPECT_EQ(adopted->read_async(later.data(), length, at).wait().bytes_done, expected.size());
      later.expect(expected);
      guarded_memory among(house, place, length, shift);
      const std::array<io_request, 2> asked{{{&*adopted, among.data(), length, at, false}, {&*adopted, among.data(), 0, at, false}}};
      const auto outcomes = house.engine().submit(asked).wait();
      EXPECT_EQ(outcomes.at(0).bytes_done, expected.size()) << told(outcomes.at(0).error);
      among.expect(expected);
      for (const std::string& device : {std::string(), house.device()}) {
        EXPECT_TRUE(house.engine().explain(*adopted, device, length, at).ok());
        EXPECT_EQ(house.engine().explain(*adopted, device, length, at, true).ok(), (offset | length) % 4096 == 0);
      }
      // Only whole blocks can be written without the page cache; of anything else nothing is.
      const bool whole_blocks = (offset | length) % 4096 == 0 && place != memory_place::pageable;
      const auto check_write = [&](const io_result& written) {
        if (written.ok()) {
          EXPECT_EQ(written.bytes_done, length);
        } else {
          EXPECT_FALSE(whole_blocks) << told(written.error);
          EXPECT_EQ(written.error.code(), errc::invalid_argument);
          EXPECT_EQ(written.bytes_done, 0U);
          EXPECT_NE(written.error.message().find("multiples of 4096"), std::string_view::npos) << told(written.error);
        }
      };
      if (!whole_blocks) memory.fill(bytes(length, std::byte{0x5a}));
      if (offset + length <= content.size()) {
        check_write(adopted->write(memory.data(), length, at));
        check_write(adopted->write_async(memory.data(), length, at).wait());
        const std::array<io_request, 1> writing{{{&*adopted, memory.data(), length, at, true}}};
        check_write(house.engine().submit(writing).wait().at(0));
        expect_file(name(), content);
      }
      if (place != memory_place::device) continue;
      auto stream = house.session().make_stream();
      ASSERT_TRUE(stream.ok());
      const std::size_t stream_length = length;
      std::int64_t done = 0;
      guarded_memory streamed(house, place, length);
      const stream_request request{
          .stream = *stream, .memory = streamed.data(), .length = &stream_length, .offset = &at, .bytes_done = &done};
      const auto queued = adopted->read_on_stream(request);
      EXPECT_TRUE(queued.ok()) << told(queued);
      EXPECT_TRUE(house.session().synchronize(*stream).ok());
      EXPECT_EQ(done, static_cast<std::int64_t>(expected.size()));
      streamed.expect(expected);
      if (offset + length <= content.size()) {
        const auto write_queued = adopted->write_on_stream(request);
        EXPECT_TRUE(write_queued.ok()) << told(write_queued);
        EXPECT_TRUE(house.session().synchronize(*stream).ok());
        EXPECT_TRUE(done == static_cast<std::int64_t>(length) || (!whole_blocks && done == -1)) << done;
      }
      EXPECT_TRUE(house.session().destroy_stream(*stream).ok());
    }
  }
  for (const auto path : {path_kind::posix, path_kind::staged, path_kind::mapped, path_kind::direct, path_kind::dma_buf}) {
    for (const auto place : {memory_place::pageable, memory_place::device}) {
      SCOPED_TRACE(std::string(to_string(path)) + " " + to_string(place));
      guarded_memory memory(house, place, 2 * mib);
      const io_options forced{.path = path};
      for (const std::int64_t offset : {0, 1, 4 << 20}) {
        const auto read = adopted->read(memory.data(), 2 * mib, offset, forced);
        if (read.ok()) memory.expect(part(static_cast<std::uint64_t>(offset), 2 * mib));
        (void)house.engine().explain(*adopted, house.device(), 2 * mib, offset, false, forced).ok();
      }
    }
  }
  constexpr std::size_t many = 300;
  constexpr std::uint64_t each = 5000;
  guarded_memory memory(house, memory_place::device, many * each);
  std::vector<io_request> asked;
  for (std::size_t i = 0; i < many; ++i) {
    asked.push_back({&*adopted, memory.data() + i * each, each, static_cast<std::int64_t>(i * each + 3), false});
  }
  for (const auto& outcome : house.engine().submit(asked).wait()) EXPECT_EQ(outcome.bytes_done, each) << told(outcome.error);
  memory.expect(part(3, many * each));
  std::vector<operation> under_way;
  for (const auto& one : asked) under_way.push_back(adopted->read_async(one.memory, one.length, one.offset));
  for (auto& one : under_way) EXPECT_EQ(one.wait().bytes_done, each);
  under_way.clear();
  for (const auto& one : asked) under_way.push_back(adopted->write_async(one.memory, one.length, one.offset));
  for (auto& one : under_way) EXPECT_EQ(one.wait().error.code(), errc::invalid_argument);
  for (auto& one : asked) one.is_write = true;
  for (const auto& outcome : house.engine().submit(asked).wait()) {
    EXPECT_EQ(outcome.error.code(), errc::invalid_argument);
    EXPECT_NE(outcome.error.message().find("multiples of 4096"), std::string_view::npos) << told(outcome.error);
  }
  EXPECT_EQ(adopted->size().value_or(0), content.size());
  EXPECT_TRUE(adopted->sync().ok());
  EXPECT_TRUE(adopted->close().ok());
  expect_file(name(), content);
  ::close(lent);
}

}  // namespace
}  // namespace penstock::testing
