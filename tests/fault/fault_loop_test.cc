// The fault loop: runs each public operation once to count its kernel and device calls; then repeats it with the first of these calls
// failing, then the second, and so on, each in every way in which it can fail, once or permanently. Whatever fails, the operation is either
// completely right or ends with an error that says why and a true byte count; nothing leaks; the next operation works.
//
// A plain run tries some of the cases, spread evenly; the long run tries all. The name of a case says how to run it alone:
//   PENSTOCK_FAULT_CASE="read_1m_cold_device: ring.read 2: error 5" penstock_fault_tests --gtest_filter='*read_1m_cold_device'
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <string>
#include <vector>

#include "fault/faulty_world.hpp"
#include "fault/scenarios.hpp"
#include "fault/watchdog.hpp"
#include "support/lacking.hpp"

namespace penstock::testing {

namespace {

enum class repeat { either, never, always };

// One way in which a call can fail.
struct way {
  door where;
  const char* call;
  int error;                           // kernel
  std::optional<std::uint64_t> bytes;  // kernel_short
  errc code;                           // what an operation that fails for it must say
  bool harmless;                       // no operation may fail for it
  bool ends_file;
  repeat lasting = repeat::either;
};

way fails(const char* call, int error, errc code) { return {door::kernel, call, error, {}, code, false, false}; }
way does_without(const char* call, int error) { return {door::kernel, call, error, {}, errc::ok, true, false}; }
way comes_short(const char* call, std::optional<std::uint64_t> bytes, repeat lasting) {
  return {door::kernel_short, call, 0, bytes, errc::ok, true, false, lasting};
}

way ends(const char* call) { return {door::kernel_short, call, 0, 0, errc::ok, true, true}; }
way breaks(const char* call, errc code) { return {door::device, call, 0, {}, code, false, false}; }
way device_does_without(const char* call, errc code) { return {door::device, call, 0, {}, code, true, false}; }

const std::vector<way>& ways() {
  static const std::vector<way> all = {
      fails(any_call, EIO, errc::io),
      fails("open", EACCES, errc::permission_denied),
      fails("open", EMFILE, errc::out_of_memory),
      fails("describe", EIO, errc::io),
      fails("descriptor_flags", EBADF, errc::io),
      fails("close", EIO, errc::io),
      fails("file_size", EIO, errc::io),
      fails("sync_data", EIO, errc::io),
      fails("sync_data", ENOSPC, errc::no_space),
      does_without("reopen", EACCES),
      does_without("reopen", EMFILE),
      fails("pread", EIO, errc::io),
      fails("pread", ENOMEM, errc::out_of_memory),
      ends("pread"),
      comes_short("pread", 1, repeat::never),
      comes_short("pread", std::nullopt, repeat::never),
      comes_short("pread", 5000, repeat::always),
      fails("pwrite", ENOSPC, errc::no_space),
      fails("pwrite", EIO, errc::io),
      {door::kernel_short, "pwrite", 0, 0, errc::io, false, false},
      comes_short("pwrite", 1, repeat::never),
      comes_short("pwrite", std::nullopt, repeat::never),
      comes_short("pwrite", 5000, repeat::always),
      does_without("resident_bytes", ENOSYS),
      does_without("resident_bytes", EIO),
      does_without("read_into_cache", EINVAL),
      does_without("read_into_cache", ENOMEM),
      does_without("memory_now", EIO),
      does_without("memory_now", ENOMEM),
      fails("map_file", ENOMEM, errc::out_of_memory),
      fails("map_file", ENODEV, errc::unsupported),
      fails("map_memory", ENOMEM, errc::out_of_memory),
      fails("unmap", ENOMEM, errc::out_of_memory),
      does_without("make_ring", ENOSYS),
      does_without("make_ring", EPERM),
      does_without("make_ring", ENOMEM),
      does_without("ring.register", ENOMEM),
      does_without("ring.read", EIO),
      does_without("ring.read", EINVAL),
      does_without("ring.read", EAGAIN),
      does_without("ring.read", EINTR),
      comes_short("ring.read", 0, repeat::either),
      comes_short("ring.read", 1, repeat::never),
      comes_short("ring.read", std::nullopt, repeat::never),
      comes_short("ring.read", 5000, repeat::always),
      fails("ring.write", ENOSPC, errc::no_space),
      fails("ring.write", EIO, errc::io),
      does_without("ring.write", EINVAL),
      does_without("ring.write", EAGAIN),
      does_without("ring.write", EINTR),
      comes_short("ring.write", 1, repeat::never),
      comes_short("ring.write", std::nullopt, repeat::never),
      comes_short("ring.write", 5000, repeat::always),
      does_without("ring.submit", EBUSY),
      does_without("ring.reap", EIO),
      does_without("ring.reap", EAGAIN),
      breaks(any_call, errc::device),
      breaks("allocate", errc::out_of_memory),
      breaks("count", errc::not_found),
      breaks("classify", errc::device),
      breaks("open", errc::device),
      breaks("pin", errc::out_of_memory),
      breaks("unpin", errc::device),
      breaks("make_stream", errc::device),
      breaks("make_stream", errc::out_of_memory),
      breaks("destroy_stream", errc::device),
      breaks("make_event", errc::out_of_memory),
      breaks("copy", errc::device),
      breaks("copy_small", errc::device),
      breaks("scatter", errc::device),
      device_does_without("scatter", errc::unsupported),
      breaks("scatter_short", errc::device),
      device_does_without("scatter_short", errc::unsupported),
      breaks("wait_event", errc::device),
      breaks("record", errc::device),
      breaks("reached", errc::device),
      breaks("synchronize", errc::device),
      breaks("call", errc::device),
      device_does_without("wait_value", errc::unsupported),
      device_does_without("wait_value", errc::device),
  };
  return all;
}

fault make_fault(const way& how, std::uint64_t nth, bool lasting) {
  fault made;
  made.where = how.where;
  made.call = how.call;
  made.nth = nth;
  made.lasting = lasting;
  made.error = how.error;
  made.bytes = how.bytes;
  made.code = how.code;
  made.harmless = how.harmless;
  made.ends_file = how.ends_file;
  return made;
}

// How many calls of each kind the operation makes: counts[i] belongs to ways()[i].
std::vector<std::uint64_t> count_calls(const scenario_entry& entry) {
  std::vector<std::uint64_t> counts;
  faulty_world world(entry.options);
  {
    const auto tried = entry.make(world);
    tried->prepare();
    for (const auto& how : ways()) counts.push_back(world.count(how.where, how.call));
    tried->act();
    for (std::size_t i = 0; i < counts.size(); ++i) counts[i] = world.count(ways()[i].where, ways()[i].call) - counts[i];
    const auto found = tried->judge();
    EXPECT_FALSE(found.failed) << entry.name << " fails with no fault armed";
    EXPECT_FALSE(found.short_count) << entry.name << " comes short with no fault armed";
    EXPECT_EQ(found.wrong, "") << entry.name << " with no fault armed";
  }
  EXPECT_EQ(world.end(), "") << entry.name << " with no fault armed";
  return counts;
}

// Calls made again and again until something has happened: their number says nothing, the first ones do.
std::uint64_t most_of(const std::string& call) { return call == "reached" || call == "ring.reap" ? 8 : call == any_call ? 100 : 1000; }

std::vector<fault> all_faults(const std::vector<std::uint64_t>& counts) {
  std::vector<fault> all;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    for (std::uint64_t nth = 1; nth <= std::min(counts[i], most_of(ways()[i].call)); ++nth) {
      if (ways()[i].lasting != repeat::always) all.push_back(make_fault(ways()[i], nth, false));
      if (ways()[i].lasting != repeat::never) all.push_back(make_fault(ways()[i], nth, true));
    }
  }
  return all;
}

// At most so many, evenly spread over the ways: every way has its turn where there are not too many.
std::vector<fault> some_of(const std::vector<fault>& all, std::size_t most) {
  std::vector<fault> chosen;
  const std::size_t count = std::min(most, all.size());
  for (std::size_t i = 0; i < count; ++i) chosen.push_back(all[i * all.size() / count]);
  return chosen;
}

// What is wrong with the errors of an operation that this fault was injected into; empty: nothing.
std::string judge_errors(const findings& found, const fault& injected) {
  std::string wrong;
  if (injected.harmless && found.failed) wrong += "the operation failed, and could have done without; ";
  if (found.short_count && !injected.ends_file) wrong += "a short count, and not at the end of the file; ";
  for (const auto& error : found.errors) {
    if (!injected.harmless && error.code() != injected.code)
      wrong += fmt::format("{} instead of {}; ", to_string(error.code()), to_string(injected.code));
    if (!found.file.empty() && error.message().find(found.file) == std::string_view::npos) wrong += "the error does not name the file; ";
    if (!wrong.empty()) return wrong + std::string(error.message());
  }
  return wrong;
}

// True when the fault struck.
bool try_case(const scenario_entry& entry, const fault& injected) {
  const auto name = entry.name + ": " + injected.name();
  SCOPED_TRACE(name);
  const watchdog watch(name);
  faulty_world world(entry.options);
  bool struck = false;
  {
    const auto tried = entry.make(world);
    tried->prepare();
    world.arm(injected);
    tried->act();
    world.disarm();
    struck = world.injected() > 0;
    const auto found = tried->judge();
    EXPECT_EQ(found.wrong, "");
    EXPECT_EQ(judge_errors(found, injected), "");

    tried->prepare();
    tried->act();
    const auto next = tried->judge();
    EXPECT_EQ(next.wrong, "") << "in the operation after";
    EXPECT_FALSE(next.failed) << "the operation after: " << (next.errors.empty() ? "" : next.errors.front().message());
    EXPECT_FALSE(next.short_count) << "in the operation after";
  }
  EXPECT_EQ(world.end(), "");
  return struck;
}

class fault_loop : public ::testing::TestWithParam<std::size_t> {
 protected:
  // These end with an error where the host device cannot register pages of the page cache.
  void SetUp() override {
    if (entry().name.starts_with("read_pinned") || entry().name == "read_mapped_forced") {
      PENSTOCK_SKIP_IF(lacks_reads_of_processes());
    }
  }
  static const scenario_entry& entry() { return all_scenarios()[GetParam()]; }

