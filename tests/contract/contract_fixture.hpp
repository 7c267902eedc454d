// What the contract suite shares: an engine over known doors, memory of each kind with guards around it, and files of pattern bytes.
// Files lie on the disk of the build, or are sources in memory. Every check is reported through GoogleTest. For one thread at a time unless
// a member says otherwise.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/engine_core.hpp"
#include "device/device.hpp"
#include "device/host_pins.hpp"
#include "penstock/penstock.hpp"
#include "support/memory_source.hpp"
#include "support/pattern.hpp"
#include "support/stored_file.hpp"
#include "support/temp_dir.hpp"

namespace penstock::testing {

inline constexpr std::uint64_t kib = 1024;
inline constexpr std::uint64_t mib = 1024 * kib;

using bytes = std::vector<std::byte>;

// Where the memory of a transfer lies: pageable host memory, host memory aligned to pages, or a device.
enum class memory_place { pageable, aligned, device };

inline std::string to_string(memory_place place) {
  return place == memory_place::pageable ? "pageable" : place == memory_place::aligned ? "aligned" : "device";
}

// Anything a status can be asked for, as text for a failed check.
inline std::string told(const status& outcome) { return std::string(to_string(outcome.code())) + ": " + std::string(outcome.message()); }

// Where the host device cannot register what is mapped read-only: GTEST_SKIP().
inline void skip_without_reads_of_processes() {
  char here = 0;
  char there = 0;
  if (!device::host_pins::read_safely(&here, &there, 1).ok()) GTEST_SKIP() << "process_vm_readv is missing, by which the host device reads";
}

// An engine over doors that the test can reach too, and the device it works with: the first GPU, else the host device.
class open_house {
 public:
  explicit open_house(const engine_options& options = {}) : open_house(options, core::real_seams(options)) {}

  open_house(const engine_options& options, core::seams doors) : doors_(std::move(doors)) {
    auto made = core::make_engine(options, doors_);
    EXPECT_TRUE(made.ok()) << told(made.error());
    if (made.ok()) engine_.emplace(*std::move(made));
    on_gpu_ = doors_.cuda != nullptr && doors_.cuda->count().value_or(0) > 0;
  }

  [[nodiscard]] penstock::engine& engine() { return *engine_; }
  [[nodiscard]] bool on_gpu() const { return on_gpu_; }
  [[nodiscard]] std::string device() const { return on_gpu_ ? "cuda:0" : "host:0"; }
  // For streams and copies of the test's own.
  [[nodiscard]] device::session& session() {
    auto opened = (on_gpu_ ? doors_.cuda : doors_.host)->open(0, nullptr);
    EXPECT_TRUE(opened.ok()) << told(opened.error());
    return **opened;
  }
  void end() { engine_.reset(); }

 private:
  core::seams doors_;  // outlive the engine
  std::optional<penstock::engine> engine_;
  bool on_gpu_ = false;
};

// Lays bytes over expected file content, which grows where it must, with zeros in the hole.
inline void overlay(bytes& content, std::uint64_t offset, std::span<const std::byte> with) {
  if (!with.empty() && content.size() < offset + with.size()) content.resize(offset + with.size());
  std::copy(with.begin(), with.end(), content.begin() + static_cast<std::ptrdiff_t>(offset));
}

// How many bytes are those of neither. All three are of one length.
inline std::size_t count_foreign(std::span<const std::byte> seen, std::span<const std::byte> one, std::span<const std::byte> other) {
  constexpr std::size_t block = 4096;
  std::size_t found = 0;
  for (std::size_t at = 0; at < seen.size(); at += block) {
    const std::size_t length = std::min(block, seen.size() - at);
    if (std::memcmp(&seen[at], &one[at], length) == 0 || std::memcmp(&seen[at], &other[at], length) == 0) continue;
    for (std::size_t i = at; i < at + length; ++i) found += seen[i] != one[i] && seen[i] != other[i] ? 1 : 0;
  }
  return found;
}

// A memory range with a guard on both sides. What is in and around it is known at all times.
class guarded_memory {
 public:
  static constexpr std::size_t guard_bytes = 4096;

