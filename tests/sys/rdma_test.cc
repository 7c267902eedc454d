// RDMA devices and GPUs, from a made-up sysfs.
#include "sys/rdma.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "support/temp_dir.hpp"

namespace penstock::testing {
namespace {

namespace fs = std::filesystem;

class rdma_test : public ::testing::Test {
 protected:
  rdma_test() { fs::create_directories(dir_.path() / "devices"); }
  // path: below /sys/devices; its last part is the address.
  fs::path add_pci(const std::string& path, int numa_node) {
    const auto folder = dir_.path() / "devices" / path;
    fs::create_directories(folder);
    fs::create_directories(dir_.path() / "bus/pci/devices");
    std::ofstream(folder / "numa_node") << numa_node << "\n";
    fs::create_directory_symlink(folder, dir_.path() / "bus/pci/devices" / folder.filename());
    return folder;
  }
  void add_gpu(const std::string& path, int numa_node = 0) { add_pci(path, numa_node); }
  // With one port for each state.
  fs::path add_nic(const std::string& path, const std::string& name, const std::vector<std::string>& states, int numa_node = 0) {
    const auto folder = add_pci(path, numa_node);
    const auto of_class = folder / "infiniband" / name;
    for (std::size_t i = 0; i < states.size(); ++i) {
      const auto port = of_class / "ports" / std::to_string(i + 1);
      fs::create_directories(port);
      std::ofstream(port / "state") << states[i] << "\n";
    }
    fs::create_directory_symlink(folder, of_class / "device");
    fs::create_directories(dir_.path() / "class/infiniband");
    fs::create_directory_symlink(of_class, dir_.path() / "class/infiniband" / name);
    return folder;
  }
  [[nodiscard]] sys::nic_choice choose(const std::string& gpu) const { return sys::choose_nic(gpu, root()); }
  [[nodiscard]] std::string root() const { return dir_.path().string(); }
  static constexpr const char* up = "4: ACTIVE";
  static constexpr const char* down = "1: DOWN";
  temp_dir dir_;
};

TEST_F(rdma_test, where_there_is_none_that_is_said) {
  add_gpu("pci0000:3a/0000:3a:01.0/0000:3b:00.0");
  const auto chosen = choose("0000:3b:00.0");
  EXPECT_TRUE(chosen.device.empty());
  EXPECT_EQ(chosen.reason, "there is no RDMA device");
  EXPECT_EQ(sys::no_rdma(root()), "there is no RDMA device");
  EXPECT_TRUE(sys::list_rdma_ports(root()).empty());
  EXPECT_TRUE(sys::list_rdma_ports("/nowhere").empty());
}

TEST_F(rdma_test, one_behind_the_same_switch_comes_first) {
  add_gpu("pci0000:3a/0000:3a:01.0/0000:3b:00.0/0000:3c:00.0/0000:3d:00.0");
  add_nic("pci0000:3a/0000:3a:02.0/0000:40:00.0", "mlx5_0", {up});
  add_nic("pci0000:3a/0000:3a:01.0/0000:3b:00.0/0000:3c:01.0/0000:3e:00.0", "mlx5_1", {up});
  for (const char* spelling : {"0000:3d:00.0", "00000000:3D:00.0"}) {
    const auto chosen = choose(spelling);
    EXPECT_EQ(chosen.device, "mlx5_1");
    EXPECT_EQ(chosen.port, 1U);
    EXPECT_EQ(chosen.reason, "mlx5_1 port 1 for the GPU at 0000:3d:00.0: they share 0000:3b:00.0");
  }
  EXPECT_EQ(sys::no_rdma(root()), "");
}

TEST_F(rdma_test, one_of_the_same_socket_comes_before_one_of_the_other) {
  add_gpu("pci0000:80/0000:80:01.0/0000:81:00.0", 1);
  add_nic("pci0000:17/0000:17:01.0/0000:18:00.0", "mlx5_0", {up}, 0);
  add_nic("pci0000:a0/0000:a0:01.0/0000:a1:00.0", "mlx5_1", {up}, 1);
  EXPECT_EQ(choose("0000:81:00.0").device, "mlx5_1");
  EXPECT_NE(choose("0000:81:00.0").reason.find("both are on NUMA node 1"), std::string::npos) << choose("0000:81:00.0").reason;
  add_nic("pci0000:80/0000:80:03.0/0000:85:00.0", "mlx5_2", {up}, 1);
  EXPECT_EQ(choose("0000:81:00.0").device, "mlx5_2");
  EXPECT_NE(choose("0000:81:00.0").reason.find("root complex"), std::string::npos) << choose("0000:81:00.0").reason;
}

TEST_F(rdma_test, a_port_that_is_down_is_passed_over) {
  add_gpu("pci0000:3a/0000:3a:01.0/0000:3b:00.0");
  add_nic("pci0000:3a/0000:3a:01.0/0000:3c:00.0", "mlx5_0", {down});
  EXPECT_TRUE(choose("0000:3b:00.0").device.empty());
  EXPECT_EQ(choose("0000:3b:00.0").reason, "no RDMA port is active: mlx5_0 port 1 is DOWN");
  add_nic("pci0000:80/0000:80:01.0/0000:81:00.0", "mlx5_1", {down, up}, 1);
  const auto chosen = choose("0000:3b:00.0");
  EXPECT_EQ(chosen.device, "mlx5_1");
  EXPECT_EQ(chosen.port, 2U);
  EXPECT_NE(chosen.reason.find("no RDMA device is closer"), std::string::npos) << chosen.reason;
}

TEST_F(rdma_test, four_gpus_have_one_each) {
  for (int i = 0; i < 4; ++i) {
    const auto bus = std::to_string(2 * i + 1);
    const auto above = "pci0000:" + bus + "0/0000:" + bus + "0:01.0/0000:" + bus + "1:00.0/";
    add_gpu(above + "0000:" + bus + "2:00.0", i / 2);
    add_nic(above + "0000:" + bus + "3:00.0", "mlx5_" + std::to_string(3 - i), {up}, i / 2);
  }
  for (int i = 0; i < 4; ++i) EXPECT_EQ(choose("0000:" + std::to_string(2 * i + 1) + "2:00.0").device, "mlx5_" + std::to_string(3 - i));
}

TEST_F(rdma_test, those_that_are_equally_near_go_by_their_names) {
  add_gpu("pci0000:3a/0000:3a:01.0/0000:3b:00.0");
  add_nic("pci0000:3a/0000:3a:02.0/0000:41:00.0", "mlx5_10", {up});
  add_nic("pci0000:3a/0000:3a:03.0/0000:42:00.0", "mlx5_2", {up});
  EXPECT_EQ(choose("0000:3b:00.0").device, "mlx5_2");
  EXPECT_EQ(choose("0000:3b:00.0").rails, (std::vector<std::string>{"mlx5_2:1", "mlx5_10:1"}));
}

TEST_F(rdma_test, a_transfer_may_go_over_those_that_are_equally_near_one_port_of_each_and_four_at_most) {
  add_gpu("pci0000:3a/0000:3a:01.0/0000:3b:00.0/0000:3c:00.0/0000:3d:00.0");
  add_nic("pci0000:3a/0000:3a:02.0/0000:40:00.0", "mlx5_0", {up});  // farther
  for (int i = 1; i <= 6; ++i) {
    add_nic("pci0000:3a/0000:3a:01.0/0000:3b:00.0/0000:3c:0" + std::to_string(i) + ".0/0000:4" + std::to_string(i) + ":00.0",
            "mlx5_" + std::to_string(i), {i == 2 ? down : up, i == 2 ? down : up});
  }
  EXPECT_EQ(choose("0000:3d:00.0").rails, (std::vector<std::string>{"mlx5_1:1", "mlx5_3:1", "mlx5_4:1", "mlx5_5:1"}));
}

TEST_F(rdma_test, a_virtual_function_is_taken_where_there_is_nothing_better) {
  add_gpu("pci0000:3a/0000:3a:01.0/0000:3b:00.0");
  const auto function = add_nic("pci0000:3a/0000:3a:02.0/0000:41:00.2", "mlx5_0", {up});
  fs::create_directory_symlink("../0000:41:00.0", function / "physfn");
  fs::create_directories(dir_.path() / "devices/pci0000:3a/0000:3a:02.0/0000:41:00.0");
  EXPECT_EQ(choose("0000:3b:00.0").device, "mlx5_0");
  EXPECT_TRUE(sys::list_rdma_ports(root()).front().is_virtual);
  add_nic("pci0000:3a/0000:3a:02.0/0000:41:00.1", "mlx5_1", {up});
  EXPECT_EQ(choose("0000:3b:00.0").device, "mlx5_1");
}

TEST_F(rdma_test, a_gpu_or_a_device_of_an_unknown_place_is_served_too) {
  fs::create_directories(dir_.path() / "class/infiniband/rxe0/ports/1");
  std::ofstream(dir_.path() / "class/infiniband/rxe0/ports/1/state") << up << "\n";
  EXPECT_EQ(choose("0000:99:00.0").device, "rxe0");
  EXPECT_NE(choose("0000:99:00.0").reason.find("is unknown"), std::string::npos) << choose("0000:99:00.0").reason;
}

class door_test : public ::testing::Test {
 protected:
  [[nodiscard]] std::string door() const { return sys::rdma_door_to_gpus((dir_.path() / "sys").string()); }
  void load_driver(const std::string& version) const {
    fs::create_directories(dir_.path() / "proc/driver/nvidia");
    std::ofstream(dir_.path() / "proc/driver/nvidia/version") << version << "\n";
  }
  temp_dir dir_;
};

TEST_F(door_test, memory_of_gpus_is_reached_by_the_module_or_by_dma_buf_of_the_open_driver) {
  EXPECT_EQ(door(), "");
  load_driver("NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.90.07  Fri May 31 09:35:42 UTC 2024");
  EXPECT_EQ(door(), "");
  load_driver("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build");
  EXPECT_EQ(door(), "dma-buf of the open kernel modules");
  fs::create_directories(dir_.path() / "sys/module/nvidia_peermem");
  EXPECT_EQ(door(), "nvidia_peermem");
}

}  // namespace
}  // namespace penstock::testing
