// Several links into one device: reads that also use the links of its neighbours, some of which fail.
#include <algorithm>
#include <vector>

#include "contract/contract_fixture.hpp"
#include "support/faulty_device.hpp"

namespace penstock::testing {
namespace {

constexpr std::uint64_t striped_bytes = 70 * mib + 12345;

class links_contract : public ::testing::Test {
 protected:
  void SetUp() override {
    content_ = pattern::make(striped_bytes, 3);
    store_file(directory_.file("data"), content_);
  }

  static engine_options over(unsigned links) {
    engine_options options;
    options.links = links;
    options.lanes = 4;
    return options;
  }
  core::seams doors() { return {sys::make_kernel(), nullptr, driver_}; }

  // Reads all of it in one call, and again as a row of pieces.
  void expect_bytes(const engine& from) {
    const auto file = from.open(directory_.file("data"));
    ASSERT_TRUE(file.ok()) << told(file.error());
    const auto buffer = from.allocate("host:1", striped_bytes + 20 * mib);
    ASSERT_TRUE(buffer.ok()) << told(buffer.error());
    auto* const memory = static_cast<std::byte*>(buffer->data());
    const auto* const seen = static_cast<const std::byte*>(from.cpu_address(memory, buffer->size()).value_or(nullptr));
    ASSERT_NE(seen, nullptr);
    for (int round = 0; round < 2; ++round) {
      const auto read = file->read(memory, striped_bytes, 0);
      EXPECT_TRUE(read.ok()) << told(read.error);
      EXPECT_EQ(read.bytes_done, striped_bytes);
      EXPECT_EQ(std::memcmp(seen, content_.data(), striped_bytes), 0);
    }
    std::vector<io_request> asked;
    std::size_t at = 5;
    for (std::uint64_t offset = 0; offset < striped_bytes;) {
      const auto length = std::min<std::uint64_t>(asked.size() % 3 == 2 ? 514 : 768 * kib, striped_bytes - offset);
      asked.push_back({&*file, memory + at, length, static_cast<std::int64_t>(offset), false});
      at += length + 16;
      offset += length;
    }
    const auto results = from.submit(asked).wait();
    for (std::size_t i = 0; i < asked.size(); ++i) {
      ASSERT_TRUE(results[i].ok()) << told(results[i].error);
      const auto* const place = seen + (static_cast<std::byte*>(asked[i].memory) - memory);
      ASSERT_EQ(std::memcmp(place, &content_[static_cast<std::size_t>(asked[i].offset)], asked[i].length), 0) << i;
    }
  }

  static bool mentions(const engine& asked, const std::string& path, std::string_view word) {
    const auto file = asked.open(path);
    const auto told = asked.explain(*file, "host:1", striped_bytes, 0);
    return told.ok() && std::any_of(told->remarks.begin(), told->remarks.end(),
                                    [&](const std::string& each) { return each.find(word) != std::string::npos; });
  }

  temp_dir directory_ = temp_dir::on_build_disk();
  bytes content_;
  std::shared_ptr<faulty_driver> driver_ = make_faulty_driver(device::make_host_driver(3));
};

TEST_F(links_contract, all_bytes_come_over_one_two_or_three_links) {
  for (const unsigned links : {1U, 2U, 3U}) {
    SCOPED_TRACE(links);
    auto made = core::make_engine(over(links), doors());
    ASSERT_TRUE(made.ok());
    const engine from(*std::move(made));
    expect_bytes(from);
    EXPECT_EQ(mentions(from, directory_.file("data"), "host:0"), links > 1);
    EXPECT_EQ(mentions(from, directory_.file("data"), "host:2"), links > 2);
  }
}

TEST_F(links_contract, the_others_carry_on_where_a_neighbour_fails) {
  for (const char* call : {"allocate", "make_stream", "make_event", "copy", "record", "wait_event", "reached"}) {
    for (const std::uint64_t nth : {2U, 9U}) {
      SCOPED_TRACE(::testing::Message() << call << " " << nth);
      auto made = core::make_engine(over(3), doors());
      ASSERT_TRUE(made.ok());
      const engine from(*std::move(made));
      const auto file = from.open(directory_.file("data"));
      ASSERT_TRUE(file.ok());
      const auto buffer = from.allocate("host:1", striped_bytes);
      ASSERT_TRUE(buffer.ok());
      driver_->fail(call, nth, status(errc::device, "broken"));
      const auto read = file->read(buffer->data(), striped_bytes, 0);
      const auto injected = driver_->injected();
      driver_->clear_faults();
      if (read.ok()) {
        const auto* const seen = static_cast<const std::byte*>(from.cpu_address(buffer->data(), striped_bytes).value_or(nullptr));
        EXPECT_EQ(read.bytes_done, striped_bytes);
        EXPECT_EQ(std::memcmp(seen, content_.data(), striped_bytes), 0);
      } else {
        EXPECT_EQ(read.error.code(), errc::device) << told(read.error);  // it was the device's own
        EXPECT_GT(injected, 0U);
      }
    }
  }
}

}  // namespace
}  // namespace penstock::testing
