// Children forked at any moment, while threads of the parent are inside every kind of call: each starts afresh, and never blocks on a lock
// that those threads held.
#include <sys/wait.h>

#include <array>
#include <atomic>
#include <csignal>
#include <thread>

#include "batch_fixture.hpp"
#include "fault/watchdog.hpp"

namespace penstock::testing {
namespace {

class cufile_fork_test : public cufile_batch_test {
 protected:
  // Makes each kind of call once. The outcome of a call that another thread may have closed the library under is not looked at; 0, or the
  // number of the first call that went wrong where nobody else is there.
  static int call_everything(const std::string& name, void* memory, std::size_t bytes, bool alone) {
    int call = 0;
    int wrong = 0;
    const auto expect = [&](bool good) {
      ++call;
      if (!good && alone && wrong == 0) wrong = call;
    };
    const auto ok = [&](CUfileError_t outcome) { expect(outcome.err == CU_FILE_SUCCESS); };
    ok(cuFileDriverOpen());
    expect(cuFileUseCount() > 0);
    CUfileDrvProps_t properties{};
    ok(cuFileDriverGetProperties(&properties));
    std::size_t size = 0;
    std::array<char, 512> text{};
    bool flag = false;
    ok(cuFileGetParameterSizeT(CUFILE_PARAM_PROPERTIES_IO_BATCHSIZE, &size));
    ok(cuFileGetParameterBool(CUFILE_PARAM_PROPERTIES_USE_POLL_MODE, &flag));
    ok(cuFileGetParameterString(CUFILE_PARAM_LOGGING_LEVEL, text.data(), static_cast<int>(text.size())));
    (void)cuFileSetParameterSizeT(CUFILE_PARAM_PROPERTIES_IO_BATCHSIZE, 64);
    ok(cuFileSetStatsLevel(3));
    ok(cuFileStatsStart());
    const int descriptor = ::open(name.c_str(), O_RDWR | O_CLOEXEC);
    CUfileHandle_t file = nullptr;
    ok(try_register(descriptor, file));
    ok(cuFileBufRegister(memory, bytes, 0));
    expect(cuFileRead(file, memory, bytes, 0, 0) == static_cast<ssize_t>(bytes));
    expect(cuFileWrite(file, memory, bytes, 0, 0) == static_cast<ssize_t>(bytes));
    const CUfileIOVec_t piece{memory, bytes};
    expect(cuFileReadv(file, &piece, 1, 0, 0) == static_cast<ssize_t>(bytes));
    CUfileBatchHandle_t batch = nullptr;
    ok(cuFileBatchIOSetUp(&batch, 2));
    std::array<CUfileIOParams_t, 2> entries = {entry(file, memory, bytes / 2, 0, 0, nullptr),
                                               entry(file, memory, bytes / 2, 0, static_cast<off_t>(bytes / 2), nullptr)};
    ok(cuFileBatchIOSubmit(batch, 2, entries.data(), 0));
    std::array<CUfileIOEvents_t, 2> events{};
    unsigned count = 2;
    ok(cuFileBatchIOGetStatus(batch, 2, &count, events.data(), nullptr));
    expect(count == 2);
    ok(cuFileBatchIOCancel(batch));
    cuFileBatchIODestroy(batch);
    auto* stream = static_cast<CUstream>(memory);  // a name that no other thread has
    ok(cuFileStreamRegister(stream, 0));
    ok(cuFileStreamDeregister(stream));
    off_t zero = 0;
    ssize_t done = -1;
    size = bytes;
    const auto queued = cuFileReadAsync(file, memory, &size, &zero, &zero, &done, nullptr);
    expect(queued.err == CU_FILE_CUDA_MEMORY_TYPE_INVALID);  // host memory
    CUfileStatsLevel3_t stats{};
    ok(cuFileGetStatsL3(&stats));
    CUfileP2PFlags_t flags{};
    ok(cuFileDriverGetP2PFlags(CU_FILE_NVME_SUPPORTED, &flags));
    (void)cuFileGetBARSizeInKB(0, &size);
    ok(cuFileBufDeregister(memory));
    cuFileHandleDeregister(file);
    ::close(descriptor);
    ok(cuFileStatsStop());
    ok(cuFileDriverClose());
    return wrong;
  }
};

TEST_F(cufile_fork_test, a_child_forked_at_any_moment_can_make_every_call) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers do not survive a fork of several threads";
#endif
  constexpr int children = 200;
  constexpr int callers = 3;
  constexpr unsigned child_seconds = 60;  // to catch a hang
  constexpr std::size_t bytes = 64 * kib;
  const watchdog limit("a_child_forked_at_any_moment_can_make_every_call");
  const auto name = make_file("x", bytes);
  ASSERT_EQ(::setenv("CUFILE_LOGFILE_PATH", dir_.file("log").c_str(), 1), 0);
  std::atomic<bool> enough{false};
  std::vector<std::thread> threads;
  for (int i = 0; i < callers; ++i) {
    threads.emplace_back([&] {
      std::vector<std::byte> memory(bytes);
      while (!enough.load()) (void)call_everything(name, memory.data(), bytes, false);
    });
  }
  std::vector<std::byte> memory(bytes);
  for (int i = 0; i < children && !HasFailure(); ++i) {
    const pid_t child = ::fork();
    EXPECT_GE(child, 0);
    if (child < 0) break;
    if (child == 0) {
      ::signal(SIGALRM, SIG_DFL);
      ::alarm(child_seconds);
      ::_exit(call_everything(name, memory.data(), bytes, true));
    }
    int outcome = 0;
    EXPECT_EQ(::waitpid(child, &outcome, 0), child);
    EXPECT_FALSE(WIFSIGNALED(outcome)) << "child " << i << ": signal " << WTERMSIG(outcome);
    EXPECT_EQ(WEXITSTATUS(outcome), 0) << "child " << i << ": the number of the call that went wrong";
  }
  enough.store(true);
  for (auto& each : threads) each.join();
  EXPECT_EQ(::unsetenv("CUFILE_LOGFILE_PATH"), 0);
}

}  // namespace
}  // namespace penstock::testing
