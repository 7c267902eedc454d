// penstock verify.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "cli/program.hpp"
// The command is an executable, so these parts of it are compiled in here once more.
#include "cli/files/checksum_list.cc"  // NOLINT(bugprone-suspicious-include)
#include "cli/files/digest.cc"         // NOLINT(bugprone-suspicious-include)

namespace penstock::cli_test {
namespace {

using words = std::vector<std::string>;

ended_program verify(words arguments) {
  arguments.insert(arguments.begin(), "verify");
  return run(arguments);
}

std::string made_of(const std::string& text, const std::string& path) {
  std::ofstream(path, std::ios::binary) << text;
  return path;
}

// What a command of the system prints; empty where there is none.
std::string said_by(const std::string& command) {
  std::string text;
  FILE* const pipe = ::popen((command + " 2>/dev/null").c_str(), "r");  // NOLINT(cert-env33-c)
  char buffer[4096];
  for (std::size_t count = 0; (count = std::fread(buffer, 1, sizeof buffer, pipe)) > 0;) text.append(buffer, count);
  ::pclose(pipe);
  return text;
}

std::string sha256_of(const std::string& text, std::size_t step) {
  auto state = cli::make_digest(cli::digest_kind::sha256);
  if (!state) return std::string(state.error().message());
  for (std::size_t at = 0; at < text.size(); at += step)
    (*state)->update(std::as_bytes(std::span(text)).subspan(at, std::min(step, text.size() - at)));
  return *(*state)->value();
}

// FIPS 180-4's examples.
TEST(sha256, is_right_whatever_the_pieces) {
  EXPECT_EQ(sha256_of("", 1), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(sha256_of("abc", 2), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(sha256_of(std::string(1'000'000, 'a'), 4097), "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(verify, without_libcrypto_says_what_to_install_and_makes_the_other_checksums) {
  const scratch_directory directory;
  const std::string empty = directory.make_file("empty", 0);
  const std::string sums = made_of(verify({empty}).out, directory.path() + "/sums");
  // Found first, and no library.
  for (const char* name : {"/libcrypto.so.3", "/libcrypto.so.1.1"}) made_of("none", directory.path() + name);
  const scoped_variable before("LD_LIBRARY_PATH", directory.path());
  const ended_program printed = verify({empty});
  EXPECT_EQ(printed.exit_code, 1);
  EXPECT_TRUE(contains(printed.err, "penstock: sha256 needs OpenSSL's libcrypto.so.3, which is not installed: install libssl3"))
      << printed.err;
  const ended_program checked = verify({"--check", sums});
  EXPECT_EQ(checked.exit_code, 1);
  EXPECT_TRUE(contains(checked.err, empty + ": sha256 needs OpenSSL's libcrypto.so.3")) << checked.err;
  EXPECT_EQ(checked.out, empty + ": FAILED open or read\n");
  EXPECT_EQ(verify({empty, "-a", "xxh128"}).out, "99aa06d3014798d86001c324468d497f  " + empty + "\n");
}

TEST(checksum_list, reads_what_it_writes_and_what_others_do) {
  const std::string value(64, 'a');
  for (const char* name : {"plain", "with blank", "back\\slash", "line\nfeed", "return\r", " leading", "a (b) = c"}) {
    const cli::listed_checksum one{cli::digest_kind::sha256, value, name};
    const auto read = cli::parse_checksum_line(cli::checksum_line(one), std::nullopt);
    ASSERT_TRUE(read) << name;
    EXPECT_EQ(read->file, name);
    EXPECT_EQ(read->value, value);
  }
  EXPECT_EQ(cli::parse_checksum_line(value + " *binary", std::nullopt)->file, "binary");
  EXPECT_EQ(cli::parse_checksum_line("SHA256 (x (1)) = " + std::string(64, 'B'), std::nullopt)->value, std::string(64, 'b'));
  EXPECT_EQ(cli::parse_checksum_line(std::string(32, '1') + "  x", std::nullopt)->kind, cli::digest_kind::xxh128);
  for (const std::string& wrong :
       {std::string("nonsense"), value, value + "  ", value + " x", value.substr(1) + "  x", std::string(64, 'g') + "  x",
        "MD5 (x) = " + std::string(32, '1'), "SHA256 (x) = " + std::string(32, '1'), "\\" + value + "  x\\", "\\" + value + "  x\\t"})
    EXPECT_FALSE(cli::parse_checksum_line(wrong, std::nullopt)) << wrong;
  EXPECT_FALSE(cli::parse_checksum_line(value + "  x", cli::digest_kind::xxh64));
}

TEST(verify, prints_what_sha256sum_and_xxhsum_print) {
  const scratch_directory directory;
  const std::string big = directory.make_file("big", 9 * mib + 5);
  const std::string empty = directory.make_file("empty", 0);
  const std::string odd = made_of("abc", directory.path() + "/back\\slash");
  const ended_program ended = verify({big, empty, odd});
  EXPECT_EQ(ended.exit_code, 0) << ended.err;
  EXPECT_TRUE(contains(ended.out, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855  " + empty + "\n")) << ended.out;
  EXPECT_EQ(ended.out, said_by("sha256sum '" + big + "' '" + empty + "' '" + odd + "'"));
  EXPECT_EQ(verify({empty, "-a", "xxh64"}).out, "ef46db3751d8e999  " + empty + "\n");
  EXPECT_EQ(verify({empty, "-a", "xxh128"}).out, "99aa06d3014798d86001c324468d497f  " + empty + "\n");
  EXPECT_EQ(verify({odd, "-a", "xxh64"}).out.substr(0, 17), "\\44bc2cf5ad770999") << "of abc, by xxHash's specification";
}

TEST(verify, takes_folders_in_order_and_goes_on_after_what_cannot_be_read) {
  const scratch_directory directory;
  std::filesystem::create_directory(directory.path() + "/a");
  for (int i = 9; i >= 0; --i) (void)directory.make_file("a/" + std::to_string(i), 1000);
  const ended_program ended = verify({directory.path() + "/none", directory.path() + "/a", "--json"});
  EXPECT_EQ(ended.exit_code, 1);
  const auto files = nlohmann::json::parse(ended.out).at("files");
  ASSERT_EQ(files.size(), 11U);
  EXPECT_EQ(files[0].at("error"), "open " + directory.path() + "/none: No such file or directory (os 2)");
  EXPECT_EQ(files[0].at("checksum"), nullptr);
  for (std::size_t i = 1; i < 11; ++i) {
    EXPECT_EQ(files[i].at("file"), directory.path() + "/a/" + std::to_string(i - 1));
    EXPECT_EQ(files[i].at("checksum").get<std::string>().size(), 64U);
  }
  EXPECT_EQ(verify({directory.path() + "/none"}).err, "penstock: open " + directory.path() + "/none: No such file or directory (os 2)\n");
}

TEST(verify, checks_what_it_printed_and_says_which_file_is_wrong) {
  const scratch_directory directory;
  const std::string one = directory.make_file("one", mib), two = directory.make_file("two", 5 * mib);
  for (const char* algorithm : {"sha256", "xxh64", "xxh128"}) {
    const std::string sums = made_of(verify({one, two, "-a", algorithm}).out, directory.path() + "/sums");
    const ended_program good = verify({"--check", sums});
    EXPECT_EQ(good.exit_code, 0) << good.err;
    EXPECT_EQ(good.out, one + ": OK\n" + two + ": OK\n");
    EXPECT_EQ(verify({"--check", sums, "--quiet"}).out, "");
    std::fstream(two, std::ios::in | std::ios::out | std::ios::binary).seekp(5 * mib - 1).put('x');
    const ended_program bad = verify({"--check", sums, "-q"});
    EXPECT_EQ(bad.exit_code, 1);
    EXPECT_EQ(bad.out, two + ": FAILED\n");
    EXPECT_EQ(bad.err, "penstock: WARNING: 1 computed checksum did NOT match\n");
    (void)directory.make_file("two", 5 * mib);
  }
}

TEST(verify, a_list_that_is_damaged_or_names_what_is_missing_fails) {
  const scratch_directory directory;
  const std::string one = directory.make_file("one", 100);
  const std::string sums =
      made_of("# by hand\n\n" + std::string(64, '0') + "  /nowhere/x\n" + verify({one}).out + "nonsense\n", directory.path() + "/sums");
  const ended_program ended = verify({"--check", sums});
  EXPECT_EQ(ended.exit_code, 1);
  EXPECT_EQ(ended.out, "/nowhere/x: FAILED open or read\n" + one + ": OK\n");
  EXPECT_TRUE(contains(ended.err, "penstock: open /nowhere/x: No such file or directory (os 2)\n")) << ended.err;
  EXPECT_TRUE(contains(ended.err, "WARNING: 1 line is improperly formatted\n")) << ended.err;
  EXPECT_TRUE(contains(ended.err, "WARNING: 1 listed file could not be read\n")) << ended.err;
  const auto told = nlohmann::json::parse(verify({"--check", sums, "--json"}).out);
  EXPECT_EQ(told.at("files").at(1).at("right"), true);
  EXPECT_EQ(told.at("files").at(0).at("right"), false);
  EXPECT_EQ(told.at("improper_lines"), 1);
  EXPECT_TRUE(contains(verify({"--check", made_of("x\n", directory.path() + "/x")}).err, "/x contains no checksums"));
  EXPECT_TRUE(contains(verify({"--check", directory.path() + "/none"}).err, "/none: No such file or directory"));
  EXPECT_TRUE(contains(verify({"--check", directory.path()}).err, directory.path()));
  EXPECT_TRUE(contains(verify({"--check", sums, "-a", "xxh64"}).err, "contains no checksums")) << "of that kind";
}

TEST(verify, compares_two_files_and_tells_where_they_first_differ) {
  const scratch_directory directory;
  const std::string one = directory.make_file("one", 13 * mib + 7), other = directory.make_file("other", 13 * mib + 7);
  const ended_program equal = verify({"--compare", one, other});
  EXPECT_EQ(equal.exit_code, 0) << equal.err;
  EXPECT_EQ(equal.out, one + " and " + other + " are equal: 13631495 bytes\n");
  for (const std::size_t place : {13 * mib + 6, 9 * mib, 4 * mib - 1, std::size_t{0}}) {
    std::fstream file(other, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(static_cast<std::streamoff>(place));
    const char there = static_cast<char>(file.get());
    file.seekp(static_cast<std::streamoff>(place)).put(static_cast<char>(there ^ 1));
    file.close();
    const ended_program differs = verify({"--compare", one, other});
    EXPECT_EQ(differs.exit_code, 1);
    EXPECT_EQ(differs.out, one + " and " + other + " differ at offset " + std::to_string(place) + "\n");
    EXPECT_EQ(nlohmann::json::parse(verify({"--compare", one, other, "--json"}).out).at("offset"), place);
  }
}

TEST(verify, a_file_that_ends_where_the_other_goes_on_is_named) {
  const scratch_directory directory;
  const std::string one = directory.make_file("one", 4 * mib), longer = directory.make_file("longer", 4 * mib + 3);
  const std::string said = one + " ends at offset 4194304; up to there it equals " + longer + ", which is 3 bytes longer\n";
  EXPECT_EQ(verify({"--compare", one, longer}).out, said);
  EXPECT_EQ(verify({"--compare", longer, one}).out, said);
  const std::string empty = directory.make_file("empty", 0);
  EXPECT_EQ(verify({"--compare", empty, empty}).exit_code, 0);
  EXPECT_EQ(verify({"--compare", empty, one}).exit_code, 1);
  EXPECT_TRUE(contains(verify({"--compare", one, directory.path() + "/none"}).err, "/none: No such file or directory (os 2)"));
}

TEST(verify, lists_with_blanks_in_front_or_ends_of_lines_of_windows_are_read) {
  const scratch_directory directory;
  const std::string one = directory.make_file("one", 100);
  std::string line = verify({one}).out;
  line.pop_back();
  for (const std::string& text : {line + "\r\n\r\n", " \t" + line + "\n", "# by hand\r\n\r\n" + line + "\r\n"}) {
    const ended_program ended = verify({"--check", made_of(text, directory.path() + "/sums")});
    EXPECT_EQ(ended.exit_code, 0) << ended.err;
    EXPECT_EQ(ended.out, one + ": OK\n");
    EXPECT_EQ(ended.err, "");
  }
}

TEST(verify, a_name_with_a_line_feed_cannot_pass_for_two_that_are_right) {
  const scratch_directory directory;
  const std::string odd = made_of("x", directory.path() + "/a: OK\nb");
  const std::string sums = made_of(verify({odd}).out, directory.path() + "/sums");
  EXPECT_EQ(verify({"--check", sums}).out, "\\" + directory.path() + "/a: OK\\nb: OK\n") << "as sha256sum says it";
}

TEST(verify, files_of_proc_which_say_that_they_are_empty_are_read_to_their_end) {
  const scratch_directory directory;
  std::ostringstream text;
  text << std::ifstream("/proc/version").rdbuf();
  const std::string copy = made_of(text.str(), directory.path() + "/copy");
  EXPECT_EQ(verify({"/proc/version"}).out.substr(0, 64), verify({copy}).out.substr(0, 64));
  EXPECT_EQ(verify({"--compare", "/proc/version", copy}).exit_code, 0);
  EXPECT_EQ(verify({"--compare", "/proc/version", directory.make_file("empty", 0)}).exit_code, 1);
}

TEST(verify, output_that_cannot_be_written_is_an_error) {
  const scratch_directory directory;
  std::string command = std::string(PENSTOCK_CLI_PATH) + " verify";
  for (int i = 0; i < 20; ++i) command += " " + directory.make_file(std::to_string(i), 1000);
  EXPECT_EQ(WEXITSTATUS(std::system((command + " 2> /dev/null > /dev/full").c_str())), 1);  // NOLINT(cert-env33-c)
}

TEST(verify, does_what_gdsio_verify_does_with_its_options_and_words) {
  const scratch_directory directory;
  const std::string path = directory.make_file("data", 3 * mib + 100);
  const ended_program ended =
      verify({"-f", path, "-d", "host:0", "-o", "4K", "-s", "1M", "-n", "3", "-m", "0", "-t", "0", "-S", "1", "-g", "512", "-b"});
  EXPECT_EQ(ended.exit_code, 0) << ended.err;
  EXPECT_EQ(ended.out, "gpu index :0,file :" + path +
                           ", gpu buffer alignment :0, gpu buffer offset :512, gpu devptr offset :0, file offset :4096, io_requested "
                           ":1048576, io_chunk_size :349526, bufregister :false, sync :1, nr ios :3, \nfsync :0, \nBatch mode: 0\nData "
                           "Verification Success\n");
  EXPECT_TRUE(contains(verify({"-f", path, "-d", "host:0"}).out, "io_requested :3145828,")) << "all of it";
  const ended_program past = verify({"-f", path, "-d", "host:0", "-s", "4M"});
  EXPECT_EQ(past.exit_code, 1);
  EXPECT_TRUE(contains(past.err, path + " is 3 MiB long: it is too short to verify 4 MiB from offset 0")) << past.err;
  EXPECT_FALSE(contains(past.out, "Success")) << past.out;
  EXPECT_TRUE(contains(verify({"-f", directory.path() + "/none"}).err, "/none: No such file or directory (os 2)"));
}

TEST(verify, what_does_not_go_together_is_a_usage_error) {
  for (const words& wrong : std::vector<words>{{},
                                               {"--compare", "x"},
                                               {"--compare", "x", "y", "z"},
                                               {"--check", "x", "y"},
                                               {"-f", "x", "y"},
                                               {"-d", "0", "x"},
                                               {"x", "-a", "md5"},
                                               {"-f", "x", "-s", "1Q"},
                                               {"-f", "x", "-n", "0"},
                                               {"--compare", "x", "y", "-c", "z"}}) {
    const ended_program ended = verify(wrong);
    EXPECT_EQ(ended.exit_code, 2) << (wrong.empty() ? "" : wrong.back()) << ended.err;
    EXPECT_EQ(ended.out, "");
  }
}

TEST(verify, an_interrupt_ends_it_with_130) {
  const scratch_directory directory;
  const std::string small = directory.make_file("small", 1);
  const std::string endless = directory.make_sparse_file("endless", std::size_t{1} << 42);
  program reading({"verify", small, endless});
  ASSERT_TRUE(reading.wait_for_output("small\n"));
  reading.send(SIGINT);
  const ended_program ended = reading.finish();
  EXPECT_EQ(ended.exit_code, 130) << ended.err;
  EXPECT_FALSE(contains(ended.out, "endless")) << ended.out;
}

}  // namespace
}  // namespace penstock::cli_test
