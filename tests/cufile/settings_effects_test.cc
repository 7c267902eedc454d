// The engine options that the settings produce, and what a denylist denies.
#include "cufile/settings_effects.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <string>

#include "cufile/denial.hpp"
#include "cufile/settings.hpp"
#include "support/temp_dir.hpp"

namespace penstock::cufile {
namespace {

constexpr std::size_t one_mib = std::size_t{1} << 20;

settings asked_for(const std::string& text) {
  settings values;
  const auto lines = apply_text(text, values);
  EXPECT_TRUE(lines.ok()) << lines.error().message();
  return values;
}

engine_options applied(const std::string& text) {
  engine_options options;
  apply(asked_for(text), options);
  return options;
}

request_rules rules_for(const std::string& text) { return rules_of(asked_for(text)); }

TEST(cufile_effects, nvidias_defaults_change_nothing) {
  std::string text =
      R"({"execution": {"max_io_threads": 4, "parallel_io": true, "min_io_threshold_size_kb": 8192, "max_request_parallelism": 4},
    "properties": {"max_direct_io_size_kb": 1024, "max_device_cache_size_kb": 131072, "io_batchsize": 128, "use_poll_mode": false,
    "posix_pool_slab_size_kb": [4, 1024, 16384], "posix_pool_slab_count": [128, 64, 64], "io_priority": "default"}})";
  EXPECT_TRUE(asked_for(text).changed.empty());
  const auto options = applied(text);
  EXPECT_EQ(options.lanes, 0U);
  EXPECT_EQ(options.pinned_budget_bytes, engine_options().pinned_budget_bytes);
  EXPECT_EQ(options.gpu_direct_piece_bytes, 0U);
  EXPECT_TRUE(options.cufile.sizes.empty());
  EXPECT_TRUE(options.cufile.flags.empty());
  EXPECT_FALSE(options.use_nvtx);
  const auto asked = options_of(rules_for(text), one_mib, false, true);
  EXPECT_EQ(asked.lanes, 0U);
  EXPECT_EQ(asked.cache, cache_use::automatic);
  EXPECT_EQ(asked.priority, request_priority::normal);
  EXPECT_EQ(asked.links, 0U);
  EXPECT_TRUE(asked.gpu_direct);
  EXPECT_FALSE(asked.cufile.only_gpu_direct);
  EXPECT_EQ(most_batch_entries(asked_for(text)), 256U);
}

TEST(cufile_effects, threads_become_lanes_unless_the_environment_has_set_these) {
  EXPECT_EQ(applied(R"({"execution": {"max_io_threads": 7}})").lanes, 7U);
  EXPECT_EQ(applied(R"({"execution": {"max_io_threads": 0}})").lanes, 0U) << "that switches streams off";
  engine_options options;
  options.lanes = 3;
  apply(asked_for(R"({"execution": {"max_io_threads": 7}})"), options);
  EXPECT_EQ(options.lanes, 3U);
}

TEST(cufile_effects, the_pinned_memory_is_bounded_by_what_is_less_than_by_default) {
  EXPECT_EQ(applied(R"({"properties": {"max_device_cache_size_kb": 65536}})").pinned_budget_bytes, 64 * one_mib);
  EXPECT_EQ(applied(R"({"properties": {"max_device_cache_size_kb": 64}})").pinned_budget_bytes, 36 * one_mib);
  EXPECT_EQ(applied(R"({"properties": {"max_device_cache_size_kb": 262144}})").pinned_budget_bytes, 512 * one_mib);
  EXPECT_EQ(applied(R"({"properties": {"posix_pool_slab_size_kb": [1024], "posix_pool_slab_count": [50]}})").pinned_budget_bytes,
            50 * one_mib);
  EXPECT_EQ(
      applied(R"({"properties": {"gpu_bounce_buffer_slab_size_kb": [1024], "gpu_bounce_buffer_slab_count": [100]}})").pinned_budget_bytes,
      100 * one_mib);
}

TEST(cufile_effects, nvidias_library_is_handed_what_differs) {
  const auto options = applied(R"({"properties": {"use_poll_mode": true, "poll_mode_max_size_kb": 64, "max_direct_io_size_kb": 2048,
    "allow_compat_mode": false}})");
  EXPECT_EQ(options.gpu_direct_piece_bytes, 2 * one_mib);
  const std::vector<std::pair<int, std::size_t>> sizes{{CUFILE_PARAM_PROPERTIES_MAX_DIRECT_IO_SIZE_KB, 2048},
                                                       {CUFILE_PARAM_POLLTHRESHOLD_SIZE_KB, 64}};
  EXPECT_EQ(options.cufile.sizes, sizes);
  const std::vector<std::pair<int, bool>> flags{{CUFILE_PARAM_PROPERTIES_USE_POLL_MODE, true}};
  EXPECT_EQ(options.cufile.flags, flags) << "Penstock sets the compatibility mode itself";
}

TEST(cufile_effects, an_engine_that_was_made_before_is_remarked_on) {
  const auto asked = asked_for(R"({"execution": {"max_io_threads": 7}, "properties": {"max_device_cache_size_kb": 65536}})");
  EXPECT_EQ(not_applied(asked, engine_options()).size(), 3U);
  engine_options made;
  apply(asked, made);
  EXPECT_TRUE(not_applied(asked, made).empty());
  EXPECT_TRUE(not_applied(settings(), engine_options()).empty());
}