  // shift: how far past an aligned address the range begins.
  guarded_memory(open_house& house, memory_place place, std::size_t length, std::size_t shift = 0)
      : house_(&house), length_(length), before_(guard_bytes + shift), known_(before_ + length + guard_bytes) {
    std::memset(known_.data(), 0xa7, known_.size());
    if (place == memory_place::device) {
      auto memory = house.engine().allocate(house.device(), known_.size());
      EXPECT_TRUE(memory.ok()) << told(memory.error());
      if (memory.ok()) on_device_ = *std::move(memory);
      base_ = static_cast<std::byte*>(on_device_.data());
    } else {
      const std::size_t alignment = place == memory_place::aligned ? 4096 : 16;
      on_host_.reset(static_cast<std::byte*>(std::aligned_alloc(alignment, (known_.size() + alignment - 1) / alignment * alignment)));
      base_ = on_host_.get();
    }
    store();
  }

  [[nodiscard]] std::byte* data() const { return base_ + before_; }
  [[nodiscard]] std::size_t size() const { return length_; }

  void fill(std::span<const std::byte> content) {
    std::copy(content.begin(), content.end(), known_.begin() + static_cast<std::ptrdiff_t>(before_));
    store();
  }

  // The range begins with these bytes, and all else, the rest of the range and the guards, is as it was.
  void expect(std::span<const std::byte> content) {
    std::copy(content.begin(), content.end(), known_.begin() + static_cast<std::ptrdiff_t>(before_));
    const bytes seen = load();
    if (std::memcmp(seen.data(), known_.data(), seen.size()) != 0) {
      const auto differs = std::mismatch(seen.begin(), seen.end(), known_.begin()).first;
      ADD_FAILURE() << "byte " << differs - seen.begin() - static_cast<std::ptrdiff_t>(before_) << " of the range differs; expected are "
                    << content.size() << " new bytes of " << length_;
    }
    known_ = seen;
  }
  void expect_untouched() { expect({}); }

  // The range begins with the first `sure` bytes of content; each byte after them is that of content or as it was; the guards are.
  void expect_old_or_new(std::span<const std::byte> content, std::size_t sure) {
    const bytes seen = load();
    bytes after = known_;
    overlay(after, before_, content);
    overlay(known_, before_, content.first(sure));
    const std::size_t wrong = count_foreign(seen, known_, after);
    EXPECT_EQ(wrong, 0U) << "bytes that are neither old nor new";
    known_ = seen;
  }

  [[nodiscard]] bytes load() const {
    bytes seen(known_.size());
    const auto copied = house_->engine().copy(seen.data(), base_, seen.size());
    EXPECT_TRUE(copied.ok()) << told(copied);
    return seen;
  }
  [[nodiscard]] bytes content() const {
    const bytes seen = load();
    const auto first = seen.begin() + static_cast<std::ptrdiff_t>(before_);
    return {first, first + static_cast<std::ptrdiff_t>(length_)};
  }

 private:
  struct free_memory {
    void operator()(std::byte* memory) const { std::free(memory); }
  };
  void store() {
    const auto copied = house_->engine().copy(base_, known_.data(), known_.size());
    EXPECT_TRUE(copied.ok()) << told(copied);
  }

