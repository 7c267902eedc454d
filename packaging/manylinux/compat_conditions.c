// pthread_cond_clockwait, which std::condition_variable uses for steady_clock and which glibc has since 2.30. Where this machine's has it,
// that is called. Otherwise the time that is left is waited for by the clock of the wall, which may be set meanwhile: so at most a second at
// once, behind which the caller looks again, as after any wake-up for nothing.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stddef.h>
#include <time.h>

typedef int clockwait_function(pthread_cond_t*, pthread_mutex_t*, clockid_t, const struct timespec*);

static clockwait_function* of_this_machine;

__attribute__((constructor)) static void look_for_it(void) {
  of_this_machine = (clockwait_function*)dlsym(RTLD_DEFAULT, "pthread_cond_clockwait");
}

enum { nanoseconds = 1000000000 };

static long long until(clockid_t clock, const struct timespec* when) {
  struct timespec now;
  (void)clock_gettime(clock, &now);
  return ((long long)when->tv_sec - now.tv_sec) * nanoseconds + (when->tv_nsec - now.tv_nsec);
}

static int wait_in_slices(pthread_cond_t* condition, pthread_mutex_t* mutex, clockid_t clock, const struct timespec* when) {
  if (clock != CLOCK_MONOTONIC && clock != CLOCK_REALTIME) return EINVAL;
  long long left = until(clock, when);
  if (left < 0) left = 0;
  if (left > nanoseconds) left = nanoseconds;
  struct timespec limit;
  (void)clock_gettime(CLOCK_REALTIME, &limit);
  limit.tv_sec += (left + limit.tv_nsec) / nanoseconds;
  limit.tv_nsec = (left + limit.tv_nsec) % nanoseconds;
  const int told = pthread_cond_timedwait(condition, mutex, &limit);
  return told == ETIMEDOUT && until(clock, when) > 0 ? 0 : told;
}

int pthread_cond_clockwait(pthread_cond_t* restrict condition, pthread_mutex_t* restrict mutex, clockid_t clock,
                           const struct timespec* restrict when) {
  if (of_this_machine != NULL) return of_this_machine(condition, mutex, clock, when);
  return wait_in_slices(condition, mutex, clock, when);
}
