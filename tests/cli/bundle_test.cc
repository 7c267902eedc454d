// penstock check --bundle.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>

#include "cli/program.hpp"
#include "cli/recorded_machine.hpp"

namespace penstock::cli_test {
namespace {

namespace fs = std::filesystem;

std::string bytes_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

class bundle_test : public ::testing::Test {
 protected:
  // The lines of a machine, beside those that all have.
  void describe_machine(const std::string& more) {
    const std::string file = directory_.path() + "/made-up.machine";
    std::ofstream(file) << "file proc/sys/kernel/osrelease 6.8.0\nfile proc/cmdline quiet\nfile proc/meminfo MemTotal: 1 kB\n" << more;
    fs::create_directory(root_);
    machine_.emplace(file, root_);
  }
  ended_program make(std::vector<std::string> more = {}) {
    more.insert(more.begin(), {"check", "--root", root_, "--bundle=" + archive_});
    return run(more);
  }
  // What tar makes of it.
  std::string unpacked(const std::string& name) {
    const std::string into = directory_.path() + "/unpacked";
    fs::create_directories(into);
    EXPECT_EQ(std::system(("tar -xf " + archive_ + " -C " + into).c_str()), 0);  // NOLINT(cert-env33-c)
    return bytes_of(into + "/penstock-check/" + name);
  }

