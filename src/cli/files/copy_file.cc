#include "cli/files/copy_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/fs.h>
#include <sys/ioctl.h>
#include <sys/sendfile.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "bench/machine.hpp"
#include "bench/page_cache.hpp"
#include "cli/common/interrupt.hpp"
#include "cli/common/plain_file.hpp"
#include "cli/common/progress.hpp"
#include "cli/files/file_reading.hpp"

namespace penstock::cli {
namespace {

constexpr std::uint64_t copy_piece = std::uint64_t{4} << 20;
constexpr std::size_t copy_slots = 8;   // half of them read ahead
constexpr std::size_t most_slots = 24;  // for servers, whose latency is high
static_assert(small_file <= copy_piece);

// Returns the number of slots for reads from a server: the number of pieces that fit into a share of the memory still available to this
// process or its container.
std::size_t slots_of_server() {
  constexpr std::uint64_t share = 8;
  const std::uint64_t pieces = bench::available_memory().value_or(0) / share / copy_piece;
  return std::clamp<std::size_t>(pieces, copy_slots / 2, most_slots);
}

status copy_stopped() { return {errc::cancelled, "interrupted"}; }

// --- data: the engine's threads read ahead and write behind

class copy_pipeline {
 public:
  copy_pipeline(const file& source, const file& target, std::string name, std::size_t slots = copy_slots)
      : source_(source), target_(target), name_(std::move(name)), slots_(slots) {}
  copy_pipeline(const copy_pipeline&) = delete;
  copy_pipeline& operator=(const copy_pipeline&) = delete;
  ~copy_pipeline() {
    for (slot& each : slots_) each.under_way.cancel();
    for (slot& each : slots_) each.under_way.wait();
  }

  status add(std::uint64_t offset, std::uint64_t length) {
    if (added_ - written_ == slots_.size() / 2) {
      if (status error = write_oldest(); !error.ok()) return error;
    }
    slot& next = slots_[added_ % slots_.size()];
    if (status error = end_of_write(next); !error.ok()) return error;
    if (status error = give_memory(next); !error.ok()) return error;
    next.offset = offset;
    next.length = length;
    next.under_way = source_.read_async(next.memory.get(), length, static_cast<std::int64_t>(offset));
    ++added_;
    return {};
  }

  status finish() {
    while (written_ < added_) {
      if (status error = write_oldest(); !error.ok()) return error;
    }
    for (slot& each : slots_) {
      if (status error = end_of_write(each); !error.ok()) return error;
    }
    return {};
  }

 private:
  struct freer {
    void operator()(std::byte* memory) const noexcept { std::free(memory); }
  };
  struct slot {
    std::unique_ptr<std::byte, freer> memory;
    std::uint64_t offset = 0, length = 0;
    operation under_way;
    bool writes = false;
  };

  // Prefers the memory of a completed write, whose pages have already been touched.
  status give_memory(slot& next) {
    if (next.memory != nullptr) return {};
    for (slot& each : slots_) {
      if (!each.writes || !each.under_way.done()) continue;
      next.memory = std::move(each.memory);
      return end_of_write(each);
    }
    next.memory.reset(static_cast<std::byte*>(std::aligned_alloc(4096, copy_piece)));
    return next.memory == nullptr ? status(errc::out_of_memory, "not enough memory for a copy buffer") : status();
  }

  status write_oldest() {
    slot& oldest = slots_[written_ % slots_.size()];
    const io_result read = oldest.under_way.wait();
    if (!read.ok()) return read.error.with_context(name_);
    if (read.bytes_done < oldest.length) return {errc::io, fmt::format("{} was truncated while being read", name_)};
    oldest.under_way = target_.write_async(oldest.memory.get(), oldest.length, static_cast<std::int64_t>(oldest.offset));
    oldest.writes = true;
    ++written_;
    return {};
  }

