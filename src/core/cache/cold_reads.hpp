// How often the parts of files were read past the page cache: what tells that a file is fetched from its disk over and over, also by
// handles that come one after the other. Thread-safe.
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
  static constexpr std::size_t most_files = 1024;  // the one that nobody has asked for longest is forgotten
  static constexpr std::size_t regions = 64;

  // A file as it is now.
  struct identity {
    std::uint64_t device = 0;
    std::uint64_t inode = 0;
    std::int64_t modified_ns = 0;
  };

  class record {
   public:
    explicit record(std::uint64_t file_bytes) noexcept;
    // This range has been read: so many of its bytes are more than there are in its regions, so they had been read before. What lies
    // behind the size that the file had at first is not counted.
    std::uint64_t add(std::uint64_t offset, std::uint64_t length) noexcept;
    // Nothing has been read.
    void forget() noexcept;

   private:
    friend class cold_reads;
    const std::uint64_t file_bytes_;
    const std::uint64_t region_bytes_;
    std::array<std::atomic<std::uint64_t>, regions> read_{};
  };

  // A new one where the file has another size or was changed since. Throws bad_alloc.
  std::shared_ptr<record> of(const identity& file, std::uint64_t size_bytes);

 private:
  struct entry {
    std::shared_ptr<record> kept;
    std::int64_t modified_ns = 0;
    std::uint64_t asked = 0;  // the number of the question that asked for it last
  };
  std::mutex lock_;  // guards what follows
  std::map<std::pair<std::uint64_t, std::uint64_t>, entry> files_;
  std::uint64_t questions_ = 0;
};

}  // namespace penstock::core
