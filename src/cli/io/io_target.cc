#include "cli/io/io_target.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "cli/io/io_pattern.hpp"

namespace penstock::cli {
namespace {

constexpr unsigned samples = 64;

int open_retrying(const std::string& path, int flags, unsigned mode = 0) {
  int fd = -1;
  do {
    fd = ::open(path.c_str(), flags | O_CLOEXEC, mode);
  } while (fd < 0 && errno == EINTR);
  return fd;
}

result<std::uint64_t> size_of(int fd, const std::string& path) {
  const off_t end = ::lseek(fd, 0, SEEK_END);
  if (end < 0) return status::from_errno(errno, fmt::format("get the size of {}", path));
  return static_cast<std::uint64_t>(end);
}

struct sampled_block {
  std::uint64_t offset = 0;
  std::vector<std::byte> bytes;
};

// Reads evenly spaced blocks, and the first block with data.
result<std::vector<sampled_block>> sample(int fd, const std::string& path, std::uint64_t size) {
  const std::uint64_t blocks = (size + pattern_block - 1) / pattern_block;
  std::vector<std::uint64_t> places;
  if (const off_t data = ::lseek(fd, 0, SEEK_DATA); data >= 0) places.push_back(static_cast<std::uint64_t>(data) / pattern_block);
  for (unsigned i = 0; i < samples && blocks > 0; ++i) places.push_back(i * (blocks - 1) / (samples - 1));
  std::sort(places.begin(), places.end());
  places.erase(std::unique(places.begin(), places.end()), places.end());
  std::vector<sampled_block> found;
  for (const std::uint64_t place : places) {
    const std::uint64_t offset = place * pattern_block;
    if (offset >= size) continue;
    sampled_block block{offset, std::vector<std::byte>(std::min(pattern_block, size - offset))};
    if (status error = read_plainly(fd, path, offset, block.bytes); !error.ok()) return error;
    found.push_back(std::move(block));
  }
  return found;
}

// Returns the generation of the blocks if all of them contain the pattern, each according to its own mark or, if its mark was never
// written, to the mark of another block.
std::optional<std::uint64_t> own_generation(const std::vector<sampled_block>& blocks) {
  std::optional<std::uint64_t> latest;
  for (const sampled_block& each : blocks) {
    if (const auto found = generation_of(each.bytes)) latest = found;
  }
  if (!latest) return std::nullopt;
  const bool all = std::all_of(blocks.begin(), blocks.end(), [&](const sampled_block& each) {
    return is_pattern_or_zero(each.bytes, generation_of(each.bytes).value_or(*latest), each.offset);
  });
  return all ? latest : std::nullopt;
}

}  // namespace

result<target_facts> look_at(const std::string& path) {
  target_facts facts;
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) {
    if (errno == ENOENT) return facts;
    return status::from_errno(errno, path);
  }
  if (!S_ISREG(info.st_mode) && !S_ISBLK(info.st_mode))
    return status(errc::not_a_file, fmt::format("{} is neither a regular file nor a block device", path));
  facts.exists = true;
  const owned_fd fd(open_retrying(path, O_RDONLY));
  if (fd.get() < 0) return status::from_errno(errno, fmt::format("open {}", path));
  auto size = size_of(fd.get(), path);
  if (!size) return size.error();
  facts.size = *size;
  auto blocks = sample(fd.get(), path, *size);
  if (!blocks) return blocks.error();
  facts.generation = own_generation(*blocks);
  return facts;
}

status io_target::open_descriptors(const engine& owner, const options& how) {
  const int access = how.write ? O_RDWR : O_RDONLY;
  if (how.write && !before_.exists) {
    plain_ = owned_fd(open_retrying(path_, access | O_CREAT | O_EXCL, 0644));
    made_ = plain_.get() >= 0;
  } else {
    plain_ = owned_fd(open_retrying(path_, access));
  }
  if (plain_.get() < 0) return status::from_errno(errno, fmt::format("open {}{}", path_, how.write ? " for writing" : ""));
  open_options options;
  options.write = how.write;
  options.direct_writes = how.direct_writes;
  options.immutable = how.immutable;
  // Bypass the page cache unless the environment overrides it, so that the run measures either the disk or the page cache and copies no
  // data between the two.
  if (owner.options().cache == cache_use::automatic) options.cache = cache_use::bypass;
  auto made = owner.open(path_, options);
  if (!made) return made.error();
  handle_ = *std::move(made);
  return {};
}

result<io_target> io_target::open(const engine& owner, const std::string& path, const options& how) {
  auto facts = look_at(path);
  if (!facts) return facts.error();
  if (!facts->exists && !how.write) return status::from_errno(ENOENT, fmt::format("open {}", path));
  if (how.write && facts->size > 0 && !facts->generation && !how.force) {
    return status(errc::invalid_argument,
                  fmt::format("{} contains data that penstock io did not write; use --force to overwrite it", path));
  }
  io_target made(path, *facts);
  if (status error = made.open_descriptors(owner, how); !error.ok()) {
    made.discard();
    return error;
  }
  return made;
}

status io_target::close() {
  status error = handle_.close();
  if (status second = plain_.close(path_); error.ok()) error = second;
  return error;
}

void io_target::discard() {
  static_cast<void>(close().ok());  // the error has already been reported
  if (std::exchange(made_, false)) ::unlink(path_.c_str());
}

}  // namespace penstock::cli
