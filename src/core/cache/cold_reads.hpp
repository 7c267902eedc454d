// Counts how often each part of a file was read past the page cache. The counts show whether a file is read from its disk repeatedly, even
// if each read uses a new handle. Thread-safe.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

namespace penstock::core {

class cold_reads {
 public:
  static constexpr std::size_t most_files = 1024;  // beyond this, the least recently used record is dropped
  static constexpr std::size_t regions = 64;

  // Identifies a version of a file.
  struct identity {
    std::uint64_t device = 0;
    std::uint64_t inode = 0;
    std::int64_t modified_ns = 0;
  };

  class record {
   public:
    explicit record(std::uint64_t file_bytes) noexcept;
    // Records that this range was read. Returns how many of its bytes exceed the size of their regions and must therefore have been read
    // before. Ignores bytes beyond the first known size of the file.
    std::uint64_t add(std::uint64_t offset, std::uint64_t length) noexcept;
    // Resets the counts.
    void forget() noexcept;

   private:
    friend class cold_reads;
    const std::uint64_t file_bytes_;
    const std::uint64_t region_bytes_;
    std::array<std::atomic<std::uint64_t>, regions> read_{};
  };

  // Returns the record for a file. Creates a new one if the file's size or modification time has changed. Throws std::bad_alloc.
  std::shared_ptr<record> of(const identity& file, std::uint64_t size_bytes);

 private:
  struct entry {
    std::shared_ptr<record> kept;
    std::int64_t modified_ns = 0;
    std::uint64_t asked = 0;  // the number of the last call that requested it
  };
  std::mutex lock_;  // guards the members below
  std::map<std::pair<std::uint64_t, std::uint64_t>, entry> files_;
  std::uint64_t questions_ = 0;
};

}  // namespace penstock::core
