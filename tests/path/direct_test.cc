// The direct path over a stand-in for libcufile (cufile_recorder) and the host device.
#include <dlfcn.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "path/pretending_kernel.hpp"
#include "path/recorder_library.hpp"
#include "path/registry.hpp"
#include "source/source.hpp"
#include "support/faulty_device.hpp"
#include "support/lone_link.hpp"
#include "support/pattern.hpp"
#include "support/temp_dir.hpp"
#include "sys/library_folders.hpp"

namespace penstock::path {
namespace {

using penstock::testing::cufile_call;
using penstock::testing::faulty_driver;
using penstock::testing::lone_link;
using penstock::testing::pretending_kernel;
using penstock::testing::recorder_library;
namespace pattern = penstock::testing::pattern;

constexpr std::uint64_t mib = std::uint64_t{1} << 20;
constexpr std::uint64_t piece = 16 * mib;
constexpr auto nvidia_fs_version = "/proc/driver/nvidia-fs/version";
constexpr auto nvidia_parameters = "/proc/driver/nvidia/params";

// The device whose memory the stand-in copies to and from.
device::session* copying_session = nullptr;
device::stream copying_stream = nullptr;

void copy_through_device(void* target, const void* source, std::size_t bytes) {
  constexpr std::size_t step = 128 << 10;
  for (std::size_t done = 0; done < bytes; done += step) {
    const auto copied = copying_session->copy_small(static_cast<std::byte*>(target) + done, static_cast<const std::byte*>(source) + done,
                                                    std::min(step, bytes - done), copying_stream);
    ASSERT_TRUE(copied.ok()) << copied.message();
  }
}

struct recording_owner final : job_owner {
  void finished(job& /*ended*/, std::uint64_t bytes, status error) override {
    ++endings;
    finished_bytes = bytes;
    outcome = std::move(error);
  }
  void hand_over(job& refused, status why) override {
    ++endings;
    handed_over_after = refused.moved;
    outcome = std::move(why);
  }
  void did_without(const job& /*carried*/, const status& why) override { done_without.emplace_back(why.message()); }
  [[nodiscard]] status stopped() const override {
    return asked_to_stop++ < stop_after ? status() : status(errc::cancelled, "cancelled by the test");
  }

  int endings = 0;
  std::optional<std::uint64_t> finished_bytes;
  std::optional<std::uint64_t> handed_over_after;
  status outcome;
  std::vector<std::string> done_without;
  mutable int asked_to_stop = 0;
  int stop_after = 1 << 30;
};

// All that this path asks of a source: a descriptor, and where it ends. libcufile takes any descriptor; a plain one lets the stand-in read
// anywhere.
class plain_file final : public source::source {
 public:
  plain_file(std::string name, const ::penstock::source::descriptor_pair& lent) : source(std::move(name)) { descriptors_ = lent; }
  [[nodiscard]] int fd() const { return descriptors_.direct; }
  void become(const plain_file& other) { descriptors_ = other.descriptors_; }  // another file in the same place
  result<std::uint64_t> size() override { return status(errc::unsupported, "not asked"); }
  status sync() override { return {errc::unsupported, "not asked"}; }
  result<bool> ends_at(std::uint64_t offset) override {
    std::byte unused{};
    return ::pread(fd(), &unused, 1, static_cast<off_t>(offset)) == 0;
  }
  io_result fill(std::byte* /*target*/, std::uint64_t /*length*/, std::uint64_t /*offset*/, ::penstock::source::caching /*by*/) override {
    return {0, {errc::unsupported, ""}};
  }
  io_result drain(const std::byte* /*memory*/, std::uint64_t /*length*/, std::uint64_t /*offset*/,
                  const ::penstock::source::drain_manner& /*how*/) override {
    return {0, {errc::unsupported, ""}};
  }
};

class direct_path : public ::testing::Test {
 protected:
  direct_path() {
    session_ = *driver_->open(0, nullptr);
    stream_ = *session_->make_stream();
    copying_session = session_;
    copying_stream = stream_;
    recorder_.function<void(void (*)(void*, const void*, std::size_t))>("recorder_set_copy")(&copy_through_device);
    kernel_->hide_below("/proc/driver/nvidia");
    kernel_->show(nvidia_fs_version, write_text("version", "version: 2.28.4\n"));
    link_.emplace(*kernel_, *session_, false);
    memory_ = link_->place();
  }
  ~direct_path() override {
    path_.reset();
    link_.reset();
    for (auto* block : blocks_) EXPECT_TRUE(session_->release(block).ok());
    EXPECT_TRUE(session_->destroy_stream(stream_).ok());
    for (const int fd : descriptors_) ::close(fd);
    EXPECT_TRUE(driver_->live().none());
  }

