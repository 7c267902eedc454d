// Other processes read while one process evicts, replaces and drops: every value that they get is complete and belongs to its key.
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <random>
#include <thread>

#include "kv/kv_fixture.hpp"

namespace penstock::kv {
namespace {

constexpr std::uint64_t shared_keys = 16;
constexpr const char* last_key = "the last";

// In a child, until the last key is there. 0: all was right.
int read_until_last(const std::string& folder, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto with = testing::made_engine(quiet_engine());
  auto of = store::open(with, folder, {.read_only = true});
  while (!of && of.error().code() == errc::not_found) {
    std::this_thread::yield();
    of = store::open(with, folder, {.read_only = true});
  }
  if (!of) return 1;
  const std::string_view last = last_key;
  const bool checksums_help = seed % 2 == 0;
  if (!checksums_help) of = store::open(with, folder, {.read_only = true, .checksums = false});
  for (std::uint64_t found = 0;;) {
    const auto key = random() % shared_keys;
    const auto name = key_of(key);
    const std::string_view view = name;
    const auto size = of->sizes(std::span(&view, 1))[0];
    if (size.ended == outcome::failed) return 2;
    bytes value(size.ended == outcome::done ? size.bytes : 10);
    const auto got = get_one(*of, name, value);
    // Replaced by one of another length in between.
    if (got.ended == outcome::failed && got.error.code() != errc::invalid_argument) return 3;
    if (got.ended == outcome::done && !version_of(key, value)) return 4;
    found += got.ended == outcome::done ? 1 : 0;
    const auto ended = of->exists(std::span(&last, 1));
    if (!ended) return 5;
    if ((*ended)[0] && found > 0) return 0;
  }
}

TEST(kv_readers, other_processes_never_see_a_part_of_a_value) {
  const testing::temp_dir directory;
  const auto folder = directory.file("store");
  std::array<pid_t, 2> readers{};
  for (std::size_t i = 0; i < readers.size(); ++i) {
    readers[i] = ::fork();
    ASSERT_GE(readers[i], 0);
    if (readers[i] == 0) _exit(read_until_last(folder, i + 1));
  }
  {
    std::mt19937_64 random(3);
    const auto with = testing::made_engine(quiet_engine());
    const auto of = made_store(with, folder, {.capacity_bytes = 40 * block_bytes});
    for (std::uint64_t version = 1; version <= 1500; ++version) {
      const auto key = random() % shared_keys;
      auto value = value_of(key, version);
      ASSERT_EQ(put_one(of, key_of(key), value).ended, outcome::done);
      if (version % 10 == 0) {
        ASSERT_NE(drop_one(of, key_of(random() % shared_keys)).ended, outcome::failed);
      }
    }
    EXPECT_GT(of.stats().evicted, 0U);
    bytes end(10);
    ASSERT_EQ(put_one(of, last_key, end).ended, outcome::done);
  }
  for (const pid_t each : readers) {
    int ended = 0;
    ASSERT_EQ(::waitpid(each, &ended, 0), each);
    EXPECT_TRUE(WIFEXITED(ended));
    EXPECT_EQ(WEXITSTATUS(ended), 0);
  }
}

}  // namespace
}  // namespace penstock::kv
