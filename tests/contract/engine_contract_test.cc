// Engines: options, environment variables, moves, sharing and forks.
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <thread>

#include "contract/contract_fixture.hpp"
#include "support/faulty_device.hpp"

namespace penstock::testing {
namespace {

// A variable of the environment for the time of a test.
class scoped_variable {
 public:
  scoped_variable(const char* name, const char* value) : name_(name) {
    const char* before = std::getenv(name);
    if (before != nullptr) before_ = before;
    ::setenv(name, value, 1);
  }
  scoped_variable(const scoped_variable&) = delete;
  scoped_variable& operator=(const scoped_variable&) = delete;
  ~scoped_variable() {
    if (before_) {
      ::setenv(name_, before_->c_str(), 1);
    } else {
      ::unsetenv(name_);
    }
  }

 private:
  const char* name_;
  std::optional<std::string> before_;
};

TEST(engine_environment, values_are_taken_over) {
  const scoped_variable path("PENSTOCK_PATH", "staged");
  const scoped_variable prefer("PENSTOCK_PREFER", "cpu");
  const scoped_variable lanes("PENSTOCK_LANES", "3");
  const scoped_variable pinned("PENSTOCK_PINNED_MIB", "100");
  const scoped_variable cuda("PENSTOCK_CUDA", "0");
  const scoped_variable rings("PENSTOCK_IO_URING", "0");
  const scoped_variable library("PENSTOCK_CUFILE_LIBRARY", "/nowhere/libcufile.so");
  const auto made = engine::create();
  ASSERT_TRUE(made.ok()) << told(made.error());
  EXPECT_EQ(made->options().path, path_kind::staged);
  EXPECT_EQ(made->options().prefer, preference::cpu);
  EXPECT_EQ(made->options().lanes, 3U);
  EXPECT_EQ(made->options().pinned_budget_bytes, 100 * mib);
  EXPECT_FALSE(made->options().use_cuda);
  EXPECT_FALSE(made->options().use_io_uring);
  EXPECT_EQ(made->options().cufile_library, "/nowhere/libcufile.so");
  EXPECT_EQ(made->devices().size(), 1U);
  EXPECT_FALSE(made->cuda_status().ok());
}

TEST(engine_environment, empty_values_are_the_defaults) {
  std::vector<std::unique_ptr<scoped_variable>> empty;
  for (const char* name : {"PENSTOCK_PATH", "PENSTOCK_PREFER", "PENSTOCK_LANES", "PENSTOCK_PINNED_MIB", "PENSTOCK_CUDA",
                           "PENSTOCK_IO_URING", "PENSTOCK_CUFILE_LIBRARY"})
    empty.push_back(std::make_unique<scoped_variable>(name, ""));
  const auto options = engine_options::from_environment();
  ASSERT_TRUE(options.ok()) << told(options.error());
  const engine_options defaults;
  EXPECT_EQ(options->path, defaults.path);
  EXPECT_EQ(options->lanes, defaults.lanes);
  EXPECT_EQ(options->pinned_budget_bytes, defaults.pinned_budget_bytes);
  EXPECT_TRUE(options->use_cuda);
  EXPECT_TRUE(options->use_io_uring);
}

TEST(engine_environment, malformed_values_are_named) {
  struct wrong {
    const char* name;
    const char* value;
  };
  for (const auto& [variable, value] :
       {wrong{"PENSTOCK_PATH", "fast"}, wrong{"PENSTOCK_PATH", "Staged"}, wrong{"PENSTOCK_PREFER", "gpu"}, wrong{"PENSTOCK_LANES", "-1"},
        wrong{"PENSTOCK_LANES", "65"}, wrong{"PENSTOCK_LANES", "4 "}, wrong{"PENSTOCK_LANES", "many"},
        wrong{"PENSTOCK_LANES", "99999999999999999999"}, wrong{"PENSTOCK_PINNED_MIB", "1"}, wrong{"PENSTOCK_PINNED_MIB", "512M"},
        wrong{"PENSTOCK_PINNED_MIB", "1e3"}, wrong{"PENSTOCK_CUDA", "yes"}, wrong{"PENSTOCK_CUDA", "2"},
        wrong{"PENSTOCK_IO_URING", "false"}}) {
    const scoped_variable set(variable, value);
    const auto made = engine::create();
    ASSERT_FALSE(made.ok()) << variable << "=" << value;
    EXPECT_EQ(made.error().code(), errc::invalid_argument);
    EXPECT_NE(made.error().message().find(variable), std::string_view::npos) << told(made.error());
  }
}

TEST(engine_options_test, values_out_of_range_are_invalid_arguments) {
  engine_options options;
  options.lanes = 65;
  EXPECT_EQ(engine::create(options).error().code(), errc::invalid_argument);
  options = {};
  options.pinned_budget_bytes = 1 * mib;
  EXPECT_EQ(engine::create(options).error().code(), errc::invalid_argument);
}

class engine_contract : public contract_fixture {
 protected:
  // Reads a file of pattern bytes into device memory through an engine of the given options.
  void check_options(const engine_options& options) {
    open_house house(options);
    const auto content = make_file("data", 9 * mib + 5);
    for (const bool cold : {false, true}) {
      if (cold) drop_cache(name());
      auto both = house.engine().open(name(), {.read = true, .write = true, .direct_writes = true});
      ASSERT_TRUE(both.ok()) << told(both.error());
      for (const std::uint64_t length : {std::uint64_t{100}, 200 * kib, 1 * mib, content.size()}) {
        guarded_memory memory(house, memory_place::device, length);
        const auto got = both->read(memory.data(), length, 0);
        EXPECT_TRUE(got.ok()) << told(got.error);
        memory.expect(std::span(content).first(length));
        const auto put = both->write(memory.data(), length, 0);
        EXPECT_TRUE(put.ok()) << told(put.error);
      }
      expect_file(name(), content);
    }
    const auto seen = house.engine().stats();
    EXPECT_LE(seen.pinned_peak_bytes, options.pinned_budget_bytes);
  }
};

TEST_F(engine_contract, one_lane_is_enough) {
  engine_options options;
  options.lanes = 1;
  check_options(options);
}

TEST_F(engine_contract, it_works_without_io_uring) {
  engine_options options;
  options.use_io_uring = false;
  check_options(options);
}

TEST_F(engine_contract, the_least_pinned_memory_is_enough) {
  engine_options options;
  options.pinned_budget_bytes = staging::least_budget_bytes;
  check_options(options);
}

TEST_F(engine_contract, preferences_change_how_not_what) {
  for (const auto prefer : {preference::speed, preference::cpu}) {
    engine_options options;
    options.prefer = prefer;
    check_options(options);
  }
}

TEST_F(engine_contract, a_moved_from_engine_is_closed) {
  const auto content = make_file("data", 100);
  engine second = std::move(engine_of());
  const engine& gone = engine_of();
  EXPECT_EQ(gone.open(name()).error().code(), errc::closed);
  EXPECT_EQ(gone.adopt(0).error().code(), errc::closed);
  EXPECT_EQ(gone.allocate("host:0", 100).error().code(), errc::closed);
  EXPECT_EQ(gone.cuda_status().code(), errc::closed);
  EXPECT_TRUE(gone.devices().empty());
  bytes target(100);
  EXPECT_EQ(gone.copy(target.data(), content.data(), 100).code(), errc::closed);
  EXPECT_EQ(gone.register_memory(target.data(), 100).error().code(), errc::closed);
  auto from = second.open(name());
  ASSERT_TRUE(from.ok()) << told(from.error());
  EXPECT_EQ(gone.explain(*from, "", 10, 0).error().code(), errc::closed);
  const std::array<io_request, 1> asked{{{&*from, target.data(), 100, 0, false}}};
  EXPECT_TRUE(gone.submit(asked).done());
  EXPECT_EQ(gone.stats().reads, 0U);
  (void)gone.options();
  EXPECT_EQ(from->read(target.data(), 100, 0).bytes_done, 100U);
  EXPECT_EQ(target, content);
}

TEST_F(engine_contract, engines_do_not_disturb_each_other) {
  const auto content = make_file("data", 6 * mib + 1);
  open_house other;
  const auto read_often = [&](open_house& house) {
    auto from = house.engine().open(name());
    ASSERT_TRUE(from.ok()) << told(from.error());
    for (int i = 0; i < 6; ++i) {
      guarded_memory memory(house, memory_place::device, content.size(), 1);
      const auto outcome = from->read(memory.data(), content.size(), 0);
      EXPECT_TRUE(outcome.ok()) << told(outcome.error);
      memory.expect(content);
      if (i == 2) drop_cache(name());
    }
  };
  std::thread second([&] { read_often(other); });
  read_often(house_);
  second.join();
  EXPECT_EQ(house_.engine().stats().reads, 6U);
  EXPECT_EQ(other.engine().stats().reads, 6U);
}

TEST_F(engine_contract, the_shared_engine_is_one) {
  const auto content = make_file("data", mib);
  const auto first = engine::shared();
  const auto second = engine::shared();
  ASSERT_TRUE(first.ok() && second.ok());
  auto from = first->open(name());
  ASSERT_TRUE(from.ok()) << told(from.error());
  bytes target(mib);
  EXPECT_EQ(from->read(target.data(), mib, 0).bytes_done, mib);
  EXPECT_EQ(second->stats().reads, 1U);
}

TEST_F(engine_contract, explain_says_why_in_words) {
  make_file("data", 16 * mib);
  const auto from = open("data");
  (void)contents_of(name());
  const auto hot = engine_of().explain(from, house_.device(), 16 * mib, 0);
  ASSERT_TRUE(hot.ok()) << told(hot.error());
  EXPECT_EQ(hot->cached_bytes, 16 * mib);
  EXPECT_FALSE(hot->remarks.empty());
  for (const std::string_view device : {"", "host"}) {
    const auto on_host = engine_of().explain(from, device, 16 * mib, 0);
    ASSERT_TRUE(on_host.ok()) << told(on_host.error());
    for (const auto& part : on_host->parts) EXPECT_EQ(part.path, path_kind::posix);
  }
  EXPECT_EQ(engine_of().explain(from, house_.device(), 1, -1).error().code(), errc::invalid_argument);
  EXPECT_TRUE(engine_of().explain(from, house_.device(), 1, 0, true).ok()) << "a question needs no right to write";
  for (const char* wrong : {"cuda:999", "host:1", "tpu:0", "cuda:", "cuda:x"}) {
    const auto unknown = engine_of().explain(from, wrong, mib, 0).error();
    EXPECT_TRUE(unknown.code() == errc::not_found || unknown.code() == errc::invalid_argument) << wrong << ": " << told(unknown);
    EXPECT_NE(unknown.message().find(wrong), std::string_view::npos) << told(unknown);
    EXPECT_NE(unknown.message().find("host:0"), std::string_view::npos) << told(unknown);
  }
  // A cold one too goes through the page cache, where its caller carries it.
  drop_cache(name());
  const auto small = engine_of().explain(from, house_.device(), 128 * kib, 4096);
  ASSERT_TRUE(small.ok()) << told(small.error());
  ASSERT_EQ(small->parts.size(), 1U);
  EXPECT_EQ(small->parts[0].path, path_kind::staged);
  EXPECT_NE(small->parts[0].reason.find("caller's thread"), std::string::npos) << small->parts[0].reason;
  const auto behind = engine_of().explain(from, house_.device(), 100, static_cast<std::int64_t>(16 * mib));
  ASSERT_TRUE(behind.ok());
  EXPECT_TRUE(behind->parts.empty());
}

TEST_F(engine_contract, explain_says_of_many_runs_in_the_page_cache_how_much_they_are) {
  make_file("data", 64 * mib);
  const auto from = open("data");
  drop_cache(name());
  const auto cold = engine_of().explain(from, house_.device(), 64 * mib, 0);
  ASSERT_TRUE(cold.ok()) << told(cold.error());
  if (cold->cached_bytes != 0U) GTEST_SKIP() << "this file system keeps its pages";
  const int fd = ::open(name().c_str(), O_RDONLY | O_CLOEXEC);
  ASSERT_EQ(::posix_fadvise(fd, 0, 0, POSIX_FADV_RANDOM), 0);
  bytes target(4 * mib);
  for (std::size_t at = 0; at < 64 * mib; at += 8 * mib) ASSERT_EQ(::pread(fd, target.data(), 4 * mib, static_cast<off_t>(at)), 4 * mib);
  ::close(fd);
  const auto half = engine_of().explain(from, house_.device(), 64 * mib, 0);
  ASSERT_TRUE(half.ok()) << told(half.error());
  EXPECT_LE(half->parts.size(), 2U);
  EXPECT_EQ(half->parts.front().offset, 0U);
  EXPECT_EQ(half->parts.back().offset + half->parts.back().length, 64 * mib);
  EXPECT_NE(half->parts.front().reason.find(" MiB in the page cache, in "), std::string::npos) << half->parts.front().reason;
  EXPECT_NE(half->parts.front().reason.find(" runs; the rest: "), std::string::npos) << half->parts.front().reason;
}

TEST_F(engine_contract, explain_says_once_that_there_is_no_gpu) {
  make_file("data", mib);
  const auto plan = engine_of().explain(open("data"), "host:0", mib, 0);
  ASSERT_TRUE(plan.ok()) << told(plan.error());
  EXPECT_LE(std::ranges::count_if(plan->remarks, [](const std::string& each) { return each.find("no GPU") != std::string::npos; }), 1);
}

TEST_F(engine_contract, a_device_that_cannot_be_described_is_listed_with_the_reason) {
  const auto host = make_faulty_driver(device::make_host_driver());
  open_house house({}, core::seams{sys::make_kernel(), nullptr, host});
  host->fail("describe", 1, {errc::out_of_memory, "no descriptors"});
  const auto without = house.engine().devices();
  ASSERT_EQ(without.size(), 1U);
  EXPECT_EQ(without[0].name, "host:0");
  EXPECT_EQ(without[0].description, "no descriptors");
  EXPECT_EQ(without[0].memory_bytes, 0U);
  EXPECT_GT(house.engine().devices().at(0).memory_bytes, 0U);
}

// A child says which of its checks failed, by its number; 0 when none did. It ends itself, should it hang.
template <class Body>
int in_child(Body body) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(100);
    ::_exit(body());
  }
  int outcome = 0;
  if (child < 0 || ::waitpid(child, &outcome, 0) != child) return -1;
  return WIFEXITED(outcome) ? WEXITSTATUS(outcome) : -WTERMSIG(outcome);
}

