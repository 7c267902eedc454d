// The contract of sources, tested on sources without a descriptor: the kernel is never asked about them, and their failures are reported
// like those of files.
#include <array>
#include <atomic>
#include <limits>

#include "contract/contract_fixture.hpp"
#include "support/faulty_kernel.hpp"

namespace penstock::testing {
namespace {

constexpr std::size_t length = 9 * mib + 5;

class source_contract : public ::testing::TestWithParam<file_home> {
 protected:
  source_contract() { files_.put("data", content_); }

  file open(const std::string& name) {
    auto opened = files_.open(house_.engine(), name, {.read = true, .write = true, .create = true, .direct_writes = true});
    EXPECT_TRUE(opened.ok()) << told(opened.error());
    return *std::move(opened);
  }
  static core::seams doors(std::shared_ptr<sys::kernel> kernel) {
    auto made = core::real_seams({});
    made.kernel = std::move(kernel);
    return made;
  }

  const bytes content_ = pattern::make(length, 1);
  std::atomic<std::uint64_t> reads_fail_from_{std::numeric_limits<std::uint64_t>::max()};
  std::atomic<std::uint64_t> writes_fail_from_{std::numeric_limits<std::uint64_t>::max()};
  memory_files files_{GetParam() == file_home::cached_memory,
                      [this](bool is_write, std::uint64_t offset) {
                        const bool fails = offset >= (is_write ? writes_fail_from_ : reads_fail_from_).load();
                        return fails ? status(errc::io, "the test refuses") : status();
                      },
                      network_to(GetParam())};
  std::shared_ptr<faulty_kernel> kernel_ = std::make_shared<faulty_kernel>();
  open_house house_{engine_options{}, doors(kernel_)};
};

TEST_P(source_contract, without_descriptors_nothing_is_asked_of_the_kernel) {
  const auto from = open("data");
  const auto to = open("copy");
  for (const auto place : {memory_place::device, memory_place::pageable}) {
    SCOPED_TRACE(to_string(place));
    for (const bool cold : {false, true}) {
      if (cold) files_.drop_cache("data", 0, 0);
      guarded_memory memory(house_, place, length);
      EXPECT_EQ(from.read(memory.data(), length, 0).bytes_done, length);
      memory.expect(content_);
      EXPECT_EQ(to.write(memory.data(), length, 0).bytes_done, length);
      EXPECT_EQ(from.read(memory.data(), 100, 7).bytes_done, 100U);
      EXPECT_EQ(from.read_async(memory.data(), 100, 7).wait().bytes_done, 100U);
      EXPECT_EQ(to.write_async(memory.data(), 100, 7).wait().bytes_done, 100U);
      const std::array<io_request, 3> asked{{{&from, memory.data(), 4096, 4096, false},
                                             {&from, memory.data() + mib, 2 * mib, 1, false},
                                             {&to, memory.data() + 4 * mib, 4096, 4096, true}}};
      for (const auto& each : house_.engine().submit(asked).wait()) EXPECT_TRUE(each.ok()) << told(each.error);
      EXPECT_TRUE(to.sync().ok());
      const auto told_plan = house_.engine().explain(from, place == memory_place::device ? house_.device() : "host", length, 0);
      EXPECT_TRUE(told_plan.ok()) << told(told_plan.error());
    }
  }
  for (const char* call : {"reopen", "describe", "file_size", "pread", "pwrite", "resident_bytes", "map_file", "sync_data"}) {
    EXPECT_EQ(kernel_->count(call), 0U) << call;
  }
}

TEST_P(source_contract, a_failure_in_the_middle_names_the_source_and_tells_how_far_it_came) {
  constexpr std::uint64_t border = 5 * mib;
  const auto both = open("data");
  const auto expect_failure = [&](const io_result& outcome) {
    EXPECT_EQ(outcome.error.code(), errc::io) << told(outcome.error);
    EXPECT_LE(outcome.bytes_done, border + 4 * mib) << "a piece that began before it";
    EXPECT_LT(outcome.bytes_done, length);
    EXPECT_NE(outcome.error.message().find(" of data: "), std::string_view::npos) << told(outcome.error);
  };
  for (const auto place : {memory_place::device, memory_place::pageable}) {
    SCOPED_TRACE(to_string(place));
    for (const bool cold : {false, true}) {
      if (cold) files_.drop_cache("data", 0, 0);
      reads_fail_from_ = border;
      guarded_memory memory(house_, place, length);
      const auto read = both.read(memory.data(), length, 0);
      expect_failure(read);
      memory.expect_old_or_new(content_, read.bytes_done);
      const auto small = both.read(memory.data(), 100, border);
      expect_failure(small);
      EXPECT_EQ(small.bytes_done, 0U);
      expect_failure(both.read_async(memory.data(), 100, border).wait());
      const std::array<io_request, 3> asked{{{&both, memory.data(), 4096, 0, false},
                                             {&both, memory.data() + 4096, 4096, static_cast<std::int64_t>(border), false},
                                             {&both, memory.data() + mib, 2 * mib, static_cast<std::int64_t>(border), false}}};
      const auto results = house_.engine().submit(asked).wait();
      EXPECT_TRUE(results.at(0).ok()) << told(results.at(0).error);
      expect_failure(results.at(1));
      expect_failure(results.at(2));
      reads_fail_from_ = std::numeric_limits<std::uint64_t>::max();

      writes_fail_from_ = border;
      const auto after = pattern::make(length, 9);
      memory.fill(after);
      const auto written = both.write(memory.data(), length, 0);
      expect_failure(written);
      const auto seen = files_.get("data");
      EXPECT_EQ(std::memcmp(seen.data(), after.data(), written.bytes_done), 0);
      EXPECT_EQ(count_foreign(seen, content_, after), 0U);
      writes_fail_from_ = std::numeric_limits<std::uint64_t>::max();
      files_.put("data", content_);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(on, source_contract, ::testing::Values(file_home::memory, file_home::cached_memory, file_home::far_memory),
                         name_of_home);

}  // namespace
}  // namespace penstock::testing