TEST(cufile_effects, requests_are_split_as_asked) {
  EXPECT_EQ(options_of(rules_for(R"({"execution": {"parallel_io": false}})")).lanes, 1U);
  EXPECT_EQ(options_of(rules_for(R"({"execution": {"max_request_parallelism": 2}})")).lanes, 2U);
  EXPECT_EQ(options_of(rules_for(R"({"execution": {"max_request_parallelism": 0}})")).lanes, 1U);
  const auto rules = rules_for(R"({"execution": {"min_io_threshold_size_kb": 2048}})");
  EXPECT_EQ(options_of(rules, 2 * one_mib, false, true).lanes, 1U);
  EXPECT_EQ(options_of(rules, 2 * one_mib + 1, false, true).lanes, 0U);
}

TEST(cufile_effects, cache_priority_and_links_follow) {
  EXPECT_EQ(options_of(rules_for(R"({"properties": {"force_odirect_mode": true}})")).cache, cache_use::bypass);
  EXPECT_TRUE(wants_direct_io(asked_for(R"({"properties": {"force_odirect_mode": true}})")));
  const auto vanilla = options_of(rules_for(R"({"properties": {"vanilla_posix_io_mode": true, "allow_compat_mode": false}})"));
  EXPECT_EQ(vanilla.cache, cache_use::fill);
  EXPECT_FALSE(vanilla.gpu_direct);
  EXPECT_FALSE(vanilla.cufile.only_gpu_direct);
  EXPECT_EQ(options_of(rules_for(R"({"properties": {"io_priority": "LOW"}})")).priority, request_priority::background);
  EXPECT_EQ(options_of(rules_for(R"({"properties": {"io_priority": "high"}})")).priority, request_priority::normal);
  EXPECT_EQ(options_of(rules_for(R"({"miscellaneous": {"skip_topology_detection": true}})")).links, 1U);
  EXPECT_EQ(most_batch_entries(asked_for(R"({"properties": {"io_batchsize": 16}})")), 16U);
}

TEST(cufile_effects, gpu_direct_or_nothing_may_fall_back_where_that_is_asked_for) {
  EXPECT_TRUE(options_of(rules_for(R"({"properties": {"allow_compat_mode": false}})")).cufile.only_gpu_direct);
  const auto falls_back = options_of(rules_for(R"({"properties": {"allow_compat_mode": false, "gds_fallback_io": true}})"));
  EXPECT_TRUE(falls_back.gpu_direct);
  EXPECT_FALSE(falls_back.cufile.only_gpu_direct);
}

TEST(cufile_effects, unaligned_writes_go_as_a_whole_where_that_is_asked_for) {
  const auto rules = rules_for(R"({"fs": {"generic": {"posix_unaligned_writes": true}}})");
  EXPECT_FALSE(options_of(rules, one_mib, true, false).gpu_direct);
  EXPECT_TRUE(options_of(rules, one_mib, true, true).gpu_direct);
  EXPECT_TRUE(options_of(rules, one_mib, false, false).gpu_direct);
}

// --- denylist

constexpr std::string_view some_mounts =
    "24 30 0:22 / /sys rw,relatime - sysfs sysfs rw\n"
    "36 35 98:0 /mnt1 /mnt2/a\\040b rw,noatime master:1 shared:2 - ext3 /dev/root rw,errors=continue\n"
    "37 35 0:45 / /scratch rw - lustre 10.0.0.1@o2ib:/scratch rw\n";

TEST(cufile_denial, a_mount_is_found_by_its_id) {
  const auto found = find_mount(some_mounts, "36");
  ASSERT_TRUE(found);
  EXPECT_EQ(found->mount, "/mnt2/a b");
  EXPECT_EQ(found->filesystem, "ext3");
  EXPECT_EQ(found->devices, std::vector<std::string>{"/dev/root"});
  EXPECT_TRUE(find_mount(some_mounts, "37")->devices.empty());
  EXPECT_FALSE(find_mount(some_mounts, "3"));
}

TEST(cufile_denial, each_list_names_what_it_denies) {
  const file_place place{"/data", "ext4", {"/dev/nvme0n1p1", "/dev/nvme0n1"}, "nvme"};
  EXPECT_EQ(denial({}, place), "");
  EXPECT_EQ(denial({.mounts = {"/data/"}}, place), "denylist.mounts in cufile.json lists /data/");
  EXPECT_EQ(denial({.filesystems = {"xfs", "ext4"}}, place), "denylist.filesystems in cufile.json lists ext4");
  EXPECT_EQ(denial({.devices = {"nvme0n1"}}, place), "denylist.devices in cufile.json lists /dev/nvme0n1");
  EXPECT_EQ(denial({.devices = {"/dev/nvme0n1p1"}}, place), "denylist.devices in cufile.json lists /dev/nvme0n1p1");
  EXPECT_EQ(denial({.drivers = {"nvme"}}, place), "denylist.drivers in cufile.json lists nvme");
  EXPECT_EQ(denial({.drivers = {"nvme_rdma"}, .devices = {"nvme0"}, .mounts = {"/dat"}, .filesystems = {"ext"}}, place), "");
  EXPECT_EQ(denial({.drivers = {""}, .filesystems = {""}}, file_place{}), "") << "what is not known is not denied";
}

TEST(cufile_denial, a_file_that_is_open_lies_on_a_mount) {
  const testing::temp_dir folder;
  const int fd = ::open(folder.file("x").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  ASSERT_GE(fd, 0);
  const auto place = place_of(fd);
  ::close(fd);
  EXPECT_TRUE(place.mount.starts_with("/"));
  EXPECT_FALSE(place.filesystem.empty());
}

}  // namespace
}  // namespace penstock::cufile