  static void run(const std::vector<fault>& faults) {
    const char* only = std::getenv("PENSTOCK_FAULT_CASE");
    std::size_t struck = 0;
    std::size_t tried = 0;
    for (const auto& each : faults) {
      if (only != nullptr && entry().name + ": " + each.name() != only) continue;
      ++tried;
      if (try_case(entry(), each)) ++struck;
      if (HasFailure() && tried > 2000) break;
    }
    RecordProperty("cases", static_cast<int>(tried));
    EXPECT_GE(2 * struck, tried) << "most faults must strike, or the loop tests nothing";
    EXPECT_GT(tried, 0U);
  }
};

class long_fault_loop : public fault_loop {};

TEST_P(fault_loop, survives_some_failures_of) { run(some_of(all_faults(count_calls(entry())), 20)); }

TEST_P(long_fault_loop, survives_every_failure_of) { run(all_faults(count_calls(entry()))); }

std::string name_of(const ::testing::TestParamInfo<std::size_t>& info) { return all_scenarios()[info.param].name; }

INSTANTIATE_TEST_SUITE_P(doors, fault_loop, ::testing::Range(std::size_t{0}, all_scenarios().size()), name_of);
INSTANTIATE_TEST_SUITE_P(long_doors, long_fault_loop, ::testing::Range(std::size_t{0}, all_scenarios().size()), name_of);

}  // namespace

}  // namespace penstock::testing
