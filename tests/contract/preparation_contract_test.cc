// file::prepare: does the setup for the first read into a device ahead of that read. Reads are the same with and without it.
#include <thread>

#include "contract/contract_fixture.hpp"
#include "support/faulty_device.hpp"
#include "support/faulty_kernel.hpp"

namespace penstock::testing {
namespace {

class preparation_contract : public ::testing::Test {
 protected:
  void SetUp() override {
    content_ = pattern::make(20 * mib + 5, 3);
    store_file(directory_.file("data"), content_);
  }

  void read_prepared(const engine& with, bool soon) {
    const auto file = with.open(directory_.file("data"));
    ASSERT_TRUE(file.ok()) << told(file.error());
    const auto buffer = with.allocate("host:1", content_.size());
    ASSERT_TRUE(buffer.ok()) << told(buffer.error());
    EXPECT_TRUE(file->prepare("host:1").ok());
    EXPECT_TRUE(file->prepare("host:1").ok());
    while (!soon && driver_->live().pinned_ranges == 0 && driver_->injected() == 0) std::this_thread::yield();
    const auto read = file->read(buffer->data(), content_.size(), 0);
    EXPECT_TRUE(read.ok()) << told(read.error);
    EXPECT_EQ(read.bytes_done, content_.size());
    const auto* const seen = with.cpu_address(buffer->data(), content_.size()).value_or(nullptr);
    EXPECT_EQ(std::memcmp(seen, content_.data(), content_.size()), 0);
  }

  engine make() { return *core::make_engine({}, {sys::make_kernel(), nullptr, driver_}); }

  temp_dir directory_ = temp_dir::on_build_disk();
  bytes content_;
  std::shared_ptr<faulty_driver> driver_ = make_faulty_driver(device::make_host_driver(2));
};

TEST_F(preparation_contract, a_read_finds_what_it_needs_or_makes_it) {
  for (const bool soon : {false, true}) read_prepared(make(), soon);
  EXPECT_TRUE(driver_->live().none());
}

// Of the slabs that a first read takes and of the large ones.
constexpr std::uint64_t prepared_bytes = (16 + 32) * mib;
constexpr std::int64_t prepared_ranges = 2;

TEST_F(preparation_contract, a_first_read_waits_for_no_more_to_be_pinned) {
  const auto with = make();
  const auto file = with.open(directory_.file("data"));
  ASSERT_TRUE(file.ok()) << told(file.error());
  const auto buffer = with.allocate("host:1", content_.size());
  ASSERT_TRUE(buffer.ok()) << told(buffer.error());
  ASSERT_TRUE(file->prepare("host:1").ok());
  while (driver_->live().pinned_ranges < prepared_ranges) std::this_thread::yield();
  EXPECT_EQ(file->read(buffer->data(), 3 * mib / 2, 0).bytes_done, 3 * mib / 2);
  EXPECT_EQ(with.stats().pinned_bytes, prepared_bytes);
  EXPECT_EQ(driver_->calls("pin"), static_cast<std::uint64_t>(prepared_ranges));
}

TEST_F(preparation_contract, what_is_pinned_first_does_not_stand_in_the_way_of_the_rest) {
  const auto with = make();
  const auto file = with.open(directory_.file("data"));
  ASSERT_TRUE(file.ok()) << told(file.error());
  driver_->fail("pin", 2, status(errc::out_of_memory, "no more pinned memory"));
  ASSERT_TRUE(file->prepare("host:0").ok());
  while (driver_->calls("pin") < 3) std::this_thread::yield();
  EXPECT_EQ(with.stats().pinned_bytes, 32 * mib);
  EXPECT_EQ(driver_->injected(), 1U);
}

TEST_F(preparation_contract, a_first_read_from_the_page_cache_makes_no_ring) {
  const auto kernel = std::make_shared<faulty_kernel>();
  const auto with = *core::make_engine({}, {kernel, nullptr, driver_});
  const auto file = with.open(directory_.file("data"));
  ASSERT_TRUE(file.ok()) << told(file.error());
  const auto buffer = with.allocate("host:0", content_.size());
  ASSERT_TRUE(buffer.ok()) << told(buffer.error());
  EXPECT_EQ(file->read(buffer->data(), content_.size(), 0).bytes_done, content_.size());
  EXPECT_EQ(kernel->count("make_ring"), 0U);
}

TEST_F(preparation_contract, an_engine_that_ends_at_once_leaves_nothing) {
  for (int round = 0; round < 20; ++round) {
    const auto with = make();
    const auto file = with.open(directory_.file("data"));
    ASSERT_TRUE(file.ok());
    EXPECT_TRUE(file->prepare("host:0").ok());
  }
  EXPECT_TRUE(driver_->live().none());
}

TEST_F(preparation_contract, what_could_not_be_made_is_made_by_the_read) {
  for (const char* call : {"pin", "make_stream", "make_event", "prepare_scatter", "allocate"}) {
    SCOPED_TRACE(call);
    const auto with = make();
    const std::uint64_t nth = std::string_view(call) == "allocate" ? 2 : 1;  // the first is the test's buffer
    driver_->fail(call, nth, status(errc::device, "broken"));
    read_prepared(with, false);
    driver_->clear_faults();
  }
}

TEST_F(preparation_contract, a_device_that_is_not_there_is_told) {
  const auto with = make();
  auto file = with.open(directory_.file("data"));
  ASSERT_TRUE(file.ok());
  EXPECT_EQ(file->prepare("host:2").code(), errc::not_found);
  EXPECT_EQ(file->prepare("gpu").code(), errc::invalid_argument);
  EXPECT_EQ(file->prepare("").code(), errc::invalid_argument);
  EXPECT_TRUE(file->close().ok());
  EXPECT_EQ(file->prepare("host:0").code(), errc::closed);
}

}  // namespace
}  // namespace penstock::testing
