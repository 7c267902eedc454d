#include "cufile/log.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <limits>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <string>

#include "base/output.hpp"

namespace penstock::cufile {

// Writers share the lock and never wait for it; a line is dropped only while open() or close() holds the lock exclusively. So a child
// forked at any moment can write. It must not wait for the lock, because the thread that held it may not exist in the child. A child that
// opens or closes the log abandons this sink and creates a new one.
struct log::sink {
  std::shared_mutex mutex;  // guards fd and max_bytes
  int fd = -1;
  std::uint64_t max_bytes = 0;
  const pid_t owner = ::getpid();
};

namespace {

// "2026-09-10T12:34:56.123456Z". Local time would require the C library's time zone lock, which a fork can leave locked.
std::string time_text(std::chrono::system_clock::time_point now) {
  using namespace std::chrono;
  const auto day = floor<days>(now);
  const year_month_day date(day);
  const hh_mm_ss time(floor<microseconds>(now - day));
  return fmt::format("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:06}Z", static_cast<int>(date.year()), static_cast<unsigned>(date.month()),
                     static_cast<unsigned>(date.day()), time.hours().count(), time.minutes().count(), time.seconds().count(),
                     time.subseconds().count());
}

std::string printable_line(std::string_view text) {
  std::string line(text);
  std::ranges::replace_if(
      line, [](char c) { return static_cast<unsigned char>(c) < ' ' || c == 0x7f; }, '?');
  return line;
}

std::string line_text(log_level level, std::string_view message) {
  return printable_line(fmt::format("{} {}:{} {} {}", time_text(std::chrono::system_clock::now()), ::getpid(), ::gettid(), to_string(level),
                                    message)) +
         '\n';
}

// Two threads or processes may do this concurrently: a few more lines are lost, but the limit holds.
void make_room(int fd, std::size_t length, std::uint64_t max_bytes) {
  struct stat about {};
  if (max_bytes == std::numeric_limits<std::uint64_t>::max() || ::fstat(fd, &about) != 0 || !S_ISREG(about.st_mode)) return;
  const auto size = static_cast<std::uint64_t>(about.st_size);
  if (size + length > max_bytes && ::ftruncate(fd, 0) != 0) return;
}

// A single write() call, so that with O_APPEND the lines of threads and processes do not mix.
void write_line(int fd, std::string_view line) {
  while (::write(fd, line.data(), line.size()) < 0 && errno == EINTR) {
  }
}

}  // namespace

void say_on_stderr(std::string_view text) noexcept {
  try {
    print_error(fmt::format("penstock: {}\n", printable_line(text)));
  } catch (...) {  // out of memory: the call matters more than its message
  }
}

log::log() : sink_(new sink) {}

log::~log() {
  close();
  delete sink_.load();
}

log::sink& log::own_sink() {
  sink* now = sink_.load();
  if (now->owner == ::getpid()) return *now;
  auto fresh = std::make_unique<sink>();
  sink_.store(fresh.get());
  return *fresh.release();
}

status log::open(const settings& values) {
  close();
  if (values.log_file.empty()) return {};
  // Non-blocking: a pipe without a reader must not block the program.
  const int fd = ::open(values.log_file.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NONBLOCK | O_NOCTTY, 0644);
  if (fd < 0) return status::from_errno(errno, fmt::format("cufile: open the log {}", values.log_file));
  sink& target = own_sink();
  const std::unique_lock lock(target.mutex);
  target.fd = fd;
  target.max_bytes = values.log_max_bytes;
  level_.store(static_cast<int>(values.level()));
  return {};
}

void log::close() noexcept {
  level_.store(silent);
  sink& target = own_sink();
  int fd = -1;
  {
    const std::unique_lock lock(target.mutex);
    fd = std::exchange(target.fd, -1);
  }
  if (fd >= 0) ::close(fd);
}

void log::append(log_level level, std::string_view message) {
  const int caller_errno = errno;
  const std::string line = line_text(level, message);
  sink& target = *sink_.load();
  const std::shared_lock lock(target.mutex, std::try_to_lock);
  if (lock && target.fd >= 0) {
    make_room(target.fd, line.size(), target.max_bytes);
    write_line(target.fd, line);
  }
  errno = caller_errno;
}

}  // namespace penstock::cufile