TEST_F(engine_contract, a_forked_child_gets_clear_errors_and_an_engine_of_its_own) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the thread sanitizer allows no threads in a child of a process that has some";
#endif
  const auto content = make_file("data", 4 * mib);
  const auto both = open_for_writing();
  guarded_memory memory(house_, memory_place::device, 4 * mib);
  ASSERT_TRUE(both.read(memory.data(), 4 * mib, 0).ok());  // lanes and slabs are there
  auto shared = engine::shared();
  ASSERT_TRUE(shared.ok()) << told(shared.error());
  auto under_way = both.read_async(memory.data(), 4 * mib, 0);
  auto batch_under_way = engine_of().submit({});

  const int failed = in_child([&] {
    int step = 0;
    const auto is_forked = [&](const status& outcome) {
      ++step;
      return outcome.code() == errc::forked;
    };
    bytes target(4 * mib);
    if (!is_forked(both.read(target.data(), 10, 0).error)) return step;
    if (!is_forked(both.read(memory.data(), 4 * mib, 0).error)) return step;
    if (!is_forked(both.write(target.data(), 10, 0).error)) return step;
    int called = 0;
    if (!is_forked(both.read_async(target.data(), 4 * mib, 0, {}, [&](const io_result&) { ++called; }).wait().error)) return step;
    if (called != 1) return 50;
    const std::array<io_request, 1> asked{{{&both, target.data(), 10, 0, false}}};
    if (!is_forked(engine_of().submit(asked).wait().at(0).error)) return step;
    if (!is_forked(engine_of().open(name()).error())) return step;
    if (!is_forked(engine_of().adopt(0).error())) return step;
    if (!is_forked(engine_of().allocate(house_.device(), 4096).error())) return step;
    if (!is_forked(engine_of().copy(target.data(), memory.data(), 10))) return step;
    if (!is_forked(engine_of().register_memory(target.data(), 10).error())) return step;
    if (!is_forked(engine_of().explain(both, house_.device(), 10, 0).error())) return step;
    const std::size_t length = 10;
    const std::int64_t offset = 0;
    if (!is_forked(both.read_on_stream({.memory = memory.data(), .length = &length, .offset = &offset}))) return step;
    under_way.cancel();
    batch_under_way.cancel();
    if (const auto outcome = under_way.wait(); !outcome.ok() && outcome.error.code() != errc::forked) return 60;
    if (!batch_under_way.wait().empty()) return 61;

    const auto own = engine::shared();
    if (!own.ok()) return 70;
    auto from = own->open(name());
    if (!from.ok()) return 71;
    if (from->read(target.data(), target.size(), 0).bytes_done != target.size()) return 72;
    if (target != content) return 73;
    auto on_device = own->allocate("host:0", 4 * mib);
    if (!on_device.ok()) return 74;
    if (from->read(on_device->data(), 4 * mib, 0).bytes_done != 4 * mib) return 75;
    bytes back(4 * mib);
    if (!own->copy(back.data(), on_device->data(), back.size()).ok() || back != content) return 76;
    return 0;
  });
  EXPECT_EQ(failed, 0);

  EXPECT_TRUE(under_way.wait().ok());
  memory.expect(content);
  EXPECT_TRUE(both.read(memory.data(), 4 * mib, 0).ok()) << "the parent is unharmed";
}

