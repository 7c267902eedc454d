#include "core/cache/ahead_book.hpp"

#include <chrono>

#include "base/no_memory.hpp"

namespace penstock::core {

namespace {

constexpr std::chrono::seconds pause{1};

}  // namespace

void ahead_book::add(source::read_ahead& added) {
  const std::lock_guard guard(lock_);
  all_.push_back(&added);
}

void ahead_book::remove(source::read_ahead& gone) noexcept {
  const std::lock_guard guard(lock_);
  std::erase(all_, &gone);
}

status ahead_book::watch() noexcept {
  const std::lock_guard guard(lock_);
  return watch_locked();
}

status ahead_book::watch_locked() noexcept {
  if (watched_ || ended_) return {};
  set_deadline(deadline_clock::now() + pause);
  auto problem = or_no_memory([&] { return by_.watch(*this); });
  watched_ = problem.ok();
  return problem;
}

void ahead_book::give_back() noexcept {
  const std::lock_guard guard(lock_);
  for (auto* each : all_) each->give_back();
}

void ahead_book::end_queued() {
  const std::lock_guard guard(lock_);
  watched_ = false;
  bool any = false;
  for (auto* each : all_) any = each->give_back_unless_used() || any;
  if (any) (void)watch_locked();
}

void ahead_book::end() noexcept {
  bool watched = false;
  {
    const std::lock_guard guard(lock_);
    ended_ = true;
    watched = watched_;
  }
  if (watched) by_.forget(*this);
  release();
}

}  // namespace penstock::core
