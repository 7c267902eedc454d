// The libraries that the dynamic linker of a made-up machine would load.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "machine/examine.hpp"
#include "machine/loader.hpp"
#include "support/temp_dir.hpp"

namespace penstock::testing {
namespace {

namespace fs = std::filesystem;

template <class Number>
void put(std::string& to, Number value) {
  char bytes[sizeof value];
  std::memcpy(bytes, &value, sizeof value);
  to.append(bytes, sizeof value);
}

// One library, with these flags.
std::string cache_of(std::uint32_t flags, const std::string& name, const std::string& path) {
  std::string out = "glibc-ld.so.cache1.1";
  put<std::uint32_t>(out, 1);
  put<std::uint32_t>(out, static_cast<std::uint32_t>(name.size() + path.size() + 2));
  out.resize(48, '\0');
  put(out, flags);
  put<std::uint32_t>(out, 72);
  put<std::uint32_t>(out, static_cast<std::uint32_t>(72 + name.size() + 1));
  put<std::uint32_t>(out, 0);
  put<std::uint64_t>(out, 0);
  return out + name + '\0' + path + '\0';
}

constexpr std::uint32_t for_64_bits = 0x0303;

TEST(loader_cache, has_its_libraries_for_64_bits) {
  const auto found = machine::read_loader_cache("ld.so-1.7.0 and its entries" + cache_of(for_64_bits, "libcuda.so.1", "/lib/libcuda.so.1"));
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0], (std::pair<std::string, std::string>("libcuda.so.1", "/lib/libcuda.so.1")));
  EXPECT_TRUE(machine::read_loader_cache(cache_of(0x0003, "libcuda.so.1", "/lib32/libcuda.so.1")).empty());
}

TEST(loader_cache, that_is_cut_short_or_none_at_all_has_none) {
  const auto whole = cache_of(for_64_bits, "libcuda.so.1", "/lib/libcuda.so.1");
  for (std::size_t length = 0; length < whole.size(); ++length) {
    EXPECT_TRUE(machine::read_loader_cache(std::string_view(whole).substr(0, length)).empty()) << length;
  }
  auto many = whole;
  std::memset(many.data() + 20, 0xff, 4);  // four billion entries
  EXPECT_LE(machine::read_loader_cache(many).size(), 2U);
  auto far = whole;
  std::memset(far.data() + 52, 0xff, 8);  // texts far behind the end
  EXPECT_TRUE(machine::read_loader_cache(far).empty());
}

class loader_test : public ::testing::Test {
 protected:
  void put_file(const std::string& path, const std::string& content = {}) const {
    fs::create_directories((dir_.path() / path).parent_path());
    std::ofstream(dir_.path() / path, std::ios::binary) << content;
  }
  void set_environment(const std::string& of) const { put_file("proc/self/environ", of); }
  [[nodiscard]] std::string found(const std::string& name) const {
    const auto library = machine::loader(tree_).find(name);
    return library ? library->file + " by " + library->how : "none";
  }
  temp_dir dir_;
  machine::tree tree_{dir_.path().string()};
};

TEST_F(loader_test, looks_in_the_order_of_the_linker) {
  EXPECT_EQ(found("libcufile.so.0"), "none");
  put_file("usr/lib/libcufile.so.0");
  EXPECT_EQ(found("libcufile.so.0"), "/usr/lib/libcufile.so.0 by the linker's own folders");
  put_file("opt/cuda/libcufile.so.1.14.0");
  fs::create_symlink("libcufile.so.1.14.0", dir_.path() / "opt/cuda/libcufile.so.0");
  put_file("etc/ld.so.cache", cache_of(for_64_bits, "libcufile.so.0", "/opt/cuda/libcufile.so.0"));
  EXPECT_EQ(found("libcufile.so.0"), "/opt/cuda/libcufile.so.1.14.0 by /etc/ld.so.cache");
  put_file("mine/libcufile.so.0");
  set_environment(std::string("A=1\0LD_LIBRARY_PATH=/missing:/mine\0", 34));
  EXPECT_EQ(found("libcufile.so.0"), "/mine/libcufile.so.0 by LD_LIBRARY_PATH");
  put_file("penstock/libcufile.so.0", "... penstock_cufile_marker ...");
  set_environment(std::string("LD_PRELOAD=/missing/libcufile.so.0 /penstock/libcufile.so.0\0", 61));
  EXPECT_EQ(found("libcufile.so.0"), "/penstock/libcufile.so.0 by LD_PRELOAD");
  const auto known = machine::gather_libraries(tree_);
  EXPECT_TRUE(known.loaded_is_ours);
  EXPECT_EQ(known.missing_preloads, std::vector<std::string>{"/missing/libcufile.so.0"});
  EXPECT_EQ(known.nvidia_cufile, "");
}

