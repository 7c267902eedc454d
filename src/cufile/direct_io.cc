// A preloaded library for programs that open files with O_DIRECT. Some file systems reject that flag (EINVAL), so such a program fails
// before it calls cuFile, although Penstock reads the file without the flag. This library then opens the file again without O_DIRECT.
// Nothing else changes: the caller gets the original error if the file cannot be opened without the flag either, or is not a regular file.
// `penstock run` preloads it. Thread-safe and async-signal-safe.
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#define PENSTOCK_INTERPOSED extern "C" __attribute__((visibility("default")))

extern "C" [[gnu::weak]] void penstock_print_error(const char* text);  // in libcufile.so.0, which `penstock run` preloads too

namespace {

// The C library's function, or that of another preloaded library. Looked up before the program starts, unless a constructor calls it
// earlier.
template <class Function>
class next_function {
 public:
  constexpr explicit next_function(const char* name) : name_(name) {}

  Function* get() {
    auto* found = found_.load(std::memory_order_relaxed);
    if (found == nullptr) {
      found = reinterpret_cast<Function*>(::dlsym(RTLD_NEXT, name_));
      found_.store(found, std::memory_order_relaxed);
    }
    return found;
  }

 private:
  const char* name_;
  std::atomic<Function*> found_{nullptr};
};

using open_function = int(const char*, int, ...);
using open_at_function = int(int, const char*, int, ...);
using checked_open_function = int(const char*, int);
using checked_open_at_function = int(int, const char*, int);
using control_function = int(int, int, ...);

next_function<open_at_function> plain_openat{"openat"};

// PENSTOCK_LOG=summary reports the first file of each process, and not at exit, because forked workers often end with _exit().
std::atomic<bool> reports{false};

[[gnu::constructor]] void prepare() {
  plain_openat.get();
  const char* wanted = std::getenv("PENSTOCK_LOG");  // NOLINT(concurrency-mt-unsafe): before the program starts
  reports = wanted != nullptr && std::strcmp(wanted, "summary") == 0;
}

void report(const char* name) {
  if (&penstock_print_error == nullptr || !reports.exchange(false)) return;
  char text[PATH_MAX + 128];
  std::snprintf(text, sizeof text,
                "penstock: %s: opened without O_DIRECT, which its file system does not support. Later files are not reported\n", name);
  penstock_print_error(text);
}

// statx is in glibc 2.28, fstatat only in 2.33. With AT_EMPTY_PATH, an empty path means the descriptor itself.
bool describe(int folder, const char* path, int flags, struct statx& facts) {
  return ::statx(folder, path, flags, STATX_TYPE | STATX_SIZE | STATX_NLINK, &facts) == 0;
}

// Only a regular file, existing or new, is opened again: opening a device or a pipe twice can have side effects.
bool names_file(int folder, const char* path, int flags) {
  struct statx facts {};
  if (!describe(folder, path, (flags & O_NOFOLLOW) != 0 ? AT_SYMLINK_NOFOLLOW : 0, facts)) return errno == ENOENT && (flags & O_CREAT) != 0;
  return S_ISREG(facts.stx_mode) || (S_ISDIR(facts.stx_mode) && (flags & O_TMPFILE) == O_TMPFILE);
}

// The kernel rejects O_DIRECT only after it has created the file, so a second exclusive creation fails. The first call found no file (it
// would have failed with EEXIST), so an empty file is the one that it created.
int open_created(int folder, const char* path, int flags) {
  const int fd = plain_openat.get()(folder, path, (flags & ~(O_CREAT | O_EXCL)) | O_NOFOLLOW);
  if (fd < 0) return fd;
  struct statx facts {};
  if (describe(fd, "", AT_EMPTY_PATH, facts) && S_ISREG(facts.stx_mode) && facts.stx_size == 0 && facts.stx_nlink == 1) return fd;
  ::syscall(SYS_close, fd);  // not close(), a cancellation point that could leave the descriptor open
  return -1;
}

// Called after open() failed. Returns a descriptor without O_DIRECT, or -1 with the same errno.
[[gnu::noinline]] int open_again(int folder, const char* path, int flags, mode_t mode) {
  constexpr char descriptors[] = "/proc/self/fd/";
  if (errno != EINVAL || (flags & O_DIRECT) == 0 || path == nullptr) return -1;
  // Programs that open their own descriptor again, as Penstock does, want to know whether O_DIRECT is supported.
  const bool is_probe = std::strncmp(path, descriptors, sizeof descriptors - 1) == 0;
  int fd = -1;
  if (!is_probe && names_file(folder, path, flags)) {
    fd = plain_openat.get()(folder, path, flags & ~O_DIRECT, mode);
    if (fd < 0 && errno == EEXIST && (flags & O_EXCL) != 0) fd = open_created(folder, path, flags & ~O_DIRECT);
  }
  if (fd >= 0) report(path);
  errno = EINVAL;
  return fd;
}

// The same for fcntl(F_SETFL).
[[gnu::noinline]] int set_again(control_function* real, int fd, std::intptr_t flags) {
  if (errno != EINVAL || (flags & O_DIRECT) == 0) return -1;
  struct statx facts {};
  const bool is_set = describe(fd, "", AT_EMPTY_PATH, facts) && S_ISREG(facts.stx_mode) && real(fd, F_SETFL, flags & ~O_DIRECT) == 0;
  if (is_set) {
    char name[32];
    std::snprintf(name, sizeof name, "descriptor %d", fd);
    report(name);
  }
  errno = EINVAL;
  return is_set ? 0 : -1;
}

}  // namespace