  std::string write_text(const std::string& name, const std::string& text) {
    std::ofstream(folder_.file(name)) << text;
    return folder_.file(name);
  }

  int open_descriptor(const std::string& name) {
    descriptors_.push_back(::open(folder_.file(name).c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
    EXPECT_GE(descriptors_.back(), 0);
    return descriptors_.back();
  }

  plain_file open_file(const std::string& name) { return {folder_.file(name), {.direct = open_descriptor(name)}}; }

  plain_file open_pattern(const std::string& name, std::uint64_t size, std::uint64_t seed) {
    const auto bytes = pattern::make(size, seed);
    const int fd = open_descriptor(name);
    EXPECT_EQ(::pwrite(fd, bytes.data(), size, 0), static_cast<ssize_t>(size));
    return {folder_.file(name), {.direct = fd}};
  }

  std::byte* allocate(std::uint64_t bytes) {
    auto block = session_->allocate(bytes);
    EXPECT_TRUE(block.ok()) << block.error().message();
    blocks_.push_back(*block);
    return static_cast<std::byte*>(*block);
  }

  std::vector<std::byte> device_bytes(const std::byte* memory, std::uint64_t length) {
    std::vector<std::byte> bytes(length);
    copy_through_device(bytes.data(), memory, length);
    return bytes;
  }

  data_path& path() {
    if (path_ == nullptr) path_ = built_in_paths().of(path_kind::direct).make({.kernel = kernel_, .cufile_library = library_name_});
    return *path_;
  }

  std::optional<std::string> refusal(plain_file& file, bool is_write = false, std::uint64_t offset = 0, std::uint64_t length = 4096) {
    return path().refuses({.file = &file, .memory = &memory_, .is_write = is_write, .offset = offset, .length = length});
  }

  void expect_refusal(const std::string& words) {
    auto file = open_file("refused");
    const auto why = refusal(file);
    ASSERT_TRUE(why.has_value());
    EXPECT_NE(why->find(words), std::string::npos) << *why;
    EXPECT_EQ(refusal(file), why);  // asked again, the answer stays
    path().forget(file);
  }

  // As the engine does: asks, then runs.
  std::unique_ptr<recording_owner> run(plain_file& file, bool is_write, std::byte* memory, std::uint64_t length, std::uint64_t offset,
                                       int stop_after = 1 << 30) {
    auto owner = std::make_unique<recording_owner>();
    owner->stop_after = stop_after;
    EXPECT_EQ(refusal(file, is_write, offset, length), std::nullopt);
    job item;
    item.owner = owner.get();
    item.path = &path();
    item.file = &file;
    item.place = memory_;
    item.memory = memory;
    item.offset = offset;
    item.length = length;
    item.is_write = is_write;
    EXPECT_TRUE(item.run());
    EXPECT_EQ(owner->endings, 1);
    return owner;
  }

  penstock::testing::temp_dir folder_;
  recorder_library recorder_{CUFILE_RECORDER_PATH};
  std::shared_ptr<pretending_kernel> kernel_ = std::make_shared<pretending_kernel>();
  std::shared_ptr<faulty_driver> driver_ = penstock::testing::make_faulty_driver(device::make_host_driver());
  device::session* session_ = nullptr;
  device::stream stream_ = nullptr;
  std::optional<lone_link> link_;
  staging::place memory_;
  std::string library_name_ = CUFILE_RECORDER_PATH;
  std::vector<int> descriptors_;
  std::vector<void*> blocks_;
  std::unique_ptr<data_path> path_;
};

// --- what it refuses, and why

TEST_F(direct_path, is_called_direct) { EXPECT_EQ(path().name(), "direct"); }

TEST_F(direct_path, refuses_and_loads_nothing_without_nvidia_fs) {
  kernel_ = std::make_shared<pretending_kernel>();
  kernel_->hide_below("/proc/driver/nvidia");
  expect_refusal("nvidia-fs is not loaded (/proc/driver/nvidia-fs/version is missing)");
  EXPECT_TRUE(recorder_.calls().empty());
}

TEST_F(direct_path, refuses_host_memory_and_loads_nothing) {
  memory_ = {};
  expect_refusal("not on a device");
  EXPECT_TRUE(recorder_.calls().empty());
}

TEST_F(direct_path, refuses_a_file_without_direct_descriptor) {
  plain_file file("cached only", {.cached = 0});
  const auto why = refusal(file);
  ASSERT_TRUE(why.has_value());
  EXPECT_NE(why->find("O_DIRECT"), std::string::npos) << *why;
}

TEST_F(direct_path, refuses_unaligned_writes_only) {
  auto file = open_file("data");
  for (const auto& [offset, length] : {std::pair{512U, 4096U}, std::pair{4096U, 4095U}}) {
    const auto why = refusal(file, true, offset, length);
    ASSERT_TRUE(why.has_value());
    EXPECT_NE(why->find("not aligned to 4096"), std::string::npos) << *why;
    EXPECT_EQ(refusal(file, false, offset, length), std::nullopt);
  }
  EXPECT_EQ(refusal(file, true, 4096, 8192), std::nullopt);
}

TEST_F(direct_path, says_where_it_looked_for_the_library) {
  library_name_.clear();
  kernel_->hide_below("/");
  expect_refusal("libcufile.so.0 was not found in /usr/local/cuda/lib64, ");
}

// The kernel is made to say that the library is there; the loader, which asks the real one, then names what it was given.
TEST_F(direct_path, searches_side_by_side_toolkits_too) {
  const std::string place = sys::toolkit_folders("/usr/local/cuda-12.9").back() + "/libcufile.so.0";
  if (std::filesystem::exists(place)) GTEST_SKIP() << place << " is a real library";
  library_name_.clear();
  kernel_->hide_below("/");
  kernel_->show(place, folder_.path().string());
  expect_refusal("libcufile could not be loaded: /." + place);
}

TEST_F(direct_path, refuses_a_library_named_without_its_folder) {
  library_name_ = "libcufile.so.0";
  expect_refusal("full path");
}

TEST_F(direct_path, refuses_a_named_library_that_is_missing) {
  library_name_ = folder_.file("libcufile.so.0");
  expect_refusal("libcufile was not found at " + library_name_);
}

TEST_F(direct_path, refuses_a_file_that_is_no_library) {
  library_name_ = write_text("libcufile.so.0", "no library");
  expect_refusal("libcufile could not be loaded");
}

TEST_F(direct_path, refuses_penstocks_own_libcufile) {
#if defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "the C++ library linked into libcufile keeps memory for exceptions, which is reported once libcufile is unloaded";
#endif
  library_name_ = CUFILE_RECORDER_OWN_PATH;
  expect_refusal("is Penstock's own libcufile");
}

TEST_F(direct_path, another_libcufile_of_the_program_does_not_shadow_the_library) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the sanitizers refuse RTLD_DEEPBIND";
#endif
  void* linked = dlopen(CUFILE_RECORDER_OWN_PATH, RTLD_NOW | RTLD_GLOBAL);
  ASSERT_NE(linked, nullptr);
  auto file = open_file("data");
  EXPECT_EQ(refusal(file), std::nullopt);
  EXPECT_EQ(recorder_.calls(cufile_call::register_file).size(), 1U);
  path_.reset();
  EXPECT_EQ(dlclose(linked), 0);
}

TEST_F(direct_path, refuses_when_libcufile_does_not_start) {
  recorder_.settings().open_code = 5033;
  expect_refusal("did not start: 5033 NVFS_SETUP_ERROR");
  path_.reset();
  EXPECT_TRUE(recorder_.calls(cufile_call::close).empty());
  EXPECT_TRUE(recorder_.calls(cufile_call::register_file).empty());
}

TEST_F(direct_path, refuses_a_file_that_libcufile_would_only_serve_through_host_memory) {
  recorder_.settings().serves_files = false;
  expect_refusal("libcufile refused this file: 5008 IO_NOT_SUPPORTED");
  EXPECT_FALSE(recorder_.state().compatibility_allowed);
  EXPECT_EQ(recorder_.calls(cufile_call::register_file).size(), 1U);  // asked once, not at every question
}

TEST_F(direct_path, refuses_where_the_program_has_allowed_compatibility_mode) {
  recorder_.function<std::uint64_t()>("cuFileDriverOpen")();
  expect_refusal("compatibility mode");
  path_.reset();
  EXPECT_EQ(recorder_.state().use_count, 1);  // the program's own use goes on
}

TEST_F(direct_path, refuses_where_compatibility_mode_is_forced) {
  recorder_.settings().compatibility_forced = true;
  expect_refusal("force_compat_mode must be false");
  EXPECT_TRUE(recorder_.calls(cufile_call::register_file).empty());
}

TEST_F(direct_path, refuses_where_no_kind_of_storage_is_served) {
  recorder_.settings().status_flags = 0;
  expect_refusal("supports no GPU-direct storage");
}

TEST_F(direct_path, early_library_is_judged_by_its_properties) {
  recorder_library early(CUFILE_RECORDER_EARLY_PATH);
  library_name_ = CUFILE_RECORDER_EARLY_PATH;
  early.settings().control_flags = 1U << 1;
  expect_refusal("allow_compat_mode must be false");
  path_.reset();
  EXPECT_EQ(early.state().use_count, 0);

  early.settings().control_flags = 0;
  auto file = open_file("data");
  EXPECT_EQ(refusal(file), std::nullopt);
  path_.reset();
  EXPECT_EQ(early.state().use_count, 0);  // closed through cuFileDriverClose, which is all it has
}

TEST_F(direct_path, a_context_that_cannot_be_made_current_is_refused_but_not_for_good) {
  auto file = open_file("data");
  driver_->fail("make_current", 1, {errc::device, "no context today"});
  EXPECT_EQ(refusal(file), "no context today");  // not loaded
  EXPECT_TRUE(recorder_.calls().empty());
  driver_->fail("make_current", 2, {errc::device, "no context today"});
  EXPECT_EQ(refusal(file), "no context today");  // loaded, not registered
  EXPECT_EQ(recorder_.calls().size(), 1U);
  EXPECT_EQ(refusal(file), std::nullopt);
}

// --- how it sets libcufile up

TEST_F(direct_path, p2pdma_serves_without_nvidia_fs_where_the_driver_is_set_up) {
  kernel_ = std::make_shared<pretending_kernel>();
  kernel_->hide_below("/proc/driver/nvidia");
  kernel_->show(
      nvidia_parameters,
      write_text("params", "EnableMSI: 1\nRegistryDwords: \"RMForceStaticBar1=1;RmForceDisableIomapWC=1\"\nGpuBlacklist: \"\"\n"));
  recorder_.settings().status_flags = 0;
  auto file = open_file("data");
  EXPECT_EQ(refusal(file), std::nullopt);
  EXPECT_TRUE(recorder_.state().p2pdma);
  EXPECT_FALSE(recorder_.state().compatibility_allowed);
}

TEST_F(direct_path, driver_without_static_bar_offers_no_p2pdma) {
  kernel_ = std::make_shared<pretending_kernel>();
  kernel_->hide_below("/proc/driver/nvidia");
  kernel_->show(nvidia_parameters, write_text("params", "EnableMSI: 1\nRegistryDwords: \"RMForceStaticBar1=0\"\n"));
  expect_refusal("has no RMForceStaticBar1=1");
}

TEST_F(direct_path, p2pdma_is_left_alone_where_nvidia_fs_serves) {
  auto file = open_file("data");
  EXPECT_EQ(refusal(file), std::nullopt);
  EXPECT_FALSE(recorder_.state().p2pdma);
}

TEST_F(direct_path, libcufile_writes_no_log_into_the_working_directory) {
  auto file = open_file("data");
  EXPECT_EQ(refusal(file), std::nullopt);
  EXPECT_STREQ(recorder_.state().log_file, "/dev/null");
}

TEST_F(direct_path, the_users_log_file_stays) {
  recorder_.settings().users_log_file = "/var/log/cufile.log";
  auto file = open_file("data");
  EXPECT_EQ(refusal(file), std::nullopt);
  EXPECT_STREQ(recorder_.state().log_file, "");
}

TEST_F(direct_path, opens_once_and_registers_each_file_once_though_many_ask) {
  auto first = open_file("first");
  auto second = open_file("second");
  (void)path();
  std::vector<std::thread> threads;
  threads.reserve(8);
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&, i] { EXPECT_EQ(refusal(i % 2 == 0 ? first : second), std::nullopt); });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(recorder_.calls(cufile_call::open).size(), 1U);
  EXPECT_EQ(recorder_.calls(cufile_call::register_file).size(), 2U);
}

TEST_F(direct_path, closes_what_it_opened) {
  auto first = open_file("first");
  auto second = open_file("second");
  EXPECT_EQ(refusal(first), std::nullopt);
  EXPECT_EQ(refusal(second), std::nullopt);
  EXPECT_EQ(recorder_.state().use_count, 1);
  path_.reset();
  EXPECT_EQ(recorder_.calls(cufile_call::deregister_file).size(), 2U);
  EXPECT_EQ(recorder_.state().use_count, 0);
  EXPECT_EQ(recorder_.calls().back().call, cufile_call::close);  // after the handles
}

TEST_F(direct_path, a_forgotten_file_is_registered_anew) {
  auto file = open_file("first");
  EXPECT_EQ(refusal(file), std::nullopt);
  const int first_fd = file.fd();
  path().forget(file);
  path().forget(file);  // nothing is left to forget
  const auto released = recorder_.calls(cufile_call::deregister_file);
  ASSERT_EQ(released.size(), 1U);
  EXPECT_EQ(released[0].fd, first_fd);

  file.become(open_pattern("second", 4096, 5));
  auto* memory = allocate(4096);
  EXPECT_EQ(run(file, false, memory, 4096, 0)->finished_bytes, 4096U);
  EXPECT_EQ(pattern::first_difference(device_bytes(memory, 4096), 5, 0), std::nullopt);
  EXPECT_EQ(recorder_.calls(cufile_call::register_file).back().fd, file.fd());
}

// --- what it carries

TEST_F(direct_path, reads_exactly_in_pieces_of_16_mib) {
  constexpr std::uint64_t offset = 4099;
  constexpr std::uint64_t length = 2 * piece + 12345;
  auto file = open_pattern("data", offset + length + 77, 1);
  auto* memory = allocate(length + 8192);
  copy_through_device(memory, std::vector<std::byte>(length + 8192, std::byte{0xab}).data(), length + 8192);

  const auto owner = run(file, false, memory + 3, length, offset);
  EXPECT_TRUE(owner->outcome.ok()) << owner->outcome.message();
  EXPECT_EQ(owner->finished_bytes, length);
  const auto bytes = device_bytes(memory, length + 8192);
  EXPECT_EQ(pattern::first_difference(std::span(bytes).subspan(3, length), 1, offset), std::nullopt);
  EXPECT_EQ(bytes[2], std::byte{0xab});
  EXPECT_EQ(bytes[3 + length], std::byte{0xab});

  const auto calls = recorder_.calls(cufile_call::read);
  ASSERT_EQ(calls.size(), 3U);
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(calls[i].fd, file.fd());
    EXPECT_EQ(calls[i].memory, memory + 3 + i * piece);
    EXPECT_EQ(calls[i].memory_offset, 0);
    EXPECT_EQ(calls[i].file_offset, static_cast<std::int64_t>(offset + i * piece));
    EXPECT_EQ(calls[i].bytes, i < 2 ? piece : 12345);
  }
}

