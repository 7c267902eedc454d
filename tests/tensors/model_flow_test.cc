// model_flow: windows, limits, order, errors, cancelling and dropping.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <memory>
#include <numeric>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "core/engine_core.hpp"
#include "penstock/penstock.hpp"
#include "support/child.hpp"
#include "support/gated_kernel.hpp"
#include "tensors/model_files.hpp"

namespace penstock {
namespace {

class model_flow_test : public load_model_test {
 protected:
  model_flow_test() {
    const engine_options options = testing::without_cuda(2);
    auto doors = core::real_seams(options);
    doors.kernel = std::make_shared<testing::gated_kernel>(gate_);
    auto made = core::make_engine(options, std::move(doors));
    EXPECT_TRUE(made.ok());
    engine_ = *std::move(made);
  }
  ~model_flow_test() override { gate_.open(); }

  // Tensors of different lengths, in two files; some are empty.
  [[nodiscard]] model many(std::size_t count, std::uint64_t most_bytes) {
    for (const char* const file : {"one.safetensors", "two.safetensors"}) {
      std::vector<tensor_facts> tensors;
      for (std::size_t i = 0; i < count / 2; ++i)
        tensors.push_back({file + std::to_string(i), tensor_type::u8, {random_() % (most_bytes + 1)}});
      store_tensors(file, tensors);
    }
    return good({directory_.file("one.safetensors"), directory_.file("two.safetensors")});
  }
  // Equal tensors in one file; offset() is where each starts.
  [[nodiscard]] model equal(std::size_t count, std::uint64_t bytes) {
    std::vector<tensor_facts> tensors;
    for (std::size_t i = 0; i < count; ++i) tensors.push_back({std::to_string(100 + i), tensor_type::u8, {bytes}});
    return good({store_tensors("m", tensors)});
  }
  static std::uint64_t offset(const model_layout& layout, std::size_t i) { return layout.tensors[i].tensor.facts->offset; }
  [[nodiscard]] std::string content_at(const device_buffer& memory, const placed_tensor& which) const {
    std::string content(which.part.bytes(), '\0');
    EXPECT_TRUE(engine_.copy(content.data(), static_cast<const std::byte*>(memory.data()) + which.place, content.size()).ok());
    return content;
  }
  [[nodiscard]] const std::string& expected(const placed_tensor& which) const { return bytes_.at(which.tensor.facts->name); }
  [[nodiscard]] std::uint64_t bytes_in_flight() const {
    std::uint64_t bytes = 0;
    for (const request_info& each : engine_.requests()) bytes += each.length;
    return bytes;
  }