#define PENSTOCK_READ_MODE                                          \
  mode_t mode = 0;                                                  \
  if ((flags & O_CREAT) != 0 || (flags & O_TMPFILE) == O_TMPFILE) { \
    va_list arguments;                                              \
    va_start(arguments, flags);                                     \
    mode = va_arg(arguments, mode_t);                               \
    va_end(arguments);                                              \
  }

#define PENSTOCK_NO_MODE constexpr mode_t mode = 0;

// Defined by symbol name, because the C library's headers may define these functions as macros or with different attributes.
#define PENSTOCK_FUNCTION(symbol, alias, type, parameters)             \
  namespace {                                                          \
  next_function<type> real_##alias{symbol};                            \
  [[gnu::constructor]] void find_##alias() { real_##alias.get(); }     \
  }                                                                    \
  PENSTOCK_INTERPOSED int penstock_##alias parameters __asm__(symbol); \
  int penstock_##alias parameters

#define PENSTOCK_OPEN(symbol, alias, type, parameters, mode_code, folder, ...) \
  PENSTOCK_FUNCTION(symbol, alias, type, parameters) {                         \
    mode_code const int fd = real_##alias.get()(__VA_ARGS__);                  \
    return fd >= 0 ? fd : open_again(folder, path, flags, mode);               \
  }

#define PENSTOCK_OPEN_BY_PATH(symbol, alias) \
  PENSTOCK_OPEN(symbol, alias, open_function, (const char* path, int flags, ...), PENSTOCK_READ_MODE, AT_FDCWD, path, flags, mode)
#define PENSTOCK_OPEN_AT(symbol, alias)                                                                                                    \
  PENSTOCK_OPEN(symbol, alias, open_at_function, (int folder, const char* path, int flags, ...), PENSTOCK_READ_MODE, folder, folder, path, \
                flags, mode)

PENSTOCK_OPEN_BY_PATH("open", open)
PENSTOCK_OPEN_BY_PATH("open64", open64)
PENSTOCK_OPEN_BY_PATH("__open", internal_open)
PENSTOCK_OPEN_BY_PATH("__open64", internal_open64)
PENSTOCK_OPEN_AT("openat", openat)
PENSTOCK_OPEN_AT("openat64", openat64)

// _FORTIFY_SOURCE turns a call without a mode into one of these.
#define PENSTOCK_CHECKED_OPEN(symbol, alias) \
  PENSTOCK_OPEN(symbol, alias, checked_open_function, (const char* path, int flags), PENSTOCK_NO_MODE, AT_FDCWD, path, flags)
#define PENSTOCK_CHECKED_OPEN_AT(symbol, alias)                                                                                       \
  PENSTOCK_OPEN(symbol, alias, checked_open_at_function, (int folder, const char* path, int flags), PENSTOCK_NO_MODE, folder, folder, \
                path, flags)

PENSTOCK_CHECKED_OPEN("__open_2", checked_open)
PENSTOCK_CHECKED_OPEN("__open64_2", checked_open64)
PENSTOCK_CHECKED_OPEN_AT("__openat_2", checked_openat)
PENSTOCK_CHECKED_OPEN_AT("__openat64_2", checked_openat64)

// The argument is passed on as the C library itself reads it: as a pointer, whether the caller passed one, an integer or nothing.
#define PENSTOCK_CONTROL(symbol, alias)                                                  \
  PENSTOCK_FUNCTION(symbol, alias, control_function, (int fd, int command, ...)) {       \
    va_list arguments;                                                                   \
    va_start(arguments, command);                                                        \
    void* argument = va_arg(arguments, void*);                                           \
    va_end(arguments);                                                                   \
    const int answer = real_##alias.get()(fd, command, argument);                        \
    if (answer != -1 || command != F_SETFL) return answer;                               \
    return set_again(real_##alias.get(), fd, reinterpret_cast<std::intptr_t>(argument)); \
  }

PENSTOCK_CONTROL("fcntl", fcntl)
PENSTOCK_CONTROL("fcntl64", fcntl64)
PENSTOCK_CONTROL("__fcntl", internal_fcntl)
