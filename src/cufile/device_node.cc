// A preloaded library for programs that check for the device node of NVIDIA's kernel module before they use cuFile. It reports that
// /dev/nvidia-fs0 exists and is a character device, and forwards everything else to the C library. Opening the node is not handled, because
// only NVIDIA's libcufile opens it. Only `penstock run --nvidia-fs-node` preloads it. Thread-safe; async-signal-safe except for the first
// call of each function.
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#define PENSTOCK_INTERPOSED extern "C" __attribute__((visibility("default")))

namespace {

bool is_the_node(const char* path) noexcept { return path != nullptr && std::strcmp(path, "/dev/nvidia-fs0") == 0; }

// stat and stat64 are the same type on 64-bit Linux.
int tell_of_node(struct stat* told) noexcept {
  std::memset(told, 0, sizeof *told);
  told->st_mode = S_IFCHR | 0666;
  told->st_nlink = 1;
  return 0;
}

// Returns the C library's function. Some C libraries lack one (__xstat: before 2.33); in that case it is never called here either.
template <class Function>
Function* next(const char* name) noexcept {
  return reinterpret_cast<Function*>(::dlsym(RTLD_NEXT, name));
}

using stat_function = int(const char*, struct stat*);
using stat_at_function = int(int, const char*, struct stat*, int);
using old_stat_function = int(int, const char*, struct stat*);
using access_function = int(const char*, int);
using access_at_function = int(int, const char*, int, int);

template <class Function, class... Arguments>
int ask(Function* function, Arguments... arguments) noexcept {
  if (function != nullptr) return function(arguments...);
  errno = ENOSYS;
  return -1;
}

}  // namespace

// The C library's headers may define these as macros or with different attributes, so each is defined by its symbol name.
#define PENSTOCK_STAT(alias, symbol)                                                  \
  PENSTOCK_INTERPOSED int alias(const char* path, struct stat* told) __asm__(symbol); \
  int alias(const char* path, struct stat* told) {                                    \
    static auto* const real = next<stat_function>(symbol);                            \
    return is_the_node(path) ? tell_of_node(told) : ask(real, path, told);            \
  }

PENSTOCK_STAT(penstock_stat, "stat")
PENSTOCK_STAT(penstock_stat64, "stat64")
PENSTOCK_STAT(penstock_lstat, "lstat")
PENSTOCK_STAT(penstock_lstat64, "lstat64")

#define PENSTOCK_STAT_AT(alias, symbol)                                                                      \
  PENSTOCK_INTERPOSED int alias(int folder, const char* path, struct stat* told, int flags) __asm__(symbol); \
  int alias(int folder, const char* path, struct stat* told, int flags) {                                    \
    static auto* const real = next<stat_at_function>(symbol);                                                \
    return is_the_node(path) ? tell_of_node(told) : ask(real, folder, path, told, flags);                    \
  }

PENSTOCK_STAT_AT(penstock_fstatat, "fstatat")
PENSTOCK_STAT_AT(penstock_fstatat64, "fstatat64")

#define PENSTOCK_OLD_STAT(alias, symbol)                                                           \
  PENSTOCK_INTERPOSED int alias(int version, const char* path, struct stat* told) __asm__(symbol); \
  int alias(int version, const char* path, struct stat* told) {                                    \
    static auto* const real = next<old_stat_function>(symbol);                                     \
    return is_the_node(path) ? tell_of_node(told) : ask(real, version, path, told);                \
  }

PENSTOCK_OLD_STAT(penstock_xstat, "__xstat")
PENSTOCK_OLD_STAT(penstock_xstat64, "__xstat64")
PENSTOCK_OLD_STAT(penstock_lxstat, "__lxstat")
PENSTOCK_OLD_STAT(penstock_lxstat64, "__lxstat64")

PENSTOCK_INTERPOSED int penstock_access(const char* path, int mode) __asm__("access");
int penstock_access(const char* path, int mode) {
  static auto* const real = next<access_function>("access");
  return is_the_node(path) ? 0 : ask(real, path, mode);
}

PENSTOCK_INTERPOSED int penstock_faccessat(int folder, const char* path, int mode, int flags) __asm__("faccessat");
int penstock_faccessat(int folder, const char* path, int mode, int flags) {
  static auto* const real = next<access_at_function>("faccessat");
  return is_the_node(path) ? 0 : ask(real, folder, path, mode, flags);
}