  testing::gate gate_;
};

TEST_F(model_flow_test, a_model_passes_through_a_small_memory) {
  const model from = many(400, 2000);
  for (const std::uint64_t window : {std::uint64_t{1}, std::uint64_t{1} << 12, std::uint64_t{1} << 16, std::uint64_t{1} << 30}) {
    const auto layout = lay_out(from, {.window_bytes = window});
    ASSERT_TRUE(layout);
    EXPECT_LE(layout->bytes, std::max<std::uint64_t>(window, 2048)) << "no more memory than the window";
    const device_buffer memory = memory_of(*layout);
    void* const there = memory.data();
    model_flow flow(engine_);
    ASSERT_TRUE(flow.add(*layout, {&there, 1}).ok());
    ASSERT_EQ(flow.size(), from.tensor_count());
    for (std::size_t i = 0; i < flow.size(); ++i) {
      const status error = flow.take(i);
      ASSERT_TRUE(error.ok()) << error.message();
      ASSERT_TRUE(content_at(memory, layout->tensors[i]) == expected(layout->tensors[i])) << i;
      flow.drop(i);
    }
    EXPECT_TRUE(flow.wait_for({}));
  }
}

TEST_F(model_flow_test, several_memories_receive_each_tensor) {
  const model from = many(100, 2000);
  const auto layout = lay_out(from, {.window_bytes = 1 << 14});
  const device_buffer one = memory_of(*layout), other = memory_of(*layout);
  void* const both[] = {one.data(), other.data()};
  model_flow flow(engine_);
  ASSERT_TRUE(flow.add(*layout, both).ok());
  for (std::size_t i = 0; i < flow.size(); ++i) {
    ASSERT_TRUE(flow.take(i).ok());
    for (const device_buffer* each : {&one, &other})
      ASSERT_TRUE(content_at(*each, layout->tensors[i]) == expected(layout->tensors[i])) << i;
    flow.drop(i);
  }
  for (const load_progress& each : flow.progress()) EXPECT_EQ(each.bytes, from.tensor_bytes());
}

TEST_F(model_flow_test, memory_in_use_is_never_written_to) {
  const model from = equal(40, 1024);
  const auto layout = lay_out(from, {.window_bytes = 8192});
  const device_buffer memory = memory_of(*layout);
  void* const there = memory.data();
  model_flow flow(engine_);
  ASSERT_TRUE(flow.add(*layout, {&there, 1}).ok());
  for (std::size_t i = 0; i < 8; ++i) {
    ASSERT_TRUE(flow.take(i).ok());
    if (i != 2) flow.drop(i);
  }
  ASSERT_TRUE(flow.take(9).ok()) << "where 1 was";
  const status refused = flow.take(10);
  EXPECT_EQ(refused.code(), errc::would_block);
  EXPECT_EQ(refused.message(), from.files()[0].path + ": tensor \"110\": its memory is in use: drop tensor \"102\" first");
  EXPECT_EQ(flow.wait().code(), errc::would_block);
  EXPECT_TRUE(content_at(memory, layout->tensors[2]) == expected(layout->tensors[2]));
  flow.drop(2);
  EXPECT_TRUE(flow.take(10).ok());
  EXPECT_TRUE(content_at(memory, layout->tensors[10]) == expected(layout->tensors[10]));
}

TEST_F(model_flow_test, the_limit_bounds_the_bytes_in_flight) {
  constexpr std::uint64_t bytes = 4096, limit = 16 * bytes;
  const model from = equal(64, bytes);
  const auto layout = lay_out(from);
  const device_buffer memory = memory_of(*layout);
  void* const there = memory.data();
  std::set<std::uint64_t> all;
  for (std::size_t i = 0; i < 64; ++i) all.insert(offset(*layout, i));
  gate_.shut(all);
  model_flow flow(engine_, {.most_bytes = limit});
  ASSERT_TRUE(flow.add(*layout, {&there, 1}).ok());
  EXPECT_EQ(bytes_in_flight(), limit) << "as much as is allowed";
  gate_.open();
  EXPECT_TRUE(flow.take(63).ok()) << "later reads start when earlier ones end, and nobody takes those";
  EXPECT_TRUE(flow.wait().ok());
  expect_all(*layout, memory);
}

TEST_F(model_flow_test, a_tensor_larger_than_the_limit_is_read) {
  const model from = equal(3, 100'000);
  const auto layout = lay_out(from);
  const device_buffer memory = memory_of(*layout);
  void* const there = memory.data();
  for (const std::uint64_t limit : {1, 50000}) {
    model_flow flow(engine_, {.most_bytes = limit});
    ASSERT_TRUE(flow.add(*layout, {&there, 1}).ok());
    ASSERT_TRUE(flow.wait().ok());
    expect_all(*layout, memory);
  }
}

TEST_F(model_flow_test, an_error_belongs_to_its_tensor) {
  const model from = equal(12, 65536);
  const auto layout = lay_out(from);
  const device_buffer memory = memory_of(*layout);
  void* const there = memory.data();
  gate_.fail(offset(*layout, 5));
  model_flow flow(engine_, {.most_bytes = 4 * 65536});  // groups of one
  ASSERT_TRUE(flow.add(*layout, {&there, 1}).ok());
  for (std::size_t i = 0; i < 12; ++i) {
    const status error = flow.take(i);
    EXPECT_EQ(error.ok(), i != 5) << error.message();
    if (i != 5) continue;
    EXPECT_EQ(error.code(), errc::io);
    EXPECT_TRUE(error.message().starts_with(from.files()[0].path + ": tensor \"105\": ")) << error.message();
  }
  EXPECT_EQ(flow.wait().code(), errc::io);
  EXPECT_EQ(flow.take(12).code(), errc::invalid_argument);
}

TEST_F(model_flow_test, a_truncated_file_fails_only_tensors_past_its_end) {
  const model from = equal(20, 1000);
  const auto layout = lay_out(from);
  std::filesystem::resize_file(from.files()[0].path, offset(*layout, 12) + 1);
  const device_buffer memory = memory_of(*layout);
  void* const there = memory.data();
  model_flow flow(engine_);
  ASSERT_TRUE(flow.add(*layout, {&there, 1}).ok());
  for (std::size_t i = 0; i < 20; ++i) EXPECT_EQ(flow.take(i).ok(), i < 12) << i;
  EXPECT_EQ(flow.wait().message(), from.files()[0].path + ": tensor \"112\": the file was truncated after it was opened");
}

TEST_F(model_flow_test, cancel_ends_all_items_that_have_not_been_read) {
  const model from = equal(64, 4096);
  const auto layout = lay_out(from);
  const device_buffer memory = memory_of(*layout);
  void* const there = memory.data();
  gate_.shut({offset(*layout, 4)});
  model_flow flow(engine_, {.most_bytes = 16 * 4096});
  ASSERT_TRUE(flow.add(*layout, {&there, 1}).ok());
  ASSERT_TRUE(flow.take(3).ok());
  gate_.await(1);
  flow.cancel();
  gate_.open();
  EXPECT_TRUE(flow.take(3).ok());
  EXPECT_EQ(flow.take(63).code(), errc::cancelled);
  EXPECT_EQ(flow.wait().code(), errc::cancelled);
  EXPECT_EQ(flow.add(from.files()[0].source, {}, {&there, 1}).error().code(), errc::cancelled);
}

TEST_F(model_flow_test, a_tensor_dropped_early_is_not_read) {
  const model from = equal(64, 4096);
  const auto layout = lay_out(from);
  const device_buffer memory = memory_of(*layout);
  void* const there = memory.data();
  gate_.shut({offset(*layout, 0)});
  model_flow flow(engine_, {.most_bytes = 4096});
  ASSERT_TRUE(flow.add(*layout, {&there, 1}).ok());
  for (std::size_t i = 1; i < 63; ++i) flow.drop(i);
  gate_.open();
  EXPECT_TRUE(flow.take(0).ok());
  EXPECT_TRUE(flow.take(63).ok());
  EXPECT_EQ(flow.take(30).code(), errc::cancelled);
  EXPECT_EQ(flow.progress()[0].bytes, 2 * 4096U);
}

TEST_F(model_flow_test, a_flow_may_end_at_any_time) {
  const model from = equal(64, 4096);
  const auto layout = lay_out(from, {.window_bytes = 1 << 16});
  const device_buffer memory = memory_of(*layout);
  void* const there = memory.data();
  for (std::size_t taken = 0; taken < 12; ++taken) {
    model_flow flow(engine_, {.most_bytes = 16 * 4096});
    ASSERT_TRUE(flow.add(*layout, {&there, 1}).ok());
    for (std::size_t i = 0; i < taken; ++i) ASSERT_TRUE(flow.take(i).ok());
  }
}

TEST_F(model_flow_test, a_forked_child_ends_without_its_parents_reads) {
  const model from = equal(4, 4096);
  const auto layout = lay_out(from);
  const device_buffer memory = memory_of(*layout);
  void* const there = memory.data();
  gate_.shut({offset(*layout, 0)});
  auto flow = std::make_unique<model_flow>(engine_);
  ASSERT_TRUE(flow->add(*layout, {&there, 1}).ok());
  gate_.await(1);
  EXPECT_EQ(testing::run_in_child([&] {
              const bool is_refused = flow->take(0).code() == errc::forked && flow->results(0).error().code() == errc::forked;
              flow->drop(0);
              flow->cancel();
              flow.reset();
              return is_refused ? 7 : 1;
            }),
            7);
  gate_.open();
  EXPECT_TRUE(flow->wait().ok());
}

TEST_F(model_flow_test, each_call_adds_its_ranges_as_one_item) {
  const model from = equal(8, 1000);
  const file& source = from.files()[0].source;
  const auto start = from.files()[0].header.tensors()[0].offset;
  std::string memory(3000, '\0');
  void* const there = memory.data();
  std::array<std::atomic<int>, 3> ended{};
  std::array<std::atomic<std::uint64_t>, 3> bytes{};
  model_flow flow(engine_, {.most_bytes = 2000});
  const auto tell = [&](std::size_t i) {
    return [&, i](const io_result& result) {
      bytes[i] = result.bytes_done;
      ++ended[i];
    };
  };
  const file_range two[] = {{start + 1000, 1000, 0}, {start, 1000, 1000}};
  const file_range behind[] = {{start + 7500, 1000, 2000}};
  ASSERT_TRUE(flow.add(source, two, {&there, 1}, tell(0)).ok());
  ASSERT_TRUE(flow.add(source, {}, {&there, 1}, tell(1)).ok());
  ASSERT_TRUE(flow.add(source, behind, {&there, 1}, tell(2)).ok());
  EXPECT_TRUE(flow.take(0).ok());
  EXPECT_TRUE(flow.take(1).ok());
  EXPECT_TRUE(flow.wait_for(2, std::chrono::hours(1)));
  EXPECT_EQ(flow.take(2).code(), errc::io);
  EXPECT_EQ((*flow.results(2))[0].bytes_done, 500U);
  EXPECT_TRUE((*flow.results(2))[0].ok()) << "a short read";
  EXPECT_EQ((*flow.results(0))[1].bytes_done, 1000U);
  EXPECT_EQ(flow.results(3).error().code(), errc::invalid_argument);
  for (const auto& each : ended) EXPECT_EQ(each.load(), 1);
  EXPECT_EQ(bytes[0].load(), 2000U);
  EXPECT_EQ(bytes[2].load(), 500U);
  EXPECT_TRUE(memory.starts_with(bytes_["101"] + bytes_["100"]));
  const auto layout = lay_out(from);
  EXPECT_EQ(flow.add(*layout, {&there, 1}).code(), errc::invalid_argument);
}

TEST_F(model_flow_test, a_closed_file_fails_each_item) {
  const model from = equal(4, 1000);
  file closed = testing::opened_file(engine_, from.files()[0].path);
  ASSERT_TRUE(closed.close().ok());
  std::string memory(1000, '\0');
  void* const there = memory.data();
  model_flow flow(engine_, {.most_bytes = 1000});
  const file_range range{0, 1000, 0};
  for (std::size_t i = 0; i < 1000; ++i) ASSERT_TRUE(flow.add(closed, {&range, 1}, {&there, 1}).ok());
  for (std::size_t i = 0; i < 1000; ++i) ASSERT_EQ(flow.take(i).code(), errc::closed);
}

TEST_F(model_flow_test, threads_take_and_drop_at_the_same_time) {
  const model from = many(800, 4000);
  const auto layout = lay_out(from);
  const device_buffer memory = memory_of(*layout);
  void* const there = memory.data();
  model_flow flow(engine_, {.most_bytes = 1 << 16});
  ASSERT_TRUE(flow.add(*layout, {&there, 1}).ok());
  std::atomic<int> wrong{0};
  {
    std::vector<std::jthread> threads;
    for (std::size_t first = 0; first < 4; ++first) {
      threads.emplace_back([&, first] {
        for (std::size_t i = first; i < flow.size(); i += 4) {
          if (first == 3) {
            flow.drop(i);
          } else if (!flow.take(i).ok() || content_at(memory, layout->tensors[i]) != expected(layout->tensors[i])) {
            ++wrong;
          }
        }
      });
    }
  }
  EXPECT_EQ(wrong.load(), 0);
}

TEST_F(model_flow_test, load_model_refuses_a_window) {
  const model from = equal(8, 1000);
  const auto layout = lay_out(from, {.window_bytes = 4096});
  const device_buffer memory = memory_of(*layout);
  void* const there = memory.data();
  EXPECT_EQ(load_model(engine_, *layout, {&there, 1}).code(), errc::invalid_argument);
}

}  // namespace
}  // namespace penstock
