// File systems and drives of made-up machines.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "machine/examine.hpp"
#include "machine/topology.hpp"
#include "support/temp_dir.hpp"

namespace penstock::testing {
namespace {

namespace fs = std::filesystem;

class storage_test : public ::testing::Test {
 protected:
  void put_file(const std::string& path, const std::string& content) const {
    fs::create_directories((dir_.path() / path).parent_path());
    std::ofstream(dir_.path() / path, std::ios::binary) << content;
  }
  void put_link(const std::string& path, const std::string& target) const {
    fs::create_directories((dir_.path() / path).parent_path());
    fs::create_directories(dir_.path() / target);
    fs::create_symlink(fs::relative(dir_.path() / target, (dir_.path() / path).parent_path()), dir_.path() / path);
  }
  [[nodiscard]] machine::storage_facts gather() const { return machine::gather_storage(machine::tree(dir_.path().string())); }
  temp_dir dir_;
};

TEST_F(storage_test, lines_that_are_no_mounts_are_passed_over) {
  put_file("proc/self/mountinfo",
           "\n"
           "29 1 8:1 / / rw\n"
           "- - - - - - -\n"
           "29 1 8:1 / / rw - ext4\n"
           "30 1 0:9 / /a\\040b\\09 rw shared:1 master:2 - xfs /dev/x\\134y\n"
           "31 1 0:9 / /proc/sys rw - xfs /dev/x rw\n");
  const auto found = gather();
  ASSERT_EQ(found.mounts.size(), 1U);
  EXPECT_EQ(found.mounts[0].point, "/a b\\09");  // not an octal number
  EXPECT_EQ(found.mounts[0].source, "/dev/x\\y");
  EXPECT_TRUE(found.mounts[0].drives.empty());
}

TEST_F(storage_test, nothing_told_is_nothing_found) {
  const auto found = gather();
  EXPECT_TRUE(found.mounts.empty());
  EXPECT_EQ(mount_of(found, "/data"), nullptr);
  EXPECT_TRUE(judge_file_systems({}, {}, found).all().empty());
}

TEST_F(storage_test, the_later_of_two_mounts_on_a_point_counts_and_the_longest_point_holds_a_path) {
  put_file("proc/self/mountinfo",
           "1 1 0:1 / / rw - ext4 /dev/a rw\n"
           "2 1 0:2 / /data rw - ext4 /dev/b rw\n"
           "3 1 0:3 / /data rw - xfs /dev/c rw,noquota,logbsize=32k\n"
           "4 1 0:4 / /data/more rw - tmpfs tmpfs rw\n");
  const auto found = gather();
  EXPECT_EQ(found.mounts.size(), 3U);
  EXPECT_EQ(mount_of(found, "/data/file")->source, "/dev/c");
  EXPECT_EQ(mount_of(found, "/data/more/file")->type, "tmpfs");
  EXPECT_EQ(mount_of(found, "/database")->point, "/");
  const auto& mount = *mount_of(found, "/data");
  EXPECT_TRUE(mount.has_option("noquota"));
  EXPECT_FALSE(mount.has_option("quota"));
  EXPECT_EQ(mount.option("logbsize"), "32k");
  EXPECT_EQ(mount.option("log"), "");
}

TEST_F(storage_test, a_partition_of_a_mapped_drive_leads_to_the_drive) {
  put_file("sys/devices/pci0/nvme0n1/nvme0n1p2/partition", "2\n");
  put_file("sys/devices/pci0/nvme0n1/queue/max_sectors_kb", "256\n");
  put_file("sys/devices/pci0/device/model", "Some Drive   \n");
  put_link("sys/devices/pci0/nvme0n1/device", "sys/devices/pci0/device");
  put_link("sys/block/nvme0n1", "sys/devices/pci0/nvme0n1");
  put_file("sys/devices/virtual/block/dm-0/dm/name", "crypt\n");
  put_link("sys/devices/virtual/block/dm-0/slaves/nvme0n1p2", "sys/devices/pci0/nvme0n1/nvme0n1p2");
  put_link("sys/dev/block/253:0", "sys/devices/virtual/block/dm-0");
  put_file("proc/self/mountinfo", "1 1 253:0 / / rw - ext4 /dev/mapper/crypt rw\n");
  const auto found = gather();
  ASSERT_EQ(found.mounts.size(), 1U);
  EXPECT_TRUE(found.mounts[0].mapped);
  EXPECT_EQ(found.mounts[0].drives, std::vector<std::string>{"nvme0n1"});
  EXPECT_EQ(found.drives.at("nvme0n1").model, "Some Drive");
  EXPECT_EQ(found.drives.at("nvme0n1").max_kib, 256U);
  EXPECT_FALSE(found.drives.at("nvme0n1").can_kib);
}

TEST_F(storage_test, devices_that_stand_on_each_other_in_a_circle_end) {
  put_link("sys/devices/virtual/block/dm-0/slaves/dm-1", "sys/devices/virtual/block/dm-1");
  put_link("sys/devices/virtual/block/dm-1/slaves/dm-0", "sys/devices/virtual/block/dm-0");
  put_link("sys/dev/block/253:0", "sys/devices/virtual/block/dm-0");
  put_file("proc/self/mountinfo", "1 1 253:0 / / rw - ext4 /dev/dm-0 rw\n");
  EXPECT_TRUE(gather().mounts.at(0).drives.empty());
}

TEST(judge_file_systems, old_and_new_numbers_of_rdma_drivers_are_told_apart) {
  machine::platform_facts platform;
  platform.ports.resize(1);
  const auto id_for = [&](const std::string& version) {
    machine::storage_facts known;
    known.rdma_driver_version = version;
    return judge_file_systems(platform, {}, known).all().at(0).id;
  };
  EXPECT_EQ(id_for(""), "ofed.in_kernel");
  for (const char* old : {"4.9-0", "5.0-0", "5"}) EXPECT_EQ(id_for(old), "ofed.old") << old;
  for (const char* recent : {"5.1-0", "5.10-2", "24.10-1.1.4"}) EXPECT_EQ(id_for(recent), "ofed.version") << recent;
}

TEST(topology, is_unknown_where_no_node_is_told) {
  machine::platform_facts known;
  known.devices.resize(2);
  known.devices[0].basics = {"0000:01:00.0", pci_kind::gpu};
  known.devices[0].vendor = machine::nvidia_vendor;
  known.devices[1].basics = {"0000:81:00.0", pci_kind::storage};
  known.devices[1].is_nvme = true;
  const auto all = neighbours(known);
  ASSERT_EQ(all.size(), 1U);
  EXPECT_EQ(all[0].relation, "unknown");
  EXPECT_EQ(all[0].what, "nvme");
}

class holes_test : public ::testing::Test {
 protected:
  static machine::findings of_machine(const std::string& by) {
    machine::findings found;
    found.add("fs.direct", "/data", {{"type", "ext4"}, {"drives", "nvme0n1"}, {"by", by}});
    return found;
  }
  static std::size_t said(const machine::findings& found, std::uint64_t size, std::uint64_t stored) {
    machine::mount_facts mount;
    mount.point = "/data";
    return judge_holes(found, mount, {"/data/file", size, stored}).count(machine::verdict::slow);
  }
};

TEST_F(holes_test, holes_matter_where_p2pdma_serves_the_file) {
  EXPECT_EQ(said(of_machine("P2PDMA"), 1 << 20, 4096), 1U);
  EXPECT_EQ(said(of_machine("P2PDMA"), 1 << 20, 1 << 20), 0U);
  EXPECT_EQ(said(of_machine("P2PDMA"), 100, 4096), 0U) << "a block is more than the file";
  EXPECT_EQ(said(of_machine("nvidia-fs"), 1 << 20, 4096), 0U);
  EXPECT_EQ(said({}, 1 << 20, 4096), 0U);
}

}  // namespace
}  // namespace penstock::testing