TEST_F(direct_path, writes_exactly_in_pieces_of_16_mib) {
  constexpr std::uint64_t offset = 8192;
  constexpr std::uint64_t length = piece + 4096;
  auto file = open_pattern("data", offset + length + 4096, 1);
  auto* memory = allocate(length);
  copy_through_device(memory, pattern::make(length, 2, offset).data(), length);

  const auto owner = run(file, true, memory, length, offset);
  EXPECT_TRUE(owner->outcome.ok()) << owner->outcome.message();
  EXPECT_EQ(owner->finished_bytes, length);
  std::vector<std::byte> bytes(offset + length + 4096);
  ASSERT_EQ(::pread(file.fd(), bytes.data(), bytes.size(), 0), static_cast<ssize_t>(bytes.size()));
  EXPECT_EQ(pattern::first_difference(std::span(bytes).first(offset), 1, 0), std::nullopt);
  EXPECT_EQ(pattern::first_difference(std::span(bytes).subspan(offset, length), 2, offset), std::nullopt);
  EXPECT_EQ(pattern::first_difference(std::span(bytes).last(4096), 1, offset + length), std::nullopt);

  const auto calls = recorder_.calls(cufile_call::write);
  ASSERT_EQ(calls.size(), 2U);
  EXPECT_EQ(calls[1].memory, memory + piece);
  EXPECT_EQ(calls[1].file_offset, static_cast<std::int64_t>(offset + piece));
  EXPECT_EQ(calls[1].bytes, 4096U);
}

