#include "sys/mounts.hpp"

#include <gtest/gtest.h>
#include <sys/sysmacros.h>

namespace penstock::sys::mounts_tests {
namespace {

constexpr const char* text =
    "36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue\n"
    "44 36 0:40 / /models rw,relatime shared:7 - nfs4 server:/models rw,vers=4.2,rsize=1048576,wsize=262144,hard\n"
    "45 36 0:41 / /max_read=5 rw - fuse.s3fs s3fs rw,user_id=0,group_id=0,allow_other,max_read=131072\n"
    "46 36 0:42 / /fuse rw - fuse.other other rw,user_id=0,group_id=0\n"
    "47 36 0:4 / /proc rw - proc proc rw\n"
    "broken\n"
    " - rsize=7";

TEST(mounts, the_limit_of_a_read_is_that_of_the_mount) {
  EXPECT_EQ(most_read_at_once(makedev(0, 40), text), 1048576U);
  EXPECT_EQ(most_read_at_once(makedev(0, 41), text), 131072U);
}

TEST(mounts, a_mount_that_states_no_limit_has_none) {
  EXPECT_EQ(most_read_at_once(makedev(0, 42), text), 0U);
  EXPECT_EQ(most_read_at_once(makedev(98, 0), text), 0U);
  EXPECT_EQ(most_read_at_once(makedev(0, 99), text), 0U);
  EXPECT_EQ(most_read_at_once(0, ""), 0U);
}

TEST(mounts, file_systems_of_a_disk_and_of_memory_have_no_server) {
  EXPECT_TRUE(is_from_server(0x65735546)) << "FUSE";
  EXPECT_TRUE(is_from_server(0x6969)) << "NFS";
  EXPECT_FALSE(is_from_server(0xef53)) << "ext4";
  EXPECT_FALSE(is_from_server(0x58465342)) << "XFS";
  EXPECT_FALSE(is_from_server(0x01021994)) << "tmpfs";
  EXPECT_FALSE(is_from_server(0x794c7630)) << "overlayfs";
}

}  // namespace
}  // namespace penstock::sys::mounts_tests
