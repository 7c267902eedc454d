// What a running kernel and the registers of PCI devices report, and the conclusions drawn from it.
#include <gtest/gtest.h>

#include <sys/syscall.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>

#include "machine/examine.hpp"
#include "support/temp_dir.hpp"
#include "sys/feature_probe.hpp"

namespace penstock::testing {
namespace {

using machine::platform_facts;

bool says(const machine::findings& found, std::string_view id) {
  return std::ranges::any_of(found.all(), [&](const auto& each) { return each.id == id; });
}

std::string reason_of(const machine::findings& found, std::string_view id) {
  const auto each = std::ranges::find(found.all(), id, &machine::finding::id);
  return each == found.all().end() ? "not said" : each->reason;
}

TEST(judge_platform, calls_that_work_are_told_of) {
  platform_facts known;
  known.features = {0, 0, 0, 0};
  const auto found = judge_platform(known);
  for (const char* id : {"cachestat.works", "io_uring.works", "memfd.works", "vm_readv.works"}) EXPECT_TRUE(says(found, id)) << id;
  EXPECT_FALSE(says(found, "kernel.unasked"));
}

TEST(judge_platform, a_call_that_is_missing_is_told_from_one_that_is_denied) {
  platform_facts known;
  known.seccomp = "off";
  known.features = {ENOSYS, ENOSYS, EPERM, EPERM};
  auto found = judge_platform(known);
  for (const char* id : {"cachestat.missing", "io_uring.missing", "memfd.denied", "vm_readv.denied"}) EXPECT_TRUE(says(found, id)) << id;
  EXPECT_EQ(found.count(machine::verdict::broken), 1U);  // memfd_create
  known.seccomp = "filter";                              // some profiles answer that there is no such call
  found = judge_platform(known);
  EXPECT_TRUE(says(found, "cachestat.denied"));
  EXPECT_TRUE(says(found, "io_uring.denied"));
  EXPECT_NE(reason_of(found, "io_uring.denied").find("Function not implemented"), std::string::npos);
}

TEST(judge_platform, a_sysctl_that_disables_io_uring_is_named) {
  platform_facts known;
  known.features = {0, EPERM, 0, 0};
  known.io_uring_disabled = 1;
  EXPECT_TRUE(says(judge_platform(known), "io_uring.disabled"));
  known.features.io_uring = 0;  // of a group that may
  EXPECT_TRUE(says(judge_platform(known), "io_uring.works"));
  known.features.io_uring = -1;
  known.is_root = true;
  EXPECT_FALSE(says(judge_platform(known), "io_uring.disabled"));
}

TEST(feature_probe, tells_what_this_kernel_does_and_that_a_call_does_not_exist) {
  const auto here = sys::probe_kernel();
  for (const int each : {here.cachestat, here.io_uring, here.memfd, here.vm_readv}) EXPECT_GE(each, 0);
  constexpr long no_call = 100000;
  const auto none = sys::probe_kernel({no_call, no_call, no_call, no_call});
  for (const int each : {none.cachestat, none.io_uring, none.memfd, none.vm_readv}) EXPECT_EQ(each, ENOSYS);
}

TEST(judge_platform, static_bar1_needs_the_open_modules_and_what_goes_with_it) {
  platform_facts known;
  known.architecture = "x86_64";
  known.driver_version = "580.95.05";
  known.devices.resize(1);
  known.devices[0].basics.address = "0000:3b:00.0";
  known.gpus.resize(1);
  known.gpus[0].address = "0000:3b:00.0";
  known.p2pdma = machine::p2pdma_kernel::built;
  known.static_bar1 = true;
  EXPECT_TRUE(says(judge_platform(known), "p2pdma.closed_driver"));
  known.open_driver = true;
  known.combines_writes = false;
  known.kaslr = false;
  auto found = judge_platform(known);
  EXPECT_TRUE(says(found, "p2pdma.ready"));
  EXPECT_FALSE(says(found, "p2pdma.kaslr"));
  EXPECT_FALSE(says(found, "p2pdma.write_combining"));
  known.kaslr = true;
  EXPECT_TRUE(says(judge_platform(known), "p2pdma.kaslr"));
  known.architecture = "aarch64";
  EXPECT_FALSE(says(judge_platform(known), "p2pdma.kaslr"));
}

TEST(judge_platform, dma_bufs_need_the_kernel_and_the_open_modules) {
  platform_facts known;
  known.driver_version = "580.95.05";
  known.devices.resize(1);
  known.devices[0].basics.address = "0000:3b:00.0";
  known.gpus.resize(1);
  known.gpus[0].address = "0000:3b:00.0";
  const auto told = [&](std::string_view id) { return says(judge_platform(known), id); };
  EXPECT_FALSE(told("dma_buf.kernel")) << "nobody has asked it";
  known.features.dma_buf = EINVAL;
  EXPECT_TRUE(told("dma_buf.kernel"));
  const auto is_slow = [](const auto& each) { return each.id == "dma_buf.kernel" && each.verdict == machine::verdict::slow; };
  EXPECT_TRUE(std::ranges::none_of(judge_platform(known).all(), is_slow)) << "nobody can mend it";
  known.features.dma_buf = ENOMEM;
  EXPECT_FALSE(told("dma_buf.kernel")) << "it has not answered";
  EXPECT_TRUE(told("dma_buf.unanswered"));
  known.features.dma_buf = EINVAL;
  known.nvidia_fs.version = "2.28";
  EXPECT_FALSE(told("dma_buf.kernel")) << "there is a way";
  known.nvidia_fs.version.clear();
  known.features.dma_buf = 0;
  EXPECT_TRUE(told("dma_buf.closed_driver"));
  known.open_driver = true;
  EXPECT_TRUE(told("dma_buf.ready"));
}

TEST(judge_libraries, a_gpu_that_lends_no_memory_is_named_where_the_kernel_would_take_it) {
  platform_facts platform;
  machine::library_facts known;
  known.driver.asked = true;
  known.driver.gpus = {{"0000:3b:00.0", "9.0", false}};
  known.cuda.emplace();
  EXPECT_FALSE(says(machine::judge_libraries(platform, known), "dma_buf.not_lent"));
  platform.features.dma_buf = 0;
  platform.open_driver = true;
  EXPECT_TRUE(says(machine::judge_libraries(platform, known), "dma_buf.not_lent"));
}

TEST(judge_file_systems, what_takes_no_dma_bufs_is_named_where_they_are_lent) {
  platform_facts platform;
  platform.gpus.resize(1);
  platform.features.dma_buf = 0;
  machine::storage_facts storage;
  storage.drives["sda"].name = "sda";
  storage.mounts.resize(1);
  storage.mounts[0].type = "ext4";
  EXPECT_FALSE(says(machine::judge_file_systems(platform, {}, storage), "dma_buf.drive"));
  platform.open_driver = true;
  const auto found = machine::judge_file_systems(platform, {}, storage);
  EXPECT_TRUE(says(found, "dma_buf.drive"));
  EXPECT_TRUE(says(found, "dma_buf.file_system"));
}

// A bridge over a network card in a made-up sysfs.
class port_test : public ::testing::Test {
 protected:
  machine::pci_bridge bridge_with(const std::string& registers) {
    const auto bridge = dir_.path() / "sys/devices/pci0000:00/0000:00:01.0";
    const auto card = bridge / "0000:01:00.0";
    const auto all = dir_.path() / "sys/bus/pci/devices";
    std::filesystem::create_directories(card);
    std::filesystem::create_directories(all);
    std::ofstream(card / "class") << "0x020000\n";
    std::ofstream(bridge / "config", std::ios::binary) << registers;
    std::error_code exists;
    std::filesystem::create_directory_symlink(std::filesystem::relative(bridge, all), all / "0000:00:01.0", exists);
    std::filesystem::create_directory_symlink(std::filesystem::relative(card, all), all / "0000:01:00.0", exists);
    const auto found = machine::gather_pci(machine::tree(dir_.path().string()));
    return found.at(0).bridges.at(0);
  }
  temp_dir dir_;
};

TEST_F(port_test, registers_that_lead_nowhere_are_read_to_their_end) {
  EXPECT_EQ(bridge_with("").acs, machine::acs_state::hidden);
  EXPECT_EQ(bridge_with(std::string(64, '\0')).acs, machine::acs_state::hidden);
  EXPECT_EQ(bridge_with(std::string(4096, '\0')).acs, machine::acs_state::none);
  EXPECT_EQ(bridge_with(std::string(4096, '\xff')).acs, machine::acs_state::none);
  std::string circle(4096, '\0');
  circle[0x34] = 0x40;
  circle[0x40] = 0x01;
  circle[0x41] = 0x40;  // the next capability is this one
  circle[0x100] = 0x01;
  circle[0x103] = 0x10;  // likewise
  EXPECT_EQ(bridge_with(circle).acs, machine::acs_state::none);
  EXPECT_FALSE(bridge_with(circle).is_switch);
}

TEST_F(port_test, access_control_counts_where_it_steers) {
  std::string registers(4096, '\0');
  registers[0x100] = 0x0d;
  EXPECT_EQ(bridge_with(registers).acs, machine::acs_state::off);
  registers[0x106] = 0x10;  // upstream forwarding alone turns nothing around
  EXPECT_EQ(bridge_with(registers).acs, machine::acs_state::off);
  registers[0x106] = 0x04;
  EXPECT_EQ(bridge_with(registers).acs, machine::acs_state::on);
}

TEST(tree, reads_what_is_there_and_nothing_else) {
  const temp_dir dir;
  std::ofstream(dir.path() / "one") << "  12 \nmore\n";
  const machine::tree from(dir.path().string());
  EXPECT_FALSE(from.is_this_machine());
  EXPECT_TRUE(machine::tree().is_this_machine());
  EXPECT_EQ(from.line("/one"), "12");
  EXPECT_EQ(from.number("/one"), 12U);
  EXPECT_FALSE(from.number("/missing"));
  EXPECT_FALSE(from.read("/missing"));
  EXPECT_FALSE(from.read("/"));  // a folder
  EXPECT_EQ(from.read("/one", 3), "  1");
  EXPECT_TRUE(from.list("/missing").empty());
  EXPECT_EQ(from.list("/"), std::vector<std::string>{"one"});
  std::filesystem::create_symlink("/etc", dir.path() / "out");
  EXPECT_EQ(from.real("/out"), "");  // leads to another machine's files
  EXPECT_EQ(machine::bytes_text(0), "0 bytes");
  EXPECT_EQ(machine::bytes_text(std::uint64_t{17} << 29), "8.5 GiB");
}

}  // namespace
}  // namespace penstock::testing