  static status end_of_write(slot& each) {
    if (!each.writes) return {};
    each.writes = false;
    const io_result done = each.under_way.wait();
    if (done.ok() && done.bytes_done < each.length) return {errc::io, "a write was short, but reported no error"};
    return done.error;
  }

  const file& source_;
  const file& target_;
  std::string name_;
  std::vector<slot> slots_;
  std::uint64_t added_ = 0, written_ = 0;
};

// --- the data ranges of a file

using piece_taker = std::function<status(std::uint64_t offset, std::uint64_t length)>;

// Calls `take` for each piece of data between holes, in order.
status for_each_piece(int fd, const std::string& path, std::uint64_t size, const piece_taker& take) {
  for (std::uint64_t at = 0; at < size;) {
    off_t data = ::lseek(fd, static_cast<off_t>(at), SEEK_DATA);
    if (data < 0 && errno == ENXIO) return {};  // a hole up to the end
    off_t hole = static_cast<off_t>(size);
    if (data < 0) {
      if (errno != EINVAL && errno != EOPNOTSUPP) return status::from_errno(errno, fmt::format("find holes in {}", path));
      data = static_cast<off_t>(at);  // a file system that does not report holes
    } else if (const off_t found = ::lseek(fd, data, SEEK_HOLE); found >= 0) {
      hole = std::min(hole, found);
    }
    for (at = static_cast<std::uint64_t>(data); at < static_cast<std::uint64_t>(hole);) {
      if (interrupted()) return copy_stopped();
      const std::uint64_t length = std::min(copy_piece, static_cast<std::uint64_t>(hole) - at);
      if (status error = take(at, length); !error.ok()) return error;
      at += length;
    }
  }
  return {};
}

status copy_by_lanes(const engine& owner, int from_fd, int to_fd, const std::string& from, const std::string& to, std::uint64_t size,
                     std::uint64_t& copied) {
  // The data is read once, so it should not displace other data from the page cache.
  const auto cache = owner.options().cache == cache_use::automatic ? cache_use::bypass : owner.options().cache;
  auto source = owner.adopt(from_fd, {.cache = cache, .name = from});
  if (!source) return source.error();
  auto target = owner.adopt(to_fd, {.name = to});
  if (!target) return target.error();
  progress_bar bar("copying", from, size);
  copy_pipeline pipeline(*source, *target, from);
  const status error = for_each_piece(from_fd, from, size, [&](std::uint64_t offset, std::uint64_t length) {
    bar.update(offset);
    copied += length;
    return pipeline.add(offset, length);
  });
  return error.ok() ? pipeline.finish() : error;
}

// Copies inside the kernel, from the beginning of a file: each byte is copied once instead of twice. Returns the number of bytes copied,
// which is 0 if the kernel or the file system cannot do that. Never shares blocks.
std::uint64_t send_bytes(int from_fd, int to_fd, std::uint64_t length) {
  off_t sent = 0;
  while (static_cast<std::uint64_t>(sent) < length) {
    const ssize_t count = ::sendfile(to_fd, from_fd, &sent, length - static_cast<std::uint64_t>(sent));
    if (count == 0 || (count < 0 && errno != EINTR)) break;
  }
  return static_cast<std::uint64_t>(sent);
}

status copy_plainly(int from_fd, int to_fd, const std::string& from, const std::string& to, bool has_holes, copied_file& out) {
  const auto copy = [&](std::uint64_t offset, std::uint64_t length) -> status {
    thread_local const auto buffer = std::make_unique_for_overwrite<std::byte[]>(small_file);
    const auto bytes = std::span(buffer.get(), length);
    out.copied += length;
    status error = read_plainly(from_fd, from, offset, bytes);
    return error.ok() ? write_plainly(to_fd, to, offset, bytes) : error;
  };
  if (has_holes) return for_each_piece(from_fd, from, out.bytes, copy);
  out.copied = send_bytes(from_fd, to_fd, out.bytes);
  return out.copied == out.bytes ? status() : copy(out.copied, out.bytes - out.copied);  // copies the rest, or returns the error
}

status copy_object_bytes(const engine& owner, const file& source, int to_fd, const std::string& to, std::uint64_t size) {
  auto target = owner.adopt(to_fd, {.name = to});
  if (!target) return target.error();
  progress_bar bar("copying", source.path(), size);
  copy_pipeline pipeline(source, *target, source.path(), slots_of_server());
  for (std::uint64_t at = 0; at < size; at += copy_piece) {
    if (interrupted()) return copy_stopped();
    bar.update(at);
    if (status error = pipeline.add(at, std::min(copy_piece, size - at)); !error.ok()) return error;
  }
  return pipeline.finish();
}

status copy_object_plainly(const file& source, int to_fd, const std::string& to, std::uint64_t size) {
  std::vector<std::byte> buffer(size);
  const io_result done = source.read(buffer.data(), size, 0);
  if (!done.ok()) return done.error;
  if (done.bytes_done < size) return {errc::io, fmt::format("{} was truncated while being read", source.path())};
  return write_plainly(to_fd, to, 0, buffer);
}

using bytes_taker = std::function<status(std::uint64_t offset, std::span<const std::byte> bytes)>;

// Reads files that contain data although their reported size is 0, such as those in /proc.
status take_to_end(int from_fd, const std::string& from, std::uint64_t& copied, const bytes_taker& take) {
  std::vector<std::byte> buffer(std::size_t{64} << 10);
  while (!interrupted()) {
    const ssize_t count = ::pread(from_fd, buffer.data(), buffer.size(), static_cast<off_t>(copied));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return status::from_errno(errno, fmt::format("read at {} of {}", copied, from));
    if (count == 0) return {};
    const auto bytes = std::span<const std::byte>(buffer).first(static_cast<std::size_t>(count));
    if (status error = take(copied, bytes); !error.ok()) return error;
    copied += bytes.size();
  }
  return copy_stopped();
}

status copy_object_to_end(const file& target, const std::string& from, std::uint64_t& copied) {
  const owned_fd source(::open(from.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (source.get() < 0) return status::from_errno(errno, fmt::format("open {}", from));
  return take_to_end(source.get(), from, copied, [&](std::uint64_t offset, std::span<const std::byte> bytes) {
    return target.write(bytes.data(), bytes.size(), static_cast<std::int64_t>(offset)).error;
  });
}

// Copies a small object with one request each way. Other copies run at the same time, so it needs no pipeline.
status copy_object_whole(const file& source, const file& target, std::uint64_t size) {
  std::vector<std::byte> buffer(size);
  const io_result read = source.read(buffer.data(), size, 0);
  if (!read.ok()) return read.error;
  if (read.bytes_done < size) return {errc::io, fmt::format("{} was truncated while being read", source.path())};
  return target.write(buffer.data(), size, 0).error;
}

status copy_object_pieces(const file& source, const file& target, std::uint64_t size, std::size_t slots) {
  progress_bar bar("copying", source.path(), size);
  copy_pipeline pipeline(source, target, source.path(), slots);
  for (std::uint64_t at = 0; at < size; at += copy_piece) {
    bar.update(at);
    if (interrupted()) return copy_stopped();
    if (status error = pipeline.add(at, std::min(copy_piece, size - at)); !error.ok()) return error;
  }
  return pipeline.finish();
}

// A truncation during the copy looks like a hole at the end.
status has_size(int fd, const std::string& path, off_t size) {
  struct stat info {};
  if (::fstat(fd, &info) != 0) return status::from_errno(errno, path);
  return info.st_size < size ? status(errc::io, fmt::format("{} was truncated while being read", path)) : status();
}

// Copies all of the source. out contains its size, which is corrected if there turns out to be more data.
status copy_bytes(const engine& owner, const opened_source& source, int to_fd, const std::string& from, const std::string& to,
                  copied_file& out) {
  constexpr blkcnt_t block_bytes = 512;
  const int from_fd = source.fd.get();
  const bool has_holes = source.facts.st_blocks * block_bytes < source.facts.st_size;
  status error;
  if (out.bytes == 0) {
    error = take_to_end(from_fd, from, out.copied,
                        [&](std::uint64_t offset, std::span<const std::byte> bytes) { return write_plainly(to_fd, to, offset, bytes); });
    out.bytes = out.copied;
  } else if (out.bytes < small_file && owner.options().bytes_per_second == 0) {
    error = copy_plainly(from_fd, to_fd, from, to, has_holes, out);
  } else {
    error = copy_by_lanes(owner, from_fd, to_fd, from, to, out.bytes, out.copied);
  }
  if (!error.ok() || out.copied == out.bytes) return error;
  error = has_size(from_fd, from, source.facts.st_size);
  // A hole at the end is created by setting the size.
  if (error.ok() && ::ftruncate(to_fd, static_cast<off_t>(out.bytes)) != 0)
    error = status::from_errno(errno, fmt::format("set the size of {}", to));
  return error;
}

// Shares blocks if the file system can.
void clone_bytes(int from_fd, int to_fd, copied_file& out) {
  out.cloned = ::ioctl(to_fd, FICLONE, from_fd) == 0;
  out.may_clone = out.cloned || (errno != EOPNOTSUPP && errno != EXDEV);
}

// --- names, modes and verification

// Refuses copies that cp refuses, in addition to the checks in pending_file.
status may_replace(const std::string& from, const std::string& to, const struct stat& source) {
  struct stat info {};
  if (::lstat(to.c_str(), &info) != 0) return {};  // usually, the target does not exist
  const bool is_link = S_ISLNK(info.st_mode);
  if (is_link && ::stat(to.c_str(), &info) != 0)
    return errno == ENOENT ? status(errc::not_a_file, fmt::format("{} is a dangling symbolic link", to)) : status();
  const bool same = info.st_dev == source.st_dev && info.st_ino == source.st_ino;
  return same ? status(errc::invalid_argument, fmt::format("{} and {} are the same file", from, to)) : status();
}

// Returns the mode, without set-user-ID and set-group-ID bits if owner or group differ from those of `like`.
mode_t mode_for(int fd, const struct stat& like) {
  struct stat now {};
  const bool same = ::fstat(fd, &now) == 0 && now.st_uid == like.st_uid && now.st_gid == like.st_gid;
  return like.st_mode & (same ? 07777 : 01777);
}

// Compares the data on disk, as far as the file system allows pages to be dropped.
status read_back(const engine& owner, const std::string& from, const std::string& to, int fd, std::uint64_t size) {
  const std::string copy = fmt::format("/proc/self/fd/{}", fd);
  if (status error = bench::drop_cached(copy, 0, size); !error.ok() && error.code() != errc::unsupported) return error.with_context(to);
  progress_bar bar("verifying", to, size);
  auto differs = first_difference(owner, from, copy, [&](std::uint64_t done) {
    bar.update(done);
    return interrupted();
  });
  if (!differs) return differs.error().with_context(fmt::format("verify {}", to));
  if (!*differs) return {};
  return {errc::internal, fmt::format("the copy of {} differs from it at offset {}; {} is unchanged", from, (*differs)->offset, to)};
}

// The object already has its final name, because it cannot be read before it is published.
status read_object_back(const engine& owner, const std::string& from, const std::string& to, std::uint64_t size) {
  progress_bar bar("verifying", to, size);
  auto differs = first_difference(owner, from, to, [&](std::uint64_t done) {
    bar.update(done);
    return interrupted();
  });
  if (!differs) return differs.error().with_context(fmt::format("verify {}", to));
  if (!*differs) return {};
  return {errc::internal, fmt::format("the object differs from {} at offset {}", from, (*differs)->offset)};
}

}  // namespace

status preserve_facts(int fd, const struct stat& like, const std::string& path) {
  std::string missing;
  int why = 0;
  // A file system may refuse to set an attribute that already has the right value.
  const auto check = [&](bool is_set, const char* fact, const auto& is_the_same) {
    const int error = errno;
    struct stat now {};
    if (is_set || (::fstat(fd, &now) == 0 && is_the_same(now))) return;
    if (why == 0) why = error;
    missing += (missing.empty() ? "" : " and ") + std::string(fact);
  };
  const auto same_time = [](const timespec& one, const timespec& other) {
    return one.tv_sec == other.tv_sec && one.tv_nsec == other.tv_nsec;
  };
  // Set the owner first, because chown clears set-user-ID bits.
  if (::geteuid() == 0)
    check(::fchown(fd, like.st_uid, like.st_gid) == 0, "owner",
          [&](const struct stat& now) { return now.st_uid == like.st_uid && now.st_gid == like.st_gid; });
  const mode_t mode = mode_for(fd, like);
  check(::fchmod(fd, mode) == 0, "mode", [&](const struct stat& now) { return (now.st_mode & 07777) == mode; });
  const std::array<timespec, 2> times{like.st_atim, like.st_mtim};
  check(::futimens(fd, times.data()) == 0, "times", [&](const struct stat& now) { return same_time(now.st_mtim, like.st_mtim); });
  if (missing.empty()) return {};
  return status::from_errno(why, fmt::format("{} was copied, but its {} could not be set", path, missing));
}

result<opened_source> open_source(const std::string& from, int folder) {
  // O_NONBLOCK: refuse a FIFO instead of waiting for it.
  constexpr int flags = O_RDONLY | O_CLOEXEC | O_NONBLOCK;
  opened_source made{
      owned_fd(folder < 0 ? ::open(from.c_str(), flags) : ::openat(folder, from.c_str() + from.rfind('/') + 1, flags | O_NOFOLLOW))};
  if (made.fd.get() < 0) return status::from_errno(errno, fmt::format("open {}", from));
  if (::fstat(made.fd.get(), &made.facts) != 0) return status::from_errno(errno, from);
  if (!S_ISREG(made.facts.st_mode)) return status(errc::not_a_file, fmt::format("{} is not a regular file", from));
  return made;
}

result<copied_file> copy_file(const engine& owner, const std::string& from, const std::string& to, const copy_options& how) {
  const auto source = open_source(from);
  return source ? copy_file(owner, *source, from, to, how) : source.error();
}

result<copied_file> copy_file(const engine& owner, const opened_source& source, const std::string& from, const std::string& to,
                              const copy_options& how, int target_folder) {
  const struct stat& info = source.facts;
  if (target_folder < 0) {
    if (status error = may_replace(from, to, info); !error.ok()) return error;
  }
  // Like cp: an existing file keeps its mode; a new one gets the mode of the source, minus the umask.
  pending_file_options facts{.new_mode = info.st_mode & 0777, .folder = target_folder};
  if (how.preserve) facts.mode = 0600;  // until the mode of the source is set
  auto pending = pending_file::create(to, facts);
  if (!pending) return pending.error();

  copied_file out;
  out.bytes = static_cast<std::uint64_t>(info.st_size);
  if (how.clone && out.bytes > 0) clone_bytes(source.fd.get(), pending->descriptor(), out);
  status error;
  if (!out.cloned) error = copy_bytes(owner, source, pending->descriptor(), from, to, out);
  if (error.ok() && how.verify) error = read_back(owner, from, to, pending->descriptor(), out.bytes);
  if (error.ok() && how.preserve) out.not_preserved = preserve_facts(pending->descriptor(), info, to);
  // Flushes mode and times as well.
  if (error.ok() && how.to_disk && ::fsync(pending->descriptor()) != 0) error = status::from_errno(errno, fmt::format("fsync {}", to));
  struct stat made {};
  if (error.ok() && ::fstat(pending->descriptor(), &made) != 0) error = status::from_errno(errno, to);
  out.identity = {made.st_dev, made.st_ino};
  if (error.ok() && interrupted()) error = copy_stopped();
  // Folders are synced once all of their files exist.
  if (error.ok()) error = pending->publish({.replace = !how.keep_existing, .durable = false});
  if (!error.ok()) return error.code() == errc::cancelled ? error : error.with_context(fmt::format("copy {} to {}", from, to));
  return out;
}

result<copied_file> copy_object(const engine& owner, const remote_object& from, const std::string& to, const copy_options& how,
                                int folder) {
  const std::string& url = from.url;
  if (how.preserve)
    return status(errc::invalid_argument, fmt::format("{}: an object on a server has no mode or owner to preserve", shown_name(url)));
  remote_options known = how.server;
  known.size = from.size;
  auto source = owner.open_remote(url, known);
  if (!source) return source.error();
  const auto size = source->size();
  if (!size) return size.error();
  pending_file_options place;
  place.folder = folder;
  auto pending = pending_file::create(to, place);
  if (!pending) return pending.error().with_context(fmt::format("copy {} to {}", source->path(), to));
  copied_file out{.bytes = *size, .copied = *size};
  status error = *size < small_object ? copy_object_plainly(*source, pending->descriptor(), to, *size)
                                      : copy_object_bytes(owner, *source, pending->descriptor(), to, *size);
  if (error.ok() && how.verify) error = read_back(owner, url, to, pending->descriptor(), *size);
  if (error.ok() && how.to_disk && ::fsync(pending->descriptor()) != 0) error = status::from_errno(errno, fmt::format("fsync {}", to));
  struct stat made {};
  if (error.ok() && ::fstat(pending->descriptor(), &made) != 0) error = status::from_errno(errno, to);
  out.identity = {made.st_dev, made.st_ino};
  if (error.ok() && interrupted()) error = copy_stopped();
  if (error.ok()) error = pending->publish({.replace = !how.keep_existing, .durable = false});
  if (!error.ok()) return error.code() == errc::cancelled ? error : error.with_context(fmt::format("copy {} to {}", source->path(), to));
  return out;
}

result<copied_file> copy_to_object(const engine& owner, const remote_object& what, const std::string& to, const copy_options& how) {
  const std::string& from = what.url;
  const auto failed = [&](const status& error) {
    return error.code() == errc::cancelled ? error : error.with_context(fmt::format("copy {} to {}", shown_name(from), to));
  };
  if (how.preserve) return failed({errc::unsupported, "modes, times and owners cannot be preserved in objects"});
  const open_options past_the_cache{.cache = cache_use::bypass};
  remote_options known = how.server;
  known.size = what.size;
  auto source = is_url(from) ? owner.open_remote(from, known, past_the_cache) : owner.open(from, past_the_cache);
  if (!source) return failed(source.error());
  const auto size = source->size();
  if (!size) return failed(size.error());
  const bool may_have_more = *size == 0 && !is_url(from);  // more than the reported size
  if (!may_have_more) known.size = *size;
  auto pending = pending_file::create(owner, to, {.remote = known});
  if (!pending) return failed(pending.error());
  auto target = pending->open(owner);
  if (!target) return failed(target.error());
  std::uint64_t bytes = *size;
  status error = may_have_more          ? copy_object_to_end(*target, from, bytes)
                 : bytes < small_object ? copy_object_whole(*source, *target, bytes)
                                        : copy_object_pieces(*source, *target, bytes, is_url(from) ? slots_of_server() : copy_slots);
  if (const status closed = target->close(); error.ok()) error = closed;
  if (error.ok() && interrupted()) error = copy_stopped();
  if (error.ok()) error = pending->publish({.replace = !how.keep_existing});
  if (error.ok() && how.verify) error = read_object_back(owner, from, to, bytes);
  if (!error.ok()) return failed(error);
  return copied_file{.bytes = bytes, .copied = bytes};
}

}  // namespace penstock::cli
