// A row: neighbouring reads of a batch, in file order with small gaps at most, that go to several places of one device. They travel as one
// request, at the speed of that: 4,096 of 768 KiB each would cost 4,096 copies, and those reach half of a link's speed at best.
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

// Which requests of a batch may be in a row, and which of them are in one.
class row_finder {
 public:
  static constexpr std::uint64_t most_gap_bytes = 4096;
  static constexpr std::uint64_t least_bytes = std::uint64_t{1} << 20;  // less is not worth it

  row_finder(runtime& with, const io_options& options);
  // Whether such a request may be in one at all. It has been located.
  [[nodiscard]] bool suits(const admission& item) const noexcept;
  // Whether it goes on where the row ends.
  [[nodiscard]] bool continues(const admission& item, std::uint32_t index) const noexcept;
  // The next of the row, or the first of a new one, with its number in the batch.
  void add(const admission& item, std::uint32_t index) noexcept;
  void clear() noexcept { count_ = 0; }
  [[nodiscard]] std::uint32_t first() const noexcept { return first_; }
  [[nodiscard]] std::uint32_t count() const noexcept { return count_; }
  // Whether what has been found is to travel as one. Asks the paths.
  [[nodiscard]] bool worth_it();

 private:
  runtime& with_;
  const io_options& options_;
  bool any_;  // may be in one
  file_core* file_ = nullptr;
  staging::place place_;
  std::uint64_t begins_ = 0;
  std::uint64_t ends_ = 0;
  std::uint32_t first_ = 0;
  std::uint32_t count_ = 0;
};

class row final : public staging::work {
 public:
  // Of these requests, numbered from first on, which outlive this.
  row(runtime& with, part_owner& of, std::span<admission> items, std::uint32_t first) noexcept
      : with_(with), of_(of), items_(items), first_(first) {}

  // What carries it, not begun; the caller's reference. Errors: closed, out_of_memory.
  [[nodiscard]] result<request*> make(const io_options& options, std::shared_ptr<file_core> file);
  // What an error has left over goes again, each request by itself.
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
  spin_lock lock_;         // guards what follows
  std::size_t ended_ = 0;  // so many of the items, from the first on
};

}  // namespace penstock::core
