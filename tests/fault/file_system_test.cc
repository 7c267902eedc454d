// Various file systems: their behaviour when they are full, when a file shrinks during a transfer, and when it is deleted.
#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string>

#include "core/engine_core.hpp"
#include "fault/round_trip.hpp"
#include "fault/watchdog.hpp"
#include "support/engines.hpp"
#include "support/faulty_device.hpp"
#include "support/faulty_kernel.hpp"
#include "support/lacking.hpp"
#include "support/pattern.hpp"
#include "support/stored_file.hpp"
#include "support/temp_dir.hpp"

namespace penstock::testing::file_system {

namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t seed = 9;
constexpr std::size_t mib = std::size_t{1} << 20;

std::vector<std::byte> content_of(const std::string& path) {
  const auto text = stored_bytes(path);
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

// --- file systems, mounted for one test where root allows it

class mounted {
 public:
  // kind: tmpfs, overlay, ext4, xfs or btrfs, of about so many bytes. why_not() says why it could not be mounted.
  mounted(const std::string& kind, std::uint64_t bytes) : dir_(temp_dir::on_build_disk()), at_(dir_.path() / "at") {
    fs::create_directory(at_);
    if (geteuid() != 0) {
      why_not_ = "only root may mount " + kind;
    } else if (kind == "tmpfs") {
      mount_it("tmpfs", kind, fmt::format("size={}", bytes));
    } else if (kind == "overlay") {
      mount_overlay();
    } else {
      mount_image(kind, bytes);
    }
  }
  mounted(const mounted&) = delete;
  mounted& operator=(const mounted&) = delete;
  ~mounted() {
    if (is_mounted_) ::umount2(at_.c_str(), MNT_DETACH);
  }
  [[nodiscard]] const std::string& why_not() const { return why_not_; }
  [[nodiscard]] std::string file(const std::string& name) const { return (at_ / name).string(); }

 private:
  void mount_it(const std::string& source, const std::string& kind, const std::string& options) {
    is_mounted_ = ::mount(source.c_str(), at_.c_str(), kind.c_str(), 0, options.c_str()) == 0;
    if (!is_mounted_) why_not_ = fmt::format("cannot mount {}: errno {}", kind, errno);
  }

  void mount_overlay() {
    for (const char* part : {"lower", "upper", "work"}) fs::create_directory(dir_.path() / part);
    const auto base = dir_.path().string();
    mount_it("overlay", "overlay", fmt::format("lowerdir={0}/lower,upperdir={0}/upper,workdir={0}/work", base));
  }

  // Loop devices are set up by mount(8).
  void mount_image(const std::string& kind, std::uint64_t bytes) {
    const auto image = dir_.file("image");
    std::ofstream(image).close();
    fs::resize_file(image, bytes);
    const std::string force = kind == "ext4" ? "-F" : "-f";
    if (!runs(fmt::format("mkfs.{} -q {} {}", kind, force, image))) {
      why_not_ = fmt::format("mkfs.{} is missing or failed", kind);
    } else if (!runs(fmt::format("mount -o loop {} {}", image, at_.string()))) {
      why_not_ = fmt::format("cannot mount {} on a loop device", kind);
    } else {
      is_mounted_ = true;
    }
  }

  static bool runs(const std::string& command) { return std::system((command + " >/dev/null 2>&1").c_str()) == 0; }

  temp_dir dir_;
  fs::path at_;
  bool is_mounted_ = false;
  std::string why_not_;
};

class file_system : public ::testing::TestWithParam<const char*> {};

TEST_P(file_system, carries_every_kind_of_transfer) {
  const watchdog watch("round trip on " + std::string(GetParam()));
  const mounted disk(GetParam(), 400 * mib);
  if (!disk.why_not().empty()) GTEST_SKIP() << disk.why_not();
  {
    auto made = engine::create(without_cuda());
    ASSERT_TRUE(made.ok());
    EXPECT_EQ(round_trip(*made, disk.file("x")).run(), "");
  }
}

INSTANTIATE_TEST_SUITE_P(mounted, file_system, ::testing::Values("tmpfs", "overlay", "ext4", "xfs", "btrfs"),
                         [](const auto& info) { return std::string(info.param); });

TEST(file_system_of, the_build_carries_every_kind_of_transfer) {
  const watchdog watch("round trip on the build's file system");
  const auto dir = temp_dir::on_build_disk();
  auto made = engine::create(without_cuda());
  ASSERT_TRUE(made.ok());
  EXPECT_EQ(round_trip(*made, dir.file("x")).run(), "");
}

// --- a full disk

class full_disk : public ::testing::TestWithParam<const char*> {
 protected:
  // Fills what there is until a write of `length` cannot end well; its result must tell what did arrive.
  static void check(const std::string& path, bool direct, bool on_device) {
    SCOPED_TRACE(fmt::format("{} {}", direct ? "direct" : "buffered", on_device ? "device" : "host"));
    constexpr std::size_t length = 16 * mib + 4097;
    const auto source = pattern::make(length, seed);
    auto made = engine::create(without_cuda());
    ASSERT_TRUE(made.ok());
    auto memory = made->allocate("host:0", length);
    ASSERT_TRUE(memory.ok());
    ASSERT_TRUE(made->copy(memory->data(), source.data(), length).ok());
    open_options wanted;
    wanted.write = wanted.create = wanted.truncate = true;
    wanted.direct_writes = direct;
    auto opened = made->open(path, wanted);
    ASSERT_TRUE(opened.ok()) << opened.error().message();
    const auto done = opened->write(on_device ? memory->data() : source.data(), length, 0);
    EXPECT_EQ(done.error.code(), errc::no_space) << done.error.message();
    EXPECT_NE(done.error.message().find(path), std::string_view::npos) << done.error.message();
    EXPECT_LT(done.bytes_done, length);
    auto content = content_of(path);
    ASSERT_GE(content.size(), done.bytes_done);
    content.resize(done.bytes_done);
    EXPECT_EQ(pattern::first_difference(content, seed, 0), std::nullopt);
  }
};

TEST_P(full_disk, ends_a_write_with_no_space_and_a_true_count) {
  const watchdog watch("full disk " + std::string(GetParam()));
  const mounted disk(GetParam(), 14 * mib);
  if (!disk.why_not().empty()) GTEST_SKIP() << disk.why_not();
  for (const bool direct : {false, true}) {
    for (const bool on_device : {false, true}) {
      check(disk.file("x"), direct, on_device);
      fs::remove(disk.file("x"));
    }
  }
  auto made = engine::create(without_cuda());
  ASSERT_TRUE(made.ok());
  EXPECT_EQ(round_trip(*made, disk.file("y")).run(), "") << "there is room again";
}

INSTANTIATE_TEST_SUITE_P(small, full_disk, ::testing::Values("tmpfs", "ext4"), [](const auto& info) { return std::string(info.param); });

// --- a file that changes while it is read

class changing_file : public ::testing::Test {
 protected:
  void SetUp() override {
    store_file(path_, pattern::make(file_bytes, seed));
    auto made = core::make_engine(without_cuda(), core::seams{kernel_, nullptr, device_});
    ASSERT_TRUE(made.ok());
    engine_.emplace(std::move(*made));
    auto memory = engine_->allocate("host:0", file_bytes);
    ASSERT_TRUE(memory.ok());
    memory_.emplace(std::move(*memory));
  }

  void cool() {
    const int fd = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC);
    ASSERT_EQ(::fdatasync(fd), 0);
    ASSERT_EQ(posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED), 0);
    ::close(fd);
  }

