// Requests on a machine that seems to have GPUDirect: the bytes that go direct, those that are staged, and what is reported about both.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "path/data_path.hpp"
#include "path/recorded_machine.hpp"
#include "penstock/quiesce.hpp"
#include "support/pattern.hpp"
#include "support/stored_file.hpp"
#include "support/temp_dir.hpp"
#include "sys/page_size.hpp"

namespace penstock::testing {
namespace {

constexpr std::uint64_t kib = 1024;
constexpr std::uint64_t mib = 1024 * kib;
constexpr std::uint64_t block = path::direct_alignment;                       // what the body of a read is cut at
const std::uint64_t page = std::max<std::uint64_t>(block, sys::page_size());  // of a write
constexpr std::uint64_t file_bytes = 4 * mib + 777;
constexpr std::uint64_t file_seed = 1;

class gpu_direct : public ::testing::Test {
 protected:
  gpu_direct() { store_pattern(name_, file_bytes, file_seed); }

  [[nodiscard]] file open() const {
    auto opened = engine_.open(name_, {.read = true, .write = true});
    EXPECT_TRUE(opened.ok()) << opened.error().message();
    return *std::move(opened);
  }
  [[nodiscard]] device_buffer allocate(std::uint64_t bytes) const {
    auto made = engine_.allocate("cuda:0", bytes);
    EXPECT_TRUE(made.ok()) << made.error().message();
    return *std::move(made);
  }
  // An address of the buffer with a remainder mod page.
  static std::byte* address_in(const device_buffer& buffer, std::uint64_t remainder) {
    const auto start = reinterpret_cast<std::uintptr_t>(buffer.data());
    return static_cast<std::byte*>(buffer.data()) + (page - start % page) % page + remainder;
  }
  void expect_read(const file& from, std::byte* memory, std::uint64_t length, std::uint64_t offset, const io_options& how = {}) {
    const auto outcome = from.read(memory, length, static_cast<std::int64_t>(offset), how);
    EXPECT_TRUE(outcome.ok()) << outcome.error.message();
    EXPECT_EQ(outcome.bytes_done, length);
    std::vector<std::byte> seen(length);
    EXPECT_TRUE(engine_.copy(seen.data(), memory, length).ok());
    EXPECT_EQ(pattern::first_difference(seen, file_seed, offset), std::nullopt);
  }
  void expect_written(const file& to, std::byte* memory, std::uint64_t length, std::uint64_t offset, const io_options& how = {}) {
    constexpr std::uint64_t seed = 2;
    const auto written = pattern::make(length, seed, offset);
    EXPECT_TRUE(engine_.copy(memory, written.data(), length).ok());
    const auto outcome = to.write(memory, length, static_cast<std::int64_t>(offset), how);
    EXPECT_TRUE(outcome.ok()) << outcome.error.message();
    EXPECT_EQ(outcome.bytes_done, length);
    std::vector<std::byte> seen(file_bytes);
    std::ifstream(name_, std::ios::binary).read(reinterpret_cast<char*>(seen.data()), file_bytes);
    const std::span all(seen);
    EXPECT_EQ(pattern::first_difference(all.first(offset), file_seed, 0), std::nullopt);
    EXPECT_EQ(pattern::first_difference(all.subspan(offset, length), seed, offset), std::nullopt);
    EXPECT_EQ(pattern::first_difference(all.subspan(offset + length), file_seed, offset + length), std::nullopt);
  }
  // Of the one call that carried bytes.
  void expect_carried(cufile_call kind, std::uint64_t offset, std::uint64_t length) {
    const auto calls = machine_.recorder.calls(kind);
    ASSERT_EQ(calls.size(), 1U);
    EXPECT_EQ(calls[0].file_offset, static_cast<std::int64_t>(offset));
    EXPECT_EQ(calls[0].bytes, length);
  }
  // False where the file system keeps it there.
  [[nodiscard]] bool drop_from_page_cache() const {
    const int fd = ::open(name_.c_str(), O_RDWR | O_CLOEXEC);
    EXPECT_EQ(::fsync(fd), 0);
    EXPECT_EQ(::posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED), 0);
    void* const mapped = ::mmap(nullptr, 4 * page, PROT_READ, MAP_SHARED, fd, 0);
    std::array<unsigned char, 4> resident{};
    EXPECT_EQ(::mincore(mapped, 4 * page, resident.data()), 0);
    ::munmap(mapped, 4 * page);
    ::close(fd);
    return std::none_of(resident.begin(), resident.end(), [](unsigned char each) { return (each & 1) != 0; });
  }
  static std::string described(const plan& told) {
    std::string words;
    for (const auto& part : told.parts) {
      words += std::string(to_string(part.path)) + " " + std::to_string(part.length) + " at " + std::to_string(part.offset) + "\n";
    }
    return words;
  }