TEST_F(direct_path, read_past_the_end_returns_what_there_is) {
  auto file = open_pattern("data", piece + 5000, 3);
  auto* memory = allocate(2 * piece);
  const auto owner = run(file, false, memory, 2 * piece, 0);
  EXPECT_TRUE(owner->outcome.ok()) << owner->outcome.message();
  EXPECT_EQ(owner->finished_bytes, piece + 5000);
  EXPECT_EQ(pattern::first_difference(device_bytes(memory, piece + 5000), 3, 0), std::nullopt);

  const auto behind = run(file, false, memory, 4096, 3 * piece);
  EXPECT_TRUE(behind->outcome.ok());
  EXPECT_EQ(behind->finished_bytes, 0U);
}

TEST_F(direct_path, short_read_before_the_end_is_handed_over) {
  auto file = open_pattern("data", 3 * piece, 3);
  auto* memory = allocate(3 * piece);
  recorder_.settings().short_transfer = 2;
  recorder_.settings().short_bytes = 8192;
  const auto owner = run(file, false, memory, 3 * piece, 0);
  EXPECT_EQ(owner->handed_over_after, piece + 8192);
  EXPECT_EQ(pattern::first_difference(device_bytes(memory, piece + 8192), 3, 0), std::nullopt);
  EXPECT_NE(owner->outcome.message().find("before the end of the file"), std::string::npos) << owner->outcome.message();
}

