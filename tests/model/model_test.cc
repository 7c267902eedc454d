// Random operations on a few files, compared with byte arrays: every path, every kind of memory, blocking and not, alone and in batches.
// Prints its seed. PENSTOCK_MODEL_SEED repeats a run, PENSTOCK_MODEL_SECONDS sets how long new seeds are tried.
//
// Operations run one at a time or, in volleys, many at once on disjoint ranges. Then every byte has a known value, except in the ranges of
// cancelled writes: after bytes_done of such a write, each byte is old or new until it is read.
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <random>
#include <string>
#include <thread>

#include "contract/contract_fixture.hpp"
#include "support/byte_model.hpp"

namespace penstock::testing {
namespace {

constexpr std::uint64_t most_file_bytes = 12 * mib;

// One file, open twice: as plain as can be, and with direct writes.
struct modelled_file {
  std::string name;
  std::array<file, 2> handles;
  byte_model model;
};

class run {
 public:
  explicit run(std::uint64_t seed) : random_(seed), house_(random_options()) {
    for (std::size_t i = 0; i < files_.size(); ++i) {
      auto& made = files_[i];
      made.name = directory_.file("file" + std::to_string(i));
      for (const bool direct : {false, true}) {
        auto opened = house_.engine().open(made.name, {.read = true, .write = true, .create = true, .direct_writes = direct});
        EXPECT_TRUE(opened.ok()) << told(opened.error());
        if (opened.ok()) made.handles[direct ? 1 : 0] = *std::move(opened);
      }
    }
  }

  void steps(int count) {
    for (int i = 0; i < count && !::testing::Test::HasFailure(); ++i) {
      SCOPED_TRACE("step " + std::to_string(i));
      step();
    }
    for (auto& each : files_) compare(each);
  }

 private:
  struct range {
    std::uint64_t offset;
    std::uint64_t length;
  };

  std::uint64_t pick(std::uint64_t least, std::uint64_t most) { return std::uniform_int_distribution<std::uint64_t>(least, most)(random_); }
  bool chance(unsigned one_in) { return pick(1, one_in) == 1; }

  engine_options random_options() {
    engine_options options;
    if (chance(4)) options.use_io_uring = false;
    if (chance(3)) options.lanes = static_cast<unsigned>(pick(1, 4));
    if (chance(4)) options.pinned_budget_bytes = staging::least_budget_bytes;
    if (chance(3)) options.prefer = chance(2) ? preference::cpu : preference::speed;
    if (chance(2)) options.cache = chance(2) ? cache_use::fill : cache_use::bypass;
    return options;
  }

  // Mostly short; at, near or off the borders of blocks.
  std::uint64_t random_length() {
    const std::uint64_t length = std::uint64_t{1} << pick(0, chance(6) ? 22 : 17);
    return chance(2) ? length : length + pick(0, 2 * 4096) - std::min<std::uint64_t>(length - 1, 4096);
  }
  std::uint64_t random_offset(std::uint64_t below) {
    const std::uint64_t offset = pick(0, below);
    return chance(2) ? offset / 4096 * 4096 : offset;
  }
  range random_range() {
    const auto length = random_length();
    return {random_offset(most_file_bytes - length), length};
  }

  modelled_file& any_file() { return files_[pick(0, files_.size() - 1)]; }
  const file& any_handle(modelled_file& of) { return of.handles[pick(0, 1)]; }
  memory_place any_place() { return static_cast<memory_place>(pick(0, 2)); }

  // A path that may well refuse: then nothing has happened, and it says so.
  io_options any_options(memory_place place) {
    io_options options;
    if (chance(3)) options.path = place != memory_place::device ? path_kind::posix : chance(2) ? path_kind::staged : path_kind::mapped;
    if (chance(4)) options.prefer = preference::cpu;
    return options;
  }

  void step() {
    switch (pick(0, 11)) {
      case 0:
      case 1:
      case 2:
        read();
        break;
      case 3:
      case 4:
      case 5:
        write();
        break;
      case 6:
        truncate();
        break;
      case 7:
        forget_cache();
        break;
      case 8:
        batch_of_many();
        break;
      case 9:
        volley();
        break;
      case 10:
        cancelled_write();
        break;
      default:
        cancelled_read();
        break;
    }
  }

  // --- one at a time

  void check_seen(modelled_file& of, guarded_memory& memory, const range& asked, const io_result& outcome) {
    if (outcome.error.code() == errc::unsupported) {
      EXPECT_EQ(outcome.bytes_done, 0U);
      memory.expect_untouched();
      return;
    }
    EXPECT_TRUE(outcome.ok()) << told(outcome.error);
    const std::uint64_t there = asked.offset < of.model.size() ? std::min(asked.length, of.model.size() - asked.offset) : 0;
    EXPECT_EQ(outcome.bytes_done, there);
    auto seen = memory.content();
    seen.resize(std::min<std::size_t>(there, outcome.bytes_done));
    if (const auto wrong = of.model.look(asked.offset, seen)) {
      ADD_FAILURE() << "byte " << *wrong << " of " << of.name << " was read wrong, in " << asked.length << " at " << asked.offset;
    }
    memory.expect(seen);
  }

