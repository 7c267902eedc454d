// penstock run: the started program gets its own arguments and Penstock's libraries, and nothing else from penstock.
#include <gtest/gtest.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>

#include "cli/program.hpp"

namespace penstock::cli_test {
namespace {

const std::filesystem::path build_folder = std::filesystem::path(PENSTOCK_CLI_PATH).parent_path();
const std::string library = build_folder / "cufile" / "libcufile.so.0";
const std::string node = build_folder / "cufile" / "libpenstock_device_node.so";
const std::string direct_io = build_folder / "cufile" / "libpenstock_direct_io.so";
const std::string audit = build_folder / "cufile" / "libpenstock_audit.so";
const std::string preloaded = library + ":" + direct_io;

ended_program run_shell(const std::string& script, std::vector<std::string> options = {}) {
  std::vector<std::string> words{"run"};
  words.insert(words.end(), options.begin(), options.end());
  words.insert(words.end(), {"--", "sh", "-c", script});
  return run(words);
}

// Of an ELF file: for which processor it is.
std::string machine_of(const std::filesystem::path& program) {
  std::string start(20, '\0');
  std::ifstream(program).read(start.data(), static_cast<std::streamsize>(start.size()));
  return start.substr(18);
}

// Tests in which a program really is started with our libraries in it.
class run_program : public ::testing::Test {
 protected:
  void SetUp() override {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    GTEST_SKIP() << "a library with a sanitizer in it cannot be preloaded into a program without";
#endif
    if (!std::filesystem::exists(library)) GTEST_SKIP() << library << " is not built";
  }
  static bool is_foreign() { return machine_of("/bin/sh") != machine_of(PENSTOCK_CLI_PATH); }
};

TEST_F(run_program, sees_its_words_as_they_stand) {
  const std::string expected = "[a,b]||--|--log|x y|";
  EXPECT_EQ(run({"run", "--", "printf", "%s|", "[a,b]", "", "--", "--log", "x y"}).out, expected);
  EXPECT_EQ(run({"run", "printf", "%s|", "[a,b]", "", "--", "--log", "x y"}).out, expected);
  EXPECT_EQ(run({"run", "--no-audit", "printf", "%s|", "[a,b]", "", "--", "--log", "x y"}).out, expected);
}

TEST_F(run_program, gives_its_own_exit_code_and_streams) {
  if (is_foreign()) GTEST_SKIP() << "programs of this system are for another processor than the library";
  const ended_program ended = run_shell("echo out; echo err >&2; exit 7");
  EXPECT_EQ(ended.exit_code, 7);
  EXPECT_EQ(ended.out, "out\n");
  EXPECT_EQ(ended.err, "err\n");
}

TEST_F(run_program, gets_signals_itself) {
  program started({"run", "--", "sh", "-c", "echo ready; exec sleep 1000"});
  ASSERT_TRUE(started.wait_for_output("ready"));
  started.send(SIGTERM);
  EXPECT_EQ(started.finish().exit_code, 128 + SIGTERM);
}

TEST_F(run_program, finds_our_libraries_in_its_environment) {
  const scoped_variable path("LD_LIBRARY_PATH", "");
  const std::string print = "echo $LD_PRELOAD,$LD_AUDIT,$LD_LIBRARY_PATH,$PENSTOCK_LOG";
  const std::string folder = build_folder / "cufile";
  EXPECT_EQ(run_shell(print).out, preloaded + "," + audit + "," + folder + ",\n");
  EXPECT_EQ(run_shell(print, {"--no-audit"}).out, preloaded + ",," + folder + ",\n");
  EXPECT_EQ(run_shell(print, {"--log", "summary"}).out, preloaded + "," + audit + "," + folder + ",summary\n");
}

TEST_F(run_program, may_be_told_that_nvidia_fs_is_there) {
  if (is_foreign()) GTEST_SKIP() << "programs of this system are for another processor than the library";
  if (!std::filesystem::exists(node)) GTEST_SKIP() << node << " is not built";
  if (std::filesystem::exists("/dev/nvidia-fs0")) GTEST_SKIP() << "it is";
  const std::string ask =
      "for i in /dev/nvidia-fs0 /dev/nvidia-fs1 /dev/null; do stat -c %F $i 2>&1 | sed 's/.*: //'; test -e $i; echo $?; done";
  EXPECT_EQ(run_shell(ask).out, "No such file or directory\n1\nNo such file or directory\n1\ncharacter special file\n0\n");
  const std::string python =
      "python3 -c \"import os; print([(os.path.exists(i), os.access(i, os.R_OK)) for i in ('/dev/nvidia-fs0', '/none', '/')])\"";
  EXPECT_EQ(run_shell(python, {"--nvidia-fs-node"}).out, "[(True, True), (False, False), (True, True)]\n");
  EXPECT_EQ(run_shell("echo $LD_PRELOAD", {"--nvidia-fs-node"}).out, library + ":" + node + ":" + direct_io + "\n");
}

// procfs rejects O_DIRECT. Prints one line per call: its descriptor's O_DIRECT flag and first bytes, or its errno.
constexpr auto open_procfs = R"(
import ctypes, errno, fcntl, os
library = ctypes.CDLL(None, use_errno=True)
def show(call, *arguments):
    ctypes.set_errno(0)
    fd = getattr(library, call)(*arguments)
    flags = fd if fd < 0 else fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_DIRECT
    print(call, errno.errorcode[ctypes.get_errno()] if fd < 0 else (flags, os.read(fd, 5)))
direct = os.O_RDONLY | os.O_DIRECT
for call in ("open", "open64", "__open", "__open64", "__open_2", "__open64_2"):
    show(call, b"/proc/version", direct)
folder = os.open("/proc", os.O_RDONLY)
for call in ("openat", "openat64", "__openat_2", "__openat64_2"):
    show(call, folder, b"version", direct)
for path in (b"/proc/none", b"/proc", b"/proc/self/fd/%d" % os.open("/proc/version", os.O_RDONLY)):
    show("open", path, direct)
show("open", b"/proc/version", direct | os.O_DIRECTORY)
show("open", None, direct)
for call in ("fcntl", "fcntl64", "__fcntl"):
    fd = os.open("/proc/version", os.O_RDONLY)
    result = getattr(library, call)(fd, fcntl.F_SETFL, os.O_DIRECT | os.O_NONBLOCK)
    print(call, result, fcntl.fcntl(fd, fcntl.F_GETFL) & (os.O_DIRECT | os.O_NONBLOCK) == os.O_NONBLOCK)
print("fcntl", library.fcntl(folder, fcntl.F_SETFL, os.O_DIRECT), errno.errorcode[ctypes.get_errno()])
)";

TEST_F(run_program, opens_a_file_without_o_direct_if_the_file_system_rejects_it) {
  if (is_foreign()) GTEST_SKIP() << "programs of this system are for another processor than the library";
  const std::string opened = " (0, b'Linux')\n";
  std::string expected;
  for (const char* call :
       {"open", "open64", "__open", "__open64", "__open_2", "__open64_2", "openat", "openat64", "__openat_2", "__openat64_2"})
    expected += call + opened;
  expected += "open ENOENT\nopen EINVAL\nopen EINVAL\nopen ENOTDIR\nopen EFAULT\n";
  expected += "fcntl 0 True\nfcntl64 0 True\n__fcntl 0 True\nfcntl -1 EINVAL\n";
  const ended_program quiet = run({"run", "--", "python3", "-c", open_procfs});
  EXPECT_EQ(quiet.out, expected) << quiet.err;
  EXPECT_EQ(quiet.err, "");
  const ended_program logged = run({"run", "--log", "summary", "--", "dd", "if=/proc/version", "iflag=direct", "bs=4096", "count=1"});
  EXPECT_EQ(logged.out.substr(0, 5), "Linux");
  EXPECT_NE(logged.err.find("penstock: /proc/version: opened without O_DIRECT"), std::string::npos) << logged.err;
}

// ramfs rejects O_DIRECT too, but only after it has created the file.
TEST_F(run_program, creates_a_file_without_o_direct_if_the_file_system_rejects_it) {
  if (is_foreign()) GTEST_SKIP() << "programs of this system are for another processor than the library";
  const scratch_directory directory;
  const std::string mount = "mount -t ramfs none " + directory.path() + " && cd " + directory.path() + " && ";
  const auto in_ramfs = [&](const std::string& script) { return run_shell("exec unshare -rm sh -c '" + mount + script + "'"); };
  if (in_ramfs("true").exit_code != 0) GTEST_SKIP() << "ramfs cannot be mounted in a user namespace";
  const ended_program ended = in_ramfs(R"(exec python3 -c "
import errno, os
new, direct = os.O_RDWR | os.O_CREAT, os.O_DIRECT
os.mkfifo(\"fifo\")
for path, flags in ((\"a\", new), (\"a\", new | os.O_EXCL), (\"b\", new | os.O_EXCL), (\"fifo\", new), (\".\", os.O_RDWR | os.O_TMPFILE)):
    try:
        fd = os.open(path, flags | direct, 0o640)
        print(path, oct(os.fstat(fd).st_mode & 0o777), os.write(fd, b\"12345\"))
    except OSError as error:
        print(path, errno.errorcode[error.errno])
os.open(\"a\", os.O_WRONLY | os.O_TRUNC | direct)
print(os.stat(\"a\").st_size)
")");
  const auto* fifo = "fifo EINVAL\n";
  EXPECT_EQ(ended.out, std::string("a 0o640 5\na EEXIST\nb 0o640 5\n") + fifo + ". 0o640 5\n0\n") << ended.err;
}

TEST_F(run_program, keeps_what_its_environment_held) {
  const scoped_variable preload("LD_PRELOAD", "libm.so.6");
  const scoped_variable path("LD_LIBRARY_PATH", "/nowhere:/else");
  EXPECT_EQ(run_shell("echo $LD_PRELOAD,$LD_LIBRARY_PATH", {"--no-audit"}).out,
            preloaded + ":libm.so.6," + (build_folder / "cufile").string() + ":/nowhere:/else\n");
}

TEST_F(run_program, lets_kvikio_use_cufile_unless_the_user_decides) {
  const std::string print = "echo $KVIKIO_COMPAT_MODE $KVIKIO_NTHREADS";
  ::unsetenv("KVIKIO_COMPAT_MODE");
  ::unsetenv("KVIKIO_NTHREADS");
  EXPECT_EQ(run_shell(print).out, "AUTO 16\n");
  {
    const scoped_variable old_name("KVIKIO_NUM_THREADS", "8");
    EXPECT_EQ(run_shell(print).out, "AUTO\n");
  }
  const scoped_variable mode("KVIKIO_COMPAT_MODE", "ON");
  const scoped_variable threads("KVIKIO_NTHREADS", "2");
  EXPECT_EQ(run_shell(print).out, "ON 2\n");
}

// KvikIO's C++ library calls this function of its own, unless a preloaded library has one of that name.
TEST_F(run_program, tells_kvikio_that_udev_is_not_needed) {
  if (is_foreign()) GTEST_SKIP() << "programs of this system are for another processor than the library";
  const std::string ask = "python3 -c 'import ctypes; print(ctypes.CDLL(None)._ZN6kvikio17run_udev_readableEv() & 0xff)'";
  EXPECT_EQ(run_shell(ask).out, "1\n");
}

TEST_F(run_program, within_another_run_names_each_library_once) {
  const ended_program ended = run({"run", "--", PENSTOCK_CLI_PATH, "run", "--", "sh", "-c", "echo $LD_PRELOAD,$LD_AUDIT"});
  EXPECT_EQ(ended.out, preloaded + "," + audit + "\n") << ended.err;
}

// A library that is called safetensors, as far as its import goes.
struct python_world {
  explicit python_world(const scratch_directory& at) {
    std::filesystem::create_directory(at.path() + "/safetensors");
    std::ofstream(at.path() + "/safetensors/__init__.py") << "__version__ = '0'\nsafe_open = None\n";
  }
};

TEST_F(run_program, says_why_safetensors_stays_as_it_is) {
  if (is_foreign()) GTEST_SKIP() << "programs of this system are for another processor than the library";
  const scratch_directory directory;
  const python_world world(directory);
  const std::string python = "cd " + directory.path() + " && python3 -c 'import ";
  // The interpreter of the system has no package of Penstock's.
  if (run_shell(python + "penstock'").exit_code == 0) GTEST_SKIP() << "this Python has the package penstock";
  for (const bool with_summary : {false, true}) {
    const auto ended = run_shell(python + "safetensors; print(safetensors.safe_open)'",
                                 with_summary ? std::vector<std::string>{"--log", "summary"} : std::vector<std::string>{});
    EXPECT_EQ(ended.out, "None\n");
    EXPECT_TRUE(contains(ended.err, "RuntimeWarning: the safetensors library was not replaced with Penstock: ")) << ended.err;
    EXPECT_TRUE(contains(ended.err, "lacks the penstock package")) << ended.err;
    EXPECT_EQ(contains(ended.err, "penstock: cuFile was not used\n"), with_summary) << ended.err;
  }
  EXPECT_EQ(run_shell("PENSTOCK_SAFETENSORS=0; export PENSTOCK_SAFETENSORS; " + python + "safetensors'").err, "");
  const auto unused = run_shell(python + "json'", {"--log", "summary"});
  EXPECT_TRUE(contains(unused.err, "penstock: safetensors was not used\n")) << unused.err;
  // What it says may go nowhere.
  for (const char* lost : {"2>&-", "2>/dev/full"})
    EXPECT_EQ(run_shell(python + "safetensors' " + lost, {"--log", "summary"}).exit_code, 0) << lost;
}

TEST_F(run_program, does_not_start_without_the_libraries) {
  const scratch_directory directory;
  const std::string copy = directory.path() + "/penstock";
  std::filesystem::copy_file(PENSTOCK_CLI_PATH, copy);
  const scoped_variable path("LD_LIBRARY_PATH", build_folder);  // of the copy: libpenstock.so
  const ended_program ended = run({"run", "--", copy, "run", "--", "echo", "started"});
  EXPECT_EQ(ended.exit_code, 125);
  EXPECT_EQ(ended.out, "");
  for (const std::string& part : {std::string("libcufile.so.0"), std::string("libpenstock_audit.so"), directory.path() + "/cufile"}) {
    EXPECT_TRUE(contains(ended.err, part)) << ended.err;
  }
}

TEST(run_command, that_does_not_exist_exits_with_127) {
  for (const std::string name : {"no-such-command-anywhere", "/nowhere/at-all", "read"}) {
    const ended_program ended = run({"run", "--", name});
    EXPECT_EQ(ended.exit_code, 127) << ended.err;
    EXPECT_TRUE(contains(ended.err, "penstock run: " + name + ": ")) << ended.err;
  }
}

TEST(run_command, that_cannot_be_executed_exits_with_126) {
  const scratch_directory directory;
  for (const std::string& name : {directory.path(), directory.make_file("data", 10)}) {
    const ended_program ended = run({"run", "--", name});
    EXPECT_EQ(ended.exit_code, 126) << ended.err;
    EXPECT_TRUE(contains(ended.err, name + ": Permission denied")) << ended.err;
  }
}

TEST(run_command, that_is_missing_or_an_unknown_option_is_a_usage_error) {
  const std::vector<std::vector<std::string>> mistakes{{"run"},
                                                       {"run", "--"},
                                                       {"run", "--no-audit"},
                                                       {"run", "--no-such-option", "true"},
                                                       {"run", "--log"},
                                                       {"run", "--log", "loud", "true"}};
  for (const auto& arguments : mistakes) {
    const ended_program ended = run(arguments);
    EXPECT_EQ(ended.exit_code, 2) << arguments.back() << ended.out;
    EXPECT_NE(ended.err, "");
  }
}

}  // namespace
}  // namespace penstock::cli_test
