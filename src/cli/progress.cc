#include "cli/progress.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "cli/sizes.hpp"

namespace penstock::cli {
namespace {

bool stderr_is_terminal() {
  static const bool answer = isatty(STDERR_FILENO) == 1;
  return answer;
}

}  // namespace

void show_status_line(std::string_view text) {
  if (!stderr_is_terminal()) return;
  // \033[K clears what a longer line left behind.
  fmt::print(stderr, "\r{}\033[K", text);
  std::fflush(stderr);
}

progress_bar::progress_bar(std::string label, std::uint64_t total_bytes)
    : label_(std::move(label)), total_bytes_(total_bytes), terminal_(stderr_is_terminal()), start_(std::chrono::steady_clock::now()) {}

progress_bar::~progress_bar() { clear(); }

void progress_bar::update(std::uint64_t done_bytes) {
  if (!terminal_ || total_bytes_ == 0) return;
  constexpr std::size_t width = 32;
  const double part = std::min(1.0, static_cast<double>(done_bytes) / static_cast<double>(total_bytes_));
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  const auto filled = static_cast<std::size_t>(part * width);
  show_status_line(fmt::format("{} [{}{}] {:3.0f}% of {}  {:.2f} GB/s", label_, std::string(filled, '#'), std::string(width - filled, '.'),
                               part * 100, format_size(total_bytes_), seconds > 0 ? static_cast<double>(done_bytes) / seconds / 1e9 : 0.0));
  shown_ = true;
}

void progress_bar::clear() {
  if (shown_) show_status_line("");
  shown_ = false;
}

}  // namespace penstock::cli
