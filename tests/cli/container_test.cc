// The command in a container with less memory than the machine, as made by docker run --memory or Slurm: in its own cgroup.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "cli/program.hpp"

namespace penstock::cli_test {
namespace {

namespace fs = std::filesystem;

// This process and those that it starts may take so much memory and one core. Version 1 or 2, as the machine has it; root only.
class small_container {
 public:
  small_container() {
    const bool is_first_version = fs::exists("/sys/fs/cgroup/memory/memory.limit_in_bytes");
    const std::string name = "/penstock-test-" + std::to_string(::getpid());
    if (is_first_version) {
      ready_ = enter("/sys/fs/cgroup/memory", name, {{"memory.limit_in_bytes", "268435456"}}) &&
               enter("/sys/fs/cgroup/cpu", name, {{"cpu.cfs_period_us", "100000"}, {"cpu.cfs_quota_us", "100000"}});
    } else {
      ready_ = enter("/sys/fs/cgroup", name, {{"memory.max", "268435456"}, {"cpu.max", "100000 100000"}});
    }
  }
  small_container(const small_container&) = delete;
  small_container& operator=(const small_container&) = delete;
  ~small_container() {
    for (const auto& each : entered_) {
      write(each.before + "/cgroup.procs", std::to_string(::getpid()));
      std::error_code unused;
      fs::remove(each.folder, unused);
    }
  }
  [[nodiscard]] bool is_ready() const { return ready_; }

 private:
  struct setting {
    std::string file, value;
  };
  struct group {
    std::string folder, before;
  };

  static bool write(const std::string& file, const std::string& value) {
    std::ofstream out(file);
    out << value << std::flush;
    return out.good();
  }
  // Where this process is now, below a root; the root where that does not show it.
  static std::string group_of_self(const std::string& root) {
    for (fs::recursive_directory_iterator at(root, fs::directory_options::skip_permission_denied), end; at != end; ++at) {
      std::ifstream members(at->path() / "cgroup.procs");
      for (int each = 0; members >> each;) {
        if (each == ::getpid()) return at->path().string();
      }
    }
    return root;
  }
  bool enter(const std::string& root, const std::string& name, const std::vector<setting>& settings) {
    std::error_code problem;
    const auto before = group_of_self(root);
    if (!fs::create_directory(root + name, problem)) return false;
    entered_.push_back({root + name, before});
    for (const auto& [file, value] : settings) {
      if (!write(root + name + "/" + file, value)) return false;
    }
    return write(root + name + "/cgroup.procs", std::to_string(::getpid()));
  }

  std::vector<group> entered_;
  bool ready_ = false;
};

TEST(container_limits, bound_what_the_command_takes) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer takes memory of its own";
#endif
  const scratch_directory dir;
  const auto file = dir.make_sparse_file("large", 400 * mib);
  const small_container container;
  if (!container.is_ready()) GTEST_SKIP() << "no cgroup can be made here";
  for (const char* device : {"host", "host:0"}) {
    const auto ended = run({"read", file, "--device", device});
    EXPECT_EQ(ended.exit_code, 0) << device << ": " << ended.err;
  }
}

TEST(container_limits, are_in_the_findings_of_check) {
  const small_container container;
  if (!container.is_ready()) GTEST_SKIP() << "no cgroup can be made here";
  const auto ended = run({"check"});
  EXPECT_TRUE(contains(ended.out, "the cgroup allows 1 cores")) << ended.out;
  EXPECT_TRUE(contains(ended.out, "the cgroup allows 256 MiB of memory") || contains(ended.out, "the cgroup allows 268")) << ended.out;
}

}  // namespace
}  // namespace penstock::cli_test
