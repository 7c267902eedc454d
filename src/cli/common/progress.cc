#include "cli/common/progress.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "base/shown_urls.hpp"
#include "cli/common/interrupt.hpp"
#include "cli/common/progress_line.hpp"
#include "cli/common/say.hpp"

namespace penstock::cli {
namespace {

bool hidden = false;

bool terminal_can_show_it() {
  static const bool answer = [] {
    const char* term = std::getenv("TERM");
    const std::string_view kind = term != nullptr ? term : "";
    return isatty(STDERR_FILENO) == 1 && !kind.empty() && kind != "dumb";
  }();
  return answer && !hidden;
}

// Leaves the last column free, because some terminals wrap after it.
std::size_t columns() { return std::max<std::size_t>(columns_of(stderr), 2) - 1; }

}  // namespace

void hide_progress() { hidden = true; }

void show_status_line(std::string_view text) {
  if (!terminal_can_show_it()) return;
  // \033[K clears the remains of a longer line.
  const std::string shown = printable_text(std::string(text.substr(0, columns())));
  print_error(fmt::format("\r{}\033[K", shown));
}

progress_bar::progress_bar(std::string phase, std::string name, std::uint64_t total_bytes, std::uint64_t done_bytes)
    : phase_(std::move(phase)), name_(without_url_secrets(name)), total_bytes_(total_bytes), first_byte_(done_bytes) {}

progress_bar::~progress_bar() {
  if (shown_) show_status_line("");
}

void progress_bar::update(std::uint64_t done_bytes) {
  constexpr std::chrono::milliseconds least_time_between{100};
  const auto now = clock::now();
  if (!terminal_can_show_it() || total_bytes_ == 0 || (shown_ && now - shown_at_ < least_time_between)) return;
  const double seconds = std::chrono::duration<double>(now - start_).count();
  show_status_line(progress_line({phase_, name_, done_bytes, total_bytes_, first_byte_, seconds}, columns()));
  shown_ = true;
  shown_at_ = now;
}

std::function<bool()> progress_bar::counting(std::uint64_t piece_bytes) {
  return [this, piece_bytes, done = first_byte_]() mutable {
    update(done);
    done += piece_bytes;
    return interrupted();
  };
}

}  // namespace penstock::cli
