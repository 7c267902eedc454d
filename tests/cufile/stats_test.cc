// How much of the caller's memory the statistics fill: the bytes after it must not be touched.
#include <sys/mman.h>

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <utility>

#include "cufile/driver.hpp"
#include "cufile_fixture.hpp"
#include "path/recorded_machine.hpp"
#include "sys/page_size.hpp"

namespace penstock::testing {
namespace {

// Room for a struct, and behind its last byte a page that ends the program when it is touched.
class guarded_room {
 public:
  explicit guarded_room(std::size_t bytes) : bytes_(bytes) {
    auto* const made = ::mmap(nullptr, pages * sys::page_size(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    EXPECT_NE(made, MAP_FAILED);
    base_ = static_cast<std::byte*>(made);
    EXPECT_EQ(::mprotect(base_ + (pages - 1) * sys::page_size(), sys::page_size(), PROT_NONE), 0);
    std::memset(data(), 0xff, bytes);
  }
  guarded_room(const guarded_room&) = delete;
  guarded_room& operator=(const guarded_room&) = delete;
  ~guarded_room() { EXPECT_EQ(::munmap(base_, pages * sys::page_size()), 0); }

  [[nodiscard]] std::byte* data() const { return base_ + (pages - 1) * sys::page_size() - bytes_; }
  template <class Struct>
  [[nodiscard]] Struct* as() const {
    return reinterpret_cast<Struct*>(data());
  }
  template <class Value>
  [[nodiscard]] Value at(std::size_t offset) const {
    Value value;
    std::memcpy(&value, data() + offset, sizeof value);
    return value;
  }

 private:
  static constexpr std::size_t pages = 3;
  std::size_t bytes_;
  std::byte* base_ = nullptr;
};

constexpr std::size_t up_to_gpus = offsetof(CUfileStatsLevel3_t, per_gpu_stats);

class cufile_stats_test : public cufile_test {
 protected:
  static void start(int level) {
    ASSERT_EQ(cuFileSetStatsLevel(level).err, CU_FILE_SUCCESS);
    ASSERT_EQ(cuFileStatsReset().err, CU_FILE_SUCCESS);
    ASSERT_EQ(cuFileStatsStart().err, CU_FILE_SUCCESS);
  }
  void read_once(std::size_t bytes) {
    std::vector<std::byte> memory(bytes);
    ASSERT_EQ(cuFileRead(handle_of(make_file("x", bytes)), memory.data(), bytes, 0, 0), static_cast<ssize_t>(bytes));
  }
};

TEST_F(cufile_stats_test, levels_one_and_two_write_their_struct_and_nothing_behind_it) {
  start(3);
  read_once(4096);
  const guarded_room one(512);
  ASSERT_EQ(cuFileGetStatsL1(one.as<CUfileStatsLevel1_t>()).err, CU_FILE_SUCCESS);
  EXPECT_EQ(one.at<std::uint64_t>(0), 1U) << "the reads";
  EXPECT_EQ(one.at<std::uint64_t>(504), 0U) << "the last field";
  const guarded_room two(1024);
  ASSERT_EQ(cuFileGetStatsL2(two.as<CUfileStatsLevel2_t>()).err, CU_FILE_SUCCESS);
  EXPECT_EQ(two.at<std::uint64_t>(512), 1U) << "the reads of up to 4 KiB";
  EXPECT_EQ(two.at<std::uint64_t>(1016), 0U) << "the last field";
}

TEST_F(cufile_stats_test, level_three_writes_no_entry_where_there_is_no_gpu) {
  start(3);
  read_once(4096);
  if (engine::shared()->cuda_status().ok()) GTEST_SKIP() << "there is a GPU";
  char byte = 0;
  ASSERT_EQ(cuFileBufRegister(&byte, 1, 0).err, CU_FILE_SUCCESS);
  const guarded_room room(up_to_gpus);
  ASSERT_EQ(cuFileGetStatsL3(room.as<CUfileStatsLevel3_t>()).err, CU_FILE_SUCCESS);
  EXPECT_EQ(room.at<std::uint64_t>(0), 1U);
  EXPECT_EQ(room.at<std::uint32_t>(offsetof(CUfileStatsLevel3_t, num_gpus)), 0U);
}

class cufile_stats_of_a_version : public cufile_stats_test {
 protected:
  void TearDown() override {
    cufile_stats_test::TearDown();
    EXPECT_EQ(::unsetenv("PENSTOCK_CUFILE_VERSION"), 0);
    EXPECT_EQ(::unsetenv("CUFILE_LOGFILE_PATH"), 0);
  }
  static void ask_for(const char* version) { ASSERT_EQ(::setenv("PENSTOCK_CUFILE_VERSION", version, 1), 0); }
  static int told() {
    int version = 0;
    EXPECT_EQ(cuFileGetVersion(&version).err, CU_FILE_SUCCESS);
    return version;
  }
};

TEST_F(cufile_stats_of_a_version, the_environment_says_which_and_an_open_library_keeps_its_own) {
  const std::vector<std::pair<const char*, int>> versions{{"1.15", 1150}, {"1.17", 1170}, {"1.19", 1190}, {"1.20", 1200}, {"", 1170}};
  for (const auto& [text, number] : versions) {
    ask_for(text);
    EXPECT_EQ(told(), number);
  }
  ask_for("1.19");
  ASSERT_EQ(cuFileDriverOpen().err, CU_FILE_SUCCESS);
  ask_for("1.17");
  EXPECT_EQ(told(), 1190);
}

TEST_F(cufile_stats_of_a_version, what_is_no_version_is_passed_over_and_in_the_log) {
  for (const char* text : {"1.14", "1.21", "2.17", "1.", "1.19.0", "1190", "x", " 1.19"}) {
    ask_for(text);
    EXPECT_EQ(told(), 1170) << text;
  }
  ASSERT_EQ(::setenv("CUFILE_LOGFILE_PATH", dir_.file("log").c_str(), 1), 0);
  ask_for("1.21");
  ASSERT_EQ(cuFileDriverOpen().err, CU_FILE_SUCCESS);
  std::ifstream in(dir_.file("log"));
  const std::string log(std::istreambuf_iterator<char>(in), {});
  EXPECT_NE(log.find("environment variable PENSTOCK_CUFILE_VERSION=1.21: expected 1.15 to 1.20"), std::string::npos) << log;
}

TEST_F(cufile_stats_of_a_version, from_1_19_on_each_level_has_its_layout) {
  ask_for("1.19");
  start(3);
  read_once(4096);
  std::vector<std::byte> memory(300);
  const CUfileIOVec_t piece{memory.data(), memory.size()};
  const auto handle = handle_of(make_file("y", 300));
  ASSERT_EQ(cuFileReadv(handle, &piece, 1, 0, 0), 300);
  ASSERT_EQ(cuFileWritev(handle, &piece, 1, 0, 0), 300);
  ASSERT_EQ(cuFileWritev(handle, &piece, 1, 0, 0), 300);
  const guarded_room one(624);
  ASSERT_EQ(cuFileGetStatsL1(one.as<CUfileStatsLevel1_t>()).err, CU_FILE_SUCCESS);
  EXPECT_EQ(one.at<std::uint64_t>(0), 2U) << "reads, of which one was a vector's";
  EXPECT_EQ(one.at<std::uint64_t>(512), 1U) << "vectors read";
  EXPECT_EQ(one.at<std::uint64_t>(528), 2U) << "vectors written";
  EXPECT_EQ(one.at<std::uint64_t>(544), 300U) << "bytes of vectors read";
  EXPECT_EQ(one.at<std::uint64_t>(552), 600U) << "bytes of vectors written";
  EXPECT_NE(one.at<std::uint64_t>(616), ~std::uint64_t{0}) << "the last field";
  const guarded_room two(1136);
  ASSERT_EQ(cuFileGetStatsL2(two.as<CUfileStatsLevel2_t>()).err, CU_FILE_SUCCESS);
  EXPECT_EQ(two.at<std::uint64_t>(624), 2U) << "reads of up to 4 KiB";
  EXPECT_EQ(two.at<std::uint64_t>(880), 2U) << "writes of up to 4 KiB";
  const auto gpus = engine::shared()->cuda_status().ok() ? std::size_t{16} : std::size_t{0};
  const guarded_room three(1144 + gpus * sizeof(CUfilePerGpuStats_t));
  ASSERT_EQ(cuFileGetStatsL3(three.as<CUfileStatsLevel3_t>()).err, CU_FILE_SUCCESS);
  EXPECT_EQ(three.at<std::uint64_t>(624), 2U);
  EXPECT_EQ(three.at<std::uint32_t>(1136) > 0, gpus > 0);
}

class cufile_stats_of_two_gpus : public cufile_stats_test {
 protected:
  void SetUp() override {
    cufile_stats_test::SetUp();
    cufile::driver::current().work_with(machine_.make_engine());
  }
  void TearDown() override {
    cufile_stats_test::TearDown();
    cufile::driver::current().work_with(std::nullopt);
  }
  recorded_machine machine_{CUFILE_RECORDER_PATH};
};

TEST_F(cufile_stats_of_two_gpus, level_three_writes_an_entry_for_each_gpu_and_nothing_behind_it) {
  start(3);
  read_once(4096);
  std::array<char, 100> memory{};
  ASSERT_EQ(cuFileBufRegister(memory.data(), memory.size(), 0).err, CU_FILE_SUCCESS);
  const guarded_room room(up_to_gpus + 2 * sizeof(CUfilePerGpuStats_t));
  ASSERT_EQ(cuFileGetStatsL3(room.as<CUfileStatsLevel3_t>()).err, CU_FILE_SUCCESS);
  EXPECT_EQ(room.at<std::uint32_t>(offsetof(CUfileStatsLevel3_t, num_gpus)), 2U);
  EXPECT_EQ(room.at<std::uint64_t>(up_to_gpus + offsetof(CUfilePerGpuStats_t, reg_bytes)), 0U) << "memory of the host";
  EXPECT_EQ(room.at<std::uint64_t>(up_to_gpus + sizeof(CUfilePerGpuStats_t) + offsetof(CUfilePerGpuStats_t, reg_bytes)), 0U);
}

CUfilePerGpuStats_t first_gpu() {
  CUfileStatsLevel3_t all;
  EXPECT_EQ(cuFileGetStatsL3(&all).err, CU_FILE_SUCCESS);
  return all.per_gpu_stats[0];
}

TEST_F(cufile_stats_of_two_gpus, transfers_count_by_what_carried_them) {
  auto* const file = handle_of(make_file("x", 2 * mib));
  start(3);
  auto made = cufile::driver::current().owner().allocate("cuda:0", 2 * mib);
  ASSERT_TRUE(made.ok());
  auto* const memory = static_cast<std::byte*>(made->data());
  ASSERT_EQ(cuFileRead(file, memory, mib, 0, 0), static_cast<ssize_t>(mib));
  EXPECT_EQ(machine_.recorder.calls(cufile_call::read).size(), 1U);
  auto seen = first_gpu();
  const bool has_module = cufile::driver::current().nvidia_fs().major_version > 0;
  EXPECT_EQ(has_module ? seen.n_nvfs_reads : seen.n_p2p_reads, 1U);
  EXPECT_EQ(seen.n_posix_reads, 0U);
  EXPECT_EQ(seen.n_unaligned_reads, 0U);
  EXPECT_GT(seen.read_bw_bytes_per_sec, 0U);
  EXPECT_LE(seen.read_utilization, 100U);
  ASSERT_EQ(cuFileRead(file, memory, 100, 3, 0), 100);
  ASSERT_EQ(cuFileWrite(file, memory, 100, 3, 0), 100);
  seen = first_gpu();
  EXPECT_EQ(seen.n_total_reads, 2U);
  EXPECT_EQ(seen.n_posix_reads, 1U);
  EXPECT_EQ(seen.n_unaligned_reads, 1U);
  EXPECT_EQ(seen.n_posix_writes, 1U);
}

TEST_F(cufile_stats_of_two_gpus, buffers_count_for_the_gpu_that_has_them) {
  (void)handle_of(make_file("x", mib));
  start(3);
  auto made = cufile::driver::current().owner().allocate("cuda:0", mib);
  ASSERT_TRUE(made.ok());
  ASSERT_EQ(cuFileBufRegister(made->data(), mib, 0).err, CU_FILE_SUCCESS);
  EXPECT_NE(cuFileBufRegister(made->data(), 2 * mib, 0).err, CU_FILE_SUCCESS);
  EXPECT_EQ(first_gpu().reg_bytes, mib);
  ASSERT_EQ(cuFileBufDeregister(made->data()).err, CU_FILE_SUCCESS);
  const auto seen = first_gpu();
  EXPECT_EQ(seen.n_mmap_ok, 1U);
  EXPECT_EQ(seen.n_mmap_free, 1U);
  EXPECT_EQ(seen.reg_bytes, 0U);
}

TEST_F(cufile_stats_of_two_gpus, entries_of_gpus_that_are_not_there_keep_what_they_hold) {
  start(3);
  read_once(4096);
  CUfileStatsLevel3_t whole;
  std::memset(&whole, 0xff, sizeof whole);
  ASSERT_EQ(cuFileGetStatsL3(&whole).err, CU_FILE_SUCCESS);
  EXPECT_EQ(whole.num_gpus, 2U);
  EXPECT_EQ(whole.per_gpu_stats[1].n_total_reads, 0U);
  EXPECT_EQ(whole.per_gpu_stats[2].n_total_reads, ~std::uint64_t{0});
  EXPECT_EQ(whole.per_gpu_stats[15].reg_bytes, ~std::uint64_t{0});
}

}  // namespace
}  // namespace penstock::testing
