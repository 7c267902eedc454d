// allow_compat_mode = false in cufile.json, on a machine that seems to have GPUDirect: transfers use GPUDirect or fail, in any order of
// files, memory and transfers.
#include <cstdlib>
#include <filesystem>

#include "batch_fixture.hpp"
#include "cufile/denial.hpp"
#include "cufile/driver.hpp"
#include "cufile/settings_effects.hpp"
#include "path/recorded_machine.hpp"

namespace penstock::testing {
namespace {

constexpr int not_supported = CU_FILE_IO_NOT_SUPPORTED;

class cufile_without_compat_mode : public cufile_batch_test {
 protected:
  void SetUp() override {
    cufile_batch_test::SetUp();
    std::ofstream(dir_.file("cufile.json")) << R"({"properties": {"allow_compat_mode": false}})";
    ASSERT_EQ(::setenv("CUFILE_ENV_PATH_JSON", dir_.file("cufile.json").c_str(), 1), 0);
    cufile::driver::current().work_with(machine_.make_engine());
  }
  void TearDown() override {
    cufile_batch_test::TearDown();
    cufile::driver::current().work_with(std::nullopt);
    EXPECT_EQ(::unsetenv("CUFILE_ENV_PATH_JSON"), 0);
  }

  // The engine does not know of it before it is used.
  static device_buffer allocate(std::size_t bytes) {
    auto made = cufile::driver::current().owner().allocate("cuda:0", bytes);
    EXPECT_TRUE(made.ok()) << made.error().message();
    return made.ok() ? *std::move(made) : device_buffer();
  }
  // Brings a GPU into use.
  static void use(const device_buffer& buffer) { ASSERT_EQ(cuFileBufRegister(buffer.data(), buffer.size(), 0).err, CU_FILE_SUCCESS); }
  int code_of_register(const std::string& name) {
    CUfileHandle_t handle = nullptr;
    return try_register(open(name, O_RDWR), handle).err;
  }
  static void expect_data(const device_buffer& buffer, std::size_t bytes) {
    std::vector<std::byte> seen(bytes);
    ASSERT_TRUE(cufile::driver::current().owner().copy(seen.data(), buffer.data(), bytes).ok());
    EXPECT_EQ(pattern::first_difference(seen, file_seed, 0), std::nullopt);
  }