TEST_F(engine_contract, a_child_may_let_go_of_all_it_inherited) {
  const auto content = make_file("data", 4 * mib);
  std::optional<file> both = open_for_writing();
  std::optional<guarded_memory> memory(std::in_place, house_, memory_place::device, 4 * mib);
  ASSERT_TRUE(both->read(memory->data(), 4 * mib, 0).ok());
  auto under_way = both->read_async(memory->data(), 4 * mib, 0);
  const int failed = in_child([&] {
    under_way = {};
    both.reset();
    memory.reset();
    house_.end();
    return 0;
  });
  EXPECT_EQ(failed, 0);
  EXPECT_TRUE(under_way.wait().ok());
  memory->expect(content);
}

// More requests at once than there are slabs: each is cut into waves whose pieces share a slab.
class engine_under_load : public ::testing::Test {
 protected:
  static constexpr std::uint64_t seed = 3;
  static constexpr std::uint64_t length = mib;  // of a request

  static engine_options few_slabs(unsigned lanes) {
    engine_options options;
    options.lanes = lanes;
    options.pinned_budget_bytes = staging::least_budget_bytes;
    return options;
  }
  bytes make_file(std::size_t size) {
    auto content = pattern::make(size, seed);
    store_file(file_, content);
    return content;
  }
  // Request i has read the part i % parts of the file to its own place in memory.
  static void expect_parts(open_house& house, const std::byte* memory, std::size_t requests, std::size_t parts) {
    bytes seen(length);
    for (std::size_t i = 0; i < requests; ++i) {
      ASSERT_TRUE(house.engine().copy(seen.data(), memory + i * length, length).ok());
      ASSERT_EQ(pattern::first_difference(seen, seed, i % parts * length), std::nullopt) << i;
    }
  }

