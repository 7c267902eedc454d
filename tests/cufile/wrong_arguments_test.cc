// Each function of the C interface with wrong addresses, handles, enumerators and sizes: it returns an error, raises no signal, and writes
// nothing. A new function takes one line of the table.
#include <sys/mman.h>

#include <array>
#include <functional>
#include <limits>
#include <span>

#include "cufile/addresses.hpp"
#include "cufile_fixture.hpp"

#undef cuFileDriverClose

namespace penstock::testing {
namespace {

// What a function does with a pointer. hot: it is on the path of transfers, where only numbers that can be no address are found out.
enum class use : std::uint8_t { in, out, hot };

struct world {
  CUfileHandle_t handle = nullptr;
  CUfileBatchHandle_t batch = nullptr;
};

using pointers = std::array<void*, 4>;

struct function {
  const char* name;
  std::vector<use> uses;
  // Good memory for each pointer is at least 64 bytes of zeros. Returns 0 or an error, whichever way the function has of telling one.
  std::function<ssize_t(const world&, const pointers&)> call;
};

void PrintTo(const function& which, std::ostream* out) { *out << which.name; }

ssize_t code(CUfileError_t outcome) { return outcome.err; }
ssize_t error_of(ssize_t count) { return count < 0 ? errno : 0; }
template <class T>
T* to(void* pointer) {
  return static_cast<T*>(pointer);
}

constexpr auto a_size = CUFILE_PARAM_PROPERTIES_MAX_DIRECT_IO_SIZE_KB;
constexpr auto a_flag = CUFILE_PARAM_PROPERTIES_ALLOW_COMPAT_MODE;
constexpr auto a_word = CUFILE_PARAM_LOGGING_LEVEL;

ssize_t with_stats(int level, const std::function<CUfileError_t()>& call) {
  (void)cuFileSetStatsLevel(level);
  return code(call());
}

const std::vector<function> functions{
    {"cuFileHandleRegister",
     {use::out, use::in},
     [](const world&, const pointers& at) { return code(cuFileHandleRegister(to<CUfileHandle_t>(at[0]), to<CUfileDescr_t>(at[1]))); }},
    {"cuFileReadv",
     {use::in},
     [](const world& in, const pointers& at) { return error_of(cuFileReadv(in.handle, to<CUfileIOVec_t>(at[0]), 2, 0, 0)); }},
    {"cuFileWritev",
     {use::in},
     [](const world& in, const pointers& at) { return error_of(cuFileWritev(in.handle, to<CUfileIOVec_t>(at[0]), 2, 0, 0)); }},
    {"cuFileReadAsync",
     {use::hot, use::hot, use::hot, use::hot},
     [](const world& in, const pointers& at) {
       char byte = 0;
       return code(cuFileReadAsync(in.handle, &byte, to<size_t>(at[0]), to<off_t>(at[1]), to<off_t>(at[2]), to<ssize_t>(at[3]), nullptr));
     }},
    {"cuFileWriteAsync",
     {use::hot, use::hot, use::hot, use::hot},
     [](const world& in, const pointers& at) {
       char byte = 0;
       return code(cuFileWriteAsync(in.handle, &byte, to<size_t>(at[0]), to<off_t>(at[1]), to<off_t>(at[2]), to<ssize_t>(at[3]), nullptr));
     }},
    {"cuFileBatchIOSetUp",
     {use::out},
     [](const world&, const pointers& at) { return code(cuFileBatchIOSetUp(to<CUfileBatchHandle_t>(at[0]), 1)); }},
    {"cuFileBatchIOSubmit",
     {use::in},
     [](const world& in, const pointers& at) { return code(cuFileBatchIOSubmit(in.batch, 1, to<CUfileIOParams_t>(at[0]), 0)); }},
    {"cuFileBatchIOGetStatus",
     {use::hot, use::hot},
     [](const world& in, const pointers& at) {
       unsigned count = 1;
       return code(cuFileBatchIOGetStatus(in.batch, 0, cufile::may_be_address(at[0]) ? &count : to<unsigned>(at[0]),
                                          to<CUfileIOEvents_t>(at[1]), nullptr));
     }},
    {"cuFileDriverGetProperties",
     {use::out},
     [](const world&, const pointers& at) { return code(cuFileDriverGetProperties(to<CUfileDrvProps_t>(at[0]))); }},
    {"cuFileGetVersion", {use::out}, [](const world&, const pointers& at) { return code(cuFileGetVersion(to<int>(at[0]))); }},
    {"cuFileGetBARSizeInKB", {use::out}, [](const world&, const pointers& at) { return code(cuFileGetBARSizeInKB(0, to<size_t>(at[0]))); }},
    {"cuFileExportPCIeTopology",
     {use::in},
     [](const world&, const pointers& at) { return code(cuFileExportPCIeTopology(to<char>(at[0]))); }},
    {"cuFileDriverGetP2PFlags",
     {use::out},
     [](const world&, const pointers& at) { return code(cuFileDriverGetP2PFlags(CU_FILE_NVME_SUPPORTED, to<CUfileP2PFlags_t>(at[0]))); }},
    {"cuFileGetParameterSizeT",
     {use::out},
     [](const world&, const pointers& at) { return code(cuFileGetParameterSizeT(a_size, to<size_t>(at[0]))); }},
    {"cuFileGetParameterBool",
     {use::out},
     [](const world&, const pointers& at) { return code(cuFileGetParameterBool(a_flag, to<bool>(at[0]))); }},
    {"cuFileGetParameterString",
     {use::out},
     [](const world&, const pointers& at) { return code(cuFileGetParameterString(a_word, to<char>(at[0]), 64)); }},
    {"cuFileSetParameterString",
     {use::in},
     [](const world&, const pointers& at) { return code(cuFileSetParameterString(a_word, to<char>(at[0]))); }},
    {"cuFileGetParameterMinMaxValue",
     {use::out, use::out},
     [](const world&, const pointers& at) { return code(cuFileGetParameterMinMaxValue(a_size, to<size_t>(at[0]), to<size_t>(at[1]))); }},
    {"cuFileSetParameterPosixPoolSlabArray",
     {use::in, use::in},
     [](const world&, const pointers& at) { return code(cuFileSetParameterPosixPoolSlabArray(to<size_t>(at[0]), to<size_t>(at[1]), 2)); }},
    {"cuFileGetParameterPosixPoolSlabArray",
     {use::out, use::out},
     [](const world&, const pointers& at) { return code(cuFileGetParameterPosixPoolSlabArray(to<size_t>(at[0]), to<size_t>(at[1]), 4)); }},
    {"cuFileSetParameterGpuBounceBufferSlabArray",
     {use::in, use::in},
     [](const world&, const pointers& at) {
       return code(cuFileSetParameterGpuBounceBufferSlabArray(to<size_t>(at[0]), to<size_t>(at[1]), 2));
     }},
    {"cuFileGetParameterGpuBounceBufferSlabArray",
     {use::out, use::out},
     [](const world&, const pointers& at) {
       return code(cuFileGetParameterGpuBounceBufferSlabArray(to<size_t>(at[0]), to<size_t>(at[1]), 4));
     }},
    {"cuFileGetStatsLevel", {use::out}, [](const world&, const pointers& at) { return code(cuFileGetStatsLevel(to<int>(at[0]))); }},
    {"cuFileGetStatsL1",
     {use::out},
     [](const world&, const pointers& at) { return with_stats(1, [&] { return cuFileGetStatsL1(to<CUfileStatsLevel1_t>(at[0])); }); }},
    {"cuFileGetStatsL2",
     {use::out},
     [](const world&, const pointers& at) { return with_stats(2, [&] { return cuFileGetStatsL2(to<CUfileStatsLevel2_t>(at[0])); }); }},
    {"cuFileGetStatsL3",
     {use::out},
     [](const world&, const pointers& at) { return with_stats(3, [&] { return cuFileGetStatsL3(to<CUfileStatsLevel3_t>(at[0])); }); }},
};

// Two pages: one of zeros that may be used as the protection says, and one that no access survives.
class fenced_page {
 public:
  explicit fenced_page(int protection) {
    base_ = static_cast<char*>(::mmap(nullptr, 2 * size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    ::mprotect(base_, size, protection);
    ::mprotect(base_ + size, size, PROT_NONE);
  }
  fenced_page(const fenced_page&) = delete;
  fenced_page& operator=(const fenced_page&) = delete;
  ~fenced_page() { ::munmap(base_, 2 * size); }
  [[nodiscard]] void* start() const { return base_; }
  [[nodiscard]] void* last_byte() const { return base_ + size - 1; }
  [[nodiscard]] void* fence() const { return base_ + size; }
  static constexpr std::size_t size = 64 * kib;  // a page, or several

 private:
  char* base_;
};

class cufile_wrong_arguments : public cufile_test {
 protected:
  void SetUp() override {
    cufile_test::SetUp();
    in_.handle = handle_of(make_file("x", 4096));
    ASSERT_EQ(cuFileBatchIOSetUp(&in_.batch, 4).err, CU_FILE_SUCCESS);
  }
  world in_;
  fenced_page good_{PROT_READ | PROT_WRITE};
  fenced_page constant_{PROT_READ};
  // As descriptors, small numbers and freed memory look.
  const std::vector<void*> no_addresses_{nullptr, reinterpret_cast<void*>(1), reinterpret_cast<void*>(3), reinterpret_cast<void*>(4096),
                                         reinterpret_cast<void*>(65535)};
  const std::vector<void*> lead_nowhere_{good_.fence(), reinterpret_cast<void*>(std::uintptr_t{1} << 63),
                                         reinterpret_cast<void*>(~std::uintptr_t{0}), reinterpret_cast<void*>(~std::uintptr_t{0} - 4096)};
};

class cufile_wrong_address : public cufile_wrong_arguments, public ::testing::WithParamInterface<function> {};

TEST_P(cufile_wrong_address, is_an_error_of_each_pointer) {
  const auto& [name, uses, call] = GetParam();
  for (std::size_t i = 0; i < uses.size(); ++i) {
    auto wrong = no_addresses_;
    if (uses[i] != use::hot) wrong.insert(wrong.end(), lead_nowhere_.begin(), lead_nowhere_.end());
    if (uses[i] == use::out) wrong.push_back(constant_.start());
    for (void* each : wrong) {
      pointers at{};
      for (std::size_t j = 0; j < uses.size(); ++j) at.at(j) = static_cast<char*>(good_.start()) + 1024 * j;
      at.at(i) = each;
      EXPECT_NE(call(in_, at), 0) << name << ": pointer " << i << " is " << each;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(each, cufile_wrong_address, ::testing::ValuesIn(functions), [](const auto& info) { return info.param.name; });

TEST_F(cufile_wrong_arguments, memory_of_a_transfer_that_cannot_be_used_is_an_error_of_its_size) {
  auto wrong = no_addresses_;
  wrong.insert(wrong.end(), lead_nowhere_.begin(), lead_nowhere_.end());
  const std::vector<std::size_t> sizes{1, 4096};
  for (void* each : wrong) {
    for (const auto size : sizes) {
      EXPECT_LT(with_errno(cuFileRead(in_.handle, each, size, 0, 0)), 0) << each;
      EXPECT_LT(with_errno(cuFileWrite(in_.handle, each, size, 0, 0)), 0) << each;
      std::array pieces{CUfileIOVec_t{each, size}};
      EXPECT_LT(with_errno(cuFileReadv(in_.handle, pieces.data(), 1, 0, 0)), 0) << each;
      EXPECT_LT(with_errno(cuFileWritev(in_.handle, pieces.data(), 1, 0, 0)), 0) << each;
    }
    if (each == nullptr) continue;
    (void)cuFileBufRegister(each, 4096, 0);
    (void)cuFileBufDeregister(each);
  }
  EXPECT_LT(with_errno(cuFileRead(in_.handle, constant_.start(), 64, 0, 0)), 0);
}

TEST_F(cufile_wrong_arguments, handles_and_enumerations_that_are_none_are_errors) {
  std::array<char, 4096> memory{};
  unsigned count = 1;
  CUfileIOEvents_t event{};
  auto wrong = no_addresses_;
  wrong.insert(wrong.end(), lead_nowhere_.begin(), lead_nowhere_.end());
  for (void* each : wrong) {
    EXPECT_LT(with_errno(cuFileRead(each, memory.data(), 64, 0, 0)), 0);
    EXPECT_LT(with_errno(cuFileWrite(each, memory.data(), 64, 0, 0)), 0);
    EXPECT_NE(cuFileBatchIOGetStatus(each, 0, &count, &event, nullptr).err, CU_FILE_SUCCESS);
    EXPECT_EQ(cuFileBatchIOCancel(each).err, CU_FILE_SUCCESS) << "as NVIDIA's";
    cuFileHandleDeregister(each);
    cuFileBatchIODestroy(each);
  }
  for (const int each : {-1, 77, std::numeric_limits<int>::max(), std::numeric_limits<int>::min()}) {
    size_t number = 0;
    size_t most = 0;
    bool flag = false;
    EXPECT_NE(cuFileGetParameterSizeT(as<CUFileSizeTConfigParameter_t>(each), &number).err, CU_FILE_SUCCESS) << each;
    EXPECT_NE(cuFileSetParameterSizeT(as<CUFileSizeTConfigParameter_t>(each), 1).err, CU_FILE_SUCCESS) << each;
    EXPECT_NE(cuFileGetParameterMinMaxValue(as<CUFileSizeTConfigParameter_t>(each), &number, &most).err, CU_FILE_SUCCESS) << each;
    EXPECT_NE(cuFileGetParameterBool(as<CUFileBoolConfigParameter_t>(each), &flag).err, CU_FILE_SUCCESS) << each;
    EXPECT_NE(cuFileSetParameterBool(as<CUFileBoolConfigParameter_t>(each), true).err, CU_FILE_SUCCESS) << each;
    EXPECT_NE(cuFileGetParameterString(as<CUFileStringConfigParameter_t>(each), memory.data(), 64).err, CU_FILE_SUCCESS) << each;
    EXPECT_NE(cuFileSetParameterString(as<CUFileStringConfigParameter_t>(each), "x").err, CU_FILE_SUCCESS) << each;
    CUfileP2PFlags_t flags{};
    EXPECT_NE(cuFileDriverGetP2PFlags(as<CUfileDriverStatusFlags_t>(each), &flags).err, CU_FILE_SUCCESS) << each;
    EXPECT_NE(cuFileDriverSetP2PFlags(as<CUfileDriverStatusFlags_t>(each), as<CUfileP2PFlags_t>(0)).err, CU_FILE_SUCCESS) << each;
    EXPECT_NE(cuFileSetStatsLevel(each).err, CU_FILE_SUCCESS) << each;
    EXPECT_NE(cufileop_status_error(as<CUfileOpError>(each)), nullptr) << each;
    CUfileIOParams_t entry{};
    entry.mode = as<CUfileBatchMode_t>(each);
    entry.opcode = as<CUfileOpcode_t>(each);
    entry.fh = in_.handle;
    EXPECT_NE(cuFileBatchIOSubmit(in_.batch, 1, &entry, 0).err, CU_FILE_SUCCESS) << each;
  }
  for (const int length : {0, -1, std::numeric_limits<int>::min(), std::numeric_limits<int>::max()}) {
    std::array<size_t, 2> numbers{};
    EXPECT_NE(cuFileSetParameterPosixPoolSlabArray(numbers.data(), numbers.data(), length).err, CU_FILE_SUCCESS) << length;
    EXPECT_NE(cuFileGetParameterPosixPoolSlabArray(numbers.data(), numbers.data(), length).err, CU_FILE_SUCCESS) << length;
    if (length > 0) continue;
    EXPECT_NE(cuFileGetParameterString(a_word, memory.data(), length).err, CU_FILE_SUCCESS) << length;
  }
  EXPECT_NE(cuFileBatchIOSubmit(in_.batch, std::numeric_limits<unsigned>::max(), static_cast<CUfileIOParams_t*>(good_.start()), 0).err,
            CU_FILE_SUCCESS);
}

// --- cufile/addresses.hpp

TEST_F(cufile_wrong_arguments, a_range_is_as_good_as_its_worst_page) {
  using cufile::is_readable;
  using cufile::is_writable;
  EXPECT_TRUE(is_readable(good_.start(), fenced_page::size));
  EXPECT_TRUE(is_writable(good_.start(), fenced_page::size));
  EXPECT_TRUE(is_writable(good_.last_byte(), 1));
  EXPECT_FALSE(is_readable(good_.last_byte(), 2));
  EXPECT_FALSE(is_writable(good_.last_byte(), 2));
  EXPECT_TRUE(is_readable(constant_.start(), fenced_page::size));
  EXPECT_FALSE(is_writable(constant_.start(), 1));
  EXPECT_FALSE(is_readable(good_.start(), std::numeric_limits<std::size_t>::max()));
}

TEST_F(cufile_wrong_arguments, asking_changes_neither_memory_nor_errno) {
  auto* const bytes = static_cast<unsigned char*>(good_.start());
  std::memset(bytes, 0xa5, 4096);
  errno = ESRCH;
  EXPECT_TRUE(cufile::is_readable(bytes, 4096));
  EXPECT_TRUE(cufile::is_writable(bytes, 4096));
  EXPECT_FALSE(cufile::is_writable(good_.fence(), 1));
  EXPECT_EQ(errno, ESRCH);
  for (const auto each : std::span(bytes, 4096)) ASSERT_EQ(each, 0xa5);
}

TEST_F(cufile_wrong_arguments, a_text_ends_before_its_memory_does) {
  auto* const last = static_cast<char*>(good_.last_byte());
  std::memcpy(last - 3, "abc", 4);
  EXPECT_EQ(cufile::text_at(last - 3), "abc");
  *last = 'd';
  EXPECT_EQ(cufile::text_at(last - 3), std::nullopt);
  EXPECT_EQ(cufile::text_at(nullptr), std::nullopt);
  EXPECT_EQ(cufile::text_at(""), "");
}

}  // namespace
}  // namespace penstock::testing