  open_house* house_;
  std::size_t length_;
  std::size_t before_;
  bytes known_;
  device_buffer on_device_;
  std::unique_ptr<std::byte, free_memory> on_host_;
  std::byte* base_ = nullptr;
};

inline bytes contents_of(const std::string& name) {
  std::ifstream from(name, std::ios::binary | std::ios::ate);
  EXPECT_TRUE(from.is_open()) << name;
  bytes content(static_cast<std::size_t>(std::max<std::streamoff>(from.tellg(), 0)));
  from.seekg(0);
  from.read(reinterpret_cast<char*>(content.data()), static_cast<std::streamsize>(content.size()));
  EXPECT_TRUE(from.good()) << name;
  return content;
}

inline void expect_same(const bytes& seen, const bytes& expected) {
  EXPECT_EQ(seen.size(), expected.size());
  const std::size_t both = std::min(seen.size(), expected.size());
  if (both == 0 || std::memcmp(seen.data(), expected.data(), both) == 0) return;
  const auto end = seen.begin() + static_cast<std::ptrdiff_t>(both);
  ADD_FAILURE() << "byte " << std::mismatch(seen.begin(), end, expected.begin()).first - seen.begin() << " of the file differs";
}

// The file holds exactly these bytes.
inline void expect_file(const std::string& name, const bytes& expected) { expect_same(contents_of(name), expected); }

// Writes the file to its disk and takes it, or a part, out of the page cache.
inline void drop_cache(const std::string& name, std::uint64_t offset = 0, std::uint64_t length = 0) {
  const int fd = ::open(name.c_str(), O_RDONLY | O_CLOEXEC);
  ASSERT_GE(fd, 0) << name;
  EXPECT_EQ(::fdatasync(fd), 0);
  EXPECT_EQ(::posix_fadvise(fd, static_cast<off_t>(offset), static_cast<off_t>(length), POSIX_FADV_DONTNEED), 0);
  ::close(fd);
}

// The real doors, without a GPU. A failed request to a server is tried again after a few milliseconds.
inline core::seams impatient_doors(unsigned attempts) {
  engine_options options;
  options.use_cuda = false;
  auto doors = core::real_seams(options);
  doors.web.attempts = attempts;
  doors.web.first_pause = std::chrono::milliseconds(1);
  doors.web.most_pause = std::chrono::milliseconds(5);
  return doors;
}

// The real doors, and further paths.
inline core::seams doors_with(const engine_options& options, std::vector<const path::declaration*> further_paths) {
  auto doors = core::real_seams(options);
  doors.further_paths = std::move(further_paths);
  return doors;
}

// Where the files of a test lie: on the disk of the build; in memory, with no descriptor; the same, with a cache that transfers may go
// past; and in memory that is far, and answers out of order.
enum class file_home { disk, memory, cached_memory, far_memory };

inline std::string to_string(file_home home) {
  constexpr std::array names{"disk", "memory", "cached_memory", "far_memory"};
  return names.at(static_cast<std::size_t>(home));
}
inline std::string name_of_home(const ::testing::TestParamInfo<file_home>& info) { return to_string(info.param); }
// What runs on sources of every kind.
inline const auto every_home = ::testing::Values(file_home::disk, file_home::memory, file_home::cached_memory, file_home::far_memory);
inline std::shared_ptr<far_network> network_to(file_home home) {
  return home == file_home::far_memory ? std::make_shared<far_network>(far_network::answers::out_of_order) : nullptr;
}

class contract_fixture : public ::testing::Test {
 protected:
  contract_fixture() : contract_fixture(engine_options{}) {}
  explicit contract_fixture(const engine_options& options, file_home home = file_home::disk,
                            std::vector<const path::declaration*> further_paths = {})
      : contract_fixture(options, home, doors_with(options, std::move(further_paths))) {}
  contract_fixture(const engine_options& options, file_home home, core::seams doors)
      : on_disk_(home == file_home::disk),
        in_memory_(home == file_home::cached_memory, {}, network_to(home)),
        house_(options, std::move(doors)) {}

  engine& engine_of() { return house_.engine(); }
  [[nodiscard]] std::string name(const std::string& of = "data") const { return directory_.file(of); }

  // A file of pattern bytes, and those bytes.
  bytes make_file(const std::string& of, std::size_t size, std::uint64_t seed = 1) {
    auto content = pattern::make(size, seed);
    on_disk_ ? store_file(name(of), content) : in_memory_.put(name(of), content);
    return content;
  }

  file open(const std::string& of, const open_options& options = {}) { return open_in(engine_of(), of, options); }
  file open_in(const engine& with, const std::string& of, const open_options& options = {}) {
    auto opened = on_disk_ ? with.open(name(of), options) : in_memory_.open(with, name(of), options);
    EXPECT_TRUE(opened.ok()) << told(opened.error());
    return opened.ok() ? *std::move(opened) : file();
  }
  file open_for_writing(const std::string& of = "data", bool direct_writes = false) {
    return open(of, {.read = true, .write = true, .create = true, .direct_writes = direct_writes});
  }

  // Of files wherever they lie.
  bytes contents_of(const std::string& path) { return on_disk_ ? testing::contents_of(path) : in_memory_.get(path); }
  void expect_file(const std::string& path, const bytes& expected) { expect_same(contents_of(path), expected); }
  void drop_cache(const std::string& path, std::uint64_t offset = 0, std::uint64_t length = 0) {
    on_disk_ ? testing::drop_cache(path, offset, length) : in_memory_.drop_cache(path, offset, length);
  }
  void resize(const std::string& path, std::uint64_t size) {
    if (!on_disk_) return in_memory_.resize(path, size);
    EXPECT_EQ(::truncate(path.c_str(), static_cast<off_t>(size)), 0);
  }
  void remove(const std::string& path) {
    if (!on_disk_) return in_memory_.remove(path);
    EXPECT_EQ(::unlink(path.c_str()), 0);
  }

 private:
  const bool on_disk_;
  memory_files in_memory_;

 protected:
  temp_dir directory_ = temp_dir::on_build_disk();
  open_house house_;
};

}  // namespace penstock::testing