TEST_F(direct_path, short_read_at_a_stated_size_that_is_not_the_end_is_handed_over) {
  auto file = open_pattern("data", 3 * piece, 3);
  kernel_->state_size(8192);
  recorder_.settings().short_transfer = 1;
  recorder_.settings().short_bytes = 8192;
  EXPECT_EQ(run(file, false, allocate(piece), piece, 0)->handed_over_after, 8192U);
}

TEST_F(direct_path, short_write_is_handed_over) {
  auto file = open_file("data");
  auto* memory = allocate(65536);
  copy_through_device(memory, pattern::make(65536, 4).data(), 65536);
  recorder_.settings().short_transfer = 1;
  recorder_.settings().short_bytes = 5000;
  const auto owner = run(file, true, memory, 65536, 0);
  EXPECT_EQ(owner->handed_over_after, 5000U);
  EXPECT_FALSE(owner->outcome.ok());
}

struct failing_transfer {
  ssize_t result;
  int error_number;
  error_domain domain;
  int native;
  const char* words;
};

class direct_path_failing : public direct_path, public ::testing::WithParamInterface<failing_transfer> {};

TEST_P(direct_path_failing, hands_over_with_what_was_moved) {
  auto file = open_pattern("data", 3 * piece, 6);
  auto* memory = allocate(3 * piece);
  for (const bool is_write : {false, true}) {
    recorder_.settings().fail_transfer = is_write ? 4 : 2;  // two reads, then the second write
    recorder_.settings().fail_result = GetParam().result;
    recorder_.settings().fail_errno = GetParam().error_number;
    const auto owner = run(file, is_write, memory, 3 * piece, 0);
    EXPECT_EQ(owner->handed_over_after, piece);
    EXPECT_EQ(owner->finished_bytes, std::nullopt);
    EXPECT_EQ(owner->outcome.domain(), GetParam().domain);
    EXPECT_EQ(owner->outcome.native(), GetParam().native);
    const auto message = owner->outcome.message();
    const auto place = std::string(is_write ? "direct: write " : "direct: read ") + "16777216 at 16777216 of " + file.name();
    EXPECT_NE(message.find(place), std::string_view::npos) << message;
    EXPECT_NE(message.find(GetParam().words), std::string_view::npos) << message;
  }
}

