// PCI devices, from a made-up sysfs.
#include "sys/pci.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "support/temp_dir.hpp"

namespace penstock::testing {
namespace {

class pci_test : public ::testing::Test {
 protected:
  // A folder below the bridges, and the link to it that sysfs keeps in /sys/bus/pci/devices.
  void add(const std::string& bridges, const std::string& address, const std::string& class_code, const std::string& resource) {
    const auto folder = dir_.path() / "devices" / bridges / address;
    std::filesystem::create_directories(folder);
    std::filesystem::create_directories(root());
    std::ofstream(folder / "class") << class_code << "\n";
    std::ofstream(folder / "resource") << resource;
    std::ofstream(folder / "numa_node") << 1 << "\n";
    std::filesystem::create_directory_symlink(folder, std::filesystem::path(root()) / address);
  }
  [[nodiscard]] std::string root() const { return dir_.file("bus"); }
  temp_dir dir_;
};

TEST_F(pci_test, a_gpu_has_its_largest_window_and_the_bridges_above_it) {
  add("pci0000:3a/0000:3a:01.0", "0000:3b:00.0", "0x030200",
      "0x00000000e0000000 0x00000000e0ffffff 0x0000000000040200\n"
      "0x0000000000000000 0x0000000000000000 0x0000000000000000\n"
      "0x0000380000000000 0x0000381fffffffff 0x000000000014220c\n");
  for (const char* spelling : {"0000:3b:00.0", "00000000:3B:00.0"}) {
    const auto found = sys::describe_pci_device(spelling, root());
    EXPECT_EQ(found.address, "0000:3b:00.0");
    EXPECT_EQ(found.kind, pci_kind::gpu);
    EXPECT_EQ(found.numa_node, 1);
    EXPECT_EQ(found.window_bytes, std::uint64_t{128} << 30);
    EXPECT_EQ(found.bridges, std::vector<std::string>{"0000:3a:01.0"});
  }
}

TEST_F(pci_test, kinds_follow_the_base_class) {
  add("pci0000:00", "0000:01:00.0", "0x010802", "");
  add("pci0000:00", "0000:02:00.0", "0x020000", "");
  add("pci0000:00", "0000:03:00.0", "0x120000", "");
  add("pci0000:00", "0000:04:00.0", "0x060400", "");
  std::vector<pci_kind> kinds;
  for (const auto& address : sys::list_pci_addresses(root())) kinds.push_back(sys::describe_pci_device(address, root()).kind);
  EXPECT_EQ(kinds, (std::vector<pci_kind>{pci_kind::storage, pci_kind::network, pci_kind::gpu, pci_kind::other}));
}

TEST_F(pci_test, io_ports_are_no_window) {
  add("pci0000:00", "0000:01:00.0", "0x030000", "0x000000000000e000 0x000000000000efff 0x0000000000040101\n");
  EXPECT_EQ(sys::describe_pci_device("0000:01:00.0", root()).window_bytes, 0U);
}

TEST_F(pci_test, what_is_not_there_keeps_its_defaults) {
  const auto nothing = sys::describe_pci_device("0000:99:00.0", root());
  EXPECT_EQ(nothing.kind, pci_kind::other);
  EXPECT_EQ(nothing.numa_node, -1);
  EXPECT_EQ(nothing.window_bytes, 0U);
  EXPECT_TRUE(nothing.bridges.empty());
  EXPECT_EQ(sys::describe_pci_device("../../etc", root()).address, "../../etc");
  EXPECT_TRUE(sys::list_pci_addresses(root()).empty());
}

}  // namespace
}  // namespace penstock::testing
