// The limits of containers, according to the kernel's files, in each layout that Docker, Kubernetes, Slurm and systemd make.
#include "sys/cgroup.hpp"

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "sys/memory_state.hpp"

namespace penstock::sys {
namespace {

constexpr std::uint64_t mib = 1024 * 1024;

// Files of a machine by their names, and what a process in the group is to find.
struct layout {
  const char* name;
  std::map<std::string, std::string> files;
  std::optional<std::uint64_t> memory_bytes = {};
  std::optional<std::uint64_t> left_bytes = {};
  std::optional<unsigned> cores = {};
};

void PrintTo(const layout& which, std::ostream* out) { *out << which.name; }

const std::string v2_mount = "29 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";
const std::string v1_mounts =
    "30 29 0:27 / /sys/fs/cgroup/memory rw shared:5 - cgroup cgroup rw,memory\n"
    "31 29 0:28 / /sys/fs/cgroup/cpu,cpuacct rw shared:6 - cgroup cgroup rw,cpu,cpuacct\n"
    "32 29 0:29 / /sys/fs/cgroup/systemd rw shared:7 - cgroup cgroup rw,xattr,name=systemd\n";
const std::string v1_in_docker =
    "30 29 0:27 /docker/1f /sys/fs/cgroup/memory ro master:5 - cgroup cgroup rw,memory\n"
    "31 29 0:28 /docker/1f /sys/fs/cgroup/cpu,cpuacct ro master:6 - cgroup cgroup rw,cpu,cpuacct\n";
const std::string unlimited = "9223372036854771712\n";

const std::vector<layout> layouts{
    {"no_files", {}},
    {"no_limits_of_version_2",
     {{"/proc/self/cgroup", "0::/a\n"},
      {"/proc/self/mountinfo", v2_mount},
      {"/sys/fs/cgroup/a/memory.max", "max\n"},
      {"/sys/fs/cgroup/a/memory.current", "5000\n"},
      {"/sys/fs/cgroup/a/cpu.max", "max 100000\n"}}},
    {"no_limits_of_version_1",
     {{"/proc/self/cgroup", "4:memory:/a\n3:cpu,cpuacct:/a\n"},
      {"/proc/self/mountinfo", v1_mounts},
      {"/sys/fs/cgroup/memory/a/memory.limit_in_bytes", unlimited},
      {"/sys/fs/cgroup/memory/a/memory.usage_in_bytes", "5000\n"},
      {"/sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_quota_us", "-1\n"},
      {"/sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_period_us", "100000\n"}}},
    {"version_2",
     {{"/proc/self/cgroup", "0::/a/b\n"},
      {"/proc/self/mountinfo", v2_mount},
      {"/sys/fs/cgroup/a/b/memory.max", "268435456\n"},
      {"/sys/fs/cgroup/a/b/memory.current", "104857600\n"},
      {"/sys/fs/cgroup/a/b/memory.stat", "anon 1\nfile 83886080\ninactive_file 41943040\nactive_file 10485760\n"},
      {"/sys/fs/cgroup/a/b/cpu.max", "250000 100000\n"}},
     256 * mib,
     206 * mib,
     3},
    {"version_2_whose_parent_allows_less",
     {{"/proc/self/cgroup", "0::/a/b\n"},
      {"/proc/self/mountinfo", v2_mount},
      {"/sys/fs/cgroup/a/memory.max", "1048576\n"},
      {"/sys/fs/cgroup/a/memory.current", "0\n"},
      {"/sys/fs/cgroup/a/cpu.max", "50000 100000\n"},
      {"/sys/fs/cgroup/a/b/memory.max", "268435456\n"},
      {"/sys/fs/cgroup/a/b/memory.current", "0\n"},
      {"/sys/fs/cgroup/a/b/cpu.max", "800000 100000\n"}},
     mib,
     mib,
     1},
    {"version_2_whose_parent_is_full",
     {{"/proc/self/cgroup", "0::/a/b\n"},
      {"/proc/self/mountinfo", v2_mount},
      {"/sys/fs/cgroup/a/memory.max", "10000\n"},
      {"/sys/fs/cgroup/a/memory.current", "20000\n"},
      {"/sys/fs/cgroup/a/b/memory.max", "8000\n"},
      {"/sys/fs/cgroup/a/b/memory.current", "1000\n"}},
     8000,
     0},
    {"version_2_that_slows_down_above_memory_high",
     {{"/proc/self/cgroup", "0::/a\n"},
      {"/proc/self/mountinfo", v2_mount},
      {"/sys/fs/cgroup/a/memory.max", "max\n"},
      {"/sys/fs/cgroup/a/memory.high", "2097152\n"},
      {"/sys/fs/cgroup/a/memory.current", "1048576\n"}},
     2 * mib,
     mib},
    {"version_2_in_a_namespace",
     {{"/proc/self/cgroup", "0::/\n"},
      {"/proc/self/mountinfo", v2_mount},
      {"/sys/fs/cgroup/memory.max", "2097152\n"},
      {"/sys/fs/cgroup/memory.current", "0\n"},
      {"/sys/fs/cgroup/cpu.max", "800000 100000\n"}},
     2 * mib,
     2 * mib,
     8},
    {"version_2_of_a_process_outside_of_its_namespace",
     {{"/proc/self/cgroup", "0::/../other\n"}, {"/proc/self/mountinfo", v2_mount}, {"/sys/fs/cgroup/cpu.max", "100000 100000\n"}},
     {},
     {},
     1},
    {"version_2_where_docker_shows_its_own_group",
     {{"/proc/self/cgroup", "0::/docker/1f/inner\n"},
      {"/proc/self/mountinfo", "29 23 0:26 /docker/1f /sys/fs/cgroup ro - cgroup2 cgroup rw\n"},
      {"/sys/fs/cgroup/memory.max", "4194304\n"},
      {"/sys/fs/cgroup/memory.current", "0\n"},
      {"/sys/fs/cgroup/inner/memory.max", "2097152\n"},
      {"/sys/fs/cgroup/inner/memory.current", "0\n"}},
     2 * mib,
     2 * mib},
    {"version_1",
     {{"/proc/self/cgroup", "9:name=systemd:/\n4:memory:/a\n3:cpu,cpuacct:/a\n"},
      {"/proc/self/mountinfo", v1_mounts},
      {"/sys/fs/cgroup/memory/memory.limit_in_bytes", unlimited},
      {"/sys/fs/cgroup/memory/a/memory.limit_in_bytes", "268435456\n"},
      {"/sys/fs/cgroup/memory/a/memory.usage_in_bytes", "104857600\n"},
      {"/sys/fs/cgroup/memory/a/memory.stat", "inactive_file 0\ntotal_inactive_file 41943040\ntotal_active_file 10485760\n"},
      {"/sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_quota_us", "250000\n"},
      {"/sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_period_us", "100000\n"}},
     256 * mib,
     206 * mib,
     3},
    {"version_1_whose_parent_allows_less",
     {{"/proc/self/cgroup", "4:memory:/a/b\n3:cpu,cpuacct:/a/b\n"},
      {"/proc/self/mountinfo", v1_mounts},
      {"/sys/fs/cgroup/memory/a/memory.limit_in_bytes", "1048576\n"},
      {"/sys/fs/cgroup/memory/a/memory.usage_in_bytes", "4096\n"},
      {"/sys/fs/cgroup/memory/a/b/memory.limit_in_bytes", unlimited},
      {"/sys/fs/cgroup/memory/a/b/memory.usage_in_bytes", "4096\n"},
      {"/sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_quota_us", "50000\n"},
      {"/sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_period_us", "100000\n"},
      {"/sys/fs/cgroup/cpu,cpuacct/a/b/cpu.cfs_quota_us", "-1\n"},
      {"/sys/fs/cgroup/cpu,cpuacct/a/b/cpu.cfs_period_us", "100000\n"}},
     mib,
     mib - 4096,
     1},
    {"version_1_whose_ancestors_are_hidden",
     {{"/proc/self/cgroup", "4:memory:/\n"},
      {"/proc/self/mountinfo", v1_mounts},
      {"/sys/fs/cgroup/memory/memory.limit_in_bytes", unlimited},
      {"/sys/fs/cgroup/memory/memory.usage_in_bytes", "0\n"},
      {"/sys/fs/cgroup/memory/memory.stat", "hierarchical_memory_limit 1048576\n"}},
     mib,
     mib},
    {"version_1_in_docker",
     {{"/proc/self/cgroup", "4:memory:/docker/1f\n3:cpu,cpuacct:/docker/1f\n"},
      {"/proc/self/mountinfo", v1_in_docker},
      {"/sys/fs/cgroup/memory/memory.limit_in_bytes", "2097152\n"},
      {"/sys/fs/cgroup/memory/memory.usage_in_bytes", "0\n"},
      {"/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "200000\n"},
      {"/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n"}},
     2 * mib,
     2 * mib,
     2},
    {"version_1_mounted_elsewhere",
     {{"/proc/self/cgroup", "4:memory:/a\n"},
      {"/proc/self/mountinfo", "30 29 0:27 / /cgroup/mem rw - cgroup none rw,memory\n"},
      {"/cgroup/mem/a/memory.limit_in_bytes", "2097152\n"},
      {"/cgroup/mem/a/memory.usage_in_bytes", "0\n"}},
     2 * mib,
     2 * mib},
    {"both_versions_with_memory_in_the_first",
     {{"/proc/self/cgroup", "4:memory:/job\n0::/job\n"},
      {"/proc/self/mountinfo", v1_mounts + "33 29 0:30 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"},
      {"/sys/fs/cgroup/memory/job/memory.limit_in_bytes", "2097152\n"},
      {"/sys/fs/cgroup/memory/job/memory.usage_in_bytes", "0\n"},
      {"/sys/fs/cgroup/unified/job/cpu.max", "150000 100000\n"}},
     2 * mib,
     2 * mib,
     2},
    {"version_1_without_a_list_of_mounts",
     {{"/proc/self/cgroup", "4:memory:/a\n1:cpu:/a\n"},
      {"/sys/fs/cgroup/memory/a/memory.limit_in_bytes", "2097152\n"},
      {"/sys/fs/cgroup/cpu/a/cpu.cfs_quota_us", "100000\n"},
      {"/sys/fs/cgroup/cpu/a/cpu.cfs_period_us", "100000\n"}},
     2 * mib,
     {},
     1},
    {"version_2_without_a_list_of_mounts",
     {{"/sys/fs/cgroup/memory.max", "2097152\n"}, {"/sys/fs/cgroup/cpu.max", "200000 100000\n"}},
     2 * mib,
     {},
     2},
    {"files_that_say_nonsense",
     {{"/proc/self/cgroup", "nonsense\n:\n::\n4:memory\n"},
      {"/proc/self/mountinfo", "- cgroup2\n1 2 3 4 5 - cgroup2\n\n"},
      {"/sys/fs/cgroup/memory.max", "-\n"},
      {"/sys/fs/cgroup/cpu.max", "0 0\n"}}},
};

class cgroup_layout : public ::testing::TestWithParam<layout> {
 protected:
  static text_reader reader(std::map<std::string, std::string> further = {}) {
    return [files = GetParam().files, further = std::move(further)](const std::string& path) -> std::optional<std::string> {
      for (const auto* each : {&further, &files}) {
        if (const auto found = each->find(path); found != each->end()) return found->second;
      }
      return std::nullopt;
    };
  }
};

TEST_P(cgroup_layout, gives_its_tightest_limits) {
  const auto found = cgroup_limits_of(reader());
  EXPECT_EQ(found.memory_bytes, GetParam().memory_bytes);
  EXPECT_EQ(found.memory_left_bytes, GetParam().left_bytes);
  EXPECT_EQ(found.cores, GetParam().cores);
}

TEST_P(cgroup_layout, leaves_less_memory_than_the_machine_has) {
  const auto state = memory_state_of(reader({{"/proc/meminfo", "MemTotal: 1048576 kB\nMemFree: 1 kB\nMemAvailable: 524288 kB\n"}}));
  ASSERT_TRUE(state.ok()) << state.error().message();
  const auto total = GetParam().memory_bytes.value_or(1024 * mib);
  EXPECT_EQ(state->total_bytes, total);
  EXPECT_EQ(state->available_bytes, std::min({total, 512 * mib, GetParam().left_bytes.value_or(total)}));
}

INSTANTIATE_TEST_SUITE_P(each, cgroup_layout, ::testing::ValuesIn(layouts), [](const auto& info) { return info.param.name; });

TEST(memory_state, is_unknown_where_the_machine_does_not_say_what_is_available) {
  for (const char* text : {"", "MemTotal:       1000 kB\nMemFree:         100 kB\n", "MemAvailable: 1000 kB\n"}) {
    const auto read = [&](const std::string& path) { return path == "/proc/meminfo" ? std::optional<std::string>(text) : std::nullopt; };
    EXPECT_EQ(memory_state_of(read).error().code(), errc::unsupported) << text;
  }
}

TEST(memory_state, of_this_process_lies_within_its_cgroups) {
  const auto limits = cgroup_limits_now();
  const auto state = memory_state_now();
  ASSERT_TRUE(state.ok()) << state.error().message();
  EXPECT_LE(state->available_bytes, state->total_bytes);
  EXPECT_LE(state->total_bytes, limits.memory_bytes.value_or(state->total_bytes));
}

}  // namespace
}  // namespace penstock::sys