INSTANTIATE_TEST_SUITE_P(each_way_to_say_so, direct_path_failing,
                         ::testing::Values(failing_transfer{-1, EIO, error_domain::os, EIO, "Input/output error"},
                                           failing_transfer{-1, 5027, error_domain::cufile, 5027, "5027 HANDLE_NOT_REGISTERED"},
                                           failing_transfer{-5036, 0, error_domain::cufile, 5036, "5036 GPU_MEMORY_PINNING_FAILED"},
                                           failing_transfer{-EIO, 0, error_domain::os, EIO, "Input/output error"},
                                           failing_transfer{-1, 0, error_domain::cufile, 0, "reported no reason"}),
                         [](const auto& info) { return "case_" + std::to_string(info.index); });

TEST_F(direct_path, stops_between_pieces) {
  auto file = open_pattern("data", 3 * piece, 7);
  auto* memory = allocate(3 * piece);
  const auto owner = run(file, false, memory, 3 * piece, 0, 3);  // asked once more, before it begins
  EXPECT_EQ(owner->finished_bytes, 2 * piece);
  EXPECT_EQ(owner->outcome.code(), errc::cancelled);
  EXPECT_EQ(recorder_.calls(cufile_call::read).size(), 2U);
}

TEST_F(direct_path, write_from_unaligned_memory_is_handed_over_untouched) {
  auto file = open_pattern("data", 65536, 8);
  auto* memory = allocate(65536);
  const auto owner = run(file, true, memory + 16, 4096, 0);
  EXPECT_EQ(owner->handed_over_after, 0U);
  EXPECT_TRUE(recorder_.calls(cufile_call::write).empty());
}

