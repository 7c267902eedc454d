// Functions that glibc has had for less long than the wheels reach back. Each does what glibc's does, by the older function or by the system
// call.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

// 2.33 made functions of them.
#if defined(__aarch64__)
#define STAT_VERSION 0
#else
#define STAT_VERSION 1
#endif
extern int __xstat(int, const char*, struct stat*);
extern int __lxstat(int, const char*, struct stat*);
extern int __fxstat(int, int, struct stat*);
extern int __fxstatat(int, int, const char*, struct stat*, int);

int stat(const char* restrict path, struct stat* restrict told) { return __xstat(STAT_VERSION, path, told); }
int lstat(const char* restrict path, struct stat* restrict told) { return __lxstat(STAT_VERSION, path, told); }
int fstat(int fd, struct stat* told) { return __fxstat(STAT_VERSION, fd, told); }
int fstatat(int fd, const char* restrict path, struct stat* restrict told, int flags) {
  return __fxstatat(STAT_VERSION, fd, path, told, flags);
}
// With 64 bits the two structures are one.
int stat64(const char* restrict path, struct stat64* restrict told) __attribute__((alias("stat")));
int lstat64(const char* restrict path, struct stat64* restrict told) __attribute__((alias("lstat")));
int fstat64(int fd, struct stat64* told) __attribute__((alias("fstat")));
int fstatat64(int fd, const char* restrict path, struct stat64* restrict told, int flags) __attribute__((alias("fstatat")));

// 2.29
int getcpu(unsigned* cpu, unsigned* node) { return (int)syscall(SYS_getcpu, cpu, node, NULL); }

// 2.30
pid_t gettid(void) { return (pid_t)syscall(SYS_gettid); }

// 2.35; before Linux 5.11 the kernel answers ENOSYS.
int epoll_pwait2(int fd, struct epoll_event* events, int most, const struct timespec* limit, const sigset_t* mask) {
  enum { bytes_of_kernel_mask = 8, epoll_pwait2_of_all_machines = 441 };
  return (int)syscall(epoll_pwait2_of_all_machines, fd, events, most, limit, mask, bytes_of_kernel_mask);
}

// 2.32: 1 allows libstdc++ to count references without atomic instructions.
char __libc_single_threaded = 0;

// 2.36, for std::random_device
unsigned int arc4random(void) {
  unsigned int drawn = 0;
  while (getrandom(&drawn, sizeof(drawn), 0) != (ssize_t)sizeof(drawn)) {
    if (errno != EINTR) abort();  // as glibc's: there is no such thing as a random number that could not be had
  }
  return drawn;
}

// 2.38, where numbers may be written 0b101. Of these that nobody here has.
#undef strtol
#undef strtoul
#undef strtoll
#undef strtoull
extern long old_strtol(const char*, char**, int) __asm__("strtol");
extern unsigned long old_strtoul(const char*, char**, int) __asm__("strtoul");
extern long long old_strtoll(const char*, char**, int) __asm__("strtoll");
extern unsigned long long old_strtoull(const char*, char**, int) __asm__("strtoull");
long __isoc23_strtol(const char* text, char** end, int base) { return old_strtol(text, end, base); }
unsigned long __isoc23_strtoul(const char* text, char** end, int base) { return old_strtoul(text, end, base); }
long long __isoc23_strtoll(const char* text, char** end, int base) { return old_strtoll(text, end, base); }
unsigned long long __isoc23_strtoull(const char* text, char** end, int base) { return old_strtoull(text, end, base); }
extern int old_vsscanf(const char*, const char*, va_list) __asm__("vsscanf");
int __isoc23_sscanf(const char* text, const char* format, ...) {
  va_list into;
  va_start(into, format);
  const int count = old_vsscanf(text, format, into);
  va_end(into);
  return count;
}