TEST_F(loader_test, a_stale_entry_of_the_cache_is_passed_over) {
  put_file("etc/ld.so.cache", cache_of(for_64_bits, "libcuda.so.1", "/gone/libcuda.so.1"));
  EXPECT_EQ(found("libcuda.so.1"), "none");
}

TEST(version_in_name, is_what_follows_so) {
  EXPECT_EQ(machine::version_in_name("/usr/lib/libcuda.so.580.95.05"), "580.95.05");
  EXPECT_EQ(machine::version_in_name("/usr/lib/libcuda.so.1"), "");
  EXPECT_EQ(machine::version_in_name("/usr/lib/libcuda.so"), "");
  EXPECT_EQ(machine::version_in_name("/x/libcuda.so.1.bak"), "");
}

TEST(judge_libraries, penstocks_own_are_told_of_where_somebody_has_looked) {
  machine::library_facts known;
  const auto ids = [&] {
    std::vector<std::string> all;
    const auto found = judge_libraries({}, known);
    for (const auto& each : found.all()) all.push_back(each.id);
    return all;
  };
  const auto says = [&](const char* id) { return std::ranges::count(ids(), id) > 0; };
  EXPECT_FALSE(says("cufile.ours_missing"));
  known.own_known = true;
  EXPECT_TRUE(says("cufile.ours_missing"));
  known.own_cufile = "/usr/lib/penstock/libcufile.so.0";
  EXPECT_TRUE(says("cufile.ours"));
}

class cuda_driver : public ::testing::Test {
 protected:
  ~cuda_driver() override { ::unsetenv("STAND_IN_ERROR"); }
};

TEST_F(cuda_driver, tells_its_version_and_what_its_gpus_can) {
  const auto found = machine::ask_cuda(CUDA_STAND_IN_PATH);
  EXPECT_TRUE(found.asked);
  EXPECT_EQ(found.code, 0) << found.error;
  EXPECT_EQ(found.version, "13.1");
  ASSERT_EQ(found.gpus.size(), 2U);
  EXPECT_EQ(found.gpus[0].address + " " + found.gpus[0].capability, "0000:1b:00.0 9.0");
  EXPECT_EQ(found.gpus[1].address + " " + found.gpus[1].capability, "0000:2c:00.0 10.3");
}

TEST_F(cuda_driver, that_does_not_start_says_why) {
  ::setenv("STAND_IN_ERROR", "802", 1);
  const auto found = machine::ask_cuda(CUDA_STAND_IN_PATH);
  EXPECT_EQ(found.code, 802);
  EXPECT_EQ(found.error, "CUDA_ERROR_SYSTEM_NOT_READY (802)");
  ::setenv("STAND_IN_ERROR", "4711", 1);
  EXPECT_EQ(machine::ask_cuda(CUDA_STAND_IN_PATH).error, "an unnamed error (4711)");
}

TEST_F(cuda_driver, that_cannot_be_loaded_says_why) {
  EXPECT_EQ(machine::ask_cuda("/missing/libcuda.so.1").code, -1);
  EXPECT_NE(machine::ask_cuda("/missing/libcuda.so.1").error.find("/missing/libcuda.so.1"), std::string::npos);
  EXPECT_NE(machine::ask_cuda("libm.so.6").error.find("lacks functions"), std::string::npos);
}

std::string cuda_finding(const machine::library_facts& known) {
  const auto found = judge_libraries({}, known);
  for (const auto& each : found.all()) {
    if (each.id == "cuda.starts" || each.id == "cuda.fails" || each.id == "cuda.hidden") return each.id + ": " + each.reason;
  }
  return "none";
}

TEST(judge_libraries, whether_cuda_starts_is_told_where_somebody_has_asked) {
  machine::library_facts known;
  known.cuda = {"/usr/lib/libcuda.so.1", "/etc/ld.so.cache"};
  EXPECT_EQ(cuda_finding(known), "none");
  known.driver = {true, 0, "", "13.0", {{"0000:1b:00.0", "9.0"}}};
  EXPECT_EQ(cuda_finding(known), "cuda.starts: CUDA 13.0 starts and sees 1 of 1 GPUs");
  known.driver = {true, 802, "CUDA_ERROR_SYSTEM_NOT_READY (802)", "", {}};
  EXPECT_EQ(cuda_finding(known), "cuda.fails: CUDA does not start: CUDA_ERROR_SYSTEM_NOT_READY (802)");
  known.driver = {true, 100, "CUDA_ERROR_NO_DEVICE (100)", "", {}};
  EXPECT_EQ(cuda_finding(known), "cuda.fails: CUDA does not start: CUDA_ERROR_NO_DEVICE (100)");
  known.visible_gpus = "7";
  EXPECT_EQ(cuda_finding(known), "cuda.hidden: CUDA_VISIBLE_DEVICES (7) hides every GPU");
}

}  // namespace
}  // namespace penstock::testing
