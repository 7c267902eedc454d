#include "core/admission.hpp"

#include <fmt/format.h>

#include "base/checked.hpp"
#include "base/no_memory.hpp"

namespace penstock::core {

status in_context(const status& error, const transfer& what, const file_core& file) noexcept {
  if (error.ok() || error.message().find(file.name()) != std::string_view::npos) return error;
  return or_without_memory(
      [&] {
        return error.with_context(fmt::format("{} {} at {} of {}", what.is_write ? "write" : "read", what.length,
                                              static_cast<std::int64_t>(what.offset), file.name()));
      },
      [&] { return error; });
}

status check(const transfer& what, const io_options& options) {
  if (what.memory == nullptr && what.length > 0) return {errc::bad_memory, "null pointer"};
  if (options.deadline != deadline_clock::time_point::max() && deadline_clock::now() >= options.deadline) {
    return {errc::timed_out, "the deadline has passed"};
  }
  return check_range(static_cast<std::int64_t>(what.offset), what.length);
}

admission& admission::operator=(admission&& other) noexcept {
  std::swap(with_, other.with_);
  std::swap(file_, other.file_);
  std::swap(kept_, other.kept_);
  std::swap(use_, other.use_);
  std::swap(is_write_, other.is_write_);
  std::swap(what_, other.what_);
  std::swap(place_, other.place_);
  return *this;
}

status admission::enter(runtime& with, file_core& file, const transfer& what, std::shared_ptr<file_core> kept) {
  with_ = &with;
  file_ = &file;
  kept_ = std::move(kept);
  what_ = what;
  is_write_ = what.is_write;
  auto use = file.use(what.is_write);
  if (!use) return use.error();
  use_ = *std::move(use);
  return {};
}

status admission::locate(seen_allocation* seen) {
  if (what_.length == 0) return {};
  const auto found = with_->memory().place_of(what_.memory, what_.length, seen);
  if (!found) return found.error();
  place_ = *found;
  return {};
}

status admission::admit(runtime& with, file_core& file, const transfer& what, const io_options& options, std::shared_ptr<file_core> kept) {
  if (auto refused = enter(with, file, what, std::move(kept)); !refused.ok()) return refused;
  if (auto refused = check(options); !refused.ok()) return refused;
  if (auto refused = locate(); !refused.ok()) return refused;
  return waits_for_default_stream(options) ? place_.via->session().synchronize(nullptr) : status();
}

void admission::count(io_result& outcome) noexcept {
  if (with_ == nullptr) return;
  if (!outcome.ok()) outcome.error = in_context(outcome.error, what_, *file_);
  with_->stats().count_request(is_write_, outcome);
}

}  // namespace penstock::core
