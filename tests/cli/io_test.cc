// penstock io.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <regex>
#include <sstream>

#include "cli/program.hpp"

namespace penstock::cli_test {
namespace {

using words = std::vector<std::string>;

ended_program io(words arguments) {
  arguments.insert(arguments.begin(), "io");
  return run(arguments);
}

words joined(words first, const words& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

nlohmann::json run_of(const ended_program& ended) {
  EXPECT_EQ(ended.exit_code, 0) << ended.err;
  return nlohmann::json::parse(ended.out).at("runs").at(0);
}

std::string text_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

void overwrite(const std::string& path, std::size_t at, const std::string& text) {
  std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
  file.seekp(static_cast<std::streamoff>(at));
  file << text;
}

void write_text(const std::string& path, const std::string& text) { std::ofstream(path) << text; }

// gdsio's line, as the guides to it show it.
const std::regex gdsio_line(
    "IoType: (READ|WRITE|RANDREAD|RANDWRITE) XferType: ([A-Z_]+) Threads: ([0-9]+) (?:IoDepth: ([0-9]+) )?DataSetSize: "
    "([0-9]+)/([0-9]+)\\(KiB\\) IOSize: ([0-9]+)\\(KiB\\) Throughput: ([0-9]+\\.[0-9]{6}) GiB/sec, Avg_Latency: ([0-9]+\\.[0-9]{6}) "
    "usecs ops: ([0-9]+) total_time ([0-9]+\\.[0-9]{6}) secs\n");

TEST(io, every_transfer_type_moves_right_bytes_both_ways_in_order_and_at_random) {
  const scratch_directory directory;
  const char* const types[] = {"GPUD",           "CPUONLY",    "CPU_GPU",   "CPU_ASYNC_GPU",
                               "CPU_CACHED_GPU", "GPUD_ASYNC", "GPU_BATCH", "GPU_BATCH_STREAM"};
  const char* const names[] = {"READ", "WRITE", "RANDREAD", "RANDWRITE"};
  for (int type = 0; type < 8; ++type) {
    for (const int kind : {1, 0, 3, 2}) {
      const auto told = run_of(io({"-D", directory.path(), "-w", "2", "-s", "1M", "-i", "64K", "-x", std::to_string(type), "-I",
                                   std::to_string(kind), "-d", "host:0", "--json"}));
      EXPECT_EQ(told.at("xfer_type"), types[type]);
      EXPECT_EQ(told.at("io_type"), names[kind]);
      EXPECT_EQ(told.at("bytes"), 2 * mib);
      EXPECT_EQ(told.at("requests"), 32);
      EXPECT_GE(told.at("verified_bytes").get<std::size_t>(), 2 * mib) << told;
      EXPECT_EQ(told.at("unwritten_bytes"), 0);
    }
  }
  EXPECT_EQ(directory.entries(), 2U);
  EXPECT_EQ(std::filesystem::file_size(directory.path() + "/gdsio.1"), mib);
}

TEST(io, its_line_is_gdsios_and_stands_alone_on_stdout) {
  const scratch_directory directory;
  const ended_program written = io({"-D", directory.path(), "-w", "4", "-s", "1M", "-i", "256K", "-I", "1", "-d", "host:0"});
  ASSERT_EQ(written.exit_code, 0) << written.err;
  std::smatch found;
  ASSERT_TRUE(std::regex_match(written.out, found, gdsio_line)) << written.out;
  EXPECT_EQ(found[1], "WRITE");
  EXPECT_EQ(found[3], "4");
  EXPECT_FALSE(found[4].matched);
  EXPECT_EQ(found[5], "4096");
  EXPECT_EQ(found[6], "4096");
  EXPECT_EQ(found[7], "256");
  EXPECT_EQ(found[10], "16");
  const double seconds = std::stod(found[11]);
  EXPECT_GT(seconds, 0.0);
  EXPECT_NEAR(std::stod(found[8]), 4.0 / 1024 / seconds, 1.0);
  EXPECT_TRUE(contains(written.err, "p99.9 ")) << written.err;
  EXPECT_TRUE(contains(written.err, "verified 4 MiB")) << written.err;

  const ended_program batch = io({"-D", directory.path(), "-w", "4", "-s", "1M", "-i", "256K", "-x", "6", "-d", "host:0", "--quiet"});
  ASSERT_TRUE(std::regex_match(batch.out, found, gdsio_line)) << batch.out;
  EXPECT_EQ(found[3], "1");
  EXPECT_EQ(found[4], "4");
  EXPECT_EQ(batch.err, "");
}

// With grep, awk and sed, as such scripts are written, and the words of Python's ones as grep -P takes them.
TEST(io, scripts_that_read_gdsios_output_read_this_one) {
  const scratch_directory directory;
  const std::string script = directory.path() + "/script";
  write_text(script, R"(set -e
GDSIO="$1 io"
$GDSIO -D "$2" -d host:0 -w 2 -s 1M -i 128K -x 0 -I 1 > write.log 2> errors.log
out=$($GDSIO -D "$2" -d host:0 -w 2 -s 1M -i 128K -x 0 -I 0 2>&1)
echo "$out" | tail -n 1 | awk '{for (i = 1; i <= NF; i++) if ($i == "Throughput:") print "awk", $(i + 1), $(i + 2)}'
tail -n 1 write.log | sed -n 's/.*Avg_Latency: \([0-9.]*\) usecs.*/sed \1/p'
echo "$out" | grep -oP '[\d.]+\s*GiB/s' | head -1
echo "$out" | grep -ioP 'avg_latency:\s*[\d.]+' | head -1
echo "$out" | grep -oP 'Throughput:\s+([\d.]+)\s+GiB/sec,\s+Avg_Latency:\s+([\d.]+)\s+usecs\s+ops:\s+(\d+)\s+total_time\s+([\d.]+)\s+secs' >/dev/null
echo "$out" | grep -oP 'Threads:\s*(\d+)[^*]*?IOSize:\s*(\d+)\s*\(?(KiB|MiB)\)?' >/dev/null
echo "$out" | grep -P 'IoType:\s+(\w+).*?XferType:\s+GPUD' >/dev/null
echo end
)");
  std::filesystem::create_directory(directory.path() + "/data");
  const std::string command =
      "cd " + directory.path() + " && bash script " + PENSTOCK_CLI_PATH + " " + directory.path() + "/data > said 2>&1";
  const int ended = std::system(command.c_str());  // NOLINT(cert-env33-c): the shell is what is tested
  const std::string said = text_of(directory.path() + "/said");
  EXPECT_EQ(ended, 0) << said;
  const std::regex right("awk [0-9.]+ GiB/sec,\nsed [0-9.]+\n[0-9.]+ GiB/s\nAvg_Latency: [0-9.]+\nend\n");
  EXPECT_TRUE(std::regex_match(said, right)) << said;
}

TEST(io, verify_reads_back_what_was_written_with_a_line_of_its_own) {
  const scratch_directory directory;
  const ended_program ended = io({"-f", directory.path() + "/one", "-w", "3", "-s", "1M", "-i", "100K", "-I", "1", "-V", "-d", "host:0"});
  ASSERT_EQ(ended.exit_code, 0) << ended.err;
  EXPECT_TRUE(std::regex_search(ended.out, std::regex("^IoType: WRITE [^\n]*\nVerifying data \nIoType: READ [^\n]*\n$"))) << ended.out;
  EXPECT_EQ(std::filesystem::file_size(directory.path() + "/one"), mib);
}

TEST(io, a_file_that_it_did_not_write_is_not_written_over) {
  const scratch_directory directory;
  const std::string path = directory.path() + "/mine";
  write_text(path, "precious");
  const ended_program refused = io({"-f", path, "-I", "1", "-s", "64K", "-d", "host:0"});
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_EQ(refused.err, "penstock: " + path + " contains data that penstock io did not write; use --force to overwrite it\n");
  EXPECT_EQ(text_of(path), "precious");
  EXPECT_EQ(io({"-f", path, "-I", "1", "-s", "64K", "-d", "host:0", "--force"}).exit_code, 0);
  EXPECT_EQ(io({"-f", path, "-I", "1", "-s", "64K", "-d", "host:0"}).exit_code, 0) << "now it is its own";
  // Zeros are somebody's too, where they are not holes of its own file.
  const std::string zeros = directory.make_sparse_file("zeros", mib);
  EXPECT_EQ(io({"-f", zeros, "-I", "3", "-s", "64K", "-i", "4K", "-d", "host:0"}).exit_code, 1);
  const std::string empty = directory.make_file("empty", 0);
  EXPECT_EQ(io({"-f", empty, "-I", "3", "-s", "64K", "-i", "4K", "-d", "host:0"}).exit_code, 0) << "holds nothing";
}

TEST(io, a_foreign_block_anywhere_in_a_small_file_makes_it_somebody_elses) {
  const scratch_directory directory;
  const std::string path = directory.path() + "/data";
  ASSERT_EQ(io({"-f", path, "-I", "1", "-s", "128K", "-d", "host:0"}).exit_code, 0);
  overwrite(path, 70'000, "notes");
  EXPECT_EQ(io({"-f", path, "-I", "1", "-s", "128K", "-d", "host:0"}).exit_code, 1);
  EXPECT_EQ(text_of(path).substr(70'000, 5), "notes");
}

TEST(io, what_it_did_not_write_is_read_and_said_not_to_be_verified) {
  const scratch_directory directory;
  const std::string path = directory.make_file("data", mib);
  const ended_program plain = io({"-f", path, "-d", "host:0"});
  EXPECT_EQ(plain.exit_code, 0);
  EXPECT_TRUE(contains(plain.err, "penstock: not verified, because penstock io did not write it: " + path + "\n")) << plain.err;
  EXPECT_FALSE(contains(plain.err, "; verified")) << plain.err;
  const auto compared = run_of(io({"-f", path, "-d", "host:0", "-V", "--json"}));
  EXPECT_GE(compared.at("verified_bytes").get<std::size_t>(), mib);
  EXPECT_TRUE(compared.at("unverified").empty());
}

// 4.5 MiB, so that the samples that are looked at first miss the changed bytes.
TEST(io, bytes_that_changed_since_they_were_written_are_found_and_placed) {
  const scratch_directory directory;
  const std::string path = directory.path() + "/data";
  ASSERT_EQ(io({"-f", path, "-I", "1", "-s", "4608K", "-d", "host:0"}).exit_code, 0);
  overwrite(path, 3 * mib + 12288 + 77, "rot");
  const ended_program ended = io({"-f", path, "-d", "host:0"});
  EXPECT_EQ(ended.exit_code, 1) << ended.out;
  EXPECT_TRUE(contains(ended.err, path + ": at offset 3158016, the file no longer contains what penstock io wrote")) << ended.err;
  EXPECT_EQ(io({"-f", path, "-d", "host:0", "--no-verify"}).exit_code, 0);
}

TEST(io, what_lies_where_other_blocks_of_the_same_writing_should_is_found) {
  const scratch_directory directory;
  const std::string path = directory.path() + "/data";
  ASSERT_EQ(io({"-f", path, "-I", "1", "-s", "4608K", "-d", "host:0"}).exit_code, 0);
  overwrite(path, 3 * mib + 12288, text_of(path).substr(mib + 12288, 4096));
  EXPECT_EQ(io({"-f", path, "-d", "host:0"}).exit_code, 1);
}

TEST(io, holes_of_random_writes_count_as_not_written_yet) {
  const scratch_directory directory;
  const std::string path = directory.path() + "/data";
  const words common{"-f", path, "-d", "host:0", "--json"};
  const auto wrote = run_of(io(joined(common, {"-I", "3", "-s", "1M", "-i", "16K", "-k", "7"})));
  EXPECT_EQ(wrote.at("verified_bytes"), mib);
  const auto read = run_of(io(joined(common, {"-i", "64K"})));
  const auto unwritten = read.at("unwritten_bytes").get<std::size_t>();
  EXPECT_GT(unwritten, 0U);
  EXPECT_EQ(run_of(io(joined(common, {"-I", "2", "-s", std::to_string(std::filesystem::file_size(path)), "-i", "16K", "-k", "7"})))
                .at("requests"),
            (std::filesystem::file_size(path) + 16383) / 16384);
}

TEST(io, requests_of_odd_sizes_and_offsets_are_right_too) {
  const scratch_directory directory;
  const std::string path = directory.path() + "/odd";
  const words common{"-f", path, "-d", "host:0", "-w", "3", "--json"};
  const auto wrote = run_of(io(joined(common, {"-I", "1", "-s", "100001", "-o", "333", "-i", "1000"})));
  EXPECT_EQ(wrote.at("bytes"), 100'001);
  EXPECT_EQ(std::filesystem::file_size(path), 100'334U);
  const auto read = run_of(io(joined(common, {"-i", "777", "-x", "6", "-B", "5"})));
  EXPECT_EQ(read.at("bytes"), 100'334);
  EXPECT_EQ(read.at("depth"), 5);
  EXPECT_GE(read.at("verified_bytes").get<std::size_t>() + read.at("unwritten_bytes").get<std::size_t>(), 100'334U);
  EXPECT_EQ(run_of(io(joined(common, {"-I", "3", "-s", "50000", "-i", "999", "-x", "1"}))).at("unwritten_bytes"), 0);
}

TEST(io, writings_by_blocks_and_across_blocks_do_not_mix) {
  const scratch_directory directory;
  const std::string path = directory.path() + "/data";
  ASSERT_EQ(io({"-f", path, "-I", "1", "-s", "64K", "-d", "host:0"}).exit_code, 0);
  const std::string before = text_of(path);
  const ended_program ended = io({"-f", path, "-I", "1", "-s", "10000", "-i", "1000", "-d", "host:0"});
  EXPECT_EQ(ended.exit_code, 1);
  EXPECT_TRUE(contains(ended.err, "remove the file first")) << ended.err;
  EXPECT_EQ(text_of(path), before);
}

TEST(io, a_run_for_some_time_goes_on_over_the_data) {
  const scratch_directory directory;
  const words common{"-f", directory.path() + "/data", "-d", "host:0", "-s", "256K", "-i", "64K", "--json"};
  EXPECT_GE(run_of(io(joined(common, {"-I", "1", "-T", "0.05"}))).at("bytes").get<std::size_t>(), 65536U);
  ASSERT_EQ(io(joined(common, {"-I", "1"})).exit_code, 0);  // a slow machine has not written all in that time
  for (const char* type : {"0", "3", "7"})
    EXPECT_GE(run_of(io(joined(common, {"-T", "0.3", "-x", type}))).at("bytes").get<std::size_t>(), 256U << 10) << type;
}

TEST(io, files_that_are_declared_immutable_are_read_and_verified) {
  const scratch_directory directory;
  const words common{"-f", directory.path() + "/data", "-d", "host:0", "--json", "-i", "1M"};
  ASSERT_EQ(io(joined(common, {"-I", "1", "-s", "24M"})).exit_code, 0);
  EXPECT_EQ(run_of(io(joined(common, {"--immutable", "-w", "1"}))).at("bytes"), 24 * mib);
}

TEST(io, a_range_of_sizes_is_a_run_for_each) {
  const scratch_directory directory;
  const ended_program ended = io({"-f", directory.path() + "/data", "-I", "1", "-s", "256K", "-i", "4K:12K:4K", "-d", "host:0", "--quiet"});
  EXPECT_EQ(ended.exit_code, 0) << ended.err;
  for (const char* size : {"IOSize: 4(KiB)", "IOSize: 8(KiB)", "IOSize: 12(KiB)"}) EXPECT_TRUE(contains(ended.out, size)) << ended.out;
}

TEST(io, the_page_cache_is_as_asked_and_looked_at) {
  const scratch_directory directory;
  const words common{"-f", directory.path() + "/data", "-d", "host:0", "--json"};
  ASSERT_EQ(io(joined(common, {"-I", "1", "-s", "2M"})).exit_code, 0);
  EXPECT_EQ(run_of(io(joined(common, {"--warm"}))).at("cached_bytes_before"), 2 * mib);
  const ended_program cold = io(joined(common, {"--cold"}));
  if (contains(cold.err, "stay in the page cache")) GTEST_SKIP() << "/tmp keeps its pages: " << cold.err;
  EXPECT_EQ(run_of(cold).at("cached_bytes_before"), 0);
}

TEST(io, where_pages_cannot_be_dropped_cold_fails_and_says_so) {
  struct stat info {};
  if (::stat("/dev/shm", &info) != 0 || ::access("/dev/shm", W_OK) != 0) GTEST_SKIP() << "no /dev/shm to write to";
  const std::string path = "/dev/shm/penstock-io-test-" + std::to_string(::getpid());
  ASSERT_EQ(io({"-f", path, "-I", "1", "-s", "64K", "-d", "host:0"}).exit_code, 0);
  const ended_program ended = io({"-f", path, "-d", "host:0", "--cold"});
  ::unlink(path.c_str());
  EXPECT_EQ(ended.exit_code, 1);
  EXPECT_EQ(ended.err, "penstock: --cold: " + path + ": 64 of 64 KiB stay in the page cache\n");
}

TEST(io, memory_of_every_kind_is_read_into_and_written_from) {
  const scratch_directory directory;
  for (const char* kind : {"0", "1", "2", "3", "4"}) {
    for (const char* direction : {"1", "0"}) {
      for (const words& more : {words{}, words{"-b"}, words{"-F"}}) {
        const auto told = run_of(io(joined(
            {"-f", directory.path() + "/data", "-d", "host:0", "-s", "256K", "-i", "64K", "-m", kind, "-I", direction, "--json"}, more)));
        EXPECT_EQ(told.at("bytes"), 256U << 10);
        EXPECT_GE(told.at("verified_bytes").get<std::size_t>(), 256U << 10);
      }
    }
  }
}

TEST(io, the_ceiling_is_measured_and_nothing_of_it_stays) {
  const scratch_directory directory;
  const words common{"-f", directory.path() + "/data", "-d", "host:0", "--ceiling", "--json"};
  const auto wrote = run_of(io(joined(common, {"-I", "1", "-s", "8M", "-O", "1"})));
  EXPECT_GT(wrote.at("ceiling").at("gb_per_s"), 0.0);
  EXPECT_GT(wrote.at("fraction"), 0.0);
  EXPECT_EQ(directory.entries(), 1U);
  const auto read = run_of(io(joined(common, {"--warm"})));
  EXPECT_GT(read.at("ceiling").at("gb_per_s"), 0.0);
  EXPECT_EQ(directory.entries(), 1U);
}

TEST(io, jobs_of_a_command_line_have_their_own_folders_threads_and_devices) {
  const scratch_directory directory;
  const std::string one = directory.path() + "/one", two = directory.path() + "/two";
  std::filesystem::create_directory(one);
  std::filesystem::create_directory(two);
  const auto told = run_of(io({"-d", "host:0", "-D", one, "-w", "1", "-D", two, "-w", "3", "-s", "64K", "-I", "1", "--json"}));
  EXPECT_EQ(told.at("threads"), 4);
  EXPECT_EQ(told.at("jobs").at(0).at("threads"), 1);
  EXPECT_EQ(told.at("jobs").at(1).at("bytes"), 3U << 16);
  EXPECT_FALSE(std::filesystem::exists(one + "/gdsio.1"));
  EXPECT_TRUE(std::filesystem::exists(two + "/gdsio.2"));
  const ended_program lines = io({"-d", "host:0", "-w", "1", "-D", one, "-D", two, "-J", "--quiet"});
  EXPECT_EQ(std::count(lines.out.begin(), lines.out.end(), '\n'), 3) << lines.out;
}

std::string config_of(const scratch_directory& directory, const std::string& rw) {
  return "# made by hand\n[global]\nname=test\nxfer_type=0\nrw=" + rw +
         "\nbs=64KB\nsize=256K\nruntime=0\ndo_verify=0\nskip_bufregister=0\n" +
         "enable_nvlinks=0\nrandom_seed=3456\nrefill_buffer=0\nfill_random=0\nunaligned_random=1\n\n[job1]\n# one\nnuma_node=0\n" +
         "gpu_dev_id=host:0\nnum_threads=2\ndirectory=" + directory.path() +
         "/a\n\n[job2]\ngpu_dev_id=host:0\nnum_threads=1\nfilename=" + directory.path() + "/b\nstart_offset=4K\nio_size=32K\n";
}

TEST(io, gdsios_configuration_files_are_understood) {
  const scratch_directory directory;
  std::filesystem::create_directory(directory.path() + "/a");
  const std::string config = directory.path() + "/rw.gdsio";
  for (const char* rw : {"write", "seqread", "randwrite", "randread"}) {
    write_text(config, config_of(directory, rw));
    const ended_program ended = io({config, "--json"});
    EXPECT_FALSE(contains(ended.err, "has no effect")) << ended.err;
    const auto told = run_of(ended);
    EXPECT_EQ(told.at("bytes"), 3U << 18) << rw;
    EXPECT_EQ(told.at("threads"), 3);
    EXPECT_EQ(told.at("requests"), 4 + 4 + 8);
    EXPECT_GE(told.at("verified_bytes").get<std::size_t>(), 3U << 18) << rw;
  }
  EXPECT_EQ(std::filesystem::file_size(directory.path() + "/b"), (256U << 10) + 4096);
  // What stands on the command line has the last word.
  EXPECT_EQ(run_of(io({config, "-i", "128K", "-I", "0", "--json"})).at("io_type"), "READ");
}

TEST(io, what_is_wrong_in_a_configuration_file_is_named_with_its_line) {
  const scratch_directory directory;
  const std::string config = directory.path() + "/bad.gdsio";
  const std::vector<std::pair<std::string, std::string>> mistakes{
      {"[global]\nbs=64Q\n", ":2: bs: \"64Q\" is not a size"},
      {"[global]\nxfer_type=8\n", ":2: xfer_type: \"8\" is not a number from 0 to 7"},
      {"[global]\nrw=sideways\n", ":2: rw: \"sideways\" is not one of"},
      {"[global]\nruntime=-1\n", ":2: runtime: \"-1\" is not a number from 0 to"},
      {"[global]\nruntime=nan\n", ":2: runtime: \"nan\" is not a number from 0 to"},
      {"[global\n", ":1: a section name must end with ]"},
      {"xfer_type=0\n", ":1: settings must follow a section name"},
      {"[global]\nxfer_type\n", ":2: expected KEY=VALUE"},
      {"[global]\nrw=read\n", " contains no job section, such as [job1]"},
      {"[job1]\nnum_threads=0\nfilename=x\n", "at least one thread"},
      {"[job1]\nnum_threads=1\n", "either a file or a folder"}};
  for (const auto& [text, said] : mistakes) {
    write_text(config, text);
    const ended_program ended = io({config});
    EXPECT_EQ(ended.exit_code, 2) << text;
    EXPECT_TRUE(contains(ended.err, said)) << ended.err;
  }
  write_text(config,
             "[global]\nblock=4K\nrw=write\nsize=64K\n[job1]\ngpu_dev_id=host:0\nnum_thread=2\nfilename=" + directory.path() + "/x\n");
  const ended_program unknown = io({config});
  EXPECT_EQ(unknown.exit_code, 0) << unknown.err;
  EXPECT_TRUE(contains(unknown.err, ":2: block has no effect here\n")) << unknown.err;
  EXPECT_TRUE(contains(unknown.err, ":7: num_thread has no effect here; did you mean num_threads?\n")) << unknown.err;
  EXPECT_TRUE(contains(io({directory.path() + "/none"}).err, "/none: No such file or directory (os 2)"));
  EXPECT_TRUE(contains(io({directory.path()}).err, directory.path()));
}

TEST(io, requests_larger_than_memory_are_refused_and_leave_no_file) {
  const scratch_directory directory;
  const std::string path = directory.path() + "/data";
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // which end the program instead
  const ended_program wrote = io({"-f", path, "-d", "host:0", "-I", "1", "-s", "64K", "-i", "1000T"});
  EXPECT_EQ(wrote.exit_code, 1);
  EXPECT_TRUE(contains(wrote.err, "not enough memory for requests of 1000 TiB")) << wrote.err;
  EXPECT_EQ(directory.entries(), 0U);
#endif
  ASSERT_EQ(io({"-f", path, "-d", "host:0", "-I", "1", "-s", "64K"}).exit_code, 0);
  for (const char* memory : {"0", "3", "4"}) {
    // 2^62 bytes four times are 2^64.
    const ended_program ended = io({"-f", path, "-d", "host:0", "-x", "6", "-B", "4", "-i", "4194304T", "-m", memory});
    EXPECT_EQ(ended.exit_code, 2) << ended.err;
    EXPECT_TRUE(contains(ended.err, "-i 4194304 TiB: 4 concurrent requests do not fit in memory")) << ended.err;
  }
}

TEST(io, threads_that_cannot_be_had_are_an_error) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root, for a user without other processes";
  const scratch_directory directory;
  ASSERT_EQ(::chmod(directory.path().c_str(), 0777), 0);
  const std::string user = "setpriv --reuid 65533 --regid 65533 --clear-groups ";
  if (std::system((user + PENSTOCK_CLI_PATH + " --version > /dev/null 2>&1").c_str()) != 0)  // NOLINT(cert-env33-c)
    GTEST_SKIP() << "needs setpriv";
  const std::string command = "cd " + directory.path() + "; ulimit -u 60; " + user + PENSTOCK_CLI_PATH +
                              " io -f data -I 1 -s 4M -i 4K -w 256 -d host:0 > said 2>&1";
  const int ended = std::system(("bash -c \"" + command + "\"").c_str());  // NOLINT(cert-env33-c)
  EXPECT_EQ(WEXITSTATUS(ended), 1);
  EXPECT_TRUE(contains(text_of(directory.path() + "/said"), "start 256 threads: ")) << text_of(directory.path() + "/said");
  EXPECT_FALSE(std::filesystem::exists(directory.path() + "/data"));
}

TEST(io, jobs_that_write_to_the_same_bytes_are_refused) {
  const scratch_directory directory;
  const std::string path = directory.path() + "/data";
  const words common{"-d", "host:0", "-I", "1", "-s", "64K", "-i", "4K"};
  ASSERT_EQ(io(joined(common, {"-f", path})).exit_code, 0);
  const std::string before = text_of(path);
  std::filesystem::create_symlink("data", directory.path() + "/link");
  for (const char* other : {"/data", "/link"}) {
    const ended_program ended = io(joined(common, {"-f", path, "-f", directory.path() + other}));
    EXPECT_EQ(ended.exit_code, 1);
    EXPECT_TRUE(contains(ended.err, "another job also writes to " + directory.path() + other)) << ended.err;
    EXPECT_EQ(text_of(path), before);
  }
  EXPECT_EQ(io({"-d", "host:0", "-f", path, "-f", path}).exit_code, 0) << "reads do not meet";
  const std::string config = directory.path() + "/config";
  write_text(config, "[global]\nrw=write\nsize=64K\n[a]\ngpu_dev_id=host:0\nfilename=" + path +
                         "\n[b]\ngpu_dev_id=host:0\nfilename=" + path + "\nstart_offset=64K\n");
  const ended_program parts = io({config});
  EXPECT_EQ(parts.exit_code, 0) << parts.err;
}

TEST(io, sizes_of_the_command_line_have_the_last_word_over_those_of_jobs) {
  const scratch_directory directory;
  const std::string config = directory.path() + "/config";
  write_text(config, "[global]\nrw=write\n[a]\ngpu_dev_id=host:0\nsize=1M\nio_size=64K\nfilename=" + directory.path() + "/data\n");
  EXPECT_EQ(run_of(io({config, "--json"})).at("requests"), 16);
  const auto told = run_of(io({config, "-s", "128K", "-i", "4K", "--json"}));
  EXPECT_EQ(told.at("bytes"), 128U << 10);
  EXPECT_EQ(told.at("requests"), 32);
  EXPECT_EQ(told.at("io_size"), 4096);
}

TEST(io, the_alignment_of_random_offsets_is_a_size) {
  const scratch_directory directory;
  const words common{"-f", directory.path() + "/data", "-d", "host:0", "-i", "64K", "--json"};
  ASSERT_EQ(io(joined(common, {"-I", "1", "-s", "1M"})).exit_code, 0);
  EXPECT_EQ(run_of(io(joined(common, {"-I", "2", "-a", "4K"}))).at("requests"), 16);
}

TEST(io, what_does_not_go_together_is_a_usage_error) {
  for (const words& wrong : std::vector<words>{{},
                                               {"-f", "x", "-x", "8"},
                                               {"-f", "x", "-I", "4"},
                                               {"-f", "x", "-i", "0"},
                                               {"-f", "x", "-i", "8K:4K:1K"},
                                               {"-f", "x", "-i", "4K:8K"},
                                               {"-f", "x", "-w", "many"},
                                               {"-f", "x", "-w", "0"},
                                               {"-f", "x", "-m", "5"},
                                               {"-f", "x", "-m", "2", "-x", "2"},
                                               {"-f", "x", "--cold", "--warm"},
                                               {"-f", "x", "-I", "1", "--immutable"},
                                               {"config", "-f", "x"},
                                               {"-f", "x", "-s", "1Q"},
                                               {"-f", "x", "-o", "-1"},
                                               {"-f", "x", "-T", "-1"},
                                               {"-f", "x", "-T", "nan"},
                                               {"-f", "x", "-T", "1e300"},
                                               {"-f", "x", "-a", "0"},
                                               {"-f", "x", "-a", "4Q"},
                                               {"-f", "x", "-i", "4K:8K:0"}}) {
    const ended_program ended = io(wrong);
    EXPECT_EQ(ended.exit_code, 2) << ended.err << (wrong.empty() ? "" : wrong.back());
    EXPECT_EQ(ended.out, "");
    EXPECT_TRUE(contains(ended.err, "penstock: ")) << ended.err;
  }
}

TEST(io, what_is_not_there_is_named) {
  const scratch_directory directory;
  const std::string path = directory.path() + "/none";
  EXPECT_EQ(io({"-f", path, "-d", "host:0"}).err, "penstock: open " + path + ": No such file or directory (os 2)\n");
  EXPECT_EQ(io({"-D", path, "-d", "host:0", "-I", "1"}).err,
            "penstock: open " + path + "/gdsio.0 for writing: No such file or directory (os 2)\n");
  EXPECT_TRUE(contains(io({"-f", path, "-d", "moon:0", "-I", "1"}).err, "there is no device \"moon:0\""));
  const ended_program node = io({"-f", path, "-d", "host:0", "-n", "999", "-I", "1", "-s", "64K"});
  EXPECT_EQ(node.exit_code, 1);
  EXPECT_EQ(node.err, "penstock: NUMA node 999 does not exist\n");
  EXPECT_EQ(directory.entries(), 0U) << "a file that it has made goes with the run that failed";
  EXPECT_TRUE(contains(io({"-f", directory.path(), "-d", "host:0"}).err, "neither a regular file nor a block device"));
  const std::string small = directory.make_file("small", 1000);
  EXPECT_TRUE(contains(io({"-f", small, "-d", "host:0", "-o", "1000"}).err, "there is no data at or after offset 1000"));
}

TEST(io, a_size_beyond_the_end_of_a_file_runs_over_what_is_there_and_says_so) {
  const scratch_directory directory;
  const std::string file = directory.make_file("data", 3 * mib);
  for (const std::vector<std::string>& more :
       std::vector<std::vector<std::string>>{{"-x", "0"}, {"-x", "2"}, {"-x", "6", "-w", "4"}, {"-I", "2"}}) {
    std::vector<std::string> words{"-f", file, "-d", "host:0", "-s", "10G", "-i", "1M", "-n", "-1"};
    words.insert(words.end(), more.begin(), more.end());
    const auto ended = io(words);
    EXPECT_EQ(ended.exit_code, 0) << ended.err;
    EXPECT_TRUE(contains(ended.out, "DataSetSize: 3072/3072(KiB)")) << ended.out;
    EXPECT_TRUE(contains(ended.err, "data is only 3 MiB long: the run covers 3 MiB, not 10 GiB\n")) << ended.err;
  }
  EXPECT_EQ(io({"-f", file, "-d", "host:0", "-s", "1G", "-o", "1M", "--json"}).exit_code, 0);
}

TEST(io, a_full_disk_is_named_and_nothing_stays) {
  const scratch_directory directory;
  // The limit on the size of a file stands for a disk that is full.
  const std::string command = "trap '' XFSZ; ulimit -f 256; " + std::string(PENSTOCK_CLI_PATH) + " io -f " + directory.path() +
                              "/data -I 1 -s 4M -d host:0 > " + directory.path() + "/said 2>&1";
  const int ended = std::system(("bash -c \"" + command + "\"").c_str());  // NOLINT(cert-env33-c)
  EXPECT_EQ(WEXITSTATUS(ended), 1);
  EXPECT_TRUE(contains(text_of(directory.path() + "/said"), "File too large (os 27)")) << text_of(directory.path() + "/said");
  EXPECT_FALSE(std::filesystem::exists(directory.path() + "/data"));
}

TEST(io, without_a_gpu_it_takes_the_host_device_and_says_so_in_a_line) {
  if (!contains(run({"devices"}).out, "no NVIDIA driver")) GTEST_SKIP() << "there is an NVIDIA driver: needs a machine without GPU";
  const scratch_directory directory;
  const words common{"-f", directory.path() + "/data", "-s", "64K", "-i", "4K:8K:4K", "-I", "1"};
  const ended_program ended = io(common);
  EXPECT_EQ(ended.exit_code, 0);
  const std::string line = "penstock: no GPU: no NVIDIA driver: the device is host:0, a simulated GPU in host memory\n";
  const auto at = ended.err.find(line);
  EXPECT_NE(at, std::string::npos) << ended.err;
  EXPECT_EQ(ended.err.find(line, at + 1), std::string::npos) << ended.err;
  EXPECT_EQ(io(joined(common, {"-d", "0"})).exit_code, 1) << "the GPU that was asked for is not there";
  EXPECT_FALSE(contains(io(joined(common, {"-x", "1"})).err, "no GPU")) << "needs none";
}

TEST(io, an_interrupt_ends_it_with_130_and_leaves_no_new_file) {
  const scratch_directory directory;
  const std::string first = directory.path() + "/first", second = directory.path() + "/second";
  // The first run of many has ended when its line comes; the file is there then, and its own.
  program measuring({"io", "-f", first, "-I", "1", "-s", "8M", "-i", "4K:1G:4K", "-d", "host:0"});
  ASSERT_TRUE(measuring.wait_for_output(" secs")) << measuring.finish().err;
  measuring.send(SIGINT);
  EXPECT_EQ(measuring.finish().exit_code, 130);
  program endless({"io", "-D", directory.path(), "-w", "1", "-I", "1", "-s", "64K", "-i", "4K", "-T", "100000", "-d", "host:0"});
  while (!std::filesystem::exists(directory.path() + "/gdsio.0") || std::filesystem::file_size(directory.path() + "/gdsio.0") == 0) {
  }
  endless.send(SIGTERM);
  EXPECT_EQ(endless.finish().exit_code, 143);
  EXPECT_FALSE(std::filesystem::exists(directory.path() + "/gdsio.0"));
}

TEST(io, its_help_says_what_each_transfer_type_is_here) {
  const std::string help = run({"help", "io"}).out;
  for (const char* said : {"0 GPUD: ", "5 GPUD_ASYNC: requests in the order of a device stream", "7 GPU_BATCH_STREAM: ", "powers of 1024"})
    EXPECT_TRUE(contains(help, said)) << help;
}

}  // namespace
}  // namespace penstock::cli_test