  void read() {
    auto& of = any_file();
    const auto asked = random_range();
    const auto place = any_place();
    const auto options = any_options(place);
    guarded_memory memory(house_, place, asked.length, pick(0, 20));
    const auto& from = any_handle(of);
    const auto offset = static_cast<std::int64_t>(asked.offset);
    const auto outcome = chance(2) ? from.read(memory.data(), asked.length, offset, options)
                                   : from.read_async(memory.data(), asked.length, offset, options).wait();
    check_seen(of, memory, asked, outcome);
  }

  guarded_memory random_source(memory_place place, std::uint64_t length, bytes& content) {
    guarded_memory memory(house_, place, length, pick(0, 20));
    content = pattern::make(length, random_(), pick(0, 7));
    memory.fill(content);
    return memory;
  }

  void write() {
    auto& of = any_file();
    const auto asked = random_range();
    const auto place = any_place();
    const auto options = any_options(place);
    bytes content;
    auto memory = random_source(place, asked.length, content);
    const auto& to = any_handle(of);
    const auto offset = static_cast<std::int64_t>(asked.offset);
    const auto outcome = chance(2) ? to.write(memory.data(), asked.length, offset, options)
                                   : to.write_async(memory.data(), asked.length, offset, options).wait();
    if (outcome.error.code() == errc::unsupported) {
      EXPECT_EQ(outcome.bytes_done, 0U);
    } else {
      EXPECT_TRUE(outcome.ok()) << told(outcome.error);
      EXPECT_EQ(outcome.bytes_done, asked.length);
      of.model.write(asked.offset, content);
    }
    memory.expect_untouched();
  }

  void truncate() {
    auto& of = any_file();
    const auto size = random_offset(most_file_bytes);
    EXPECT_EQ(::truncate(of.name.c_str(), static_cast<off_t>(size)), 0);
    of.model.resize(size);
  }

  void forget_cache() {
    auto& of = any_file();
    if (chance(2)) {
      drop_cache(of.name);
    } else {
      drop_cache(of.name, random_offset(most_file_bytes), random_length());
    }
  }

  // --- cut short

  void some_time() {
    for (auto yields = pick(0, 200); yields > 0; --yields) std::this_thread::yield();
  }

  void cancelled_write() {
    auto& of = any_file();
    const std::uint64_t length = pick(1, chance(2) ? 64 * kib : 6 * mib);
    const auto offset = random_offset(most_file_bytes - length);
    const auto place = any_place();
    bytes content;
    auto memory = random_source(place, length, content);
    if (!of.model.is_sure(offset, length)) compare(of);  // two values are all that the model knows of a byte
    auto writing = any_handle(of).write_async(memory.data(), length, static_cast<std::int64_t>(offset));
    some_time();
    writing.cancel();
    const auto outcome = writing.wait();
    memory.expect_untouched();
    if (outcome.ok()) {
      EXPECT_EQ(outcome.bytes_done, length);
      of.model.write(offset, content);
      return;
    }
    EXPECT_EQ(outcome.error.code(), errc::cancelled) << told(outcome.error);
    EXPECT_LE(outcome.bytes_done, length);
    const auto size = of.handles[0].size();
    EXPECT_TRUE(size.ok()) << told(size.error());
    EXPECT_GE(size.value_or(0), outcome.bytes_done > 0 ? offset + outcome.bytes_done : 0);
    of.model.write_partly(offset, content, outcome.bytes_done, size.value_or(0));
  }

  void cancelled_read() {
    auto& of = any_file();
    const std::uint64_t length = pick(1, chance(2) ? 64 * kib : 6 * mib);
    const auto offset = random_offset(most_file_bytes - length);
    guarded_memory memory(house_, any_place(), length, pick(0, 20));
    auto reading = any_handle(of).read_async(memory.data(), length, static_cast<std::int64_t>(offset));
    some_time();
    reading.cancel();
    const auto outcome = reading.wait();
    if (outcome.ok()) {
      check_seen(of, memory, {offset, length}, outcome);
      return;
    }
    EXPECT_EQ(outcome.error.code(), errc::cancelled) << told(outcome.error);
    auto seen = memory.content();
    seen.resize(outcome.bytes_done);
    if (const auto wrong = of.model.look(offset, seen)) ADD_FAILURE() << "byte " << *wrong << " of " << of.name << " was read wrong";
  }

  // --- many at once

  // Ranges in order, apart from each other.
  std::vector<range> ranges_apart(std::size_t count) {
    std::vector<range> found;
    for (std::uint64_t at = pick(0, 10000); found.size() < count;) {
      const std::uint64_t length = std::min<std::uint64_t>(random_length(), mib);
      if (at + length > most_file_bytes) break;
      found.push_back({at, length});
      at += length + (chance(3) ? 0 : pick(0, 20000));
    }
    return found;
  }