  // Reads all; what came must be the file's, and end where the file now ends at the latest.
  io_result read_all(const io_options& options = {}) {
    auto opened = engine_->open(path_);
    EXPECT_TRUE(opened.ok());
    const auto done = opened->read(memory_->data(), file_bytes, 0, options);
    kernel_->disarm();
    device_->clear_faults();
    std::vector<std::byte> got(done.bytes_done);
    EXPECT_TRUE(engine_->copy(got.data(), memory_->data(), got.size()).ok());
    EXPECT_EQ(pattern::first_difference(got, seed, 0), std::nullopt);
    return done;
  }

  // Cuts the file to `left` just before the nth call of that name.
  void cut_at(const std::string& call, std::uint64_t nth, std::uint64_t left) {
    kernel_->set_hook([this, call, nth, left, seen = std::make_shared<std::atomic<std::uint64_t>>(0)](
                          std::string_view name, std::uint64_t /*number*/) -> std::optional<int> {
      if (name == call && seen->fetch_add(1) + 1 == nth) {
        EXPECT_EQ(::truncate(path_.c_str(), static_cast<off_t>(left)), 0);
      }
      return std::nullopt;
    });
  }

  static constexpr std::size_t file_bytes = 9 * mib + 100;
  const watchdog watch_{"a file that changes under a transfer"};
  temp_dir dir_ = temp_dir::on_build_disk();
  const std::string path_ = dir_.file("x");
  std::shared_ptr<faulty_kernel> kernel_ = std::make_shared<faulty_kernel>();
  std::shared_ptr<faulty_driver> device_ = make_faulty_driver(device::make_host_driver());
  std::optional<engine> engine_;
  std::optional<device_buffer> memory_;
};

