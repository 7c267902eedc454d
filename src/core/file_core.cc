#include "core/file_core.hpp"

#include <fcntl.h>

#include <fmt/format.h>

#include "base/no_memory.hpp"

namespace penstock::core {

file_core::file_core(std::shared_ptr<core::runtime> with, std::string name) : runtime_(std::move(with)) { view_.name = std::move(name); }

file_core::~file_core() {
  if ((uses_.load() & closed_bit) == 0) (void)close();
}

result<std::shared_ptr<file_core>> file_core::open(std::shared_ptr<core::runtime> with, const std::string& path,
                                                   const open_options& options) {
  if (with->forked()) return status(errc::forked, fmt::format("open {}: the engine belongs to the parent process", path));
  if (path.empty()) return status(errc::invalid_argument, "open: the path is empty");
  if (path.find('\0') != std::string::npos) return status(errc::invalid_argument, "open: the path holds a zero byte");
  if (!options.read && !options.write)
    return status(errc::invalid_argument, fmt::format("open {}: neither read nor write was asked for", path));
  if (!options.write && (options.create || options.truncate)) {
    return status(errc::invalid_argument, fmt::format("open {}: create and truncate need write", path));
  }
  // O_NONBLOCK: opening a FIFO must not wait for its other end; regular files do not mind.
  int flags = O_NONBLOCK | (options.read && options.write ? O_RDWR : options.write ? O_WRONLY : O_RDONLY);
  if (options.create) flags |= O_CREAT;
  if (options.truncate) flags |= O_TRUNC;
  // Made before there is a descriptor that could be lost.
  std::shared_ptr<file_core> made(new file_core(std::move(with), path));
  const auto descriptor = made->runtime_->kernel().open(path, flags, options.mode);
  if (!descriptor) return descriptor.error();
  made->view_.cached_fd = made->first_descriptor_ = *descriptor;
  made->owns_cached_ = true;
  made->access_ = flags & O_ACCMODE;
  made->direct_writes_ = options.direct_writes;
  if (auto problem = made->examine(*descriptor); !problem.ok()) return problem;
  return made;
}

result<std::shared_ptr<file_core>> file_core::adopt(std::shared_ptr<core::runtime> with, int descriptor) {
  if (with->forked()) return status(errc::forked, "adopt: the engine belongs to the parent process");
  const auto flags = with->kernel().descriptor_flags(descriptor);
  if (!flags) return flags.error().with_context(fmt::format("adopt: descriptor {}", descriptor));
  if ((*flags & O_PATH) != 0) return status(errc::invalid_argument, fmt::format("adopt: descriptor {} was opened with O_PATH", descriptor));
  if ((*flags & O_APPEND) != 0 && (*flags & O_ACCMODE) != O_RDONLY) {
    return status(errc::invalid_argument, fmt::format("adopt: descriptor {} is O_APPEND, which ignores the offset of a write", descriptor));
  }
  std::shared_ptr<file_core> made(new file_core(std::move(with), fmt::format("descriptor {}", descriptor)));
  const bool direct = (*flags & O_DIRECT) != 0;
  (direct ? made->view_.direct_fd : made->view_.cached_fd) = descriptor;
  made->first_descriptor_ = descriptor;
  made->access_ = *flags & O_ACCMODE;
  made->promises_ = *flags & (O_SYNC | O_DSYNC | O_NOATIME);
  made->direct_writes_ = direct;
  if (auto problem = made->examine(descriptor); !problem.ok()) return problem;
  return made;
}

status file_core::examine(int descriptor) {
  auto facts = runtime_->kernel().describe(descriptor);
  if (!facts) return facts.error().with_context(view_.name);
  if (facts->type == sys::file_type::other) {
    return {errc::not_a_file, fmt::format("{} is neither a regular file nor a block device", view_.name)};
  }
  facts_ = *facts;
  mount_ = &runtime_->mount_of(facts->type == sys::file_type::block_device ? facts->block_device : facts->device);
  return {};
}

const path::file_view& file_core::view() {
  (void)other_kind_.ask([this]() -> status {
    open_other_kind();
    return {};
  });
  return view_;
}

// Opens the file a second time, with what the first descriptor promises.
result<int> file_core::reopen(int flags) {
  auto opened = runtime_->kernel().reopen(first_descriptor_, flags | promises_);
  // Only the owner may ask for O_NOATIME, and a lent descriptor may come from the owner.
  if (opened || (promises_ & O_NOATIME) == 0) return opened;
  return runtime_->kernel().reopen(first_descriptor_, flags | (promises_ & ~O_NOATIME));
}

void file_core::open_other_kind() {
  if (view_.direct_fd < 0) {
    // Alignments past a page would break the rule that edges are cut at a page; no file system in use has them.
    if (facts_.direct_offset_alignment == 0) {
      direct_problem_ = {errc::unsupported, "the file system has no direct I/O"};
    } else if (facts_.direct_offset_alignment > path::direct_alignment || facts_.direct_memory_alignment > path::direct_alignment) {
      direct_problem_ = {errc::unsupported, fmt::format("direct I/O here needs {} byte blocks", facts_.direct_offset_alignment)};
    } else if (auto opened = reopen(access_ | O_DIRECT); opened) {
      view_.direct_fd = *opened;
      owns_direct_ = true;
    } else {
      direct_problem_ = opened.error();
    }
  } else if (auto opened = reopen(access_); opened) {
    view_.cached_fd = *opened;
    owns_cached_ = true;
  } else {
    cached_problem_ = opened.error();
  }
}

file_use::file_use(file_core& file) noexcept : file_(&file) { file.uses_.fetch_add(1); }

status file_core::usable() const {
  if ((uses_.load() & closed_bit) != 0) return {errc::closed, fmt::format("{} was closed", view_.name)};
  if (runtime_->forked()) {
    return {errc::forked, fmt::format("{} belongs to the parent process; open it anew after fork", view_.name)};
  }
  return {};
}

result<file_use> file_core::use() {
  file_use held(*this);
  if (auto problem = usable(); !problem.ok()) return problem;
  return held;
}

result<file_use> file_core::use(bool is_write) {
  auto held = use();
  if (held && access_ == (is_write ? O_RDONLY : O_WRONLY)) {
    return status(errc::permission_denied, fmt::format("{} is not open for {}", view_.name, is_write ? "writing" : "reading"));
  }
  return held;
}

void file_core::end() noexcept {
  if (uses_.fetch_sub(1) != (closed_bit | 1)) return;
  const std::lock_guard guard(lock_);
  quiet_.notify_all();
}

status file_core::sync() {
  const auto held = use();
  if (!held) return held.error();
  return runtime_->kernel().sync_data(any_descriptor()).with_context(view_.name);
}

result<std::uint64_t> file_core::size() {
  const auto held = use();
  if (!held) return held.error();
  auto bytes = runtime_->kernel().file_size(any_descriptor());
  if (!bytes) return bytes.error().with_context(view_.name);
  return bytes;
}

status file_core::close() {
  if ((uses_.fetch_or(closed_bit) & closed_bit) != 0) return {errc::closed, fmt::format("{} was closed before", view_.name)};
  // A forked child has none of the threads that would end what was under way.
  if (!runtime_->forked()) {
    std::unique_lock guard(lock_);
    quiet_.wait(guard, [this] { return uses_.load() == closed_bit; });
  }
  runtime_->forget(view_);
  status outcome;
  const auto shut = [&](bool owned, int descriptor) {
    if (!owned) return;
    auto closed = or_no_memory([&] { return runtime_->kernel().close(descriptor); });
    if (outcome.ok() && !closed.ok()) outcome = closed.with_context(view_.name);
  };
  shut(owns_cached_, view_.cached_fd);
  shut(owns_direct_, view_.direct_fd);
  return outcome;
}

}  // namespace penstock::core