  temp_dir directory_ = temp_dir::on_build_disk();
  std::string file_ = directory_.file("data");
};

TEST_F(engine_under_load, many_reads_in_flight_share_few_slabs) {
  constexpr std::size_t requests = 256;
  make_file(4 * length);
  for (const unsigned lanes : {2U, 3U, 8U}) {
    open_house house(few_slabs(lanes));
    auto from = house.engine().open(file_);
    ASSERT_TRUE(from.ok());
    const auto memory = house.engine().allocate(house.device(), requests * length);
    ASSERT_TRUE(memory.ok()) << told(memory.error());
    auto* const base = static_cast<std::byte*>(memory->data());
    std::vector<operation> under_way;
    for (std::size_t i = 0; i < requests; ++i) {
      under_way.push_back(from->read_async(base + i * length, length, static_cast<std::int64_t>(i % 4 * length)));
    }
    for (auto& each : under_way) EXPECT_EQ(each.wait().bytes_done, length);
    expect_parts(house, base, requests, 4);
  }
}

// The same with callers that wait, and lend a hand with their own pieces.
TEST_F(engine_under_load, many_waiting_readers_share_few_slabs) {
  constexpr std::size_t callers = 48;
  make_file(4 * length);
  for (const unsigned lanes : {2U, 8U}) {
    open_house house(few_slabs(lanes));
    auto from = house.engine().open(file_);
    ASSERT_TRUE(from.ok());
    const auto memory = house.engine().allocate(house.device(), callers * length);
    ASSERT_TRUE(memory.ok()) << told(memory.error());
    auto* const base = static_cast<std::byte*>(memory->data());
    std::vector<std::thread> crew;
    for (std::size_t i = 0; i < callers; ++i) {
      crew.emplace_back([&, i] {
        for (int round = 0; round < 16; ++round) {
          const auto outcome = from->read(base + i * length, length, static_cast<std::int64_t>(i % 4 * length));
          EXPECT_EQ(outcome.bytes_done, length) << told(outcome.error);
        }
      });
    }
    for (auto& each : crew) each.join();
    expect_parts(house, base, callers, 4);
  }
}

