// Opening, closing and lending files, and files that are none.
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <thread>

#include "contract/contract_fixture.hpp"

namespace penstock::testing {
namespace {

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
    EXPECT_EQ(engine_of().explain(*target, memory_kind::host, 10, 0).error().code(), errc::closed);
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

}  // namespace
}  // namespace penstock::testing