TEST_F(direct_path, many_small_ranges_are_handed_over) {
  auto file = open_pattern("data", 4096, 8);
  recording_owner owner;
  job item;
  item.owner = &owner;
  item.path = &path();
  item.place = memory_;
  gather_range range;
  range.file = &file;
  range.length = 100;
  range.memory = allocate(4096);
  item.ranges.push_back(range);
  EXPECT_TRUE(item.run());
  EXPECT_EQ(owner.handed_over_after, 0U);
}

TEST_F(direct_path, a_file_never_asked_about_is_handed_over) {
  auto file = open_pattern("data", 4096, 8);
  recording_owner owner;
  job item;
  item.owner = &owner;
  item.path = &path();
  item.file = &file;
  item.place = memory_;
  item.memory = allocate(4096);
  item.length = 4096;
  EXPECT_TRUE(item.run());
  EXPECT_EQ(owner.handed_over_after, 0U);
}

TEST_F(direct_path, each_transfer_runs_with_the_sessions_context_current) {
  static faulty_driver* driver = nullptr;
  static std::int64_t current_contexts = 0;
  driver = driver_.get();
  current_contexts = 0;
  recorder_.settings().copy = [](void* target, const void* source, std::size_t bytes) {
    current_contexts = driver->live().current_contexts;
    copy_through_device(target, source, bytes);
  };
  auto file = open_pattern("data", 4096, 9);
  EXPECT_EQ(run(file, false, allocate(4096), 4096, 0)->finished_bytes, 4096U);
  EXPECT_EQ(current_contexts, 1);
  EXPECT_EQ(driver_->live().current_contexts, 0);
}

TEST_F(direct_path, a_file_is_forgotten_with_the_sessions_context_current) {
  auto file = open_file("data");
  EXPECT_EQ(refusal(file), std::nullopt);
  int made_current = 0;
  driver_->set_hook([&](std::string_view call, std::uint64_t) -> std::optional<status> {
    made_current += call == "make_current" ? 1 : 0;
    return std::nullopt;
  });
  path().forget(file);
  EXPECT_EQ(made_current, 1);
  EXPECT_EQ(recorder_.calls(cufile_call::deregister_file).size(), 1U);
  EXPECT_EQ(driver_->live().current_contexts, 0);
  driver_->clear_faults();
}

TEST_F(direct_path, a_context_that_cannot_be_made_current_hands_over) {
  auto file = open_pattern("data", 4096, 9);
  EXPECT_EQ(refusal(file), std::nullopt);
  driver_->fail("make_current", 1, {errc::device, "no context today"});
  const auto owner = run(file, false, allocate(4096), 4096, 0);
  EXPECT_EQ(owner->handed_over_after, 0U);
  EXPECT_EQ(owner->outcome.code(), errc::device);
  EXPECT_TRUE(recorder_.calls(cufile_call::read).empty());
}

// --- registered memory

TEST_F(direct_path, registered_memory_is_registered_by_the_first_transfer_and_told_as_base_and_offset) {
  constexpr std::uint64_t length = piece + 4096;
  auto file = open_pattern("data", length, 10);
  auto* memory = allocate(length + 8192);
  ASSERT_TRUE(path().remember_memory(memory_, memory, length + 8192).ok());
  EXPECT_EQ(refusal(file), std::nullopt);
  EXPECT_TRUE(recorder_.calls(cufile_call::register_buffer).empty()) << "nothing was transferred";
  for (int i = 0; i < 2; ++i) EXPECT_EQ(run(file, false, memory + 8192, length, 0)->finished_bytes, length);
  EXPECT_EQ(run(file, true, memory + 4096, 4096, 0)->finished_bytes, 4096U);

  const auto registered = recorder_.calls(cufile_call::register_buffer);
  ASSERT_EQ(registered.size(), 1U);
  EXPECT_EQ(registered[0].memory, memory);
  EXPECT_EQ(registered[0].bytes, length + 8192);
  const auto reads = recorder_.calls(cufile_call::read);
  ASSERT_EQ(reads.size(), 4U);
  for (std::size_t i = 0; i < reads.size(); ++i) {
    EXPECT_EQ(reads[i].memory, memory);
    EXPECT_EQ(reads[i].memory_offset, static_cast<std::int64_t>(8192 + (i % 2) * piece));
  }
  EXPECT_EQ(pattern::first_difference(device_bytes(memory + 8192, length), 10, 0), std::nullopt);
  const auto writes = recorder_.calls(cufile_call::write);
  ASSERT_EQ(writes.size(), 1U);
  EXPECT_EQ(writes[0].memory, memory);
  EXPECT_EQ(writes[0].memory_offset, 4096);
}

