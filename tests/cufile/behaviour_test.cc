// Behaviour that cuFile clients depend on, call by call: the results of NVIDIA's library (observed with 1.15 and 1.17 in compatibility
// mode; if the two differ, 1.17 counts), and the promises of its reference.
#include <sys/resource.h>
#include <sys/stat.h>

#include <array>
#include <atomic>
#include <fstream>
#include <iterator>
#include <thread>

#include "cufile/driver.hpp"
#include "cufile_fixture.hpp"
#include "support/child.hpp"

namespace penstock::testing {
namespace {

// --- life

TEST_F(cufile_test, each_open_counts_and_a_close_too_many_is_an_error) {
  EXPECT_EQ(cuFileUseCount(), 0);
  EXPECT_EQ(cuFileDriverOpen().err, CU_FILE_SUCCESS);
  EXPECT_EQ(cuFileDriverOpen().err, CU_FILE_SUCCESS);
  EXPECT_EQ(cuFileUseCount(), 2);
  EXPECT_EQ(cuFileDriverClose().err, CU_FILE_SUCCESS);
  EXPECT_EQ(cuFileDriverClose().err, CU_FILE_SUCCESS);
  EXPECT_EQ(cuFileDriverClose().err, CU_FILE_DRIVER_NOT_INITIALIZED);
  EXPECT_EQ(cuFileUseCount(), 0);
}

TEST_F(cufile_test, each_opening_has_a_number_of_its_own) {
  const auto& library = cufile::driver::current();
  EXPECT_EQ(library.opening(), 0U);
  EXPECT_EQ(cuFileDriverOpen().err, CU_FILE_SUCCESS);
  const auto first = library.opening();
  EXPECT_NE(first, 0U);
  EXPECT_EQ(cuFileDriverOpen().err, CU_FILE_SUCCESS);
  EXPECT_EQ(library.opening(), first);
  EXPECT_EQ(run_in_child([&] {
              if (cufile::driver::current().opening() != 0) return 1;
              (void)cuFileDriverOpen();
              return cufile::driver::current().opening() == first ? 2 : 0;
            }),
            0);
  for (int i = 0; i < 2; ++i) EXPECT_EQ(cuFileDriverClose().err, CU_FILE_SUCCESS);
  EXPECT_EQ(library.opening(), 0U);
  EXPECT_EQ(cuFileDriverOpen().err, CU_FILE_SUCCESS);
  EXPECT_NE(library.opening(), first);
}

TEST_F(cufile_test, the_first_registration_opens_and_later_ones_do_not_count) {
  const auto name = make_file("x", 4096);
  handle_of(name, O_RDONLY);
  EXPECT_EQ(cuFileUseCount(), 1);
  handle_of(name, O_RDONLY);
  EXPECT_EQ(cuFileUseCount(), 1);
}

TEST_F(cufile_test, the_last_close_releases_what_is_still_registered) {
  const auto handle = handle_of(make_file("x", 4096));
  std::array<char, 64> memory{};
  ASSERT_EQ(cuFileBufRegister(memory.data(), memory.size(), 0).err, CU_FILE_SUCCESS);
  ASSERT_EQ(cuFileDriverClose().err, CU_FILE_SUCCESS);
  EXPECT_EQ(with_errno(cuFileRead(handle, memory.data(), 64, 0, 0)), -CU_FILE_HANDLE_NOT_REGISTERED);
  EXPECT_EQ(cuFileBufDeregister(memory.data()).err, CU_FILE_DRIVER_CLOSING);
  cuFileHandleDeregister(handle);
  ASSERT_EQ(cuFileDriverOpen().err, CU_FILE_SUCCESS);
  EXPECT_EQ(cuFileBufDeregister(memory.data()).err, CU_FILE_MEMORY_NOT_REGISTERED);
  EXPECT_NE(make_handle(descriptors_.front()), handle);
}

TEST_F(cufile_test, the_version_is_the_advertised_one) {
  int version = 0;
  EXPECT_EQ(cuFileGetVersion(&version).err, CU_FILE_SUCCESS);
  EXPECT_EQ(version, 1170);
  EXPECT_EQ(cuFileGetVersion(nullptr).err, CU_FILE_INVALID_VALUE);
}

TEST_F(cufile_test, properties_are_those_of_a_machine_without_nvidia_fs) {
  CUfileDrvProps_t properties;
  std::memset(&properties, 0xff, sizeof properties);
  ASSERT_EQ(cuFileDriverGetProperties(&properties).err, CU_FILE_SUCCESS);
  EXPECT_EQ(properties.nvfs.major_version, 0U);
  EXPECT_EQ(properties.nvfs.dstatusflags, 0U);
  EXPECT_EQ(properties.nvfs.dcontrolflags, 1U << CU_FILE_ALLOW_COMPAT_MODE);
  EXPECT_EQ(properties.fflags, 0xeU);
  EXPECT_EQ(properties.max_batch_io_size, 128U);
  EXPECT_EQ(cuFileDriverGetProperties(nullptr).err, CU_FILE_INVALID_VALUE);
}

TEST_F(cufile_test, old_setters_check_their_range_and_are_taken_when_open_too) {
  EXPECT_EQ(cuFileDriverSetMaxDirectIOSize(63).err, CU_FILE_DRIVER_UNSUPPORTED_LIMIT);
  EXPECT_EQ(cuFileDriverSetMaxDirectIOSize(16385).err, CU_FILE_DRIVER_UNSUPPORTED_LIMIT);
  EXPECT_EQ(cuFileDriverSetMaxDirectIOSize(100).err, CU_FILE_DRIVER_UNSUPPORTED_LIMIT) << "no multiple of 64";
  EXPECT_EQ(cuFileDriverSetMaxDirectIOSize(1024).err, CU_FILE_SUCCESS);
  EXPECT_EQ(cuFileSetParameterSizeT(CUFILE_PARAM_PROPERTIES_MAX_DIRECT_IO_SIZE_KB, 65).err, CU_FILE_DRIVER_UNSUPPORTED_LIMIT);
  EXPECT_EQ(cuFileDriverSetPollMode(true, 3).err, CU_FILE_DRIVER_UNSUPPORTED_LIMIT);
  EXPECT_EQ(cuFileDriverSetMaxCacheSize(100).err, CU_FILE_DRIVER_UNSUPPORTED_LIMIT) << "no multiple of 64";
  EXPECT_EQ(cuFileDriverSetMaxPinnedMemSize(100).err, CU_FILE_SUCCESS);
  ASSERT_EQ(cuFileDriverOpen().err, CU_FILE_SUCCESS);
  EXPECT_EQ(cuFileDriverSetMaxCacheSize(1024).err, CU_FILE_SUCCESS);
  EXPECT_EQ(cuFileDriverSetMaxPinnedMemSize(1024).err, CU_FILE_SUCCESS);
  EXPECT_EQ(cuFileDriverSetPollMode(true, 4).err, CU_FILE_SUCCESS);
}

class cufile_json_test : public cufile_test {
 protected:
  void SetUp() override {
    cufile_test::SetUp();
    ASSERT_EQ(::setenv("CUFILE_ENV_PATH_JSON", dir_.file("cufile.json").c_str(), 1), 0);
    ASSERT_EQ(::setenv("CUFILE_LOGFILE_PATH", dir_.file("log").c_str(), 1), 0);
  }
  void TearDown() override {
    cufile_test::TearDown();
    EXPECT_EQ(::unsetenv("CUFILE_ENV_PATH_JSON"), 0);
    EXPECT_EQ(::unsetenv("CUFILE_LOGFILE_PATH"), 0);
  }
  void write_json(const std::string& text) { std::ofstream(dir_.file("cufile.json")) << text; }
  std::string log() {
    std::ifstream in(dir_.file("log"));
    return {std::istreambuf_iterator<char>(in), {}};
  }
};

TEST_F(cufile_json_test, a_file_that_is_no_json_fails_every_way_of_opening_and_the_log_says_where) {
  write_json("{\n  \"properties\": {\n    \"io_batchsize\" 16\n  }\n}\n");
  const auto opened = cuFileDriverOpen();
  EXPECT_EQ(opened.err, CU_FILE_DRIVER_INVALID_PROPS);
  EXPECT_EQ(opened.cu_err, 0);
  EXPECT_STREQ(CUFILE_ERRSTR(opened.err), "a driver property does not make sense");
  EXPECT_EQ(cuFileUseCount(), 0);
  CUfileHandle_t handle = nullptr;
  EXPECT_EQ(try_register(open(make_file("x", 10), O_RDONLY), handle).err, CU_FILE_DRIVER_INVALID_PROPS);
  char byte = 0;
  EXPECT_EQ(cuFileBufRegister(&byte, 1, 0).err, CU_FILE_DRIVER_INVALID_PROPS);
  CUfileDrvProps_t properties;
  EXPECT_EQ(cuFileDriverGetProperties(&properties).err, CU_FILE_DRIVER_INVALID_PROPS);
  EXPECT_NE(log().find(dir_.file("cufile.json") + ": not a cufile.json: line 3, byte "), std::string::npos) << log();
  write_json("{}");
  EXPECT_EQ(cuFileDriverOpen().err, CU_FILE_SUCCESS) << "once it is mended";
}

// --- what is said where nobody asked for a log

class cufile_without_log : public cufile_json_test {
 protected:
  void SetUp() override {
    cufile_json_test::SetUp();
    ASSERT_EQ(::unsetenv("CUFILE_LOGFILE_PATH"), 0);
  }
  // What a call prints.
  template <class Call>
  static std::string said(Call call) {
    ::testing::internal::CaptureStderr();
    call();
    return ::testing::internal::GetCapturedStderr();
  }
};

// A file that is none, and where it goes wrong.
struct broken_json {
  const char* name;
  const char* text;
  const char* place;
};
void PrintTo(const broken_json& which, std::ostream* out) { *out << which.name; }

class cufile_broken_json : public cufile_without_log, public ::testing::WithParamInterface<broken_json> {};

TEST_P(cufile_broken_json, is_named_on_stderr_with_its_line_once) {
  write_json(GetParam().text);
  CUfileError_t opened{};
  const auto first = said([&] { opened = cuFileDriverOpen(); });
  EXPECT_EQ(opened.err, CU_FILE_DRIVER_INVALID_PROPS);
  EXPECT_NE(first.find("penstock: cuFile cannot open: " + dir_.file("cufile.json") + ": not a cufile.json: "), std::string::npos) << first;
  EXPECT_NE(first.find(GetParam().place), std::string::npos) << first;
  EXPECT_EQ(std::ranges::count(first, '\n'), 1);
  EXPECT_EQ(said([&] { opened = cuFileDriverOpen(); }), "");
  EXPECT_EQ(opened.err, CU_FILE_DRIVER_INVALID_PROPS);
}

INSTANTIATE_TEST_SUITE_P(
    each, cufile_broken_json,
    ::testing::Values(broken_json{"trailing_comma", "{\n  \"logging\": {\n    \"level\": \"ERROR\",\n  }\n}\n", "line 4"},
                      broken_json{"hash_comment", "# mine\n{}\n", "line 1"},
                      broken_json{"single_quotes", "{\n'properties': {}}\n", "line 2"},
                      broken_json{"cut_off", "{\"properties\": {\n\n", "line 3"}, broken_json{"no_object", "[1, 2]", "expected an object"}),
    [](const auto& info) { return info.param.name; });

// A setting that does not act as it was written: in the file, in the environment, or by a call to an open library.
struct dead_setting {
  const char* name;
  const char* json;
  const char* variable;
  const char* value;
  const char* said;
};
void PrintTo(const dead_setting& which, std::ostream* out) { *out << which.name; }

class cufile_dead_setting : public cufile_without_log, public ::testing::WithParamInterface<dead_setting> {
 protected:
  void TearDown() override {
    if (GetParam().variable != nullptr) {
      EXPECT_EQ(::unsetenv(GetParam().variable), 0);
    }
    cufile_without_log::TearDown();
  }
};

TEST_P(cufile_dead_setting, is_said_on_stderr_once) {
  const auto& of = GetParam();
  write_json(of.json);
  if (of.variable != nullptr) {
    ASSERT_EQ(::setenv(of.variable, of.value, 1), 0);
  }
  const auto first = said([] { EXPECT_EQ(cuFileDriverOpen().err, CU_FILE_SUCCESS); });
  EXPECT_NE(first.find("penstock: cuFile: "), std::string::npos) << first;
  EXPECT_NE(first.find(of.said), std::string::npos) << first;
  EXPECT_EQ(cuFileDriverClose().err, CU_FILE_SUCCESS);
  EXPECT_EQ(said([] { EXPECT_EQ(cuFileDriverOpen().err, CU_FILE_SUCCESS); }), "");
}

INSTANTIATE_TEST_SUITE_P(
    each, cufile_dead_setting,
    ::testing::Values(
        dead_setting{"out_of_range", R"({"properties": {"io_batchsize": 4096}})", nullptr, nullptr, "properties.io_batchsize = 4096"},
        dead_setting{"of_another_type", R"({"properties": {"allow_compat_mode": "yes"}})", nullptr, nullptr, "expected true or false"},
        dead_setting{"misplaced", R"({"allow_compat_mode": true})", nullptr, nullptr, "unknown key"},
        dead_setting{"unknown", R"({"properties": {"no_such_key": 1}})", nullptr, nullptr, "properties.no_such_key = 1: unknown key"},
        dead_setting{"without_effect", R"({"properties": {"prefer_iouring": true}})", nullptr, nullptr,
                     "properties.prefer_iouring = true: accepted without effect"},
        dead_setting{"variable", "{}", "CUFILE_LOGGING_LEVEL", "LOUD", "CUFILE_LOGGING_LEVEL=LOUD"},
        dead_setting{"version", "{}", "PENSTOCK_CUFILE_VERSION", "1.99", "PENSTOCK_CUFILE_VERSION=1.99: expected 1.15 to 1.20"}),
    [](const auto& info) { return info.param.name; });

TEST_F(cufile_without_log, a_setter_of_an_open_library_says_that_it_comes_too_late) {
  write_json("{}");
  EXPECT_EQ(said([] { EXPECT_EQ(cuFileDriverOpen().err, CU_FILE_SUCCESS); }), "") << "settings that act are no news";
  EXPECT_EQ(said([] { EXPECT_EQ(cuFileDriverSetMaxDirectIOSize(64).err, CU_FILE_SUCCESS); }),
            "penstock: cuFile: cuFileDriverSetMaxDirectIOSize: no effect because the library is already open; call it before "
            "cuFileDriverOpen\n");
}

TEST_F(cufile_without_log, a_reader_of_stderr_that_is_gone_ends_nothing) {
  write_json("{");
  EXPECT_EQ(run_in_child([] {
              std::array<int, 2> ends{};
              if (::pipe2(ends.data(), O_CLOEXEC) != 0 || ::dup2(ends[1], STDERR_FILENO) < 0) return 2;
              ::close(ends[0]);
              return cuFileDriverOpen().err == CU_FILE_DRIVER_INVALID_PROPS ? 0 : 1;
            }),
            0);
}

TEST_F(cufile_json_test, what_does_nothing_is_named_in_the_log) {
  write_json(R"({"properties": {"prefer_iouring": true}})");
  ASSERT_EQ(cuFileDriverOpen().err, CU_FILE_SUCCESS);
  EXPECT_NE(log().find("properties.prefer_iouring = true: accepted without effect: "), std::string::npos) << log();
  EXPECT_EQ(log().find("cuFileDriverSet"), std::string::npos) << log();
  EXPECT_EQ(cuFileDriverSetMaxCacheSize(64).err, CU_FILE_SUCCESS);
  EXPECT_EQ(cuFileDriverSetPollMode(true, 8).err, CU_FILE_SUCCESS);
  EXPECT_NE(log().find("cuFileDriverSetMaxCacheSize: no effect"), std::string::npos) << log();
  EXPECT_NE(log().find("cuFileDriverSetPollMode: no effect"), std::string::npos) << log();
}

TEST_F(cufile_json_test, a_batch_is_as_large_as_the_settings_allow) {
  write_json(R"({"properties": {"io_batchsize": 16}})");
  CUfileBatchHandle_t batch = nullptr;
  EXPECT_EQ(cuFileBatchIOSetUp(&batch, 17).err, CU_FILE_INVALID_VALUE);
  ASSERT_EQ(cuFileBatchIOSetUp(&batch, 16).err, CU_FILE_SUCCESS);
  cuFileBatchIODestroy(batch);
}

TEST_F(cufile_json_test, host_memory_that_is_not_allowed_is_refused_by_every_call) {
  write_json(R"({"properties": {"allow_system_memory": false}})");
  const auto handle = handle_of(make_file("x", 8192));
  std::vector<std::byte> host(4096);
  EXPECT_EQ(cuFileBufRegister(host.data(), host.size(), 0).err, CU_FILE_CUDA_MEMORY_TYPE_INVALID);
  EXPECT_EQ(with_errno(cuFileRead(handle, host.data(), host.size(), 0, 0)), -CU_FILE_CUDA_MEMORY_TYPE_INVALID);
  EXPECT_EQ(with_errno(cuFileWrite(handle, host.data(), host.size(), 0, 0)), -CU_FILE_CUDA_MEMORY_TYPE_INVALID);
  const auto memory = device_memory(4096);
  const std::array<CUfileIOVec_t, 2> pieces = {{{memory.data(), 4096}, {host.data(), 4096}}};
  EXPECT_EQ(with_errno(cuFileReadv(handle, pieces.data(), 2, 0, 0)), -CU_FILE_CUDA_MEMORY_TYPE_INVALID);
  EXPECT_EQ(cuFileReadv(handle, pieces.data(), 1, 0, 0), 4096);
  std::size_t size = 4096;
  off_t zero = 0;
  ssize_t bytes = 0;
  EXPECT_EQ(cuFileReadAsync(handle, host.data(), &size, &zero, &zero, &bytes, nullptr).err, CU_FILE_CUDA_MEMORY_TYPE_INVALID);
  CUfileBatchHandle_t batch = nullptr;
  ASSERT_EQ(cuFileBatchIOSetUp(&batch, 1).err, CU_FILE_SUCCESS);
  CUfileIOParams_t entry{};
  entry.mode = CUFILE_BATCH;
  entry.fh = handle;
  entry.u.batch = {host.data(), 0, 0, 4096};
  ASSERT_EQ(cuFileBatchIOSubmit(batch, 1, &entry, 0).err, CU_FILE_SUCCESS);
  unsigned count = 1;
  CUfileIOEvents_t event{};
  ASSERT_EQ(cuFileBatchIOGetStatus(batch, 1, &count, &event, nullptr).err, CU_FILE_SUCCESS);
  EXPECT_EQ(event.status, CUFILE_FAILED);
  EXPECT_EQ(static_cast<ssize_t>(event.ret), -CU_FILE_CUDA_MEMORY_TYPE_INVALID);
  cuFileBatchIODestroy(batch);
}

TEST_F(cufile_json_test, the_log_tells_why_a_transfer_failed) {
  write_json("{}");
  const auto name = make_file("x", 8192);
  const auto read_only = handle_of(name, O_RDONLY);
  const auto handle = handle_of(name);
  const auto memory = device_memory(4096);
  const CUfileIOVec_t piece{memory.data(), 4096};
  std::size_t size = 4096;
  off_t zero = 0;
  off_t negative = -1;
  ssize_t bytes = 0;
  EXPECT_LT(cuFileWrite(read_only, memory.data(), 4096, 0, 0), 0);
  EXPECT_LT(cuFileWritev(read_only, &piece, 1, 0, 0), 0);
  EXPECT_NE(cuFileWriteAsync(read_only, memory.data(), &size, &zero, &zero, &bytes, nullptr).err, CU_FILE_SUCCESS);
  EXPECT_EQ(cuFileReadAsync(handle, memory.data(), &size, &negative, &zero, &bytes, nullptr).err, CU_FILE_SUCCESS);
  cuFileHandleDeregister(handle);
  EXPECT_LT(bytes, 0);
  CUfileBatchHandle_t batch = nullptr;
  ASSERT_EQ(cuFileBatchIOSetUp(&batch, 1).err, CU_FILE_SUCCESS);
  CUfileIOParams_t entry{};
  entry.mode = CUFILE_BATCH;
  entry.fh = read_only;
  entry.opcode = CUFILE_WRITE;
  entry.u.batch = {memory.data(), 0, 0, 4096};
  ASSERT_EQ(cuFileBatchIOSubmit(batch, 1, &entry, 0).err, CU_FILE_SUCCESS);
  unsigned count = 1;
  CUfileIOEvents_t event{};
  ASSERT_EQ(cuFileBatchIOGetStatus(batch, 1, &count, &event, nullptr).err, CU_FILE_SUCCESS);
  EXPECT_EQ(event.status, CUFILE_FAILED);
  cuFileBatchIODestroy(batch);
  const std::string refused = "descriptor " + std::to_string(descriptors_.front()) + " is not open for writing\n";
  for (const std::string& line :
       {"ERROR cuFileWrite: " + refused, "ERROR cuFileWritev: " + refused, "ERROR cuFileWriteAsync: " + refused,
        "ERROR a batch write: " + refused, "ERROR cuFileReadAsync: read 4096 at -1 of descriptor " + std::to_string(descriptors_.back())}) {
    EXPECT_NE(log().find(line), std::string::npos) << line << log();
  }
}

TEST_F(cufile_json_test, a_value_that_is_not_taken_is_in_the_log_and_the_library_opens) {
  write_json(R"({"properties": {"max_direct_io_size_kb": 100, "io_priority": "urgent"}})");
  ASSERT_EQ(cuFileDriverOpen().err, CU_FILE_SUCCESS);
  std::size_t size = 0;
  ASSERT_EQ(cuFileGetParameterSizeT(CUFILE_PARAM_PROPERTIES_MAX_DIRECT_IO_SIZE_KB, &size).err, CU_FILE_SUCCESS);
  EXPECT_EQ(size, 1024U) << "the default";
  EXPECT_NE(log().find("properties.max_direct_io_size_kb = 100: expected a multiple of 64 from 64 to 16384"), std::string::npos) << log();
  EXPECT_NE(log().find("properties.io_priority = \"urgent\": expected default, low, med or high"), std::string::npos) << log();
}

TEST_F(cufile_test, texts_of_errors_have_no_blanks_around_hyphens) {
  for (int code = CU_FILE_SUCCESS; code < CU_FILE_IO_MAX_ERROR; ++code) {
    const std::string text = CUFILE_ERRSTR(as<CUfileOpError>(code));
    EXPECT_EQ(text.find(" - "), std::string::npos) << text;
  }
}

// --- files

// NVIDIA's reference refuses these. They change nothing of what a transfer does.
TEST_F(cufile_test, open_flags_that_change_no_transfer_are_taken) {
  const auto name = make_file("x", 4096);
  std::array<std::byte, 4096> seen{};
  for (const int flag : {O_NONBLOCK, O_NOFOLLOW, O_NOATIME, O_NOCTTY, O_SYNC}) {
    EXPECT_EQ(cuFileRead(handle_of(name, O_RDONLY | flag), seen.data(), seen.size(), 0, 0), 4096) << flag;
  }
  const int unnamed = ::open(dir_.path().c_str(), O_RDWR | O_TMPFILE | O_CLOEXEC, 0600);
  if (unnamed < 0) GTEST_SKIP() << "no unnamed files here: " << std::strerror(errno);
  descriptors_.push_back(unnamed);
  EXPECT_EQ(cuFileWrite(make_handle(unnamed), seen.data(), seen.size(), 0, 0), 4096);
}

TEST_F(cufile_test, what_cannot_be_registered_says_why) {
  CUfileHandle_t handle = nullptr;
  EXPECT_EQ(try_register(-1, handle).err, CU_FILE_INVALID_VALUE);
  EXPECT_EQ(try_register(1 << 20, handle).err, CU_FILE_INVALID_VALUE);
  EXPECT_EQ(try_register(open(dir_.path(), O_RDONLY | O_DIRECTORY), handle).err, CU_FILE_INVALID_FILE_TYPE);
  std::array<int, 2> ends{};
  ASSERT_EQ(pipe(ends.data()), 0);
  descriptors_.insert(descriptors_.end(), ends.begin(), ends.end());
  EXPECT_EQ(try_register(ends[0], handle).err, CU_FILE_INVALID_FILE_TYPE);
  const auto name = make_file("x", 10);
  EXPECT_EQ(try_register(open(name, O_RDWR | O_APPEND), handle).err, CU_FILE_INVALID_FILE_OPEN_FLAG);
  const int good = open(name, O_RDWR);
  EXPECT_EQ(try_register(good, handle, CU_FILE_HANDLE_TYPE_OPAQUE_WIN32).err, CU_FILE_IO_NOT_SUPPORTED);
  EXPECT_EQ(try_register(good, handle, CU_FILE_HANDLE_TYPE_USERSPACE_FS).err, CU_FILE_IO_NOT_SUPPORTED);
  EXPECT_EQ(try_register(good, handle, 77).err, CU_FILE_IO_NOT_SUPPORTED);
  EXPECT_EQ(handle, nullptr);
  CUfileDescr_t what{};
  EXPECT_EQ(cuFileHandleRegister(nullptr, &what).err, CU_FILE_INVALID_VALUE);
  EXPECT_EQ(cuFileHandleRegister(&handle, nullptr).err, CU_FILE_INVALID_VALUE);
}

TEST_F(cufile_test, a_descriptor_has_one_handle_until_it_is_deregistered) {
  const int descriptor = open(make_file("x", 10), O_RDONLY);
  const auto handle = make_handle(descriptor);
  CUfileHandle_t second = nullptr;
  EXPECT_EQ(try_register(descriptor, second).err, CU_FILE_HANDLE_ALREADY_REGISTERED);
  cuFileHandleDeregister(handle);
  EXPECT_EQ(try_register(descriptor, second).err, CU_FILE_SUCCESS);
  EXPECT_NE(second, handle);
}

// --- descriptors that the program closes before it deregisters

// What a program may do with a descriptor whose handle it still has. Each leaves the number free or open on another file.
struct loss {
  const char* name;
  void (*lose)(int number, const std::string& other);
};

void PrintTo(const loss& what, std::ostream* out) { *out << what.name; }

void reuse(int number, const std::string& other, int flags) {
  const int made = ::open(other.c_str(), flags | O_CLOEXEC);
  ASSERT_GE(made, 0);
  if (made == number) return;
  ASSERT_EQ(::dup3(made, number, O_CLOEXEC), number);
  ::close(made);
}

const std::array losses{
    loss{"closed", [](int number, const std::string&) { ::close(number); }},
    loss{"closed_and_given_to_another_file",
         [](int number, const std::string& other) {
           ::close(number);
           reuse(number, other, O_RDWR);
         }},
    loss{"closed_and_given_to_another_file_past_the_cache",
         [](int number, const std::string& other) {
           ::close(number);
           reuse(number, other, O_RDWR | O_DIRECT);
         }},
    loss{"replaced_by_dup2", [](int number, const std::string& other) { reuse(number, other, O_RDWR); }},
    loss{"given_to_a_pipe",
         [](int number, const std::string&) {
           std::array<int, 2> ends{};
           ASSERT_EQ(::pipe2(ends.data(), O_CLOEXEC), 0);
           ASSERT_EQ(::dup3(ends[1], number, O_CLOEXEC), number);
           for (const int end : ends) ::close(end);
         }},
};

class cufile_lost_descriptor : public cufile_test, public ::testing::WithParamInterface<loss> {
 protected:
  // Files of different bytes, of which the first is registered and then loses its number.
  void lose(int flags = O_RDWR) {
    const std::vector<std::byte> ours(size, std::byte{'A'});
    const std::vector<std::byte> theirs(size, std::byte{'B'});
    store_file(dir_.file("A"), ours);
    store_file(dir_.file("B"), theirs);
    number_ = open(dir_.file("A"), flags);
    handle_ = make_handle(number_);
    GetParam().lose(number_, dir_.file("B"));
  }
  std::string content(const std::string& name) {
    std::ifstream in(dir_.file(name));
    return {std::istreambuf_iterator<char>(in), {}};
  }
  static constexpr std::size_t size = 16 * kib;
  int number_ = -1;
  CUfileHandle_t handle_ = nullptr;
};

TEST_P(cufile_lost_descriptor, reads_and_writes_reach_the_registered_file) {
  for (const int flags : {O_RDWR, O_RDWR | O_DIRECT}) {
    lose(flags);
    std::vector<char> memory(size, '?');
    EXPECT_EQ(with_errno(cuFileRead(handle_, memory.data(), size, 0, 0)), static_cast<ssize_t>(size));
    EXPECT_EQ(memory, std::vector<char>(size, 'A'));
    std::ranges::fill(memory, 'C');
    EXPECT_EQ(with_errno(cuFileWrite(handle_, memory.data(), 4096, 100, 0)), 4096);
    std::array pieces{CUfileIOVec_t{memory.data(), 1000}, CUfileIOVec_t{memory.data() + 1000, 1000}};
    EXPECT_EQ(with_errno(cuFileWritev(handle_, pieces.data(), pieces.size(), 8192, 0)), 2000);
    EXPECT_EQ(content("A"), std::string(100, 'A') + std::string(4096, 'C') + std::string(8192 - 4196, 'A') + std::string(2000, 'C') +
                                std::string(size - 10192, 'A'));
    EXPECT_EQ(content("B"), std::string(size, 'B'));
    cuFileHandleDeregister(handle_);
  }
}

TEST_P(cufile_lost_descriptor, the_number_is_registered_again_for_its_new_file) {
  lose();
  CUfileHandle_t second = nullptr;
  const auto answer = try_register(number_, second).err;
  struct stat facts {};
  if (::fstat(number_, &facts) != 0) {
    EXPECT_EQ(answer, CU_FILE_INVALID_VALUE) << "it is closed";
    return;
  }
  if (!S_ISREG(facts.st_mode)) {
    EXPECT_EQ(answer, CU_FILE_INVALID_FILE_TYPE);
    return;
  }
  ASSERT_EQ(answer, CU_FILE_SUCCESS);
  CUfileHandle_t third = nullptr;
  EXPECT_EQ(try_register(number_, third).err, CU_FILE_HANDLE_ALREADY_REGISTERED);
  std::vector<char> memory(size);
  EXPECT_EQ(with_errno(cuFileRead(second, memory.data(), size, 0, 0)), static_cast<ssize_t>(size));
  EXPECT_EQ(memory.front(), 'B');
  cuFileHandleDeregister(handle_);
  EXPECT_EQ(try_register(number_, third).err, CU_FILE_HANDLE_ALREADY_REGISTERED) << "the second handle keeps it";
  cuFileHandleDeregister(second);
  EXPECT_EQ(try_register(number_, third).err, CU_FILE_SUCCESS);
}

INSTANTIATE_TEST_SUITE_P(each, cufile_lost_descriptor, ::testing::ValuesIn(losses), [](const auto& info) { return info.param.name; });

TEST_F(cufile_test, a_file_that_is_opened_again_under_the_same_number_registers_again) {
  const auto name = make_file("x", 4096);
  const int number = open(name, O_RDONLY);
  make_handle(number);
  ::close(number);
  reuse(number, name, O_RDONLY);
  CUfileHandle_t second = nullptr;
  EXPECT_EQ(try_register(number, second).err, CU_FILE_SUCCESS);
}

TEST_F(cufile_test, a_handle_for_which_there_was_no_duplicate_never_reaches_another_file) {
  const auto name = make_file("x", 4096);
  const auto other = make_file("y", 4096);
  EXPECT_EQ(cuFileDriverOpen().err, CU_FILE_SUCCESS);
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  auto few = before;
  few.rlim_cur = static_cast<rlim_t>(open(name, O_RDONLY)) + 40;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
  std::vector<std::pair<int, CUfileHandle_t>> registered;
  for (int made = ::open(name.c_str(), O_RDWR | O_CLOEXEC); made >= 0; made = ::open(name.c_str(), O_RDWR | O_CLOEXEC)) {
    descriptors_.push_back(made);
    registered.emplace_back(made, make_handle(made));
  }
  EXPECT_GT(registered.size(), 20U) << "duplicates leave the last quarter to the program";
  EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  std::array<char, 64> memory{};
  for (const auto& [number, handle] : registered) EXPECT_EQ(with_errno(cuFileRead(handle, memory.data(), 64, 0, 0)), 64);
  std::size_t refused = 0;
  for (const auto& [number, handle] : registered) {
    reuse(number, other, O_RDWR);
    const auto written = with_errno(cuFileWrite(handle, memory.data(), 64, 0, 0));
    if (written == 64) continue;
    EXPECT_EQ(written, -CU_FILE_HANDLE_NOT_REGISTERED);
    ++refused;
    CUfileHandle_t anew = nullptr;
    EXPECT_EQ(try_register(number, anew).err, CU_FILE_SUCCESS);
  }
  EXPECT_GT(refused, 0U);
  const auto content = pattern::make(4096, file_seed);
  std::vector<std::byte> now(content.size());
  std::ifstream(other).read(reinterpret_cast<char*>(now.data()), static_cast<std::streamsize>(now.size()));
  EXPECT_EQ(now, content);
}

TEST_F(cufile_test, stale_null_and_invented_handles_are_errors) {
  const auto handle = handle_of(make_file("x", 10));
  cuFileHandleDeregister(handle);
  cuFileHandleDeregister(handle);
  cuFileHandleDeregister(nullptr);
  char byte = 0;
  for (auto* each : {handle, static_cast<CUfileHandle_t>(nullptr), reinterpret_cast<CUfileHandle_t>(0x1234),
                     reinterpret_cast<CUfileHandle_t>(~std::uintptr_t{0}), static_cast<CUfileHandle_t>(&byte)}) {
    EXPECT_EQ(with_errno(cuFileRead(each, &byte, 1, 0, 0)), -CU_FILE_HANDLE_NOT_REGISTERED);
    EXPECT_EQ(with_errno(cuFileWrite(each, &byte, 1, 0, 0)), -CU_FILE_HANDLE_NOT_REGISTERED);
  }
}

TEST_F(cufile_test, ten_thousand_files_are_open_at_once) {
  constexpr int count = 10'000;
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
  if (limit.rlim_cur < count + 200) GTEST_SKIP() << "this process may open " << limit.rlim_cur << " files";
  const auto name = make_file("x", 16);
  std::vector<CUfileHandle_t> handles;
  for (int i = 0; i < count; ++i) handles.push_back(handle_of(name, O_RDONLY));
  std::array<std::byte, 16> seen{};
  for (auto* each : {handles.front(), handles[count / 2], handles.back()}) EXPECT_EQ(cuFileRead(each, seen.data(), 16, 0, 0), 16);
  for (auto* each : handles) cuFileHandleDeregister(each);
}

// --- memory

TEST_F(cufile_test, registering_memory_checks_it) {
  const auto memory = device_memory(64 * kib);
  auto* base = static_cast<std::byte*>(memory.data());
  EXPECT_EQ(cuFileBufRegister(nullptr, 10, 0).err, CU_FILE_INVALID_VALUE);
  EXPECT_EQ(cuFileBufRegister(base, 0, 0).err, CU_FILE_INVALID_VALUE);
  EXPECT_EQ(cuFileBufRegister(base, memory.size() + 1, 0).err, CU_FILE_CUDA_POINTER_RANGE_ERROR);
  EXPECT_EQ(cuFileBufRegister(base, memory.size(), 999).err, CU_FILE_SUCCESS) << "flags are not looked at";
  EXPECT_EQ(cuFileBufRegister(base, memory.size(), 0).err, CU_FILE_MEMORY_ALREADY_REGISTERED);
  EXPECT_EQ(cuFileBufRegister(base + 4096, 4096, 0).err, CU_FILE_SUCCESS) << "a part of a registered range";
  EXPECT_EQ(cuFileBufDeregister(nullptr).err, CU_FILE_INVALID_VALUE);
  EXPECT_EQ(cuFileBufDeregister(base + 8192).err, CU_FILE_MEMORY_NOT_REGISTERED);
  EXPECT_EQ(cuFileBufDeregister(base).err, CU_FILE_SUCCESS);
  EXPECT_EQ(cuFileBufDeregister(base).err, CU_FILE_MEMORY_NOT_REGISTERED);
  EXPECT_EQ(cuFileBufDeregister(base + 4096).err, CU_FILE_SUCCESS);
}

TEST_F(cufile_test, host_memory_registers_and_never_opened_is_not_initialized) {
  std::vector<char> memory(4096);
  const int untouched = run_in_child([] {
    char byte = 0;
    return cuFileBufDeregister(&byte).err == CU_FILE_DRIVER_NOT_INITIALIZED ? 0 : 1;
  });
  EXPECT_EQ(untouched, 0);
  EXPECT_EQ(cuFileBufRegister(memory.data(), memory.size(), 0).err, CU_FILE_SUCCESS);
  EXPECT_EQ(cuFileBufDeregister(memory.data()).err, CU_FILE_SUCCESS);
}

TEST_F(cufile_test, a_transfer_may_not_leave_registered_memory) {
  const auto handle = handle_of(make_file("x", 64 * kib));
  const auto memory = device_memory(64 * kib);
  ASSERT_EQ(cuFileBufRegister(memory.data(), 8192, 0).err, CU_FILE_SUCCESS);
  EXPECT_EQ(cuFileRead(handle, memory.data(), 4096, 0, 4096), 4096);
  EXPECT_EQ(with_errno(cuFileRead(handle, memory.data(), 4096, 0, 4097)), -CU_FILE_INVALID_MAPPING_RANGE);
  EXPECT_EQ(with_errno(cuFileWrite(handle, memory.data(), 8193, 0, 0)), -CU_FILE_INVALID_MAPPING_RANGE);
  ASSERT_EQ(cuFileBufDeregister(memory.data()).err, CU_FILE_SUCCESS);
  EXPECT_EQ(cuFileRead(handle, memory.data(), 4096, 0, 4097), 4096);
}

TEST_F(cufile_test, memory_registered_for_one_direction_refuses_the_other) {
  auto& library = cufile::driver::current();
  const auto handle = handle_of(make_file("x", 64 * kib));
  const auto memory = device_memory(64 * kib);
  auto* const base = static_cast<std::byte*>(memory.data());
  ASSERT_EQ(library.register_buffer(base, 8192, cufile::buffer_use::reads_of_files).err, CU_FILE_SUCCESS);
  EXPECT_EQ(cuFileRead(handle, base, 8192, 0, 0), 8192);
  EXPECT_EQ(with_errno(cuFileWrite(handle, base, 4096, 0, 4096)), -CU_FILE_PERMISSION_DENIED);
  EXPECT_EQ(with_errno(cuFileWrite(handle, base + 100, 1, 0, 0)), -CU_FILE_PERMISSION_DENIED) << "named by another base";
  EXPECT_EQ(cuFileWrite(handle, base + 8000, 4096, 0, 0), 4096) << "not in the registered memory alone";
  const CUfileIOVec_t piece{base, 10};
  EXPECT_EQ(with_errno(cuFileWritev(handle, &piece, 1, 0, 0)), -CU_FILE_PERMISSION_DENIED);
  ASSERT_EQ(cuFileBufDeregister(base).err, CU_FILE_SUCCESS);
  EXPECT_EQ(cuFileWrite(handle, base, 4096, 0, 4096), 4096);
  ASSERT_EQ(library.register_buffer(base, 8192, cufile::buffer_use::writes_to_files).err, CU_FILE_SUCCESS);
  EXPECT_EQ(with_errno(cuFileRead(handle, base, 8192, 0, 0)), -CU_FILE_PERMISSION_DENIED);
}

TEST_F(cufile_test, memory_freed_before_it_is_deregistered_does_no_harm) {
  const auto handle = handle_of(make_file("x", 64 * kib));
  void* where = nullptr;
  {
    const auto memory = device_memory(64 * kib);
    where = memory.data();
    ASSERT_EQ(cuFileBufRegister(where, 64 * kib, 0).err, CU_FILE_SUCCESS);
  }
  EXPECT_EQ(cuFileBufDeregister(where).err, CU_FILE_SUCCESS);
  EXPECT_EQ(with_errno(cuFileRead(handle, where, 4096, 0, 0)), -EIO);
}

// --- reading and writing

TEST_F(cufile_test, arguments_that_cannot_be_right_are_told_apart) {
  const auto handle = handle_of(make_file("x", 4096));
  char byte = 0;
  EXPECT_EQ(with_errno(cuFileRead(handle, nullptr, 1, 0, 0)), -EINVAL);
  EXPECT_EQ(with_errno(cuFileRead(handle, &byte, 1, -1, 0)), -CU_FILE_INVALID_VALUE);
  EXPECT_EQ(with_errno(cuFileRead(handle, &byte, 1, 0, -1)), -CU_FILE_INTERNAL_ERROR);
  EXPECT_EQ(cuFileRead(handle, &byte, 0, 0, 0), 0);
  EXPECT_EQ(cuFileWrite(handle, &byte, 0, 0, 0), 0);
  EXPECT_EQ(with_errno(cuFileRead(handle, &byte, ~std::size_t{0}, 0, 0)), -EINVAL);
  EXPECT_LT(cuFileRead(handle, &byte, 1, std::numeric_limits<off_t>::max(), 0), 1);
}

TEST_F(cufile_test, the_descriptors_mode_holds) {
  const auto name = make_file("x", 4096);
  const auto read_only = handle_of(name, O_RDONLY);
  const auto write_only = handle_of(name, O_WRONLY);
  char byte = 0;
  const CUfileIOVec_t piece{&byte, 1};
  EXPECT_EQ(with_errno(cuFileWrite(read_only, &byte, 1, 0, 0)), -CU_FILE_INVALID_FILE_OPEN_FLAG);
  EXPECT_EQ(with_errno(cuFileRead(write_only, &byte, 1, 0, 0)), -CU_FILE_INVALID_FILE_OPEN_FLAG);
  EXPECT_EQ(with_errno(cuFileWritev(read_only, &piece, 1, 0, 0)), -CU_FILE_INVALID_FILE_OPEN_FLAG);
  EXPECT_EQ(with_errno(cuFileReadv(write_only, &piece, 1, 0, 0)), -CU_FILE_INVALID_FILE_OPEN_FLAG);
}

TEST_F(cufile_test, the_end_of_the_file_shortens_a_read) {
  const auto handle = handle_of(make_file("x", 10'000));
  const auto memory = device_memory(64 * kib);
  EXPECT_EQ(cuFileRead(handle, memory.data(), 64 * kib, 0, 0), 10'000);
  expect_pattern(memory.data(), 10'000, 0);
  EXPECT_EQ(cuFileRead(handle, memory.data(), 4096, 9'999, 0), 1);
  EXPECT_EQ(cuFileRead(handle, memory.data(), 4096, 10'000, 0), 0);
  EXPECT_EQ(cuFileRead(handle, memory.data(), 4096, 1 << 30, 0), 0);
}

TEST_F(cufile_test, a_file_that_tells_no_size_is_read_to_its_end) {
  const auto handle = handle_of("/proc/self/limits", O_RDONLY);
  std::ifstream in("/proc/self/limits", std::ios::binary);
  const std::string expected(std::istreambuf_iterator<char>(in), {});
  std::vector<char> host(64 * kib);
  ASSERT_EQ(cuFileRead(handle, host.data(), host.size(), 0, 0), static_cast<ssize_t>(expected.size()));
  EXPECT_EQ(std::string(host.data(), expected.size()), expected);
  const auto memory = device_memory(host.size());
  ASSERT_EQ(cuFileRead(handle, memory.data(), host.size(), 0, 0), static_cast<ssize_t>(expected.size()));
  EXPECT_EQ(std::memcmp(fetch(memory.data(), expected.size()).data(), expected.data(), expected.size()), 0);
}

TEST_F(cufile_test, past_an_allocation_is_an_io_error) {
  const auto handle = handle_of(make_file("x", mib));
  const auto memory = device_memory(64 * kib);
  EXPECT_EQ(with_errno(cuFileRead(handle, memory.data(), mib, 0, 0)), -EIO);
}

// Every kind of memory and descriptor, at offsets and lengths that fit nothing.
class cufile_alignment_test : public cufile_test, public ::testing::WithParamInterface<std::tuple<bool, int>> {};

TEST_P(cufile_alignment_test, any_alignment_works) {
  const auto [on_device, extra] = GetParam();
  constexpr std::size_t size = 3 * mib + 5;
  const auto name = make_file("x", size);
  const int descriptor = ::open(name.c_str(), O_RDWR | extra | O_CLOEXEC);
  if (descriptor < 0) GTEST_SKIP() << "no direct I/O here";
  descriptors_.push_back(descriptor);
  const auto handle = make_handle(descriptor);
  device_buffer device = on_device ? device_memory(4 * mib) : device_buffer();
  std::vector<std::byte> host(on_device ? 0 : 4 * mib);
  auto* const memory = on_device ? static_cast<std::byte*>(device.data()) : host.data();
  for (const auto& [offset, memory_offset, length] :
       {std::array<std::size_t, 3>{0, 0, size}, {1, 3, 2 * mib + 1}, {4095, 1, 4098}, {4096, 4096, mib}, {size - 7, 13, 7}}) {
    ASSERT_EQ(cuFileRead(handle, memory, length, static_cast<off_t>(offset), static_cast<off_t>(memory_offset)),
              static_cast<ssize_t>(length));
    expect_pattern(memory + memory_offset, length, offset);
    const auto fresh = pattern::make(length, 99, offset);
    store(memory + memory_offset, fresh);
    ASSERT_EQ(cuFileWrite(handle, memory, length, static_cast<off_t>(offset), static_cast<off_t>(memory_offset)),
              static_cast<ssize_t>(length));
    std::vector<std::byte> whole(size);
    ASSERT_EQ(::pread(open(name, O_RDONLY), whole.data(), size, 0), static_cast<ssize_t>(size));
    auto expected = pattern::make(size, file_seed);
    std::copy(fresh.begin(), fresh.end(), expected.begin() + static_cast<std::ptrdiff_t>(offset));
    ASSERT_EQ(whole, expected);
    make_file("x", size);
  }
}

INSTANTIATE_TEST_SUITE_P(all, cufile_alignment_test, ::testing::Combine(::testing::Bool(), ::testing::Values(0, O_DIRECT)),
                         [](const auto& chosen) {
                           return std::string(std::get<0>(chosen.param) ? "device" : "host") +
                                  (std::get<1>(chosen.param) ? "_direct" : "_cached");
                         });

TEST_F(cufile_test, neighbouring_unaligned_writes_by_several_threads_lose_nothing) {
  constexpr std::size_t piece = 1001;
  constexpr std::size_t pieces = 256;
  constexpr std::size_t threads = 8;
  const auto name = make_file("x", 0);
  ASSERT_EQ(::truncate(name.c_str(), static_cast<off_t>(piece * pieces)), 0);
  const auto handle = handle_of(name, O_RDWR | O_DIRECT);
  const auto memory = device_memory(piece * pieces);
  store(memory.data(), pattern::make(piece * pieces, file_seed));
  std::vector<std::thread> writers;
  for (std::size_t t = 0; t < threads; ++t) {
    writers.emplace_back([&, t] {
      for (std::size_t i = t; i < pieces; i += threads) {
        const auto at = static_cast<off_t>(i * piece);
        EXPECT_EQ(cuFileWrite(handle, memory.data(), piece, at, at), static_cast<ssize_t>(piece));
      }
    });
  }
  for (auto& each : writers) each.join();
  std::vector<std::byte> seen(piece * pieces);
  ASSERT_EQ(::pread(open(name, O_RDONLY), seen.data(), seen.size(), 0), static_cast<ssize_t>(seen.size()));
  EXPECT_EQ(pattern::first_difference(seen, file_seed, 0), std::nullopt);
}

TEST_F(cufile_test, two_hundred_and_fifty_six_threads_share_a_handle) {
  constexpr std::size_t piece = 8 * kib;
  constexpr std::size_t threads = 256;
  const auto handle = handle_of(make_file("x", piece * threads), O_RDONLY);
  const auto memory = device_memory(piece * threads);
  std::atomic<int> wrong{0};
  std::vector<std::thread> readers;
  for (std::size_t t = 0; t < threads; ++t) {
    readers.emplace_back([&, t] {
      const auto at = static_cast<off_t>(t * piece);
      for (int i = 0; i < 4; ++i) wrong += cuFileRead(handle, memory.data(), piece, at, at) != static_cast<ssize_t>(piece);
    });
  }
  for (auto& each : readers) each.join();
  EXPECT_EQ(wrong, 0);
  expect_pattern(memory.data(), piece * threads, 0);
}

TEST_F(cufile_test, a_handle_deregistered_under_transfers_ends_them_with_an_error_or_whole) {
  const auto name = make_file("x", mib);
  const auto handle = handle_of(name, O_RDONLY);
  std::vector<std::thread> readers;
  std::atomic<int> going{0};
  for (int t = 0; t < 4; ++t) {
    readers.emplace_back([&] {
      std::vector<std::byte> memory(mib);
      for (;;) {
        const auto outcome = with_errno(cuFileRead(handle, memory.data(), mib, 0, 0));
        ++going;
        if (outcome == -CU_FILE_HANDLE_NOT_REGISTERED) return;
        EXPECT_EQ(outcome, static_cast<ssize_t>(mib));
      }
    });
  }
  while (going.load() < 8) std::this_thread::yield();
  cuFileHandleDeregister(handle);
  for (auto& each : readers) each.join();
}

// --- vectors

TEST_F(cufile_test, a_vector_reads_and_writes_one_range_of_the_file) {
  const auto name = make_file("x", mib);
  const auto handle = handle_of(name);
  const auto memory = device_memory(mib);
  std::vector<std::byte> host(5000);
  auto* base = static_cast<std::byte*>(memory.data());
  const std::array<CUfileIOVec_t, 4> pieces = {{{base, 300'001}, {host.data(), host.size()}, {nullptr, 0}, {base + 400'000, 7}}};
  EXPECT_EQ(cuFileReadv(handle, pieces.data(), pieces.size(), 11, 0), 305'008);
  expect_pattern(base, 300'001, 11);
  EXPECT_EQ(pattern::first_difference(host, file_seed, 300'012), std::nullopt);
  expect_pattern(base + 400'000, 7, 305'012);
  store(base, pattern::make(300'001, 5, 0));
  EXPECT_EQ(cuFileWritev(handle, pieces.data(), 1, 17, 0), 300'001);
  EXPECT_EQ(cuFileRead(handle, base, 300'001, 17, 0), 300'001);
  EXPECT_EQ(pattern::first_difference(fetch(base, 300'001), 5, 0), std::nullopt);
}

TEST_F(cufile_test, a_vector_ends_with_the_file_and_checks_its_arguments) {
  const auto handle = handle_of(make_file("x", 10'000));
  std::vector<std::byte> host(20'000);
  const std::array<CUfileIOVec_t, 2> pieces = {{{host.data(), 9'000}, {host.data() + 9'000, 9'000}}};
  EXPECT_EQ(cuFileReadv(handle, pieces.data(), 2, 0, 0), 10'000);
  EXPECT_EQ(cuFileReadv(handle, pieces.data(), 2, 20'000, 0), 0);
  EXPECT_EQ(cuFileReadv(handle, nullptr, 0, 0, 0), 0);
  EXPECT_EQ(with_errno(cuFileReadv(handle, nullptr, 1, 0, 0)), -EINVAL);
  EXPECT_EQ(with_errno(cuFileReadv(handle, pieces.data(), 1025, 0, 0)), -EINVAL);
  EXPECT_EQ(with_errno(cuFileReadv(handle, pieces.data(), 2, -1, 0)), -CU_FILE_INVALID_VALUE);
  EXPECT_EQ(with_errno(cuFileReadv(handle, pieces.data(), 2, 0, 1)), -CU_FILE_INVALID_VALUE);
  EXPECT_EQ(with_errno(cuFileReadv(nullptr, pieces.data(), 2, 0, 0)), -CU_FILE_HANDLE_NOT_REGISTERED);
  const std::array<CUfileIOVec_t, 2> endless = {{{host.data(), ~std::size_t{0}}, {host.data(), 2}}};
  EXPECT_EQ(with_errno(cuFileReadv(handle, endless.data(), 2, 0, 0)), -EINVAL);
}

// --- streams

TEST_F(cufile_test, streams_are_registered_once_with_known_flags) {
  auto* stream = reinterpret_cast<CUstream>(0x1000);
  EXPECT_EQ(cuFileStreamRegister(stream, 0x10).err, CU_FILE_INVALID_VALUE);
  EXPECT_EQ(cuFileStreamRegister(stream, 0xf).err, CU_FILE_SUCCESS);
  EXPECT_EQ(cuFileStreamRegister(stream, 0).err, CU_FILE_INVALID_VALUE);
  EXPECT_EQ(cuFileStreamRegister(nullptr, 0).err, CU_FILE_SUCCESS) << "the default stream";
  EXPECT_EQ(cuFileStreamDeregister(stream).err, CU_FILE_SUCCESS);
  EXPECT_EQ(cuFileStreamDeregister(stream).err, CU_FILE_INVALID_VALUE);
}

TEST_F(cufile_test, stream_ordered_calls_check_their_arguments) {
  const auto handle = handle_of(make_file("x", mib));
  const auto memory = device_memory(mib);
  std::size_t size = 4096;
  off_t at = 0;
  off_t in_memory = 0;
  ssize_t bytes = 0;
  EXPECT_EQ(cuFileReadAsync(nullptr, memory.data(), &size, &at, &in_memory, &bytes, nullptr).err, CU_FILE_HANDLE_NOT_REGISTERED);
  EXPECT_EQ(cuFileReadAsync(handle, nullptr, &size, &at, &in_memory, &bytes, nullptr).err, CU_FILE_INVALID_VALUE);
  EXPECT_EQ(cuFileReadAsync(handle, memory.data(), nullptr, &at, &in_memory, &bytes, nullptr).err, CU_FILE_INVALID_VALUE);
  EXPECT_EQ(cuFileReadAsync(handle, memory.data(), &size, nullptr, &in_memory, &bytes, nullptr).err, CU_FILE_INVALID_VALUE);
  EXPECT_EQ(cuFileReadAsync(handle, memory.data(), &size, &at, nullptr, &bytes, nullptr).err, CU_FILE_INVALID_VALUE);
  EXPECT_EQ(cuFileWriteAsync(handle, memory.data(), &size, &at, &in_memory, nullptr, nullptr).err, CU_FILE_INVALID_VALUE);
}

// At the call, not in the byte count, which stays what it was: clients raise their error there.
TEST_F(cufile_test, a_stream_ordered_call_says_that_the_file_was_opened_with_the_wrong_flags) {
  const auto name = make_file("x", mib);
  const auto read_only = handle_of(name, O_RDONLY);
  const auto write_only = handle_of(name, O_WRONLY);
  const auto memory = device_memory(mib);
  std::size_t size = 4096;
  off_t zero = 0;
  ssize_t bytes = 7;
  const auto read = cuFileReadAsync(write_only, memory.data(), &size, &zero, &zero, &bytes, nullptr);
  const auto written = cuFileWriteAsync(read_only, memory.data(), &size, &zero, &zero, &bytes, nullptr);
  EXPECT_EQ(read.err, CU_FILE_INVALID_FILE_OPEN_FLAG);
  EXPECT_EQ(written.err, CU_FILE_INVALID_FILE_OPEN_FLAG);
  EXPECT_EQ(read.cu_err, 0);
  EXPECT_STREQ(CUFILE_ERRSTR(read.err), "the file was opened with flags that do not allow this");
  EXPECT_EQ(cuFileWriteAsync(write_only, memory.data(), &size, &zero, &zero, &bytes, nullptr).err, CU_FILE_SUCCESS);
  cuFileHandleDeregister(write_only);
  EXPECT_EQ(bytes, 4096);
}

TEST_F(cufile_test, stream_ordered_transfers_follow_each_other) {
  const auto name = make_file("x", 4 * mib);
  const auto handle = handle_of(name);
  const auto memory = device_memory(4 * mib);
  std::size_t size = 3 * mib + 1;
  off_t from = 5;
  off_t to = 4 * mib;
  off_t in_memory = 3;
  std::array<ssize_t, 3> bytes = {-7, -7, -7};
  ASSERT_EQ(cuFileReadAsync(handle, memory.data(), &size, &from, &in_memory, &bytes[0], nullptr).err, CU_FILE_SUCCESS);
  ASSERT_EQ(cuFileWriteAsync(handle, memory.data(), &size, &to, &in_memory, &bytes[1], nullptr).err, CU_FILE_SUCCESS);
  off_t past = 100 * mib;
  ASSERT_EQ(cuFileReadAsync(handle, memory.data(), &size, &past, &in_memory, &bytes[2], nullptr).err, CU_FILE_SUCCESS);
  cuFileHandleDeregister(handle);  // waits for what runs on it
  EXPECT_EQ(bytes, (std::array<ssize_t, 3>{3 * mib + 1, 3 * mib + 1, 0}));
  std::vector<std::byte> seen(size);
  ASSERT_EQ(::pread(open(name, O_RDONLY), seen.data(), size, to), static_cast<ssize_t>(size));
  EXPECT_EQ(pattern::first_difference(seen, file_seed, 5), std::nullopt);
}

TEST_F(cufile_test, what_a_stream_registered_as_fixed_is_taken_at_the_call) {
  const auto handle = handle_of(make_file("x", mib));
  const auto memory = device_memory(mib);
  constexpr unsigned all = CU_FILE_STREAM_FIXED_BUF_OFFSET | CU_FILE_STREAM_FIXED_FILE_OFFSET | CU_FILE_STREAM_FIXED_FILE_SIZE;
  ASSERT_EQ(cuFileStreamRegister(nullptr, all).err, CU_FILE_SUCCESS);
  ssize_t bytes = 0;
  {
    std::size_t size = 4096;
    off_t at = 8192;
    off_t in_memory = 1;
    ASSERT_EQ(cuFileReadAsync(handle, memory.data(), &size, &at, &in_memory, &bytes, nullptr).err, CU_FILE_SUCCESS);
    size = ~std::size_t{0};
    at = in_memory = -1;
  }
  cuFileHandleDeregister(handle);
  EXPECT_EQ(bytes, 4096);
  expect_pattern(static_cast<std::byte*>(memory.data()) + 1, 4096, 8192);
}

TEST_F(cufile_test, a_stream_ordered_transfer_of_fixed_range_may_not_leave_registered_memory) {
  const auto handle = handle_of(make_file("x", mib));
  const auto memory = device_memory(mib);
  ASSERT_EQ(cuFileBufRegister(memory.data(), 8192, 0).err, CU_FILE_SUCCESS);
  ASSERT_EQ(cuFileStreamRegister(nullptr, CU_FILE_STREAM_FIXED_BUF_OFFSET | CU_FILE_STREAM_FIXED_FILE_SIZE).err, CU_FILE_SUCCESS);
  std::size_t size = 4096;
  off_t zero = 0;
  off_t in_memory = 4097;
  ssize_t bytes = 7;
  EXPECT_EQ(cuFileReadAsync(handle, memory.data(), &size, &zero, &in_memory, &bytes, nullptr).err, CU_FILE_INVALID_MAPPING_RANGE);
  EXPECT_EQ(bytes, 7);
  in_memory = 4096;
  EXPECT_EQ(cuFileReadAsync(handle, memory.data(), &size, &zero, &in_memory, &bytes, nullptr).err, CU_FILE_SUCCESS);
  cuFileHandleDeregister(handle);
  EXPECT_EQ(bytes, 4096);
}

TEST_F(cufile_test, a_stream_ordered_failure_is_told_in_the_byte_count) {
  const auto handle = handle_of(make_file("x", mib), O_RDONLY);
  const auto memory = device_memory(mib);
  std::size_t size = 4096;
  off_t negative = -1;
  off_t zero = 0;
  ssize_t bytes = 7;
  ASSERT_EQ(cuFileReadAsync(handle, memory.data(), &size, &negative, &zero, &bytes, nullptr).err, CU_FILE_SUCCESS);
  cuFileHandleDeregister(handle);
  EXPECT_EQ(bytes, -CU_FILE_INVALID_VALUE);
}

// --- statistics

TEST_F(cufile_test, levels_are_checked_and_statistics_need_an_open_library) {
  int level = -1;
  EXPECT_EQ(cuFileSetStatsLevel(-1).err, CU_FILE_INVALID_VALUE);
  EXPECT_EQ(cuFileSetStatsLevel(4).err, CU_FILE_INVALID_VALUE);
  EXPECT_EQ(cuFileSetStatsLevel(2).err, CU_FILE_SUCCESS);
  EXPECT_EQ(cuFileGetStatsLevel(&level).err, CU_FILE_SUCCESS);
  EXPECT_EQ(level, 2);
  CUfileStatsLevel1_t one{};
  CUfileStatsLevel3_t three{};
  EXPECT_EQ(cuFileGetStatsL1(&one).err, CU_FILE_DRIVER_NOT_INITIALIZED);
  ASSERT_EQ(cuFileDriverOpen().err, CU_FILE_SUCCESS);
  EXPECT_EQ(cuFileGetStatsL1(&one).err, CU_FILE_SUCCESS);
  EXPECT_EQ(cuFileGetStatsL3(&three).err, CU_FILE_INVALID_VALUE);
  EXPECT_EQ(cuFileGetStatsL1(nullptr).err, CU_FILE_INVALID_VALUE);
}

TEST_F(cufile_test, statistics_count_what_was_done_while_they_ran) {
  const auto handle = handle_of(make_file("x", mib));
  const auto memory = device_memory(mib);
  ASSERT_EQ(cuFileSetStatsLevel(3).err, CU_FILE_SUCCESS);
  ASSERT_EQ(cuFileStatsReset().err, CU_FILE_SUCCESS);
  EXPECT_EQ(cuFileRead(handle, memory.data(), 4096, 0, 0), 4096);
  ASSERT_EQ(cuFileStatsStart().err, CU_FILE_SUCCESS);
  EXPECT_EQ(cuFileRead(handle, memory.data(), 4096, 0, 0), 4096);
  EXPECT_EQ(cuFileRead(handle, memory.data(), mib, 0, 0), static_cast<ssize_t>(mib));
  EXPECT_LT(cuFileRead(handle, memory.data(), 2 * mib, 0, 0), 0);
  EXPECT_LT(cuFileRead(handle, memory.data(), 16, -1, 0), 0);
  EXPECT_EQ(cuFileWrite(handle, memory.data(), 100, 0, 0), 100);
  ASSERT_EQ(cuFileStatsStop().err, CU_FILE_SUCCESS);
  EXPECT_EQ(cuFileRead(handle, memory.data(), 4096, 0, 0), 4096);
  CUfileStatsLevel3_t seen{};
  ASSERT_EQ(cuFileGetStatsL3(&seen).err, CU_FILE_SUCCESS);
  const auto& basic = seen.detailed.basic;
  EXPECT_EQ(basic.read_ops.ok, 2U);
  EXPECT_EQ(basic.read_ops.err, 2U);
  EXPECT_EQ(basic.write_ops.ok, 1U);
  EXPECT_EQ(basic.read_bytes, 4096 + mib);
  EXPECT_EQ(basic.write_bytes, 100U);
  EXPECT_EQ(seen.detailed.read_size_kb_hist[0], 1U) << "failed ones have no size";
  EXPECT_EQ(seen.detailed.read_size_kb_hist[8], 1U) << "1 MiB is 4 KiB doubled eight times";
  EXPECT_EQ(seen.detailed.write_size_kb_hist[0], 1U);
  ASSERT_EQ(cuFileStatsReset().err, CU_FILE_SUCCESS);
  ASSERT_EQ(cuFileGetStatsL3(&seen).err, CU_FILE_SUCCESS);
  EXPECT_EQ(seen.detailed.basic.read_ops.ok, 0U);
}

TEST_F(cufile_test, a_stream_ordered_transfer_is_counted_for_its_gpu) {
  const auto handle = handle_of(make_file("x", mib));
  const auto memory = device_memory(mib);
  ASSERT_EQ(cuFileSetStatsLevel(3).err, CU_FILE_SUCCESS);
  ASSERT_EQ(cuFileStatsReset().err, CU_FILE_SUCCESS);
  ASSERT_EQ(cuFileStatsStart().err, CU_FILE_SUCCESS);
  std::size_t size = 4096;
  off_t zero = 0;
  ssize_t bytes = 0;
  ASSERT_EQ(cuFileReadAsync(handle, memory.data(), &size, &zero, &zero, &bytes, nullptr).err, CU_FILE_SUCCESS);
  cuFileHandleDeregister(handle);
  EXPECT_EQ(bytes, 4096);
  CUfileStatsLevel3_t seen{};
  ASSERT_EQ(cuFileGetStatsL3(&seen).err, CU_FILE_SUCCESS);
  EXPECT_EQ(seen.detailed.basic.read_ops.ok, 1U);
  EXPECT_EQ(seen.detailed.basic.read_bytes, 4096U);
  // On the thread that ends a request, the driver of a GPU does not tell whose memory it is.
  if (engine::shared()->cuda_status().ok()) {
    EXPECT_EQ(seen.per_gpu_stats[0].n_total_reads, 1U);
  }
}

// --- parameters

TEST_F(cufile_test, numbers_that_are_no_parameter_are_errors) {
  for (const int number : {-1, std::numeric_limits<int>::min(), 12, 15, 99, std::numeric_limits<int>::max()}) {
    std::size_t size = 0;
    bool flag = false;
    std::array<char, 64> text{};
    const auto size_parameter = as<CUFileSizeTConfigParameter_t>(number);
    const auto text_parameter = as<CUFileStringConfigParameter_t>(number);
    EXPECT_EQ(cuFileGetParameterSizeT(size_parameter, &size).err, CU_FILE_INVALID_VALUE) << number;
    EXPECT_EQ(cuFileSetParameterSizeT(size_parameter, 1).err, CU_FILE_INVALID_VALUE) << number;
    EXPECT_EQ(cuFileGetParameterMinMaxValue(size_parameter, &size, &size).err, CU_FILE_INVALID_VALUE) << number;
    EXPECT_EQ(cuFileGetParameterString(text_parameter, text.data(), 64).err, CU_FILE_INVALID_VALUE) << number;
    EXPECT_EQ(cuFileSetParameterString(text_parameter, "x").err, CU_FILE_INVALID_VALUE) << number;
    if (number >= 0 && number < 14) continue;  // there are more flags
    EXPECT_EQ(cuFileGetParameterBool(as<CUFileBoolConfigParameter_t>(number), &flag).err, CU_FILE_INVALID_VALUE) << number;
    EXPECT_EQ(cuFileSetParameterBool(as<CUFileBoolConfigParameter_t>(number), true).err, CU_FILE_INVALID_VALUE) << number;
  }
}

// --- the machine

TEST_F(cufile_test, peer_to_peer_flags_are_checked_and_kept) {
#if defined(__aarch64__)
  const auto of_this_machine = CU_FILE_P2P_FLAG_C2C;
#else
  const auto of_this_machine = CU_FILE_P2P_FLAG_PCI_P2PDMA;
#endif
  CUfileP2PFlags_t flags{};
  EXPECT_EQ(cuFileDriverSetP2PFlags(CU_FILE_NVME_SUPPORTED, CU_FILE_P2P_FLAG_NVFS).err, CU_FILE_INVALID_VALUE);
  EXPECT_EQ(cuFileDriverSetP2PFlags(CU_FILE_NVME_SUPPORTED, of_this_machine).err, CU_FILE_SUCCESS);
  EXPECT_EQ(cuFileDriverGetP2PFlags(CU_FILE_NVME_SUPPORTED, &flags).err, CU_FILE_SUCCESS);
  EXPECT_EQ(flags, of_this_machine);
  EXPECT_EQ(cuFileDriverGetP2PFlags(as<CUfileDriverStatusFlags_t>(99), &flags).err, CU_FILE_INVALID_VALUE);
  EXPECT_EQ(cuFileDriverGetP2PFlags(CU_FILE_NVME_SUPPORTED, nullptr).err, CU_FILE_INVALID_VALUE);
  ASSERT_EQ(cuFileDriverOpen().err, CU_FILE_SUCCESS);
  EXPECT_EQ(cuFileDriverSetP2PFlags(CU_FILE_NVME_SUPPORTED, of_this_machine).err, CU_FILE_DRIVER_ALREADY_OPEN);
}

TEST_F(cufile_test, the_bar_of_a_gpu_that_is_not_there_is_an_error) {
  std::size_t size = 0;
  EXPECT_EQ(cuFileGetBARSizeInKB(-1, &size).err, CU_FILE_INVALID_VALUE);
  EXPECT_EQ(cuFileGetBARSizeInKB(1000, &size).err, CU_FILE_INVALID_VALUE);
  EXPECT_EQ(cuFileGetBARSizeInKB(0, nullptr).err, CU_FILE_INVALID_VALUE);
}

TEST_F(cufile_test, the_topology_is_a_comment_line_and_json) {
  const auto name = dir_.file("topology.json");
  ASSERT_EQ(cuFileExportPCIeTopology(name.c_str()).err, CU_FILE_SUCCESS);
  std::ifstream in(name);
  std::string first;
  std::getline(in, first);
  EXPECT_EQ(first.substr(0, 2), "//");
  EXPECT_EQ(in.peek(), '{');
  EXPECT_EQ(cuFileExportPCIeTopology(nullptr).err, CU_FILE_INVALID_VALUE);
  EXPECT_EQ(cuFileExportPCIeTopology("/nowhere/at/all").err, CU_FILE_IO_ERROR);
}

// --- life and death

#if !defined(__SANITIZE_THREAD__)  // which does not support new threads in a forked child
TEST_F(cufile_test, a_forked_child_starts_afresh_and_the_parent_goes_on) {
  const auto name = make_file("x", 4096);
  const auto handle = handle_of(name, O_RDONLY);
  const int descriptor = open(name, O_RDONLY);
  std::array<std::byte, 4096> seen{};
  ASSERT_EQ(cuFileRead(handle, seen.data(), seen.size(), 0, 0), 4096);
  const int outcome = run_in_child([&] {
    if (cuFileUseCount() != 0) return 1;
    if (with_errno(cuFileRead(handle, seen.data(), 16, 0, 0)) != -CU_FILE_HANDLE_NOT_REGISTERED) return 2;
    CUfileHandle_t own = nullptr;
    if (try_register(descriptor, own).err != CU_FILE_SUCCESS) return 3;
    if (cuFileRead(own, seen.data(), seen.size(), 0, 0) != 4096) return 4;
    return cuFileDriverClose().err == CU_FILE_SUCCESS ? 0 : 5;
  });
  EXPECT_EQ(outcome, 0);
  EXPECT_EQ(cuFileRead(handle, seen.data(), seen.size(), 0, 0), 4096);
}
#endif

}  // namespace
}  // namespace penstock::testing
