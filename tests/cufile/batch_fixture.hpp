// What the tests of cuFile's batches share.
#pragma once

#include <algorithm>
#include <vector>

#include "cufile_fixture.hpp"

namespace penstock::testing {

class cufile_batch_test : public cufile_test {
 protected:
  static CUfileIOParams_t entry(CUfileHandle_t file, void* base, std::size_t size, off_t at, off_t in_memory, void* cookie,
                                CUfileOpcode_t opcode = CUFILE_READ) {
    CUfileIOParams_t made{};
    made.mode = CUFILE_BATCH;
    made.fh = file;
    made.opcode = opcode;
    made.cookie = cookie;
    made.u.batch = {base, at, in_memory, size};
    return made;
  }
  static CUfileBatchHandle_t set_up(unsigned capacity) {
    CUfileBatchHandle_t made = nullptr;
    EXPECT_EQ(cuFileBatchIOSetUp(&made, capacity).err, CU_FILE_SUCCESS);
    return made;
  }
  // Everything that comes, in the order of cookies 0, 1, 2, ...
  static std::vector<CUfileIOEvents_t> collect(CUfileBatchHandle_t batch, unsigned count, timespec* timeout = nullptr) {
    std::vector<CUfileIOEvents_t> events(count);
    unsigned got = count;
    EXPECT_EQ(cuFileBatchIOGetStatus(batch, count, &got, events.data(), timeout).err, CU_FILE_SUCCESS);
    events.resize(got);
    std::sort(events.begin(), events.end(), [](const auto& a, const auto& b) { return a.cookie < b.cookie; });
    return events;
  }
  static void* cookie(std::size_t number) { return reinterpret_cast<void*>(number); }
};

}  // namespace penstock::testing