TEST_F(direct_path, a_transfer_that_leaves_the_registered_range_is_told_by_its_address) {
  auto file = open_pattern("data", 16384, 10);
  auto* memory = allocate(16384);
  ASSERT_TRUE(path().remember_memory(memory_, memory + 4096, 4096).ok());
  for (const auto& [start, length] : {std::pair{0, 4096}, std::pair{0, 16384}, std::pair{4096, 8192}, std::pair{8192, 4096}}) {
    EXPECT_EQ(run(file, false, memory + start, static_cast<std::uint64_t>(length), 0)->finished_bytes, length);
    EXPECT_EQ(recorder_.calls(cufile_call::read).back().memory, memory + start);
  }
  EXPECT_TRUE(recorder_.calls(cufile_call::register_buffer).empty());
}

TEST_F(direct_path, memory_that_libcufile_does_not_register_is_transferred_without_and_told_once) {
  auto file = open_pattern("data", 8192, 10);
  auto* memory = allocate(8192);
  ASSERT_TRUE(path().remember_memory(memory_, memory, 8192).ok());
  recorder_.settings().register_buffer_code = 5036;
  const auto first = run(file, false, memory + 4096, 4096, 0);
  EXPECT_EQ(first->finished_bytes, 4096U);
  EXPECT_EQ(first->done_without,
            std::vector<std::string>{"direct: libcufile did not register 8192 bytes of memory: 5036 GPU_MEMORY_PINNING_FAILED"});
  EXPECT_EQ(recorder_.calls(cufile_call::read).back().memory, memory + 4096);
  EXPECT_TRUE(run(file, false, memory, 4096, 0)->done_without.empty());
  EXPECT_EQ(recorder_.calls(cufile_call::register_buffer).size(), 1U);
  path().forget_memory(memory);
  EXPECT_TRUE(recorder_.calls(cufile_call::deregister_buffer).empty());
}

TEST_F(direct_path, forgotten_memory_is_deregistered_with_the_sessions_context_current) {
  auto file = open_pattern("data", 4096, 10);
  auto* memory = allocate(8192);
  ASSERT_TRUE(path().remember_memory(memory_, memory, 4096).ok());
  ASSERT_TRUE(path().remember_memory(memory_, memory + 4096, 4096).ok());
  EXPECT_EQ(run(file, false, memory, 4096, 0)->finished_bytes, 4096U);
  int made_current = 0;
  driver_->set_hook([&](std::string_view call, std::uint64_t) -> std::optional<status> {
    made_current += call == "make_current" ? 1 : 0;
    return std::nullopt;
  });
  path().forget_memory(memory + 4096);  // no transfer has touched it
  EXPECT_EQ(made_current, 0);
  path().forget_memory(memory);
  path().forget_memory(memory);  // nothing is left to forget
  EXPECT_EQ(made_current, 1);
  EXPECT_EQ(driver_->live().current_contexts, 0);
  driver_->clear_faults();
  const auto released = recorder_.calls(cufile_call::deregister_buffer);
  ASSERT_EQ(released.size(), 1U);
  EXPECT_EQ(released[0].memory, memory);

  EXPECT_EQ(run(file, false, memory, 4096, 0)->finished_bytes, 4096U);
  EXPECT_EQ(recorder_.calls(cufile_call::register_buffer).size(), 1U) << "it is not registered anew";
}

TEST_F(direct_path, memory_is_deregistered_when_its_last_transfer_has_ended) {
  static data_path* forgetting = nullptr;
  static std::byte* forgotten = nullptr;
  static std::thread other;
  auto file = open_pattern("data", 4096, 10);
  forgetting = &path();
  forgotten = allocate(4096);
  ASSERT_TRUE(path().remember_memory(memory_, forgotten, 4096).ok());
  recorder_.settings().copy = [](void* target, const void* source, std::size_t bytes) {
    other = std::thread([] { forgetting->forget_memory(forgotten); });
    for (int i = 0; i < 10000; ++i) std::this_thread::yield();  // the other thread's chance to do it too soon
    copy_through_device(target, source, bytes);
  };
  EXPECT_EQ(run(file, false, forgotten, 4096, 0)->finished_bytes, 4096U);
  other.join();
  const auto released = recorder_.calls(cufile_call::deregister_buffer);
  ASSERT_EQ(released.size(), 1U);
  EXPECT_EQ(released[0].under_way, 0U);
}

}  // namespace
}  // namespace penstock::path