TEST_F(changing_file, truncated_under_a_cached_read_gives_a_short_count) {
  cut_at("pread", 2, mib + 77);
  const auto done = read_all();
  EXPECT_TRUE(done.ok()) << done.error.message();
  EXPECT_LT(done.bytes_done, file_bytes);
}

TEST_F(changing_file, truncated_under_a_direct_read_gives_a_short_count) {
  PENSTOCK_SKIP_IF(lacks_rings());
  cool();
  cut_at("ring.read", 2, mib + 77);
  const auto done = read_all({.cache = cache_use::bypass});
  EXPECT_TRUE(done.ok()) << done.error.message();
  EXPECT_LT(done.bytes_done, file_bytes);
}

TEST_F(changing_file, truncated_under_a_read_that_fills_the_cache_gives_a_short_count) {
  cool();
  cut_at("pread", 2, mib + 77);
  const auto done = read_all({.cache = cache_use::fill});
  EXPECT_TRUE(done.ok()) << done.error.message();
  EXPECT_LT(done.bytes_done, file_bytes);
}

TEST_F(changing_file, truncated_to_nothing_gives_no_bytes) {
  for (const char* call : {"map_file", "file_size"}) {
    store_file(path_, pattern::make(file_bytes, seed));
    cut_at(call, 1, 0);
    const auto done = read_all({.path = path_kind::mapped});
    EXPECT_TRUE(done.ok() || done.error.code() == errc::io) << done.error.message();
    EXPECT_EQ(done.bytes_done, 0U) << call;
  }
}

TEST_F(changing_file, truncated_between_mapping_and_copy_is_no_crash) {
  PENSTOCK_SKIP_IF(lacks_reads_of_processes());
  device_->set_hook([this](std::string_view call, std::uint64_t /*number*/) -> std::optional<status> {
    if (call == "copy") {
      EXPECT_EQ(::truncate(path_.c_str(), mib), 0);
    }
    return std::nullopt;
  });
  const auto done = read_all({.prefer = preference::cpu});
  EXPECT_TRUE(done.ok()) << done.error.message();
  EXPECT_EQ(done.bytes_done, mib) << "the next path finds the new end";
}

TEST_F(changing_file, deleted_is_read_and_written_as_before) {
  open_options wanted;
  wanted.write = true;
  auto opened = engine_->open(path_, wanted);
  ASSERT_TRUE(opened.ok());
  fs::remove(path_);
  auto done = opened->read(memory_->data(), file_bytes, 0);
  ASSERT_TRUE(done.ok()) << done.error.message();
  EXPECT_EQ(done.bytes_done, file_bytes);
  std::vector<std::byte> got(file_bytes);
  ASSERT_TRUE(engine_->copy(got.data(), memory_->data(), got.size()).ok());
  EXPECT_EQ(pattern::first_difference(got, seed, 0), std::nullopt);
  done = opened->write(memory_->data(), 2 * mib, 50);
  ASSERT_TRUE(done.ok()) << done.error.message();
  std::vector<std::byte> again(2 * mib);
  done = opened->read(again.data(), again.size(), 50);
  ASSERT_TRUE(done.ok());
  EXPECT_EQ(pattern::first_difference(again, seed, 0), std::nullopt);
  EXPECT_TRUE(opened->close().ok());
}

}  // namespace

}  // namespace penstock::testing::file_system
