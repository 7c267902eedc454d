// A file of a mounted file system, or a block device: opened by its name, or lent as a descriptor. The descriptor of the other kind
// (through the page cache, or past it) is opened when it is first asked for.
#pragma once

#include <memory>
#include <string>

#include "penstock/options.hpp"
#include "source/source.hpp"
#include "sys/kernel.hpp"

namespace penstock::source {

struct lent_as {
  std::string name{};          // empty: "descriptor N"
  bool direct_writes = false;  // also where the descriptor is not O_DIRECT
  // Let go of once the file is closed: what closes the descriptor, where nobody else does.
  std::shared_ptr<const void> held{};
  std::string told{};  // as source::told()
  // Works through a duplicate of its own, so that closing the descriptor, and opening another file under its number, changes nothing.
  bool duplicate = false;
};

class local_file final : public source {
 public:
  // The kernel outlives the file. Errors name the file: invalid_argument (options that contradict each other), not_a_file, those of
  // open(2).
  static result<std::unique_ptr<local_file>> open(sys::kernel& kernel, const std::string& path, const open_options& options);
  // The descriptor stays the caller's. Errors name it: invalid_argument (O_PATH, or O_APPEND for writing), not_a_file, those of fcntl(2),
  // out_of_memory (no room for a duplicate).
  static result<std::unique_ptr<local_file>> adopt(sys::kernel& kernel, int descriptor, const lent_as& how = {});
  ~local_file() override;

  result<std::uint64_t> size() override;
  status sync() override;
  status truncate(std::uint64_t size) override;
  [[nodiscard]] int descriptor() const noexcept override { return first_descriptor_; }
  result<std::uint64_t> resident_bytes(std::uint64_t offset, std::uint64_t length) override;
  bool changed() override;
  result<bool> ends_at(std::uint64_t offset) override;
  io_result fill(std::byte* target, std::uint64_t length, std::uint64_t offset) override;
  io_result fill_streaming(std::byte* target, std::uint64_t length, std::uint64_t offset) override;
  io_result fill_cold(std::byte* target, std::uint64_t length, std::uint64_t offset) override;
  io_result fill_uncached(std::byte* target, std::uint64_t length, std::uint64_t offset) override;
  void fetch_ahead(std::uint64_t offset, std::uint64_t length) noexcept override;
  io_result fill_direct(std::byte* block, std::uint64_t length, std::uint64_t offset) override;
  io_result drain(const std::byte* memory, std::uint64_t length, std::uint64_t offset) override;
  io_result drain_uncached(const std::byte* memory, std::uint64_t length, std::uint64_t offset) override;
  [[nodiscard]] status uncached_problem() override;
  [[nodiscard]] std::string told() const override { return told_; }
  io_result drain_direct(const std::byte* memory, std::uint64_t length, std::uint64_t offset) override;
  bool let_wait(staging::waiting_lanes& by, staging::answer_times& times) override;
  void begin_fill(far_fill& what) noexcept override;
  // Waits for fills that were begun, except in a forked child.
  status close() override;

 private:
  local_file(sys::kernel& kernel, std::string name);
  // One system call of a kind.
  using put = result<std::size_t> (sys::kernel::*)(int fd, const void* source, std::size_t length, std::uint64_t offset);
  using get = result<std::size_t> (sys::kernel::*)(int fd, void* target, std::size_t length, std::uint64_t offset);
  status examine();
  void open_rest() override;
  result<int> reopen(int flags);
  [[nodiscard]] status at(const status& error, const char* verb, std::uint64_t length, std::uint64_t offset) const noexcept;
  // One system call, whose error may be that there is no memory to tell it.
  result<std::size_t> pread(int fd, void* target, std::uint64_t length, std::uint64_t offset, get by = &sys::kernel::pread) noexcept;
  io_result read_all(get by, std::byte* target, std::uint64_t length, std::uint64_t offset);
  // Whether a call that was to leave nothing in the cache was refused for that, which is then known.
  bool refuses_uncached(const io_result& outcome) noexcept;
  result<bool> ends_at_by_blocks(std::uint64_t offset);
  io_result read_blocks(std::byte* target, std::uint64_t length, std::uint64_t offset);
  static io_result copy_out(std::byte* target, const std::byte* source, std::uint64_t length) noexcept;
  io_result fill_bounced(std::byte* target, std::uint64_t length, std::uint64_t offset);
  io_result write_all(int fd, const std::byte* memory, std::uint64_t length, std::uint64_t offset, put by = &sys::kernel::pwrite);

  class begun;

  sys::kernel& kernel_;
  std::unique_ptr<begun> begun_;  // null: no fills are begun
  int first_descriptor_ = -1;     // the one that the file was opened or lent with
  int access_ = 0;                // O_RDONLY, O_WRONLY or O_RDWR
  int promises_ = 0;  // O_SYNC, O_DSYNC and O_NOATIME, as far as they are set on a lent descriptor: they hold for the second too
  std::uint64_t opened_bytes_ = 0;             // as it was opened
  std::uint32_t direct_offset_alignment_ = 0;  // that the file system demands; 0: no direct I/O
  std::uint32_t direct_memory_alignment_ = 0;
  descriptor_pair owned_;
  std::shared_ptr<const void> held_;  // of a lent one
  std::string told_;
};

}  // namespace penstock::source