// Reads, cached and not, writes of both kinds and batches, all at once.
TEST_F(engine_under_load, everything_at_once_shares_few_slabs) {
  constexpr std::size_t requests = 96;
  constexpr std::uint64_t small = 4 * kib;
  const auto content = make_file(requests * length);
  for (const bool cold : {false, true}) {
    open_house house(few_slabs(2));
    if (cold) drop_cache(file_);
    const auto from = house.engine().open(file_);
    const auto to = house.engine().open(directory_.file("copy"), {.read = true, .write = true, .create = true, .direct_writes = cold});
    const auto target = house.engine().allocate(house.device(), requests * length);
    const auto source = house.engine().allocate(house.device(), requests * length);
    ASSERT_TRUE(from.ok() && to.ok() && target.ok() && source.ok());
    ASSERT_TRUE(house.engine().copy(source->data(), content.data(), content.size()).ok());
    auto* const into = static_cast<std::byte*>(target->data());
    std::vector<operation> under_way;
    std::vector<batch> batches;
    for (std::size_t i = 0; i < requests; ++i) {
      const auto at = static_cast<std::int64_t>(i * length);
      if (i % 8 == 0) {
        std::vector<io_request> pieces;
        for (std::uint64_t done = 0; done < length; done += small) {
          pieces.push_back({&*from, into + at + done, small, at + static_cast<std::int64_t>(done), false});
        }
        batches.push_back(house.engine().submit(pieces));
      } else {
        under_way.push_back(from->read_async(into + at, length, at));
      }
      under_way.push_back(to->write_async(static_cast<std::byte*>(source->data()) + at, length, at));
    }
    for (auto& each : under_way) EXPECT_EQ(each.wait().bytes_done, length);
    for (auto& each : batches) {
      for (const auto& outcome : each.wait()) EXPECT_EQ(outcome.bytes_done, small) << told(outcome.error);
    }
    bytes seen(requests * length);
    ASSERT_TRUE(house.engine().copy(seen.data(), into, seen.size()).ok());
    EXPECT_EQ(pattern::first_difference(seen, seed, 0), std::nullopt);
    EXPECT_EQ(pattern::first_difference(contents_of(directory_.file("copy")), seed, 0), std::nullopt);
  }
}

}  // namespace
}  // namespace penstock::testing
