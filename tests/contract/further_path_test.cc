// A path that the library does not know (heap_path): its name, number and counters, when it is chosen, and its successor.
#include <algorithm>
#include <cstdlib>
#include <string>

#include "contract/contract_fixture.hpp"
#include "contract/heap_path.hpp"
#include "core/config.hpp"

namespace penstock::testing {
namespace {

constexpr std::size_t size = 9 * mib + 5;

class further_path : public contract_fixture {
 protected:
  further_path() : contract_fixture(engine_options{}, file_home::disk, {&declared_heap}) {}
  ~further_path() override {
    heap_path_told.fails_after = ~std::uint64_t{0};
    heap_path_told.serves_nothing = false;
  }

  [[nodiscard]] static path_kind heap() { return *table().parse("heap"); }
  [[nodiscard]] static path::path_table table() {
    const std::array<const path::declaration*, 1> further{&declared_heap};
    return path::path_table(further);
  }
  guarded_memory device_memory() { return {house_, memory_place::device, size}; }
};

TEST_F(further_path, has_a_number_behind_those_of_the_library_and_a_name) {
  EXPECT_EQ(static_cast<int>(heap()), static_cast<int>(path_kind::dma_buf) + 1);
  EXPECT_EQ(table().name(heap()), "heap");
  EXPECT_FALSE(parse_path_kind("heap").ok()) << "only an engine that was given it knows it";
  const auto seen = engine_of().stats();
  EXPECT_EQ(seen.path(heap()).name, "heap");
  EXPECT_EQ(seen.path(path_kind::staged).name, "staged");
}

TEST_F(further_path, is_asked_first_by_its_rank_and_is_told_of) {
  const auto content = make_file("data", size);
  const auto from = open("data");
  auto memory = device_memory();
  const auto plan = engine_of().explain(from, house_.device(), size, 0, false);
  ASSERT_TRUE(plan.ok()) << told(plan.error());
  ASSERT_EQ(plan->parts.size(), 1U);
  EXPECT_EQ(plan->parts[0].path, heap());
  EXPECT_EQ(plan->parts[0].path_name, "heap");
  EXPECT_NE(plan->parts[0].reason.find("the tests brought it"), std::string::npos) << plan->parts[0].reason;
  const auto outcome = from.read(memory.data(), size, 0);
  EXPECT_TRUE(outcome.ok()) << told(outcome.error);
  memory.expect(content);
  EXPECT_EQ(engine_of().stats().path(heap()).bytes, size);
  EXPECT_NE(engine_of().summary().find("heap: "), std::string::npos) << engine_of().summary();
}

TEST_F(further_path, is_asked_by_explain_alone_where_it_serves_nothing) {
  heap_path_told.serves_nothing = true;
  const auto content = make_file("data", size);
  const auto from = open("data");
  auto memory = device_memory();
  heap_path_told.asked = 0;
  EXPECT_TRUE(from.read(memory.data(), size, 0).ok());
  memory.expect(content);
  EXPECT_EQ(heap_path_told.asked, 0);
  const auto plan = engine_of().explain(from, house_.device(), size, 0, false);
  ASSERT_TRUE(plan.ok()) << told(plan.error());
  EXPECT_NE(std::find(plan->remarks.begin(), plan->remarks.end(), "heap is not used: the test wants it to serve nothing"),
            plan->remarks.end());
}

TEST_F(further_path, carries_small_requests_of_callers_who_wait) {
  const auto content = make_file("data", size);
  const auto both = open_for_writing();
  auto memory = device_memory();
  const auto plan = engine_of().explain(both, house_.device(), 4096, 0, false);
  ASSERT_TRUE(plan.ok()) << told(plan.error());
  ASSERT_EQ(plan->parts.size(), 1U);
  EXPECT_EQ(plan->parts[0].path, heap());
  const int before = heap_path_told.carried_now;
  EXPECT_EQ(both.read(memory.data(), 4096, 77).bytes_done, 4096U);
  memory.expect(std::span(content).subspan(77, 4096));
  EXPECT_EQ(both.write(memory.data(), 100, 9).bytes_done, 100U);
  EXPECT_EQ(heap_path_told.carried_now, before + 2);
  EXPECT_EQ(engine_of().stats().path(heap()).bytes, 4196U);
  EXPECT_EQ(both.read(memory.data(), 8193, 0).bytes_done, 8193U);
  EXPECT_EQ(heap_path_told.carried_now, before + 2) << "that is more than it declares";
}

TEST_F(further_path, does_not_serve_memory_that_it_does_not_declare) {
  make_file("data", size);
  const auto plan = engine_of().explain(open("data"), "host", size, 0, false);
  ASSERT_TRUE(plan.ok()) << told(plan.error());
  for (const auto& part : plan->parts) EXPECT_EQ(part.path_name, "posix");
}

TEST_F(further_path, hands_what_it_cannot_carry_to_the_successor_that_it_declares) {
  const auto content = make_file("data", size);
  const auto both = open_for_writing();
  heap_path_told.fails_after = 2 * mib;
  auto memory = device_memory();
  const auto read = both.read(memory.data(), size, 0);
  EXPECT_TRUE(read.ok()) << told(read.error);
  EXPECT_EQ(read.bytes_done, size);
  memory.expect(content);
  auto seen = engine_of().stats();
  EXPECT_EQ(seen.path(heap()).bytes, 2 * mib);
  EXPECT_EQ(seen.path(heap()).fallbacks, 1U);
  EXPECT_NE(seen.path(heap()).last_fallback.find("the test wants it to fail"), std::string::npos) << seen.path(heap()).last_fallback;
  EXPECT_EQ(seen.path(path_kind::staged).bytes, size - 2 * mib);

  const auto written = pattern::make(size, 77);
  memory.fill(written);
  const auto write = both.write(memory.data(), size, 0);
  EXPECT_TRUE(write.ok()) << told(write.error);
  EXPECT_EQ(write.bytes_done, size);
  expect_file(name(), written);
  EXPECT_EQ(engine_of().stats().path(heap()).fallbacks, 2U);
}

TEST_F(further_path, fails_with_what_it_has_carried_where_it_was_asked_for) {
  const auto content = make_file("data", size);
  heap_path_told.fails_after = 2 * mib;
  auto memory = device_memory();
  io_options options;
  options.path = heap();
  const auto outcome = open("data").read(memory.data(), size, 0, options);
  EXPECT_EQ(outcome.error.code(), errc::io) << told(outcome.error);
  EXPECT_EQ(outcome.bytes_done, 2 * mib);
  memory.expect(std::span(content).first(2 * mib));
}

TEST_F(further_path, is_asked_for_by_its_name_in_the_environment) {
  ASSERT_EQ(::setenv("PENSTOCK_PATH", "heap", 1), 0);
  const auto options = core::read_environment(table());
  const auto unknown = engine_options::from_environment();
  ::unsetenv("PENSTOCK_PATH");
  ASSERT_TRUE(options.ok()) << told(options.error());
  EXPECT_EQ(options->path, heap());
  EXPECT_EQ(unknown.error().code(), errc::invalid_argument);

  open_house forced(*options, doors_with(*options, {&declared_heap}));
  const auto content = make_file("data", size);
  auto from = forced.engine().open(name());
  ASSERT_TRUE(from.ok()) << told(from.error());
  guarded_memory memory(forced, memory_place::device, size);
  EXPECT_EQ(from->read(memory.data(), size, 0).bytes_done, size);
  EXPECT_EQ(from->read(memory.data(), 100, 0).bytes_done, 100U);
  memory.expect(content);
  EXPECT_EQ(forced.engine().stats().path(heap()).bytes, size + 100);
}

TEST_F(further_path, is_told_of_memory_that_is_registered_and_of_files_that_are_closed) {
  const int remembered = heap_path_told.remembered;
  const int forgotten = heap_path_told.forgotten;
  auto memory = device_memory();
  {
    const auto kept = engine_of().register_memory(memory.data(), size);
    ASSERT_TRUE(kept.ok()) << told(kept.error());
    EXPECT_EQ(heap_path_told.remembered, remembered + 1);
  }
  EXPECT_EQ(heap_path_told.remembered, remembered);
  make_file("data", size);
  EXPECT_TRUE(open("data").close().ok());
  EXPECT_EQ(heap_path_told.forgotten, forgotten + 1);
}

TEST(path_table, an_engine_without_a_path_of_that_number_refuses_it) {
  open_house house;
  io_options options;
  options.path = static_cast<path_kind>(99);
  const temp_dir directory = temp_dir::on_build_disk();
  store_file(directory.file("data"), pattern::make(size, 1));
  auto from = house.engine().open(directory.file("data"));
  ASSERT_TRUE(from.ok()) << told(from.error());
  guarded_memory memory(house, memory_place::device, size);
  EXPECT_EQ(from->read(memory.data(), size, 0, options).error.code(), errc::unsupported);
  memory.expect_untouched();
}

}  // namespace
}  // namespace penstock::testing
