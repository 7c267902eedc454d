// penstock check on recorded machines, of which only the files exist.
#include <gtest/gtest.h>
#include <sys/inotify.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>
#include <sstream>

#include "cli/program.hpp"
#include "cli/recorded_machine.hpp"
#include "machine/finding.hpp"

namespace penstock::cli_test {
namespace {

namespace fs = std::filesystem;

std::string file_of(const std::string& name) { return std::string(PENSTOCK_MACHINES_PATH) + "/" + name + ".machine"; }

std::vector<std::string> machine_names() {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(PENSTOCK_MACHINES_PATH)) {
    if (entry.path().extension() == ".machine") names.push_back(entry.path().stem().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::string text_of(const nlohmann::json& finding) {
  const auto subject = finding.at("subject").get<std::string>();
  return finding.at("verdict").get<std::string>() + " " + finding.at("id").get<std::string>() + (subject.empty() ? "" : " " + subject);
}

std::string lines(const std::vector<std::string>& all) {
  std::string text;
  for (const auto& each : all) text += "expect " + each + "\n";
  return text;
}

class machines : public ::testing::TestWithParam<std::string> {};

TEST_P(machines, get_the_verdicts_that_are_expected) {
  const scratch_directory directory;
  const recorded_machine machine(file_of(GetParam()), directory.path());
  const auto ended = run({"check", "--root", directory.path(), "--json"});
  EXPECT_EQ(ended.exit_code, machine.exit_code()) << ended.err;
  const auto told = nlohmann::json::parse(ended.out);
  std::vector<std::string> found;
  for (const auto& each : told.at("findings")) found.push_back(text_of(each));
  EXPECT_EQ(lines(found), lines(machine.expected()));
}

// Every fact that a text has a place for is filled in, and every finding that is not ok says what to do.
TEST_P(machines, get_whole_sentences) {
  const scratch_directory directory;
  const recorded_machine machine(file_of(GetParam()), directory.path());
  const auto told = nlohmann::json::parse(run({"check", "--root", directory.path(), "--json"}).out);
  const std::regex place("\\{[a-z_0-9]+\\}");
  for (const auto& each : told.at("findings")) {
    const auto reason = each.at("reason").get<std::string>();
    const auto remedy = each.at("remedy").get<std::string>();
    EXPECT_FALSE(reason.empty()) << each;
    EXPECT_FALSE(std::regex_search(reason, place)) << each;
    EXPECT_FALSE(std::regex_search(remedy, place)) << each;
    EXPECT_EQ(reason.find("  "), std::string::npos) << each;
    EXPECT_EQ(reason.find(", ,"), std::string::npos) << each;
  }
}

// Of every file that a machine shows.
TEST_P(machines, are_not_opened_for_writing) {
  const scratch_directory directory;
  const recorded_machine machine(file_of(GetParam()), directory.path());
  const int watch = ::inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
  constexpr auto changes = IN_CLOSE_WRITE | IN_MODIFY | IN_ATTRIB | IN_CREATE | IN_DELETE | IN_MOVE;
  for (const auto& entry : fs::recursive_directory_iterator(directory.path())) {
    if (!entry.is_directory() || entry.is_symlink()) continue;
    ASSERT_GE(::inotify_add_watch(watch, entry.path().c_str(), changes), 0);
  }
  EXPECT_EQ(run({"check", "--root", directory.path(), "-p", "-v", "-t"}).exit_code, machine.exit_code());
  alignas(inotify_event) std::array<char, 4096> events;
  EXPECT_EQ(::read(watch, events.data(), events.size()), -1) << reinterpret_cast<inotify_event*>(events.data())->name;
  ::close(watch);
}

INSTANTIATE_TEST_SUITE_P(recorded, machines, ::testing::ValuesIn(machine_names()), [](const auto& of) {
  auto name = of.param;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

TEST(catalogue, has_each_finding_once_and_a_remedy_for_all_that_is_not_ok) {
  std::set<std::string_view> ids;
  for (const auto& each : machine::all_findings()) {
    EXPECT_TRUE(ids.insert(each.id).second) << each.id;
    EXPECT_FALSE(each.reason.empty()) << each.id;
    EXPECT_TRUE(each.verdict == machine::verdict::ok || !each.remedy.empty()) << each.id;
  }
}

TEST(catalogue, is_the_page_of_the_documentation) {
  const auto printed = run({"check", "--findings"});
  EXPECT_EQ(printed.exit_code, 0);
  std::ifstream file(std::string(PENSTOCK_MACHINES_PATH) + "/../../../docs/reference/check.md");
  const std::string page(std::istreambuf_iterator<char>(file), {});
  EXPECT_TRUE(page == printed.out) << "run: penstock check --findings > docs/reference/check.md";
}

TEST(catalogue, says_what_to_do_in_the_imperative) {
  const std::set<std::string> verbs = {"add",  "allow", "bind",  "check", "copy", "correct",   "enable", "install", "keep",
                                       "list", "load",  "mount", "move",  "put",  "nothing",   "raise",  "reboot",  "reseat",
                                       "run",  "set",   "start", "unset", "use",  "reinstall", "with"};
  for (const auto& each : machine::all_findings()) {
    const std::string remedy(each.remedy.substr(0, each.remedy.find_first_of(" ,")));
    EXPECT_TRUE(remedy.empty() || verbs.contains(remedy)) << each.id << ": " << each.remedy;
  }
}

struct meaning {
  const char* machine;
  const char* summary;
};

// A new sentence is one line.
constexpr std::array meanings{
    meaning{"nothing", "No GPU found: Penstock uses host memory and host:0, at the speed of memory copies."},
    meaning{"lustre-tuned", "Everything that matters is fine: expect up to 55 GB/s from the page cache into the GPU (its PCIe link)."},
    meaning{"nvidia-fs",
            "The GPU works: expect up to 27 GB/s from the page cache into the GPU (its PCIe link). 6 changes would make it faster, for "
            "example: correct it; penstock check --cufile-json FILE shows what each key does."},
    meaning{
        "four-gpus",
        "3 GPUs work: expect up to 55 GB/s from the page cache into each GPU (its PCIe link). One part is broken: compatibility mode is "
        "off (CUFILE_ALLOW_COMPAT_MODE), but drives cannot access GPU memory: cuFile refuses every file."},
    meaning{"no-nvidia-fs",
            "The GPU works: expect up to 14 GB/s from the page cache into the GPU (its PCIe link). 10 changes would make it faster, for "
            "example: enable Above 4G Decoding and Resizable BAR in the firmware."},
    meaning{"grace",
            "The GPU works: expect the speed of its link from the page cache. One part is broken: the driver is set up for P2PDMA, but "
            "NVMe multipath is on, which prevents it."},
    meaning{"no-driver",
            "No GPU can be used yet: an NVIDIA GPU without a driver: the kernel module nvidia is not loaded. Until this is fixed, Penstock "
            "uses host memory and host:0."},
    meaning{"wsl",
            "Windows owns the GPU here (WSL): Penstock copies to it from host memory, without GPUDirect. One change would make it "
            "faster: copy data that you read often to a local drive."},
};

TEST(summary, says_what_the_findings_mean_for_the_machine) {
  for (const meaning& each : meanings) {
    const scratch_directory directory;
    const recorded_machine machine(file_of(each.machine), directory.path());
    const auto text = run({"check", "--root", directory.path()}).out;
    EXPECT_TRUE(text.ends_with("\n" + std::string(each.summary) + "\n"))
        << each.machine << ": " << text.substr(text.size() - std::min<std::size_t>(text.size(), 400));
    EXPECT_EQ(nlohmann::json::parse(run({"check", "--root", directory.path(), "--json"}).out).at("summary"), each.summary);
    EXPECT_FALSE(contains(run({"check", "--root", directory.path(), "--quiet"}).out, each.summary)) << each.machine;
  }
}

TEST(summary, counts_the_cores_of_a_machine_without_a_gpu) {
  const scratch_directory directory;
  const recorded_machine machine(file_of("nothing"), directory.path());
  fs::create_directories(directory.path() + "/sys/devices/system/cpu");
  std::ofstream(directory.path() + "/sys/devices/system/cpu/online") << "0-3,8\n";
  EXPECT_TRUE(contains(run({"check", "--root", directory.path()}).out, "at the speed of memory copies on 5 cores.\n"));
}

// What a test has never seen said may be unreachable, or garbled.
TEST(catalogue, is_said_by_some_recorded_machine) {
  // What needs a kernel that can be asked; the tests of judges have them.
  const std::set<std::string_view> asked = {"cachestat.works",      "cachestat.missing", "cachestat.denied",    "io_uring.works",
                                            "io_uring.missing",     "io_uring.denied",   "memfd.works",         "memfd.denied",
                                            "vm_readv.works",       "vm_readv.denied",   "cufile.ours",         "cufile.ours_missing",
                                            "cuda.starts",          "cuda.fails",        "cuda.hidden",         "file.sparse",
                                            "p2pdma.closed_driver", "dma_buf.ready",     "dma_buf.kernel",      "dma_buf.closed_driver",
                                            "dma_buf.not_lent",     "dma_buf.drive",     "dma_buf.file_system", "dma_buf.unanswered"};
  std::set<std::string> said;
  for (const auto& name : machine_names()) {
    const scratch_directory directory;
    const recorded_machine machine(file_of(name), directory.path());
    for (const auto& each : machine.expected())
      said.insert(each.substr(each.find(' ') + 1, each.find(' ', each.find(' ') + 1) - each.find(' ') - 1));
  }
  for (const auto& each : machine::all_findings()) {
    EXPECT_TRUE(asked.contains(each.id) || said.contains(std::string(each.id))) << each.id << " is expected of no machine";
  }
}

}  // namespace
}  // namespace penstock::cli_test
