// A file on a mounted file system, or a block device, opened by path or adopted as a descriptor. The other kind of descriptor (buffered or
// O_DIRECT) is opened on first use.
#pragma once

#include <memory>
#include <string>

#include "penstock/options.hpp"
#include "source/source.hpp"
#include "sys/kernel.hpp"

namespace penstock::source {

struct lent_as {
  std::string name{};          // empty: "descriptor N"
  bool direct_writes = false;  // write directly even if the descriptor is not O_DIRECT
  // Released when the file is closed. Destroying this object closes the descriptor if no other code does.
  std::shared_ptr<const void> held{};
  std::string told{};  // the text for source::told()
  // True: use a duplicate, so that closing the descriptor and reusing its number has no effect.
  bool duplicate = false;
};

class local_file final : public source {
 public:
  // kernel must outlive the file. Errors, with the path: invalid_argument (contradictory options), not_a_file, those of open(2).
  static result<std::unique_ptr<local_file>> open(sys::kernel& kernel, const std::string& path, const open_options& options);
  // The caller keeps ownership of the descriptor. Errors, with the name: invalid_argument (O_PATH, or O_APPEND for writing), not_a_file,
  // those of fcntl(2), out_of_memory (no room for a duplicate).
  static result<std::unique_ptr<local_file>> adopt(sys::kernel& kernel, int descriptor, const lent_as& how = {});
  ~local_file() override;

  result<std::uint64_t> size() override;
  status sync() override;
  status truncate(std::uint64_t size) override;
  [[nodiscard]] int descriptor() const noexcept override { return first_descriptor_; }
  result<std::uint64_t> resident_bytes(std::uint64_t offset, std::uint64_t length) override;
  bool changed() override;
  result<bool> ends_at(std::uint64_t offset) override;
  using source::drain;
  using source::fill;
  io_result fill(std::byte* target, std::uint64_t length, std::uint64_t offset, caching by) override;
  void fetch_ahead(std::uint64_t offset, std::uint64_t length) noexcept override;
  io_result drain(const std::byte* memory, std::uint64_t length, std::uint64_t offset, const drain_manner& how) override;
  [[nodiscard]] status uncached_problem() override;
  [[nodiscard]] std::string told() const override { return told_; }
  bool let_wait(staging::waiting_lanes& by, staging::answer_times& times) override;
  void begin_fill(far_fill& what) noexcept override;
  // Waits for fills in flight, except in a forked child.
  status close() override;

 private:
  local_file(sys::kernel& kernel, std::string name);
  // The system calls that write and read.
  using put = result<std::size_t> (sys::kernel::*)(int fd, const void* source, std::size_t length, std::uint64_t offset);
  using get = result<std::size_t> (sys::kernel::*)(int fd, void* target, std::size_t length, std::uint64_t offset);
  status examine();
  void open_rest() override;
  result<int> reopen(int flags);
  [[nodiscard]] status at(const status& error, const char* verb, std::uint64_t length, std::uint64_t offset) const noexcept;
  // Makes one system call. Returns out_of_memory if there is no memory for the error.
  result<std::size_t> pread(int fd, void* target, std::uint64_t length, std::uint64_t offset, get by = &sys::kernel::pread) noexcept;
  io_result read_all(get by, std::byte* target, std::uint64_t length, std::uint64_t offset);
  // Returns true if the kernel does not support the uncached transfer, and records that for the device.
  bool refuses_uncached(const io_result& outcome) noexcept;
  result<bool> ends_at_by_blocks(std::uint64_t offset);
  io_result read_blocks(std::byte* target, std::uint64_t length, std::uint64_t offset);
  static io_result copy_out(std::byte* target, const std::byte* source, std::uint64_t length) noexcept;
  io_result fill_streaming(std::byte* target, std::uint64_t length, std::uint64_t offset);
  io_result fill_bounced(std::byte* target, std::uint64_t length, std::uint64_t offset);
  io_result write_all(int fd, const std::byte* memory, std::uint64_t length, std::uint64_t offset, put by = &sys::kernel::pwrite);

  class begun;

  sys::kernel& kernel_;
  std::unique_ptr<begun> begun_;    // null: begin_fill() is not supported
  int first_descriptor_ = -1;       // the opened or adopted descriptor
  int access_ = 0;                  // O_RDONLY, O_WRONLY or O_RDWR
  int promises_ = 0;                // the O_SYNC, O_DSYNC and O_NOATIME flags of an adopted descriptor; the second descriptor gets them too
  std::uint64_t opened_bytes_ = 0;  // the size when the file was opened
  std::uint32_t direct_offset_alignment_ = 0;  // required by the file system; 0: no direct I/O
  std::uint32_t direct_memory_alignment_ = 0;
  descriptor_pair owned_;
  std::shared_ptr<const void> held_;  // lent_as::held
  std::string told_;
};

}  // namespace penstock::source
