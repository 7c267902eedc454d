#include "sys/temporary_file.hpp"

#include <fcntl.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <utility>

#include <fmt/format.h>

#include "sys/uninterrupted.hpp"

namespace penstock::sys {

namespace {

constexpr std::uint64_t looked_at_every = std::uint64_t{64} << 20;
constexpr std::uint64_t part_left_free = 10;

// On file systems without O_TMPFILE, the file briefly has a name.
int open_without_name(const std::string& folder) {
  const int fd = ::open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
  if (fd >= 0 || (errno != EOPNOTSUPP && errno != EISDIR && errno != EINVAL && errno != ENOSYS)) return fd;
  auto name = folder + "/penstock.XXXXXX";
  const int named = ::mkostemp(name.data(), O_CLOEXEC);
  if (named >= 0) ::unlink(name.c_str());
  return named;
}

}  // namespace

result<temporary_file> temporary_file::make(const std::string& folder) {
  if (folder.empty()) {
    auto usual = make("/var/tmp");
    return usual ? std::move(usual) : make("/tmp");
  }
  const int fd = open_without_name(folder);
  if (fd < 0) return status::from_errno(errno, fmt::format("create a temporary file in {}", folder));
  return temporary_file(owned_descriptor(fd), folder);
}

status temporary_file::check_room() {
  if (size_ < room_until_) return {};
  struct statvfs facts {};
  if (uninterrupted([&] { return ::fstatvfs(fd_.get(), &facts); }) != 0) return {};  // then the write itself reports a full disk
  const auto free = std::uint64_t{facts.f_bavail} * facts.f_frsize;
  if (facts.f_blocks > 0 && free < looked_at_every + std::uint64_t{facts.f_blocks} * facts.f_frsize / part_left_free)
    return status::from_errno(ENOSPC, fmt::format("write a temporary file in {}: a tenth of the file system must stay free", folder_));
  room_until_ = size_ + looked_at_every;
  return {};
}

status temporary_file::append(const std::byte* bytes, std::size_t length) {
  if (auto full = check_room(); !full.ok()) return full;
  for (std::size_t done = 0; done < length;) {
    const auto written = uninterrupted([&] { return ::pwrite(fd_.get(), bytes + done, length - done, static_cast<off_t>(size_ + done)); });
    if (written <= 0) return status::from_errno(written < 0 ? errno : EIO, fmt::format("write a temporary file in {}", folder_));
    done += static_cast<std::size_t>(written);
  }
  size_ += length;
  return {};
}

status temporary_file::read(std::byte* target, std::size_t length, std::uint64_t offset) const {
  for (std::size_t done = 0; done < length;) {
    const auto got = uninterrupted([&] { return ::pread(fd_.get(), target + done, length - done, static_cast<off_t>(offset + done)); });
    if (got <= 0) return status::from_errno(got < 0 ? errno : EIO, fmt::format("read a temporary file in {}", folder_));
    done += static_cast<std::size_t>(got);
  }
  return {};
}

}  // namespace penstock::sys
