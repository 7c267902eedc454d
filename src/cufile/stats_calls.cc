// The exported calls for statistics.
#include <cstring>

#include "cufile/addresses.hpp"
#include "cufile/cufile.h"
#include "cufile/driver.hpp"
#include "cufile/errors.hpp"

namespace {

using penstock::cufile::answer;
using penstock::cufile::counters;
using penstock::cufile::driver;
using penstock::cufile::guarded;
using penstock::cufile::is_writable;

CUfileError_t tell(void* out, int level) noexcept {
  return guarded([&] {
    auto& library = driver::current();
    if (!library.is_open()) return answer(CU_FILE_DRIVER_NOT_INITIALIZED);
    if (library.stats().level() < level) return answer(CU_FILE_INVALID_VALUE);
    const auto found = library.stats().describe(level, library.layout(), library.owner(), library.memory().bytes_by_gpu());
    if (!is_writable(out, found.size())) return answer(CU_FILE_INVALID_VALUE);
    std::memcpy(out, found.data(), found.size());
    return answer(CU_FILE_SUCCESS);
  });
}

template <class Act>
CUfileError_t act(Act what) noexcept {
  return guarded([&] {
    what(driver::current().stats());
    return answer(CU_FILE_SUCCESS);
  });
}

}  // namespace

CUfileError_t cuFileSetStatsLevel(int level) {
  constexpr int most = 3;
  if (level < 0 || level > most) return answer(CU_FILE_INVALID_VALUE);
  return act([&](counters& stats) {
    stats.set_level(level);
    if (driver::current().is_open()) driver::current().note_direct_way();
  });
}

CUfileError_t cuFileGetStatsLevel(int* level) {
  if (!is_writable(level)) return answer(CU_FILE_INVALID_VALUE);
  return act([&](const counters& stats) { *level = stats.level(); });
}

CUfileError_t cuFileStatsStart() {
  return act([](counters& stats) { stats.start(); });
}

CUfileError_t cuFileStatsStop() {
  return act([](counters& stats) { stats.stop(); });
}

CUfileError_t cuFileStatsReset() {
  return act([](counters& stats) { stats.reset(); });
}

CUfileError_t cuFileGetStatsL1(CUfileStatsLevel1_t* stats) { return tell(stats, 1); }

CUfileError_t cuFileGetStatsL2(CUfileStatsLevel2_t* stats) { return tell(stats, 2); }

CUfileError_t cuFileGetStatsL3(CUfileStatsLevel3_t* stats) { return tell(stats, 3); }
