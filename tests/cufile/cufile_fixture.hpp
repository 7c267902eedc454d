// What the tests of the cuFile face share: a closed library before and after each test, a file of pattern bytes, and memory of each kind.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "cufile/cufile.h"
#include "penstock/penstock.hpp"
#include "support/pattern.hpp"
#include "support/stored_file.hpp"
#include "support/temp_dir.hpp"

namespace penstock::testing {

inline constexpr std::size_t kib = 1024;
inline constexpr std::size_t mib = 1024 * kib;
inline constexpr std::uint64_t file_seed = 7;

// Any number as an enumeration, as C lets a caller pass it. For C++ the value does not exist, which a sanitizer would report.
template <class Enumeration>
[[gnu::no_sanitize("undefined")]] Enumeration as(int number) {
  Enumeration value;
  std::memcpy(&value, &number, sizeof value);
  return value;
}

// The outcome of a call that sets errno, in one number: the count, or minus errno.
inline ssize_t with_errno(ssize_t outcome) { return outcome >= 0 ? outcome : -static_cast<ssize_t>(errno); }

class cufile_test : public ::testing::Test {
 protected:
  void SetUp() override {
    while (cuFileUseCount() > 0) ASSERT_EQ(cuFileDriverClose().err, CU_FILE_SUCCESS);
  }
  void TearDown() override {
    for (const int each : descriptors_) ::close(each);
    while (cuFileUseCount() > 0) EXPECT_EQ(cuFileDriverClose().err, CU_FILE_SUCCESS);
    EXPECT_EQ(cuFileStatsStop().err, CU_FILE_SUCCESS);
    EXPECT_EQ(cuFileSetStatsLevel(0).err, CU_FILE_SUCCESS);
  }

  int open(const std::string& name, int flags) {
    const int made = ::open(name.c_str(), flags | O_CLOEXEC, 0644);
    EXPECT_GE(made, 0) << name << ": " << std::strerror(errno);
    descriptors_.push_back(made);
    return made;
  }
  std::string make_file(const std::string& name, std::size_t size) {
    const auto content = pattern::make(size, file_seed);
    store_file(dir_.file(name), content);
    return dir_.file(name);
  }
  static CUfileError_t try_register(int descriptor, CUfileHandle_t& handle, int type = CU_FILE_HANDLE_TYPE_OPAQUE_FD) {
    CUfileDescr_t what{};
    std::memcpy(&what.type, &type, sizeof type);
    what.handle.fd = descriptor;
    return cuFileHandleRegister(&handle, &what);
  }
  CUfileHandle_t make_handle(int descriptor) {
    CUfileHandle_t handle = nullptr;
    EXPECT_EQ(try_register(descriptor, handle).err, CU_FILE_SUCCESS);
    return handle;
  }
  CUfileHandle_t handle_of(const std::string& name, int flags = O_RDWR) { return make_handle(open(name, flags)); }

  // Memory of a GPU, or of the host device where there is none.
  static device_buffer device_memory(std::size_t bytes) {
    auto owner = engine::shared();
    EXPECT_TRUE(owner.ok());
    auto made = owner->allocate(owner->cuda_status().ok() ? "cuda:0" : "host:0", bytes);
    EXPECT_TRUE(made.ok()) << made.error().message();
    return made.ok() ? *std::move(made) : device_buffer();
  }
  static std::vector<std::byte> fetch(const void* memory, std::size_t bytes) {
    std::vector<std::byte> seen(bytes);
    EXPECT_TRUE(engine::shared()->copy(seen.data(), memory, bytes).ok());
    return seen;
  }
  static void store(void* memory, const std::vector<std::byte>& bytes) {
    EXPECT_TRUE(engine::shared()->copy(memory, bytes.data(), bytes.size()).ok());
  }
  static void expect_pattern(const void* memory, std::size_t bytes, std::uint64_t offset) {
    EXPECT_EQ(pattern::first_difference(fetch(memory, bytes), file_seed, offset), std::nullopt);
  }

  temp_dir dir_ = temp_dir::on_build_disk();
  std::vector<int> descriptors_;
};

}  // namespace penstock::testing