  scratch_directory directory_;
  std::string root_ = directory_.path() + "/machine", archive_ = directory_.path() + "/bundle.tar";
  std::optional<recorded_machine> machine_;
};

TEST_F(bundle_test, tar_unpacks_findings_and_what_they_are_judged_from) {
  const std::string known = std::string(PENSTOCK_MACHINES_PATH) + "/nvidia-fs.machine";
  fs::create_directory(root_);
  machine_.emplace(known, root_);
  const auto ended = make();
  ASSERT_EQ(ended.exit_code, 0) << ended.err;
  EXPECT_TRUE(contains(unpacked("check.txt"), "ok nvidia_fs.loaded"));
  EXPECT_FALSE(nlohmann::json::parse(unpacked("check.json")).at("findings").empty());
  EXPECT_TRUE(contains(unpacked("copies/proc/driver/nvidia-fs/stats"), "Active Shadow-Buffer (MiB): 256"));
  EXPECT_TRUE(contains(unpacked("read.txt"), "/etc/cufile.json: {\"properties\"")) << unpacked("read.txt");
  EXPECT_TRUE(contains(unpacked("read.txt"), "/proc/cmdline: BOOT_IMAGE")) << unpacked("read.txt");
  EXPECT_TRUE(contains(unpacked("storage.txt"), "mount /raid: xfs from /dev/md0"));
  EXPECT_TRUE(contains(unpacked("pci.txt"), "below 0000:21:00.0 (switch)"));
  for (const char* name : {"README.txt", "check.txt", "pci.txt"}) EXPECT_TRUE(contains(ended.out, name)) << ended.out;
  EXPECT_TRUE(contains(ended.out, "Nothing has been sent"));
  struct stat info {};
  ASSERT_EQ(::stat(archive_.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777U, 0600U) << "nobody else reads it";
}

TEST_F(bundle_test, it_holds_no_secret_and_no_foreign_variable) {
  describe_machine(
      "env AWS_SECRET_ACCESS_KEY=s3cr3t\n"
      "env HOME=/home/s3cr3t\n"
      "env PENSTOCK_TOKEN=s3cr3t\n"
      "env PENSTOCK_S3_KEY=s3cr3t\n"
      "env PENSTOCK_CACHE_DIR=/var/cache/penstock\n"
      "env KVIKIO_REMOTE_URL=https://me:s3cr3t@host.example/file?X-Amz-Signature=s3cr3t&x=1\n"
      "env CUFILE_ENV_PATH_JSON=/etc/mine.json\n"
      "file proc/cmdline quiet systemd.credential=s3cr3t:x user_password=\"s3cr3t two\" root=/dev/sda\n"
      "file etc/mine.json {\"logging\": {\"dir\": \"/log\"}, \"password\": \"s3cr3t \\\" s3cr3t\", \"tokens\": [\"s3cr3t\", \"s3cr3t\"], "
      "\"allow_rdma_token_reset\": false}\n"
      "file etc/os-release <<\n"
      "HOME_URL=https://s3cr3t:s3cr3t/s3cr3t@os.example/\n"
      "-----BEGIN RSA PRIVATE KEY-----\n"
      "s3cr3t\n"
      "-----END RSA PRIVATE KEY-----\n"
      "after=all\n"
      ".\n"
      "file log/cufile.log <<\n"
      "Authorization: AWS4-HMAC-SHA256 s3cr3t, s3cr3t\n"
      "curl -H \"x: Bearer s3cr3t\" AKIAS3CR3TS3CR3T0000 eyJs3cr3ts3cr3ts3cr3t.s3cr3t\n"
      "read of /data/tokens.bin failed\n"
      ".\n");
  ASSERT_EQ(make().exit_code, 0);
  auto bytes = bytes_of(archive_);
  std::ranges::transform(bytes, bytes.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  const auto at = bytes.find("s3cr3t");
  EXPECT_EQ(at, std::string::npos) << bytes.substr(at < 60 ? 0 : at - 60, 120);
  EXPECT_FALSE(contains(bytes, "home=")) << "of somebody else";
  const auto environment = unpacked("environment.txt");
  EXPECT_TRUE(contains(environment, "PENSTOCK_CACHE_DIR=/var/cache/penstock\n")) << environment;
  EXPECT_TRUE(contains(environment, "PENSTOCK_TOKEN=(removed)\n")) << environment;
  EXPECT_TRUE(contains(environment, "KVIKIO_REMOTE_URL=https://(removed)@host.example/file?(removed)\n")) << environment;
  EXPECT_TRUE(contains(unpacked("cufile.log"), "read of /data/tokens.bin failed")) << "what is no secret stays";
  EXPECT_TRUE(contains(unpacked("copies/etc/os-release"), "after=all"));
  EXPECT_TRUE(contains(bytes, "\"allow_rdma_token_reset\": false"));
}

// S stands for the secret.
constexpr std::array secret_texts{"AKIASSSSSSSSSSSSSSSS",
                                  "ASIASSSSSSSSSSSSSSSS",
                                  "hf_SSSSSSSSSSSSSSSSSSSSSSSSSSSSSSSSSS",
                                  "ghp_SSSSSSSSSSSSSSSSSSSSSSSSSSSSSSSSSSSS",
                                  "gho_SSSSSSSSSSSSSSSSSSSS",
                                  "ghu_SSSSSSSSSSSSSSSSSSSS",
                                  "ghs_SSSSSSSSSSSSSSSSSSSS",
                                  "ghr_SSSSSSSSSSSSSSSSSSSS",
                                  "github_pat_11SSSSSSSSSS_SSSSSSSSSSSSSS",
                                  "glpat-SSSSSSSSSSSSSSSSSSSS",
                                  "gldt-SSSSSSSSSSSSSSSSSSSS",
                                  "AIzaSySSSSSSSSSSSSSSSSSSSSSSSSSSSSSSSSS",
                                  "ya29.SSSSSSSSSSSSSSSS",
                                  "xoxb-1-SSSSSSSSSSSS",
                                  "xoxp-1-SSSSSSSSSSSS",
                                  "xoxa-2-SSSSSSSSSSSS",
                                  "xoxr-SSSSSSSSSSSS",
                                  "xoxs-SSSSSSSSSSSS",
                                  "xapp-1-SSSSSSSSSSSS",
                                  "sk-SSSSSSSSSSSSSSSSSSSSSSSS",
                                  "sk-proj-SSSSSSSSSSSSSSSSSSSS",
                                  "sk-ant-api03-SSSSSSSSSSSSSSSSSSSS",
                                  "nvapi-SSSSSSSSSSSSSSSS",
                                  "npm_SSSSSSSSSSSSSSSS",
                                  "pypi-SSSSSSSSSSSSSSSS",
                                  "eyJSSSSSSSSSSSS.eyJSSSSSSSSSS.SSSS-SSSSS_SS",
                                  "Authorization: Basic SSSSSSSS",
                                  "Basic SSSSSSSSSSSS==",
                                  "basic U1NTUzpTU1NSSSSS",
                                  "Bearer SSSSSSSS",
                                  "bearer SSSSSSSS",
                                  "sv=2022-11-02&sr=b&sig=SSSSSSSS%3D",
                                  "sig=SSSSSSSS",
                                  "https://account.blob.core.windows.net/c/b?sv=2022&sig=SSSSSSSS%3D",
                                  "https://user:SSSSSSSS@host/path",
                                  "s3://SSSSSSSS:SSSSSSSS@bucket/key",
                                  "http://host/x?token=SSSSSSSS#SSSS",
                                  "-----BEGIN PRIVATE KEY-----\nSSSSSSSS\n-----END PRIVATE KEY-----",
                                  "-----BEGIN OPENSSH PRIVATE KEY-----\nSSSSSSSS\n-----END OPENSSH PRIVATE KEY-----",
                                  "-----BEGIN PGP PRIVATE KEY BLOCK-----\nSSSSSSSS\n-----END PGP PRIVATE KEY BLOCK-----",
                                  "hf_token: SSSSSSSS",
                                  "aws_secret_access_key = SSSSSSSS",
                                  "{\"access_token\": \"SSSSSSSS\"}"};

TEST_F(bundle_test, no_form_of_a_token_stays_in_it_wherever_it_stands) {
  constexpr std::array<std::string_view, 7> places{"{}", "export X={}", "a {} b", "\"{}\"", "path/{}", "-H '{}'", "x_{},"};
  constexpr std::array kept{"the basic channel copies", "Basic copies of bytes",
                            "task-abcdefghijklmnop",    "/opt/hf_models",
                            "disk-usage of sk-learn",   "design=new",
                            "https://host/path",        "a bearer",
                            "scsi_transport_sas: 1",    "sk_buff_head_of_a"};
  std::string lines;
  for (const std::string_view text : secret_texts) {
    for (const std::string_view place : places) lines += std::string(place).replace(place.find("{}"), 2, text) + "\n";
  }
  for (const auto* const text : kept) lines += std::string(text) + "\n";
  describe_machine("env CUFILE_LOGFILE_PATH=/log\n");
  std::ofstream(root_ + "/log") << lines;
  ASSERT_EQ(make().exit_code, 0);
  const auto log = unpacked("cufile.log");
  const auto at = log.find("SSSS");
  EXPECT_EQ(at, std::string::npos) << log.substr(at < 100 ? 0 : at - 100, 200);
  for (const auto* const text : kept) EXPECT_TRUE(contains(log, std::string(text) + "\n")) << text;
}

TEST_F(bundle_test, a_secret_variable_goes_as_a_whole_whatever_its_value_looks_like) {
  describe_machine("env HOME=/\n");
  using namespace std::string_literals;
  std::ofstream(root_ + "/proc/self/environ", std::ios::binary)
      << "PENSTOCK_PASSWORD=\"one;s3cr3t two\"s3cr3t\0PENSTOCK_TOKEN=[a]s3cr3t\0PENSTOCK_S3_SECRET=one\ns3cr3t\0PENSTOCK_PWD=s3cr3t\0"
         "PENSTOCK_PASS=s3cr3t s3cr3t\0CUFILE_AUTH=s3cr3t,s3cr3t\0KVIKIO_KEY={s3cr3t}s3cr3t\0PENSTOCK_EMPTY=\0"
         "PENSTOCK_LINES=first\nkey=s3cr3t\nlast\0PENSTOCK_PATHS=staged,mapped\0"
         "KVIKIO_BYPASS=on\0"s;
  ASSERT_NE(make().exit_code, 1);
  EXPECT_EQ(unpacked("environment.txt"),
            "PENSTOCK_PASSWORD=(removed)\nPENSTOCK_TOKEN=(removed)\nPENSTOCK_S3_SECRET=(removed)\nPENSTOCK_PWD=(removed)\n"
            "PENSTOCK_PASS=(removed)\nCUFILE_AUTH=(removed)\nKVIKIO_KEY=(removed)\nPENSTOCK_EMPTY=\n"
            "PENSTOCK_LINES=first\\nkey=(removed)\\nlast\nPENSTOCK_PATHS=staged,mapped\nKVIKIO_BYPASS=on\n");
  EXPECT_FALSE(contains(bytes_of(archive_), "s3cr3t"));
}

TEST_F(bundle_test, a_secret_of_a_file_goes_to_the_end_of_its_word_or_line) {
  describe_machine(
      "file proc/cmdline quiet a.key=one;s3cr3t pass=[a]s3cr3t,s3cr3t last=here\n"
      "file etc/os-release <<\n"
      "password = one s3cr3t\n"
      "auth: \"one\" s3cr3t\n"
      "keyboard=kept author=kept\n"
      ".\n"
      "file etc/modprobe.d/nvidia.conf <<\n"
      "{\"sharedKey\": \"s3cr3t\", \"pwd\": 12345678, \"next\": \"kept\"}\n"
      "and another line\n"
      ".\n");
  ASSERT_NE(make().exit_code, 1);
  EXPECT_FALSE(contains(bytes_of(archive_), "s3cr3t"));
  EXPECT_FALSE(contains(bytes_of(archive_), "12345678"));
  EXPECT_TRUE(contains(unpacked("read.txt"), "last=here")) << unpacked("read.txt");
  EXPECT_TRUE(contains(unpacked("copies/etc/os-release"), "keyboard=kept author=kept"));
  EXPECT_TRUE(contains(unpacked("copies/etc/modprobe.d/nvidia.conf"), "\"next\": \"kept\"}"));
}

TEST_F(bundle_test, it_stays_small_and_keeps_the_end_of_a_log) {
  describe_machine("env CUFILE_LOGFILE_PATH=/log\nfile proc/modules <<\nmodule 1\n.\n");
  std::ofstream log(root_ + "/log");
  for (int i = 0; i < 100000; ++i) log << "line " << i << " of a long log\n";
  log.close();
  std::ofstream(root_ + "/proc/meminfo") << std::string(3 * mib, 'x');
  ASSERT_EQ(make().exit_code, 0);
  EXPECT_LT(fs::file_size(archive_), mib);
  const auto kept = unpacked("cufile.log");
  EXPECT_TRUE(kept.ends_with("line 99999 of a long log\n"));
  EXPECT_TRUE(kept.starts_with("line ")) << "from the beginning of a line on";
  EXPECT_TRUE(unpacked("copies/proc/meminfo").ends_with("(cut here)\n"));
}

TEST_F(bundle_test, what_may_not_be_read_is_named) {
  if (::geteuid() == 0) GTEST_SKIP() << "root reads all";
  describe_machine("");
  fs::permissions(root_ + "/proc/meminfo", fs::perms::none);
  const auto ended = make();
  EXPECT_EQ(ended.exit_code, 0);
  EXPECT_TRUE(contains(ended.out, "not included: /proc/meminfo: cannot be read")) << ended.out;
  EXPECT_TRUE(contains(unpacked("README.txt"), "not included: /proc/meminfo"));
}

TEST_F(bundle_test, no_link_leads_out_of_the_copy_of_a_machine) {
  describe_machine("file etc/real first line\n");
  const auto theirs = directory_.path() + "/theirs";
  std::ofstream(theirs) << "of this machine, and not of the copy\n";
  fs::create_directories(root_ + "/etc/modprobe.d");
  fs::create_symlink(theirs, root_ + "/etc/modprobe.d/nvidia.conf");
  fs::create_symlink("../../../theirs", root_ + "/etc/modprobe.d/nvme.conf");
  fs::create_symlink(theirs, root_ + "/etc/cufile.json");
  fs::create_symlink("/etc/real", root_ + "/etc/modprobe.d/lustre.conf");
  ASSERT_NE(make().exit_code, 1);
  EXPECT_FALSE(contains(bytes_of(archive_), "of this machine, and not of the copy"));
  EXPECT_TRUE(contains(unpacked("read.txt"), "lustre.conf: first line")) << "an absolute link is one of the copy";
}

TEST_F(bundle_test, a_log_that_somebody_may_have_put_there_is_not_in_it) {
  describe_machine("env CUFILE_LOGFILE_PATH=/log\n");
  std::ofstream(root_ + "/other") << "another file\n";
  fs::create_symlink("other", root_ + "/log");
  const auto linked = make();
  EXPECT_TRUE(contains(linked.out, "not included: /log: is a symbolic link, which is not followed")) << linked.out;
  EXPECT_FALSE(contains(bytes_of(archive_), "another file"));
  fs::remove(root_ + "/log");
  fs::remove(archive_);
  ASSERT_EQ(::mkfifo((root_ + "/log").c_str(), 0600), 0);
  const auto piped = make();
  EXPECT_TRUE(contains(piped.out, "not included: /log: is not a regular file")) << piped.out;
  if (::geteuid() != 0) return;
  fs::remove(root_ + "/log");
  fs::remove(archive_);
  std::ofstream(root_ + "/log") << "of another user\n";
  if (::chown((root_ + "/log").c_str(), 1, 1) != 0) GTEST_SKIP() << "there are no other users here";  // a user namespace of one
  const auto foreign = make();
  EXPECT_TRUE(contains(foreign.out, "not included: /log: is owned by another user")) << foreign.out;
}

TEST_F(bundle_test, it_tells_the_way_of_the_files_that_are_named) {
  const auto file = directory_.make_file("data", mib);
  const auto ended = run({"check", file, "--device", "host:0", "--bundle=" + archive_, "--json"});
  ASSERT_EQ(ended.exit_code, 0) << ended.err;
  const auto told = nlohmann::json::parse(ended.out);
  EXPECT_EQ(told.at("bundle"), archive_);
  EXPECT_EQ(told.at("bytes"), fs::file_size(archive_));
  EXPECT_GT(told.at("entries").size(), 3U);
  const auto files = nlohmann::json::parse(unpacked("files.json"));
  EXPECT_EQ(files.at(0).at("file"), file);
  EXPECT_FALSE(files.at(0).at("read").at("parts").empty());
}

TEST_F(bundle_test, a_file_that_is_missing_fails_the_command_and_one_called_tar_gets_a_hint) {
  const auto missing = directory_.path() + "/missing";
  const auto ended = run({"check", missing, missing + ".tar", "--device", "host:0", "--bundle=" + archive_});
  EXPECT_EQ(ended.exit_code, 1);
  EXPECT_TRUE(contains(ended.err, missing + ": No such file")) << ended.err;
  EXPECT_TRUE(contains(ended.err, "use --bundle=" + missing + ".tar to give the bundle this name")) << ended.err;
  EXPECT_FALSE(contains(ended.err, "--bundle=" + missing + " ")) << ended.err;
  EXPECT_EQ(nlohmann::json::parse(unpacked("files.json")).size(), 2U) << "the bundle says why";
}

TEST_F(bundle_test, a_device_that_is_not_there_fails_the_command_behind_the_bundle) {
  const auto file = directory_.make_file("data", mib);
  const auto ended = run({"check", file, "--device", "cuda:99", "--bundle=" + archive_});
  EXPECT_EQ(ended.exit_code, 1);
  EXPECT_FALSE(ended.err.empty());
  EXPECT_TRUE(nlohmann::json::parse(unpacked("files.json")).contains("error"));
}

TEST_F(bundle_test, a_machine_with_a_broken_part_is_bundled_and_told_by_the_exit_code) {
  describe_machine("");
  const auto plain = run({"check", "--root", root_});
  EXPECT_EQ(make().exit_code, plain.exit_code);
  fs::remove(archive_);
  root_ += "-broken";
  fs::create_directory(root_);
  machine_.emplace(std::string(PENSTOCK_MACHINES_PATH) + "/bare-driver.machine", root_);
  EXPECT_EQ(make().exit_code, 3);
  EXPECT_TRUE(contains(unpacked("check.txt"), "broken "));
}

TEST_F(bundle_test, a_file_that_is_there_stays_and_a_folder_that_is_not_is_named) {
  describe_machine("");
  std::ofstream(archive_) << "mine";
  const auto ended = make();
  EXPECT_EQ(ended.exit_code, 1);
  EXPECT_TRUE(contains(ended.err, "create " + archive_ + ": File exists")) << ended.err;
  EXPECT_EQ(bytes_of(archive_), "mine");
  archive_ = directory_.path() + "/none/bundle.tar";
  EXPECT_TRUE(contains(make().err, "No such file or directory"));
}

TEST_F(bundle_test, a_full_disk_leaves_nothing) {
  describe_machine("");
  // The limit on the size of a file stands for a disk that is full.
  const std::string command = "trap '' XFSZ; ulimit -f 2; " + std::string(PENSTOCK_CLI_PATH) + " check --root " + root_ +
                              " --bundle=" + archive_ + " 2> " + directory_.path() + "/said";
  const int ended = std::system(("bash -c \"" + command + "\"").c_str());  // NOLINT(cert-env33-c)
  EXPECT_EQ(WEXITSTATUS(ended), 1);
  EXPECT_TRUE(contains(bytes_of(directory_.path() + "/said"), "File too large")) << bytes_of(directory_.path() + "/said");
  EXPECT_FALSE(fs::exists(archive_));
}

}  // namespace
}  // namespace penstock::cli_test
