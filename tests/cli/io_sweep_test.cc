// penstock io --sweep.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <regex>
#include <utility>

#include "cli/program.hpp"

namespace penstock::cli_test {
namespace {

std::string whole(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// How far the text of a drawing goes to the right at least, and how wide the drawing is.
std::pair<double, double> extents_of(const std::string& drawing) {
  constexpr double narrow_letter = 5.5;  // at 12 px
  static const std::regex text("<text x=\"([0-9.]+)\" [^>]*text-anchor=\"start\"[^>]*>([^<]*)</text>");
  static const std::regex box("viewBox=\"0 0 ([0-9.]+) ");
  double end = 0;
  for (std::sregex_iterator each(drawing.begin(), drawing.end(), text), none; each != none; ++each)
    end = std::max(end, std::stod((*each)[1]) + narrow_letter * static_cast<double>((*each)[2].length()));
  std::smatch found;
  return {end, std::regex_search(drawing, found, box) ? std::stod(found[1]) : 0};
}

class sweep_test : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_EQ(run({"io", "-f", file_, "-s", "1M", "-I", "1", "-d", "host:0", "--quiet"}).exit_code, 0); }
  ended_program sweep(std::vector<std::string> more) {
    const std::vector<std::string> common{"io", "--sweep", "-f", file_, "-d", "host:0", "-T", "0.01"};
    more.insert(more.begin(), common.begin(), common.end());
    return run(more);
  }
  scratch_directory directory_;
  std::string file_ = directory_.path() + "/data";
};

TEST_F(sweep_test, it_runs_each_size_with_each_number_of_threads_and_measures_a_ceiling) {
  const auto ended = sweep({"--sweep-sizes", "64K,4K", "--sweep-threads", "1,2", "--sweep-transfers", "0,1", "--json"});
  ASSERT_EQ(ended.exit_code, 0) << ended.err;
  const auto told = nlohmann::json::parse(ended.out);
  ASSERT_EQ(told.at("runs").size(), 8U);
  EXPECT_EQ(told.at("runs").at(0).at("io_size"), 4096) << "the smallest first";
  EXPECT_EQ(told.at("runs").at(1).at("threads"), 2);
  EXPECT_EQ(told.at("runs").at(7).at("xfer_type"), "CPUONLY");
  for (const auto& each : told.at("runs")) EXPECT_GT(each.at("bytes"), 0) << each;
  bool says_why_not = false;
  for (const auto& each : told.at("remarks")) says_why_not = says_why_not || each.get<std::string>().starts_with("no ceiling for READ: ");
  EXPECT_EQ(told.at("ceilings").size(), says_why_not ? 0U : 1U);
  EXPECT_TRUE(told.at("error").is_null());
}

TEST_F(sweep_test, people_get_tables_and_bars_and_programs_files) {
  const auto csv = directory_.path() + "/sweep.csv";
  const auto svg = directory_.path() + "/sweep.svg";
  const auto ended = sweep({"--sweep-sizes", "4K,64K", "--sweep-threads", "1", "--sweep-io", "write,read", "--csv", csv, "--plot", svg});
  ASSERT_EQ(ended.exit_code, 0) << ended.err;
  for (const char* said : {"WRITE GPUD, GB/s", "READ GPUD, GB/s", "64 KiB", "threads        1", "#"})
    EXPECT_TRUE(contains(ended.out, said)) << said << ended.out;
  const auto table = whole(csv);
  EXPECT_EQ(std::ranges::count(table, '\n'), 5) << table;
  EXPECT_TRUE(contains(table, "\nREAD,GPUD,65536,1,")) << table;
  const auto drawing = whole(svg);
  EXPECT_TRUE(drawing.starts_with("<svg ")) << drawing.substr(0, 80);
  EXPECT_TRUE(drawing.ends_with("</svg>\n"));
  EXPECT_TRUE(contains(drawing, "<style>")) << "it needs no page";
  EXPECT_TRUE(contains(drawing, "READ GPUD x 1"));
  EXPECT_TRUE(contains(drawing, ">Throughput by request size</text>"));
}

TEST_F(sweep_test, it_writes_over_no_file_of_others) {
  const auto theirs = directory_.make_file("theirs", mib);
  const auto before = whole(theirs);
  const auto ended = run({"io", "--sweep", "-f", theirs, "-d", "host:0", "-T", "0.01", "--sweep-io", "write", "-s", "1M"});
  EXPECT_EQ(ended.exit_code, 1) << ended.out;
  EXPECT_EQ(whole(theirs), before);
}

TEST_F(sweep_test, a_file_of_figures_that_cannot_be_made_is_named_before_the_first_run) {
  const auto path = directory_.path() + "/none/sweep.csv";
  for (const char* option : {"--csv", "--plot"}) {
    const auto ended = sweep({"--sweep-sizes", "4K", "--sweep-threads", "1", option, path});
    EXPECT_EQ(ended.exit_code, 1);
    EXPECT_TRUE(contains(ended.err, "create " + path + ": No such file")) << ended.err;
    EXPECT_TRUE(ended.out.empty()) << "no run for nothing: " << ended.out;
  }
}

TEST_F(sweep_test, a_sweep_that_fails_leaves_the_figures_of_the_last) {
  const auto csv = directory_.path() + "/sweep.csv";
  std::ofstream(csv) << "of the last";
  const auto theirs = directory_.make_file("theirs", mib);
  const std::vector<std::string> command{"io", "--sweep", "-f", theirs, "-d", "host:0", "-T", "0.01", "--sweep-io", "write", "-s", "1M"};
  auto with_csv = command;
  with_csv.insert(with_csv.end(), {"--csv", csv});
  EXPECT_EQ(run(with_csv).exit_code, 1);
  EXPECT_EQ(whole(csv), "of the last");
  ASSERT_EQ(sweep({"--sweep-sizes", "4K", "--sweep-threads", "1", "--csv", csv}).exit_code, 0);
  EXPECT_TRUE(whole(csv).starts_with("io_type,"));
  for (const auto& each : std::filesystem::directory_iterator(directory_.path()))
    EXPECT_FALSE(each.path().filename().string().starts_with("sweep.csv.")) << each.path();
}

TEST_F(sweep_test, figures_to_standard_output_go_behind_what_is_there) {
  const auto ended = sweep({"--sweep-sizes", "4K", "--sweep-threads", "1", "--csv", "/dev/stdout"});
  ASSERT_EQ(ended.exit_code, 0) << ended.err;
  EXPECT_TRUE(contains(ended.out, "READ GPUD, GB/s") && contains(ended.out, "\nREAD,GPUD,4096,1,")) << ended.out;
}

TEST_F(sweep_test, verifying_all_is_refused_and_not_forgotten) {
  const auto ended = sweep({"--sweep-sizes", "4K", "--sweep-threads", "1", "-V"});
  EXPECT_EQ(ended.exit_code, 2);
  EXPECT_TRUE(contains(ended.err, "--sweep") && contains(ended.err, "-V")) << ended.err;
}

TEST_F(sweep_test, remarks_on_the_configuration_file_are_told) {
  const auto config = directory_.path() + "/job.gdsio";
  std::ofstream(config) << "[global]\nxfer_type=0\nrw=read\nbs=4K\nnonsense_of_gdsio=1\n[job1]\nfilename=" << file_ << "\n";
  const std::vector<std::string> swept{"io",      config,          "-d", "host:0",          "-T", "0.01",
                                       "--sweep", "--sweep-sizes", "4K", "--sweep-threads", "1"};
  const auto ended = run(swept);
  EXPECT_EQ(ended.exit_code, 0) << ended.err;
  EXPECT_TRUE(contains(ended.err, "nonsense_of_gdsio has no effect here")) << ended.err;
}

TEST_F(sweep_test, a_ceiling_is_called_sequential_and_not_drawn_above_random_access) {
  const auto svg = directory_.path() + "/sweep.svg";
  const auto ended = sweep({"--sweep-sizes", "4K", "--sweep-threads", "1", "--sweep-io", "read,randread", "--warm", "--plot", svg});
  ASSERT_EQ(ended.exit_code, 0) << ended.err;
  if (contains(ended.err, "no ceiling for ")) GTEST_SKIP() << ended.err;
  EXPECT_TRUE(contains(ended.out, "\nREAD ceiling, sequential, page cache: ")) << ended.out;
  EXPECT_TRUE(contains(ended.out, "\nRANDREAD ceiling, sequential, page cache: ")) << ended.out;
  EXPECT_TRUE(contains(ended.out, "\n  READ ceiling, sequential, page cache ")) << "a bar: " << ended.out;
  EXPECT_FALSE(contains(ended.out, "\n  RANDREAD ceiling")) << ended.out;
  EXPECT_TRUE(contains(whole(svg), "READ ceiling, sequential, page cache"));
  EXPECT_FALSE(contains(whole(svg), "RANDREAD ceiling"));
  const auto [end, width] = extents_of(whole(svg));
  EXPECT_GT(end, 820) << "this label is a long one";
  EXPECT_LE(end, width);
}

TEST_F(sweep_test, lists_that_mean_nothing_are_usage_errors) {
  for (const std::vector<std::string>& wrong : std::vector<std::vector<std::string>>{{"--sweep-sizes", "4K,"},
                                                                                     {"--sweep-sizes", "0"},
                                                                                     {"--sweep-sizes", "4Q"},
                                                                                     {"--sweep-threads", "0"},
                                                                                     {"--sweep-threads", "1,many"},
                                                                                     {"--sweep-io", "reed"},
                                                                                     {"--sweep-transfers", "8"},
                                                                                     {"-i", "4K"},
                                                                                     {"-w", "2"}}) {
    const auto ended = sweep(wrong);
    EXPECT_EQ(ended.exit_code, 2) << wrong.back() << ended.err;
  }
  std::string many = "1";
  for (int i = 2; i <= 600; ++i) many += "," + std::to_string(i);
  EXPECT_TRUE(contains(sweep({"--sweep-threads", many}).err, "at most 512 are allowed"));
  EXPECT_EQ(run({"io", "-f", file_, "-d", "host:0", "--csv", "x"}).exit_code, 2) << "of a sweep alone";
  EXPECT_EQ(run({"io", "--sweep", "-D", directory_.path(), "-d", "host:0"}).exit_code, 2) << "one file";
}

}  // namespace
}  // namespace penstock::cli_test
