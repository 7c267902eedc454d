// The baseline of bench/small_files_bench.py: threads that open, read and close the files named on standard input.
//   plain_files THREADS FROM_FOLDER [TO_FOLDER]   reads each file into new memory and keeps it, or copies each file to TO_FOLDER
// Prints the elapsed seconds, and the CPU seconds of the process.
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { most_threads = 512, most_bytes = 1 << 20 };

static char** names;
static size_t count, next;
static int from, to = -1;

static void fail(const char* name) {
  perror(name);
  exit(1);
}

static void* work(void* unused) {
  char* const reused = malloc(most_bytes);
  for (size_t i; (i = __atomic_fetch_add(&next, 1, __ATOMIC_RELAXED)) < count;) {
    struct stat info;
    const int fd = openat(from, names[i], O_RDONLY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &info) != 0 || info.st_size > most_bytes) fail(names[i]);
    char* const memory = to < 0 ? malloc((size_t)info.st_size + 1) : reused;
    if (read(fd, memory, (size_t)info.st_size) != info.st_size) fail(names[i]);
    if (to >= 0) {
      const int written = openat(to, names[i], O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
      if (written < 0 || write(written, memory, (size_t)info.st_size) != info.st_size || close(written) != 0) fail(names[i]);
    }
    close(fd);
  }
  return unused;
}

int main(int argc, char** argv) {
  if (argc < 3) return 2;
  const int threads = atoi(argv[1]);
  from = open(argv[2], O_RDONLY | O_DIRECTORY);
  if (argc > 3) to = open(argv[3], O_RDONLY | O_DIRECTORY);
  if (from < 0 || (argc > 3 && to < 0) || threads < 1 || threads > most_threads) return 2;
  size_t room = 0, length = 0;
  char* line = NULL;
  for (ssize_t got; (got = getdelim(&line, &length, 0, stdin)) > 0;) {
    if (count == room) names = realloc(names, (room = room * 2 + 1024) * sizeof *names);
    names[count++] = strdup(line);
  }
  struct timespec began, ended;
  clock_gettime(CLOCK_MONOTONIC, &began);
  pthread_t started[most_threads];
  for (int i = 0; i < threads; ++i) {
    if (pthread_create(&started[i], NULL, work, NULL) != 0) return 1;
  }
  for (int i = 0; i < threads; ++i) pthread_join(started[i], NULL);
  clock_gettime(CLOCK_MONOTONIC, &ended);
  struct rusage used;
  getrusage(RUSAGE_SELF, &used);
  printf("%.6f %.6f\n", (double)(ended.tv_sec - began.tv_sec) + (double)(ended.tv_nsec - began.tv_nsec) / 1e9,
         (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) + (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1e6);
  return 0;
}
