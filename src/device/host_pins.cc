#include "device/host_pins.hpp"

#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <iterator>
#include <mutex>

#include "base/refused_call.hpp"
#include "sys/checked_copy.hpp"
#include "sys/page_size.hpp"

namespace penstock::device {
namespace {

std::uintptr_t number(const void* address) { return reinterpret_cast<std::uintptr_t>(address); }

// Since Linux 2.6.19, msync with MS_ASYNC does nothing except fail if the range is not mapped.
status check_mapped(void* base, std::uint64_t length) {
  const std::uintptr_t first = sys::page_down(number(base));
  if (::msync(reinterpret_cast<void*>(first), number(base) + length - first, MS_ASYNC) == 0) return {};
  const int error = errno;
  return {errc::bad_memory, fmt::format("host:0: register {} bytes at {}: not mapped (os {})", length, base, error), error_domain::os,
          error};
}

bool may_read_itself() {
  char target = 0;
  const char source = 1;
  return host_pins::read_safely(&target, &source, 1).ok();
}

}  // namespace

status host_pins::add(void* base, std::uint64_t length, bool read_only) {
  if (base == nullptr || length == 0 || length > UINTPTR_MAX - number(base)) {
    return {errc::invalid_argument, fmt::format("host:0: register {} bytes at {}", length, base)};
  }
  if (status mapped = check_mapped(base, length); !mapped.ok()) return mapped;
  if (read_only && !may_read_itself()) {
    return {errc::unsupported, "host:0: register read-only memory: process_vm_readv is not permitted"};
  }
  const std::lock_guard guard(lock_);
  if (const auto other = first_overlap(number(base), length)) {
    return {errc::invalid_argument, fmt::format("host:0: register {} bytes at {}: already registered ({} bytes at {})", length, base,
                                                other->bytes, static_cast<void*>(other->base))};
  }
  ranges_.emplace(number(base), range{static_cast<std::byte*>(base), length, read_only});
  count_.fetch_add(1);
  if (read_only) read_only_count_.fetch_add(1);
  return {};
}

status host_pins::remove(void* base) {
  const std::lock_guard guard(lock_);
  const auto found = ranges_.find(number(base));
  if (found == ranges_.end()) return {errc::invalid_argument, fmt::format("host:0: unregister {}: not registered", base)};
  count_.fetch_sub(1);
  if (found->second.read_only) read_only_count_.fetch_sub(1);
  ranges_.erase(found);
  return {};
}

// Returns the first range that overlaps [address, address+length).
std::optional<host_pins::range> host_pins::first_overlap(std::uintptr_t address, std::uint64_t length) const {
  auto next = ranges_.upper_bound(address);
  if (next != ranges_.begin()) {
    const auto& before = std::prev(next)->second;
    if (number(before.base) + before.bytes > address) return before;
  }
  if (next != ranges_.end() && next->first - address < length) return next->second;
  return std::nullopt;
}

std::optional<host_pins::range> host_pins::find(const void* address) const {
  if (count_.load() == 0) return std::nullopt;
  const std::shared_lock guard(lock_);
  return first_overlap(number(address), 1);
}

bool host_pins::read_only(const void* address, std::uint64_t length) const {
  if (read_only_count_.load() == 0) return false;
  const std::shared_lock guard(lock_);
  std::uintptr_t at = number(address);
  const std::uintptr_t end = at + length;
  while (at < end) {
    const auto found = first_overlap(at, end - at);
    if (!found) return false;
    if (found->read_only) return true;
    at = number(found->base) + found->bytes;
  }
  return false;
}

status host_pins::read_safely(void* target, const void* source, std::uint64_t length) {
  std::uint64_t done = 0;
  while (done < length) {
    const iovec local{static_cast<std::byte*>(target) + done, length - done};
    const iovec remote{const_cast<std::byte*>(static_cast<const std::byte*>(source)) + done, length - done};
    ssize_t moved = ::process_vm_readv(::getpid(), &local, 1, &remote, 1, 0);
    int error = moved < 0 ? errno : EFAULT;
    if (moved < 0 && is_refused_call(error)) {
      const auto copied = sys::copy_checked(local.iov_base, remote.iov_base, local.iov_len);
      moved = copied ? static_cast<ssize_t>(*copied) : -1;
      error = copied ? EFAULT : copied.error().native();
    }
    if (moved <= 0) {
      return {errc::io,
              fmt::format("host:0: read {} bytes at {}: the mapping ends after {}; its file may have been truncated (os {})", length,
                          source, done, error),
              error_domain::os, error};
    }
    done += static_cast<std::uint64_t>(moved);
  }
  return {};
}

}  // namespace penstock::device
