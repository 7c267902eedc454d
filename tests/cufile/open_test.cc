// Opening the library prepares the first transfer in the background, and only if a CUDA context is current.
#include <sys/wait.h>

#include <thread>

#include "cufile/driver.hpp"
#include "cufile_fixture.hpp"
#include "path/recorded_machine.hpp"
#include "support/child.hpp"

namespace penstock::testing {
namespace {

class cufile_opening : public cufile_test {
 protected:
  void SetUp() override {
    cufile_test::SetUp();
    cufile::driver::current().work_with(machine_.make_engine());
  }
  void TearDown() override {
    cufile_test::TearDown();
    cufile::driver::current().work_with(std::nullopt);
  }
  static std::uint64_t pinned_bytes() { return cufile::driver::current().owner().stats().pinned_bytes; }

  recorded_machine machine_{CUFILE_RECORDER_PATH};
};

TEST_F(cufile_opening, pins_what_the_first_transfer_needs_where_a_context_is_current) {
  machine_.make_context_current();
  ASSERT_EQ(cuFileDriverOpen().err, CU_FILE_SUCCESS);
  while (pinned_bytes() == 0) std::this_thread::yield();
  EXPECT_GT(machine_.opened_contexts(), 0U);
}

TEST_F(cufile_opening, makes_no_context_where_none_is_current) {
  ASSERT_EQ(cuFileDriverOpen().err, CU_FILE_SUCCESS);
  cufile::driver::current().work_with(std::nullopt);  // whatever was begun has ended with the engine
  EXPECT_EQ(machine_.opened_contexts(), 0U);
}

TEST_F(cufile_opening, may_be_followed_by_closing_at_once_any_number_of_times) {
  machine_.make_context_current();
  for (int i = 0; i < 1000; ++i) {
    ASSERT_EQ(cuFileDriverOpen().err, CU_FILE_SUCCESS);
    ASSERT_EQ(cuFileDriverClose().err, CU_FILE_SUCCESS);
  }
  EXPECT_EQ(cuFileUseCount(), 0);
}

TEST_F(cufile_opening, may_be_followed_by_a_read_at_once) {
  const auto name = make_file("x", mib);
  machine_.make_context_current();
  ASSERT_EQ(cuFileDriverOpen().err, CU_FILE_SUCCESS);
  auto made = cufile::driver::current().owner().allocate("cuda:0", mib);
  ASSERT_TRUE(made.ok());
  EXPECT_EQ(cuFileRead(handle_of(name), made->data(), mib, 0, 0), static_cast<ssize_t>(mib));
}

#if !defined(__SANITIZE_THREAD__)  // which does not support new threads in a forked child
TEST_F(cufile_opening, may_be_followed_by_a_fork_at_once) {
  const auto name = make_file("x", 64 * kib);
  machine_.make_context_current();
  for (int i = 0; i < 20; ++i) {
    ASSERT_EQ(cuFileDriverOpen().err, CU_FILE_SUCCESS);
    EXPECT_EQ(run_in_child([&] {
                if (cuFileDriverOpen().err != CU_FILE_SUCCESS) return 1;
                std::vector<std::byte> memory(64 * kib);
                CUfileHandle_t file = nullptr;
                if (try_register(::open(name.c_str(), O_RDONLY | O_CLOEXEC), file).err != CU_FILE_SUCCESS) return 2;
                return cuFileRead(file, memory.data(), memory.size(), 0, 0) == static_cast<ssize_t>(memory.size()) ? 0 : 3;
              }),
              0);
    ASSERT_EQ(cuFileDriverClose().err, CU_FILE_SUCCESS);
  }
}
#endif

}  // namespace
}  // namespace penstock::testing