  temp_dir folder_ = temp_dir::on_build_disk();
  std::string name_ = folder_.file("data");
  recorded_machine machine_{CUFILE_RECORDER_PATH};
  engine engine_ = machine_.make_engine();
};

TEST_F(gpu_direct, a_small_read_goes_direct_unless_its_bytes_are_in_the_page_cache) {
  const auto from = open();
  const auto buffer = allocate(mib);
  expect_read(from, address_in(buffer, 0), 2 * page, page);
  EXPECT_TRUE(machine_.recorder.calls(cufile_call::read).empty()) << "the file was written just now";
  EXPECT_EQ(engine_.stats().path(path_kind::staged).bytes, 2 * page);
  if (!drop_from_page_cache()) GTEST_SKIP() << "this file system keeps its pages";
  const auto outcome = from.read(address_in(buffer, 0), 2 * page, page);
  EXPECT_TRUE(outcome.ok()) << outcome.error.message();
  EXPECT_EQ(outcome.direct_bytes, 2 * page);
  expect_carried(cufile_call::read, page, 2 * page);
  EXPECT_EQ(engine_.stats().path(path_kind::direct).bytes, 2 * page);
}

TEST_F(gpu_direct, a_small_aligned_write_goes_direct_and_others_are_staged) {
  const auto to = open();
  const auto buffer = allocate(mib);
  expect_written(to, address_in(buffer, 0), 2 * page, page);
  expect_carried(cufile_call::write, page, 2 * page);
  for (const auto& [remainder, length] : {std::pair<std::uint64_t, std::uint64_t>{0, 100}, {512, page}}) {
    EXPECT_EQ(to.write(address_in(buffer, remainder), length, 0).direct_bytes, 0U);
  }
  EXPECT_EQ(machine_.recorder.calls(cufile_call::write).size(), 1U);
}

TEST_F(gpu_direct, a_small_request_that_libcufile_does_not_carry_to_its_end_is_staged_from_there) {
  const auto to = open();
  const auto buffer = allocate(mib);
  machine_.recorder.settings().short_transfer = 1;
  machine_.recorder.settings().short_bytes = page;
  expect_written(to, address_in(buffer, 0), 4 * page, page);
  const auto stats = engine_.stats();
  EXPECT_EQ(stats.path(path_kind::direct).bytes, page);
  EXPECT_EQ(stats.path(path_kind::direct).fallbacks, 1U);
  EXPECT_EQ(stats.path(path_kind::direct).errors, 0U);
  EXPECT_EQ(stats.path(path_kind::staged).bytes, 3 * page);
}

TEST_F(gpu_direct, a_small_request_is_direct_or_fails_where_that_is_asked_for) {
  const auto to = open();
  const auto buffer = allocate(mib);
  io_options only;
  only.cufile.only_gpu_direct = true;
  machine_.recorder.settings().fail_transfer = 1;
  machine_.recorder.settings().fail_errno = 5044;
  const auto outcome = to.write(address_in(buffer, 0), page, 0, only);
  EXPECT_EQ(outcome.error.code(), errc::io) << outcome.error.message();
  EXPECT_EQ(outcome.bytes_done, 0U);
  EXPECT_TRUE(to.read(address_in(buffer, 0), page, 0, only).ok()) << "though it is in the page cache";
  EXPECT_EQ(machine_.recorder.calls(cufile_call::read).size(), 1U);
}

TEST_F(gpu_direct, an_unaligned_write_goes_direct_but_for_its_edges) {
  const auto to = open();
  const auto buffer = allocate(2 * mib);
  expect_written(to, address_in(buffer, 100), mib, page + 100);
  expect_carried(cufile_call::write, 2 * page, mib - page);
  const auto stats = engine_.stats();
  EXPECT_EQ(stats.path(path_kind::direct).bytes, mib - page);
  EXPECT_EQ(stats.path(path_kind::staged).bytes, page);
  EXPECT_EQ(stats.path(path_kind::direct).fallbacks, 0U);
}

TEST_F(gpu_direct, a_write_that_cannot_be_aligned_in_memory_and_file_is_staged) {
  const auto to = open();
  const auto buffer = allocate(2 * mib);
  expect_written(to, address_in(buffer, 512), mib, page);
  EXPECT_TRUE(machine_.recorder.calls(cufile_call::write).empty());
  EXPECT_EQ(engine_.stats().path(path_kind::direct).operations, 0U);
}

TEST_F(gpu_direct, an_unaligned_read_goes_direct_but_for_its_edges) {
  const auto from = open();
  const auto buffer = allocate(2 * mib);
  expect_read(from, address_in(buffer, 100), mib, page + 100);
  expect_carried(cufile_call::read, page + block, mib - block);
  EXPECT_EQ(engine_.stats().path(path_kind::staged).bytes, block);
}

TEST_F(gpu_direct, the_end_of_a_file_is_an_edge_of_the_read_that_reaches_it) {
  const auto from = open();
  const auto buffer = allocate(8 * mib);
  expect_read(from, address_in(buffer, 0), file_bytes, 0);
  expect_carried(cufile_call::read, 0, 4 * mib);
}

TEST_F(gpu_direct, a_read_that_cannot_be_aligned_in_memory_and_file_goes_direct_as_it_is) {
  const auto from = open();
  const auto buffer = allocate(2 * mib);
  expect_read(from, address_in(buffer, 3), mib, page + 100);
  expect_carried(cufile_call::read, page + 100, mib);
}

TEST_F(gpu_direct, a_forced_write_that_has_only_edges_is_staged_and_one_that_cannot_be_aligned_is_refused) {
  const auto to = open();
  const auto buffer = allocate(2 * mib);
  io_options forced;
  forced.path = path_kind::direct;
  expect_written(to, address_in(buffer, 4000), 200, 4000, forced);
  EXPECT_TRUE(machine_.recorder.calls(cufile_call::write).empty());
  const auto refused = to.write(address_in(buffer, 1), mib, 0, forced);
  EXPECT_EQ(refused.error.code(), errc::unsupported);
  EXPECT_NE(refused.error.message().find("aligned in both memory and file"), std::string_view::npos) << refused.error.message();
}

TEST_F(gpu_direct, before_a_gpu_is_in_use_explain_leaves_open_what_libcufile_would_say) {
  machine_.recorder.settings().serves_files = false;
  const auto of = open();
  const auto ahead = engine_.explain(of, "cuda:0", mib, 0);
  ASSERT_TRUE(ahead.ok()) << ahead.error().message();
  EXPECT_EQ(described(*ahead), "direct 1048576 at 0\n");
  EXPECT_NE(ahead->parts[0].reason.find("may serve"), std::string::npos) << ahead->parts[0].reason;
  EXPECT_TRUE(machine_.recorder.calls().empty()) << "a question makes no context";

  const auto buffer = allocate(mib);
  expect_read(of, address_in(buffer, 0), 256 * kib, 0);
  const auto asked = engine_.explain(of, "cuda:0", mib, 0);
  ASSERT_TRUE(asked.ok()) << asked.error().message();
  EXPECT_NE(described(*asked).find("staged"), std::string::npos) << described(*asked);
  ASSERT_FALSE(asked->remarks.empty());
  EXPECT_EQ(asked->remarks[0], "direct is not used: libcufile refused this file: 5008 IO_NOT_SUPPORTED");
}

TEST_F(gpu_direct, before_a_gpu_is_in_use_explain_says_why_nothing_can_be_direct) {
  machine_.lose_nvidia_fs();
  const auto told = engine_.explain(open(), "cuda:0", mib, 0);
  ASSERT_TRUE(told.ok()) << told.error().message();
  ASSERT_FALSE(told->remarks.empty());
  EXPECT_EQ(told->remarks[0].find("direct is not used: nvidia-fs is not loaded"), 0U) << told->remarks[0];
}

TEST_F(gpu_direct, of_a_gpu_that_is_not_in_use_explain_tells_what_libcufile_said_to_another) {
  const auto of = open();
  const auto buffer = allocate(mib);
  expect_read(of, address_in(buffer, 0), 256 * kib, 0);
  const auto used = engine_.explain(of, "cuda:0", mib, 0);
  const auto unused = engine_.explain(of, "cuda:1", mib, 0);
  ASSERT_TRUE(used.ok() && unused.ok()) << unused.error().message();
  EXPECT_EQ(described(*used), "direct 1048576 at 0\n");
  EXPECT_EQ(described(*unused), described(*used));
  EXPECT_EQ(used->parts[0].reason, "GPUDirect supports this file");
  EXPECT_NE(unused->parts[0].reason.find("once memory on this device is used"), std::string::npos) << unused->parts[0].reason;

  machine_.recorder.settings().serves_files = false;
  const auto refused = engine_.explain(open(), "cuda:1", mib, 0);
  ASSERT_TRUE(refused.ok()) << refused.error().message();
  ASSERT_FALSE(refused->remarks.empty());
  EXPECT_EQ(refused->remarks[0], "direct is not used: libcufile refused this file: 5008 IO_NOT_SUPPORTED");
}

TEST_F(gpu_direct, explain_tells_of_the_host_device_beside_a_gpu) {
  const auto told = engine_.explain(open(), "host:0", mib, 0);
  ASSERT_TRUE(told.ok()) << told.error().message();
  EXPECT_NE(described(*told).find("staged"), std::string::npos) << described(*told);
  for (const auto& remark : told->remarks) EXPECT_EQ(remark.find("no GPU:"), std::string::npos) << remark;
}

TEST_F(gpu_direct, without_the_page_cache_an_unaligned_write_is_refused_before_anything_moves) {
  machine_.have_direct_descriptors_only();
  const int lent = ::open(name_.c_str(), O_RDWR | O_CLOEXEC);
  ASSERT_GE(lent, 0);
  auto to = engine_.adopt(lent);
  ASSERT_TRUE(to.ok()) << to.error().message();
  const auto buffer = allocate(3 * mib);
  std::vector<io_options> ways(2);
  ways[1].path = path_kind::direct;
  for (const auto& how : ways) {
    for (const auto& [offset, length] : {std::pair<std::uint64_t, std::uint64_t>{page + 100, mib}, {page, mib + 100}, {100, mib - 100}}) {
      auto* const memory = address_in(buffer, offset % page);
      for (const auto& refused : {to->write(memory, length, static_cast<std::int64_t>(offset), how),
                                  to->write_async(memory, length, static_cast<std::int64_t>(offset), how).wait()}) {
        EXPECT_EQ(refused.error.code(), errc::invalid_argument) << refused.error.message();
        EXPECT_NE(refused.error.message().find("multiples of 4096"), std::string_view::npos) << refused.error.message();
        EXPECT_EQ(refused.bytes_done, 0U);
      }
      EXPECT_EQ(engine_.explain(*to, "cuda:0", length, static_cast<std::int64_t>(offset), true, how).error().code(),
                errc::invalid_argument);
    }
  }
  EXPECT_TRUE(machine_.recorder.calls(cufile_call::write).empty());
  EXPECT_TRUE(to->write(address_in(buffer, 0), mib, page).ok());
  EXPECT_EQ(machine_.recorder.calls(cufile_call::write).size(), 1U);
  EXPECT_TRUE(to->close().ok());
  ::close(lent);
}

TEST_F(gpu_direct, only_gpu_direct_fails_where_libcufile_does_not_serve_the_file) {
  machine_.recorder.settings().serves_files = false;
  const auto of = open();
  const auto buffer = allocate(2 * mib);
  io_options only;
  only.cufile.only_gpu_direct = true;
  for (const std::uint64_t length : {std::uint64_t{100}, page, mib}) {
    for (const auto& outcome :
         {of.read(address_in(buffer, 0), length, 0, only), of.read_async(address_in(buffer, 0), length, 0, only).wait(),
          of.write(address_in(buffer, 0), length, 0, only)}) {
      EXPECT_EQ(outcome.error.code(), errc::unsupported) << outcome.error.message();
      EXPECT_EQ(outcome.bytes_done, 0U);
    }
    const io_request asked{&of, address_in(buffer, 0), length, 0, false};
    EXPECT_EQ(engine_.submit(std::span(&asked, 1), only).wait().at(0).error.code(), errc::unsupported);
  }
  std::vector<std::byte> host(page);
  EXPECT_TRUE(of.read(host.data(), page, 0, only).ok()) << "of host memory nothing is asked";
}

TEST_F(gpu_direct, only_gpu_direct_carries_what_is_small_or_unaligned_too) {
  const auto of = open();
  const auto buffer = allocate(2 * mib);
  io_options only;
  only.cufile.only_gpu_direct = true;
  expect_read(of, address_in(buffer, 5), 100, 7, only);
  expect_carried(cufile_call::read, 7, 100);
  expect_written(of, address_in(buffer, 100), 3 * page, 100, only);
  expect_carried(cufile_call::write, page, 2 * page);
}

TEST_F(gpu_direct, explain_tells_of_body_and_edges) {
  const auto of = open();
  const auto buffer = allocate(mib);
  expect_read(of, address_in(buffer, 0), 256 * kib, 0);  // a GPU is in use
  for (const bool is_write : {false, true}) {
    const std::uint64_t unit = is_write ? page : block;
    const std::uint64_t body = (page + 100 + unit - 1) / unit * unit;
    const std::uint64_t body_end = (page + 100 + mib) / unit * unit;
    const auto parts = fmt::format("staged {} at {}\ndirect {} at {}\nstaged {} at {}\n", body - page - 100, page + 100, body_end - body,
                                   body, page + 100 + mib - body_end, body_end);
    const auto told = engine_.explain(of, "cuda:0", mib, page + 100, is_write);
    ASSERT_TRUE(told.ok()) << told.error().message();
    EXPECT_EQ(described(*told), parts);
    EXPECT_NE(told->parts[0].reason.find("unaligned edge"), std::string::npos) << told->parts[0].reason;
    for (const auto& remark : told->remarks) EXPECT_EQ(remark.find("direct is not used"), std::string::npos) << remark;
  }
}

TEST_F(gpu_direct, memory_registered_with_the_engine_is_registered_with_libcufile_until_the_registration_ends) {
  const auto of = open();
  const auto buffer = allocate(2 * mib);
  auto* const base = address_in(buffer, 0);
  auto kept = engine_.register_memory(base, mib);
  ASSERT_TRUE(kept.ok()) << kept.error().message();
  expect_read(of, base + page, 256 * kib, 0);
  expect_written(of, base + 2 * page, 512 * kib, page);
  const auto registered = machine_.recorder.calls(cufile_call::register_buffer);
  ASSERT_EQ(registered.size(), 1U);
  EXPECT_EQ(registered[0].memory, base);
  EXPECT_EQ(registered[0].bytes, mib);
  EXPECT_EQ(machine_.recorder.calls(cufile_call::read).at(0).memory, base);
  EXPECT_EQ(machine_.recorder.calls(cufile_call::read).at(0).memory_offset, static_cast<std::int64_t>(page));
  EXPECT_EQ(machine_.recorder.calls(cufile_call::write).at(0).memory_offset, static_cast<std::int64_t>(2 * page));
  EXPECT_TRUE(machine_.recorder.calls(cufile_call::deregister_buffer).empty());
  *kept = registration();
  EXPECT_EQ(machine_.recorder.calls(cufile_call::deregister_buffer).size(), 1U);
  EXPECT_EQ(engine_.stats().path(path_kind::direct).fallbacks, 0U);
}

TEST_F(gpu_direct, memory_that_libcufile_does_not_register_is_counted) {
  machine_.recorder.settings().register_buffer_code = 5036;
  const auto of = open();
  const auto buffer = allocate(2 * mib);
  const auto kept = engine_.register_memory(buffer.data(), 2 * mib);
  for (int i = 0; i < 2; ++i) expect_read(of, address_in(buffer, 0), mib, 0);
  const auto stats = engine_.stats().path(path_kind::direct);
  EXPECT_EQ(stats.bytes, 2 * mib);
  EXPECT_EQ(stats.fallbacks, 1U);
  EXPECT_NE(stats.last_fallback.find("GPU_MEMORY_PINNING_FAILED"), std::string::npos) << stats.last_fallback;
  EXPECT_NE(engine_.summary().find("GPU_MEMORY_PINNING_FAILED"), std::string::npos) << engine_.summary();
}

TEST_F(gpu_direct, quiesce_closes_libcufile_and_the_next_request_opens_it_again) {
  const auto of = open();
  const auto buffer = allocate(2 * mib);
  auto* const base = address_in(buffer, 0);
  const auto kept = engine_.register_memory(base, mib);
  ASSERT_TRUE(kept.ok()) << kept.error().message();
  for (unsigned round = 1; round < 4; ++round) {
    expect_read(of, base + page, 256 * kib, 0);
    auto& recorder = machine_.recorder;
    EXPECT_EQ(recorder.state().use_count, 1);
    ASSERT_EQ(quiesce().message(), "");
    EXPECT_EQ(recorder.state().use_count, 0);
    EXPECT_EQ(recorder.calls(cufile_call::deregister_file).size(), round);
    EXPECT_EQ(recorder.calls(cufile_call::deregister_buffer).size(), round);
    EXPECT_EQ(recorder.calls().back().call, cufile_call::close);
  }
  expect_read(of, base + page, 256 * kib, 0);
  EXPECT_EQ(engine_.stats().path(path_kind::direct).fallbacks, 0U);
}

TEST_F(gpu_direct, quiesce_names_a_libcufile_that_the_program_has_opened) {
  machine_.recorder.function<std::uint64_t(int, bool)>("cuFileSetParameterBool")(1, false);  // no compatibility mode
  machine_.recorder.function<std::uint64_t()>("cuFileDriverOpen")();
  const auto of = open();
  const auto buffer = allocate(mib);
  expect_read(of, static_cast<std::byte*>(buffer.data()), mib, 0);
  const auto refused = quiesce();
  EXPECT_EQ(refused.code(), errc::unsupported);
  EXPECT_EQ(refused.message(), "quiesce: this program has opened libcufile, which cannot be frozen: call cuFileDriverClose() first");
  EXPECT_EQ(machine_.recorder.calls(cufile_call::deregister_file).size(), 1U);
  EXPECT_EQ(machine_.recorder.state().use_count, 1);
  expect_read(of, static_cast<std::byte*>(buffer.data()), mib, 0);
  EXPECT_EQ(machine_.recorder.state().use_count, 2);
}

// Made before libcufile is loaded, and so destroyed after libcufile's own objects.
std::optional<engine> last_engine;  // NOLINT(cppcoreguidelines-avoid-non-const-global-variables): see above
std::optional<file> last_file;      // NOLINT(cppcoreguidelines-avoid-non-const-global-variables): likewise

TEST_F(gpu_direct, libcufile_is_not_called_once_the_program_exits) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // a fresh process
  const auto use_and_exit = [&] {
    last_engine.emplace(machine_.make_engine());
    auto opened = last_engine->open(name_, {.read = true});
    if (!opened.ok()) std::exit(1);
    last_file.emplace(*std::move(opened));
    const auto buffer = allocate(mib);
    io_options only;
    only.cufile.only_gpu_direct = true;
    if (!last_file->read(buffer.data(), mib, 0, only).ok()) std::exit(2);
    std::exit(0);
  };
  EXPECT_EXIT(use_and_exit(), ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace penstock::testing
