// The memory use of a copy is bounded, however large the object is.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <string>

#include "cli/program.hpp"
#include "support/web_server.hpp"

namespace penstock::cli_test {
namespace {

using testing::web_request;
using testing::web_server;

constexpr std::uint64_t object_bytes = 500 * mib;

// Serves an object of zeros.
std::optional<web_server::then> serve_zeros(const web_request& asked, const web_server::client& over) {
  if (asked.method == "HEAD") {
    over.send(fmt::format("HTTP/1.1 200 OK\r\nETag: \"z\"\r\nAccept-Ranges: bytes\r\nContent-Length: {}\r\n\r\n", object_bytes));
    return web_server::then::keep;
  }
  const auto [first, last] = asked.range.value_or(std::pair<std::uint64_t, std::uint64_t>(0, object_bytes - 1));
  const auto end = std::min(last, object_bytes - 1);
  over.send(fmt::format("HTTP/1.1 206 Partial Content\r\nETag: \"z\"\r\nContent-Range: bytes {}-{}/{}\r\nContent-Length: {}\r\n\r\n", first,
                        end, object_bytes, end - first + 1));
  static const std::string zeros(mib, '\0');
  for (auto left = end - first + 1; left > 0;) {
    const auto count = std::min<std::uint64_t>(left, zeros.size());
    if (!over.send(std::string_view(zeros).substr(0, count))) return web_server::then::close;
    left -= count;
  }
  return web_server::then::keep;
}

// The most memory that the command has had resident, in bytes; 0: it failed.
std::uint64_t peak_of(const std::vector<std::string>& words) {
  std::vector<std::string> all{PENSTOCK_CLI_PATH};
  all.insert(all.end(), words.begin(), words.end());
  std::vector<char*> argv;
  for (std::string& each : all) argv.push_back(each.data());
  argv.push_back(nullptr);
  const pid_t child = ::fork();
  if (child == 0) {
    ::execv(argv[0], argv.data());
    ::_exit(127);
  }
  int state = 0;
  rusage used{};
  if (::wait4(child, &state, 0, &used) != child || !WIFEXITED(state) || WEXITSTATUS(state) != 0) return 0;
  return static_cast<std::uint64_t>(used.ru_maxrss) << 10;
}

TEST(copies, of_a_large_object_take_a_bounded_amount_of_memory) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer takes memory of its own";
#endif
  const scratch_directory directory;
  web_server server({});
  server.set_answer(serve_zeros);
  const auto peak = peak_of({"cp", "-q", server.url(), directory.path() + "/copy"});
  EXPECT_GT(peak, 0U);
  EXPECT_LT(peak, 256 * mib);
  EXPECT_EQ(std::filesystem::file_size(directory.path() + "/copy"), object_bytes);
}

}  // namespace
}  // namespace penstock::cli_test