  recorded_machine machine_{CUFILE_RECORDER_PATH};
};

TEST_F(cufile_without_compat_mode, a_file_registers_before_any_gpu_is_in_use_and_is_then_read_direct) {
  auto* const file = handle_of(make_file("x", mib));
  EXPECT_TRUE(machine_.recorder.calls().empty()) << "no GPU is in use";
  const auto buffer = allocate(mib);
  EXPECT_EQ(with_errno(cuFileRead(file, buffer.data(), mib, 0, 0)), static_cast<ssize_t>(mib));
  expect_data(buffer, mib);
  EXPECT_EQ(machine_.recorder.calls(cufile_call::read).size(), 1U);
}

TEST_F(cufile_without_compat_mode, a_file_that_is_not_served_fails_at_its_transfers_where_no_gpu_was_in_use_before) {
  machine_.recorder.settings().serves_files = false;
  auto* const file = handle_of(make_file("x", mib));
  const auto buffer = allocate(mib);
  for (const std::size_t length : {std::size_t{100}, 4 * kib, mib}) {
    EXPECT_EQ(with_errno(cuFileRead(file, buffer.data(), length, 0, 0)), -not_supported) << length;
    EXPECT_EQ(with_errno(cuFileWrite(file, buffer.data(), length, 0, 0)), -not_supported) << length;
    const CUfileIOVec_t piece{buffer.data(), length};
    EXPECT_EQ(with_errno(cuFileReadv(file, &piece, 1, 0, 0)), -not_supported) << length;
  }
  auto* const batch = set_up(1);
  auto asked = entry(file, buffer.data(), 4 * kib, 0, 0, nullptr);
  ASSERT_EQ(cuFileBatchIOSubmit(batch, 1, &asked, 0).err, CU_FILE_SUCCESS);
  const auto events = collect(batch, 1);
  ASSERT_EQ(events.size(), 1U);
  EXPECT_EQ(events[0].status, CUFILE_FAILED);
  EXPECT_EQ(static_cast<ssize_t>(events[0].ret), -not_supported);
  cuFileBatchIODestroy(batch);
  EXPECT_TRUE(machine_.recorder.calls(cufile_call::read).empty());
}

TEST_F(cufile_without_compat_mode, a_file_that_is_not_served_is_refused_once_a_gpu_is_in_use) {
  machine_.recorder.settings().serves_files = false;
  const auto buffer = allocate(mib);
  use(buffer);
  EXPECT_EQ(code_of_register(make_file("x", mib)), not_supported);
}

TEST_F(cufile_without_compat_mode, a_buffer_may_be_registered_first) {
  const auto buffer = allocate(mib);
  use(buffer);
  auto* const file = handle_of(make_file("x", mib));
  EXPECT_EQ(machine_.recorder.calls(cufile_call::register_file).size(), 1U) << "libcufile was asked";
  EXPECT_EQ(with_errno(cuFileRead(file, buffer.data(), mib / 2, mib / 4, mib / 2)), static_cast<ssize_t>(mib / 2));
  EXPECT_EQ(with_errno(cuFileRead(file, buffer.data(), mib, 0, 0)), static_cast<ssize_t>(mib));
  expect_data(buffer, mib);
  EXPECT_EQ(machine_.recorder.calls(cufile_call::register_buffer).size(), 1U);
  const auto reads = machine_.recorder.calls(cufile_call::read);
  ASSERT_EQ(reads.size(), 2U);
  EXPECT_EQ(reads[0].memory, buffer.data());
  EXPECT_EQ(reads[0].memory_offset, static_cast<std::int64_t>(mib / 2));
  EXPECT_EQ(cuFileBufDeregister(buffer.data()).err, CU_FILE_SUCCESS);
  EXPECT_EQ(machine_.recorder.calls(cufile_call::deregister_buffer).size(), 1U);
}

TEST_F(cufile_without_compat_mode, an_empty_file_is_served_as_any_other_in_either_order) {
  EXPECT_EQ(code_of_register(make_file("before", 0)), CU_FILE_SUCCESS);
  const auto buffer = allocate(mib);
  use(buffer);
  auto* const file = handle_of(make_file("after", 0));
  EXPECT_EQ(with_errno(cuFileRead(file, buffer.data(), mib, 0, 0)), 0);
  EXPECT_EQ(with_errno(cuFileWrite(file, buffer.data(), mib, 0, 0)), static_cast<ssize_t>(mib));
  machine_.recorder.settings().serves_files = false;
  EXPECT_EQ(code_of_register(make_file("not served", 0)), not_supported);
}

TEST_F(cufile_without_compat_mode, a_machine_without_gpu_direct_refuses_every_file_in_either_order) {
  machine_.lose_nvidia_fs();
  EXPECT_EQ(code_of_register(make_file("before", mib)), not_supported);
  EXPECT_EQ(code_of_register(make_file("empty", 0)), not_supported);
  const auto buffer = allocate(mib);
  use(buffer);
  EXPECT_EQ(code_of_register(make_file("after", mib)), not_supported);
}

TEST_F(cufile_without_compat_mode, host_memory_is_read_as_ever) {
  machine_.recorder.settings().serves_files = false;
  auto* const file = handle_of(make_file("x", mib));
  std::vector<std::byte> memory(mib);
  EXPECT_EQ(with_errno(cuFileRead(file, memory.data(), mib, 0, 0)), static_cast<ssize_t>(mib));
  EXPECT_EQ(pattern::first_difference(memory, file_seed, 0), std::nullopt);
}

class cufile_denylist : public cufile_without_compat_mode {
 protected:
  // allow_compat: of properties.
  void deny_the_mount_of_files(bool allow_compat) {
    const int fd = open(make_file("probe", 1), O_RDONLY);
    std::ofstream(dir_.file("cufile.json")) << R"({"properties": {"allow_compat_mode": )" << (allow_compat ? "true" : "false")
                                            << R"(}, "denylist": {"mounts": [")" << cufile::place_of(fd).mount << R"("]}})";
  }
};

TEST_F(cufile_denylist, a_file_on_a_denied_mount_is_not_read_direct) {
  deny_the_mount_of_files(true);
  const auto name = make_file("x", mib);
  const auto buffer = [&] {
    EXPECT_EQ(cuFileDriverOpen().err, CU_FILE_SUCCESS);
    return allocate(mib);
  }();
  auto* const file = handle_of(name);
  EXPECT_EQ(with_errno(cuFileRead(file, buffer.data(), mib, 0, 0)), static_cast<ssize_t>(mib));
  expect_data(buffer, mib);
  EXPECT_TRUE(machine_.recorder.calls(cufile_call::read).empty());
  const auto& owner = cufile::driver::current().owner();
  io_options forced;
  forced.cufile.only_gpu_direct = true;
  const auto told = owner.explain(*cufile::driver::current().find_file(file)->target, "cuda:0", mib, 0, false, forced);
  ASSERT_FALSE(told.ok());
  EXPECT_NE(told.error().message().find("denylist.mounts in cufile.json lists"), std::string_view::npos) << told.error().message();
}

TEST_F(cufile_denylist, a_file_on_a_denied_mount_is_refused_where_no_compat_mode_is_allowed) {
  deny_the_mount_of_files(false);
  const auto buffer = allocate(mib);
  EXPECT_EQ(code_of_register(make_file("x", mib)), not_supported);
}

TEST_F(cufile_without_compat_mode, calls_to_nvidias_library_are_as_large_as_the_settings_say) {
  cufile::settings values;
  ASSERT_TRUE(cufile::apply_text(R"({"properties": {"max_direct_io_size_kb": 256, "use_poll_mode": true}})", values).ok());
  cufile::driver::current().work_with(machine_.make_engine([&](engine_options& options) { cufile::apply(values, options); }));
  auto* const file = handle_of(make_file("x", mib));
  const auto buffer = allocate(mib);
  EXPECT_EQ(with_errno(cuFileRead(file, buffer.data(), mib, 0, 0)), static_cast<ssize_t>(mib));
  const auto reads = machine_.recorder.calls(cufile_call::read);
  EXPECT_EQ(reads.size(), 4U);
  EXPECT_TRUE(machine_.recorder.state().polls);
  EXPECT_EQ(machine_.recorder.state().max_direct_io_kib, 256U);
}

TEST_F(cufile_without_compat_mode, a_transfer_that_fails_goes_on_where_a_fallback_is_allowed) {
  std::ofstream(dir_.file("cufile.json")) << R"({"properties": {"allow_compat_mode": false, "gds_fallback_io": true}})";
  machine_.recorder.settings().fail_transfer = 1;
  machine_.recorder.settings().fail_errno = 5044;
  auto* const file = handle_of(make_file("x", mib));
  const auto buffer = allocate(mib);
  EXPECT_EQ(with_errno(cuFileRead(file, buffer.data(), mib, 0, 0)), static_cast<ssize_t>(mib));
  expect_data(buffer, mib);
}

class cufile_properties : public cufile_without_compat_mode {
 protected:
  void SetUp() override {
    cufile_without_compat_mode::SetUp();
    cufile::driver::current().look_for_nvidia_fs_in(dir_.path());
    std::ofstream(dir_.file("version")) << "version: 2.28.4\n";
    std::ofstream(dir_.file("modules")) << "nvme: 6.8.0\nrpcrdma: 4.9\nnext_year: 1\n\n";
  }
  void TearDown() override {
    cufile_without_compat_mode::TearDown();
    cufile::driver::current().look_for_nvidia_fs_in(cufile::nvidia_fs_folder);
  }
  static CUfileDrvProps_t told() {
    CUfileDrvProps_t seen{};
    EXPECT_EQ(cuFileDriverGetProperties(&seen).err, CU_FILE_SUCCESS);
    return seen;
  }
};

TEST_F(cufile_properties, nvidia_fs_tells_its_version_and_what_has_registered_with_it) {
  const auto seen = told();
  EXPECT_EQ(seen.nvfs.major_version, 2U);
  EXPECT_EQ(seen.nvfs.minor_version, 28U);
  EXPECT_EQ(seen.nvfs.dstatusflags, 1U << CU_FILE_NVME_SUPPORTED | 1U << CU_FILE_NFS_SUPPORTED);
  EXPECT_EQ(seen.nvfs.dcontrolflags, 0U) << "compatibility mode is not allowed";
  EXPECT_EQ(seen.fflags, 0xeU);
}

TEST_F(cufile_properties, control_flags_follow_the_settings) {
  std::ofstream(dir_.file("cufile.json")) << R"({"properties": {"use_poll_mode": true, "vanilla_posix_io_mode": true}})";
  EXPECT_EQ(told().nvfs.dcontrolflags, 7U);
}

TEST_F(cufile_properties, nvidia_fs_that_is_not_to_be_used_is_not_there) {
  std::ofstream(dir_.file("cufile.json")) << R"({"properties": {"force_compat_mode": true}})";
  const auto seen = told();
  EXPECT_EQ(seen.nvfs.major_version, 0U);
  EXPECT_EQ(seen.nvfs.dstatusflags, 0U);
  EXPECT_EQ(seen.nvfs.dcontrolflags, 1U << CU_FILE_ALLOW_COMPAT_MODE);
}

TEST_F(cufile_properties, a_version_that_is_not_understood_is_none) {
  for (const std::string text : {"", "version 2.28", "version: ", "version: 2", "version: 2.", "version: x.1", "version: 99999999999.1"}) {
    std::ofstream(dir_.file("version")) << text;
    EXPECT_EQ(told().nvfs.major_version, 0U) << text;
  }
}

TEST_F(cufile_properties, a_machine_that_is_direct_without_nvidia_fs_has_p2p) {
  std::filesystem::remove(dir_.file("version"));
  std::filesystem::remove(dir_.file("modules"));
  EXPECT_EQ(told().nvfs.dstatusflags, 0U);
  EXPECT_EQ(told().fflags, 0xeU | 1U << CU_FILE_P2P_SUPPORTED);
  machine_.lose_nvidia_fs();
  EXPECT_EQ(told().fflags, 0xeU);
}

}  // namespace
}  // namespace penstock::testing