  struct planned {
    range asked;
    bool is_write;
    const file* handle;
    bytes content;  // of a write
    guarded_memory memory;
  };

  std::vector<planned> plan_many(modelled_file& of, std::size_t most) {
    std::vector<planned> made;
    for (const auto& asked : ranges_apart(pick(0, most))) {
      const bool is_write = chance(2);
      bytes content;
      auto memory =
          is_write ? random_source(any_place(), asked.length, content) : guarded_memory(house_, any_place(), asked.length, pick(0, 20));
      made.push_back({asked, is_write, &any_handle(of), std::move(content), std::move(memory)});
    }
    std::shuffle(made.begin(), made.end(), random_);
    // A read sees the end of the file that writes of the same moment move: it is there before.
    for (const auto& each : made) {
      const std::uint64_t end = each.asked.offset + each.asked.length;
      if (each.is_write && end > of.model.size()) {
        EXPECT_EQ(::truncate(of.name.c_str(), static_cast<off_t>(end)), 0);
        of.model.resize(end);
      }
    }
    return made;
  }

  void check_many(modelled_file& of, std::vector<planned>& made, const std::vector<io_result>& outcomes) {
    ASSERT_EQ(made.size(), outcomes.size());
    for (std::size_t i = 0; i < made.size(); ++i) {
      auto& each = made[i];
      if (!each.is_write) {
        check_seen(of, each.memory, each.asked, outcomes[i]);
        continue;
      }
      EXPECT_TRUE(outcomes[i].ok()) << told(outcomes[i].error);
      EXPECT_EQ(outcomes[i].bytes_done, each.asked.length);
      of.model.write(each.asked.offset, each.content);
      each.memory.expect_untouched();
    }
  }

  void batch_of_many() {
    auto& of = any_file();
    auto made = plan_many(of, 40);
    std::vector<io_request> asked;
    for (const auto& each : made) {
      asked.push_back({each.handle, each.memory.data(), each.asked.length, static_cast<std::int64_t>(each.asked.offset), each.is_write});
    }
    check_many(of, made, house_.engine().submit(asked).wait());
  }

  void volley() {
    auto& of = any_file();
    auto made = plan_many(of, chance(2) ? 8 : 80);  // many: small ones travel together
    std::vector<operation> under_way;
    for (auto& each : made) {
      const auto offset = static_cast<std::int64_t>(each.asked.offset);
      under_way.push_back(each.is_write ? each.handle->write_async(each.memory.data(), each.asked.length, offset)
                                        : each.handle->read_async(each.memory.data(), each.asked.length, offset));
    }
    std::vector<io_result> outcomes;
    for (auto& each : under_way) outcomes.push_back(each.wait());
    check_many(of, made, outcomes);
  }

  void compare(modelled_file& of) {
    const auto seen = contents_of(of.name);
    EXPECT_EQ(seen.size(), of.model.size());
    if (seen.size() != of.model.size()) return;
    if (const auto wrong = of.model.look(0, seen)) ADD_FAILURE() << "byte " << *wrong << " of " << of.name << " is wrong";
  }

  std::mt19937_64 random_;
  temp_dir directory_ = temp_dir::on_build_disk();
  open_house house_;
  std::array<modelled_file, 2> files_;
};

std::optional<std::uint64_t> number_from_environment(const char* name) {
  const char* text = std::getenv(name);  // NOLINT(concurrency-mt-unsafe): read only
  if (text == nullptr || *text == '\0') return std::nullopt;
  return std::strtoull(text, nullptr, 10);
}

void run_seeds(std::chrono::seconds usual_duration) {
  constexpr int steps_per_seed = 60;
  const auto given = number_from_environment("PENSTOCK_MODEL_SEED");
  const std::chrono::seconds duration(
      number_from_environment("PENSTOCK_MODEL_SECONDS").value_or(static_cast<std::uint64_t>(usual_duration.count())));
  const auto end = std::chrono::steady_clock::now() + duration;
  std::uint64_t tried = 0;
  do {
    const std::uint64_t seed = given ? *given : std::random_device()();
    SCOPED_TRACE("PENSTOCK_MODEL_SEED=" + std::to_string(seed));
    std::cout << "seed " << seed << std::endl;
    run(seed).steps(steps_per_seed);
    ++tried;
  } while (!::testing::Test::HasFailure() && std::chrono::steady_clock::now() < end && !(given && tried > 0));
}

TEST(model, random_operations_agree_with_a_byte_array) { run_seeds(std::chrono::seconds(3)); }

TEST(long_model, random_operations_agree_with_a_byte_array) { run_seeds(std::chrono::seconds(300)); }

}  // namespace
}  // namespace penstock::testing
