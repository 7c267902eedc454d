// A row: neighbouring reads in a batch, in file order with at most small gaps, into several places on one device. They run as one request,
// at its speed. By contrast, 4,096 separate reads of 768 KiB would cost 4,096 copies, which reach half of a link's speed at best.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/spin_lock.hpp"
#include "core/request/admission.hpp"
#include "core/request/batch_part.hpp"
#include "path/data_path.hpp"
#include "staging/work.hpp"

namespace penstock::core {

class request;

// Finds the requests in a batch that form a row.
class row_finder {
 public:
  static constexpr std::uint64_t most_gap_bytes = 4096;
  static constexpr std::uint64_t least_bytes = std::uint64_t{1} << 20;  // shorter rows are not worthwhile

  row_finder(runtime& with, const io_options& options);
  // Returns true if this request may be part of a row. It must have been located.
  [[nodiscard]] bool suits(const admission& item) const noexcept;
  // Returns true if it starts where the row ends.
  [[nodiscard]] bool continues(const admission& item, std::uint32_t index) const noexcept;
  // Adds the next request of the row, or the first one of a new row, with its index in the batch.
  void add(const admission& item, std::uint32_t index) noexcept;
  void clear() noexcept { count_ = 0; }
  [[nodiscard]] std::uint32_t first() const noexcept { return first_; }
  [[nodiscard]] std::uint32_t count() const noexcept { return count_; }
  // Returns true if the row should run as one request. Queries the paths.
  [[nodiscard]] bool worth_it();

 private:
  runtime& with_;
  const io_options& options_;
  bool any_;  // true if any request may be in a row
  file_core* file_ = nullptr;
  staging::place place_;
  std::uint64_t begins_ = 0;
  std::uint64_t ends_ = 0;
  std::uint32_t first_ = 0;
  std::uint32_t count_ = 0;
};

class row final : public staging::work {
 public:
  // A row of these requests, numbered starting with first. They must outlive this.
  row(runtime& with, part_owner& of, std::span<admission> items, std::uint32_t first) noexcept
      : with_(with), of_(of), items_(items), first_(first) {}

  // Creates, but does not start, the request that represents the row. The caller owns the reference. Errors: closed, out_of_memory.
  [[nodiscard]] result<request*> make(const io_options& options, std::shared_ptr<file_core> file);
  // Runs each request that an error has left incomplete by itself.
  bool run() override;

 private:
  void moved(std::uint64_t bytes) noexcept;
  void ended(const io_result& outcome);
  [[nodiscard]] std::uint64_t moved_of(const admission& item, std::uint64_t bytes) const noexcept;

  runtime& with_;
  part_owner& of_;
  const std::span<admission> items_;
  const std::uint32_t first_;
  io_options options_;
  std::shared_ptr<file_core> file_;
  staging::work_list again_;
  spin_lock lock_;         // guards the members below
  std::size_t ended_ = 0;  // the number of items, counted from the first, that have completed
};

}  // namespace penstock::core
