/* Two writers whose ranges overlap and fit no block, and a reader that must never see half of a write: each locks the blocks that its range
   touches, and only then calls cuFile. The locks belong to descriptors (F_OFD_SETLKW), of which each thread has its own: the older ones
   (F_SETLKW) belong to the process, and keep no two of its threads apart. Other processes that lock are kept apart as well.

   Writers of ranges that only lie in one block need no lock with Penstock, which reads, changes and writes back nothing; with NVIDIA's library they
   do, since an unaligned write is that there. The example locks whole blocks, and is right on both. */
#define _GNU_SOURCE /* F_OFD_SETLKW, pthread_barrier_t */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common.h"

enum { block = 4096, rounds = 1000 };

typedef struct range {
  size_t at, length;
} range;

/* Bytes 50 to 109 are both writers'. */
static const range ranges[] = {{10, 100}, {50, 200}};
static const char letters[] = {'a', 'b'};

static char* file_name;
static pthread_barrier_t all_here;

static void lock_range(int fd, range which, short kind) {
  const size_t first = which.at / block * block;
  const size_t end = (which.at + which.length + block - 1) / block * block;
  struct flock lock = {0};
  lock.l_type = kind;
  lock.l_whence = SEEK_SET;
  lock.l_start = (off_t)first;
  lock.l_len = (off_t)(end - first);
  int outcome = 0;
  do {
    outcome = fcntl(fd, F_OFD_SETLKW, &lock);
  } while (outcome != 0 && errno == EINTR);
  if (outcome != 0) fail("%s: a lock of %zu bytes at %zu: %s", file_name, end - first, first, strerror(errno));
}

static void* write_range(void* argument) {
  const size_t me = *(const size_t*)argument;
  const range mine = ranges[me];
  use_gpu_in_this_thread();
  const int fd = open_direct(file_name, O_RDWR);
  CUfileHandle_t file = register_file(fd);
  void* memory = allocate_memory(mine.length);
  fill_memory(memory, letters[me], mine.length);
  pthread_barrier_wait(&all_here);
  for (int i = 0; i < rounds; ++i) {
    lock_range(fd, mine, F_WRLCK);
    check_write(cuFileWrite(file, memory, mine.length, (off_t)mine.at, 0), mine.length, (off_t)mine.at);
    lock_range(fd, mine, F_UNLCK);
  }
  cuFileHandleDeregister(file);
  close(fd);
  free_memory(memory);
  return NULL;
}

/* What both writers write has one letter from end to end: that of the last. */
static void* read_whole_writes(void* argument) {
  const range both = {50, 60};
  unsigned* seen = argument; /* how often each letter was seen */
  use_gpu_in_this_thread();
  const int fd = open_direct(file_name, O_RDONLY);
  CUfileHandle_t file = register_file(fd);
  void* memory = allocate_memory(both.length);
  char found[60];
  pthread_barrier_wait(&all_here);
  for (int i = 0; i < rounds; ++i) {
    lock_range(fd, both, F_RDLCK);
    check_read(cuFileRead(file, memory, both.length, (off_t)both.at, 0), both.length, (off_t)both.at);
    lock_range(fd, both, F_UNLCK);
    fetch_memory(found, memory, both.length);
    for (size_t k = 1; k < both.length; ++k) {
      if (found[k] != found[0]) fail("half of a write was seen: byte %zu is %d, byte %zu is %d", both.at, found[0], both.at + k, found[k]);
    }
    seen[0] += found[0] == letters[0];
    seen[1] += found[0] == letters[1];
  }
  cuFileHandleDeregister(file);
  close(fd);
  free_memory(memory);
  return NULL;
}

/* The file holds what the two wrote, and nothing else has changed. */
static void check_file(void) {
  char found[block];
  const int fd = open(file_name, O_RDONLY | O_CLOEXEC);
  if (fd < 0 || pread(fd, found, sizeof found, 0) != (ssize_t)sizeof found) fail("%s: %s", file_name, strerror(errno));
  close(fd);
  for (size_t i = 0; i < sizeof found; ++i) {
    const bool by[] = {i >= 10 && i < 110, i >= 50 && i < 250};
    const bool right = by[0] && by[1] ? found[i] == found[50] && (found[i] == 'a' || found[i] == 'b')
                       : by[0]        ? found[i] == 'a'
                       : by[1]        ? found[i] == 'b'
                                      : found[i] == 0;
    if (!right) fail("%s: byte %zu is %d", file_name, i, found[i]);
  }
}

int main(int argc, char** argv) {
  if (argc < 2) fail("usage: %s FILE\nFILE.locked is written, and removed at the end", argc > 0 ? argv[0] : "08_lock_the_range");
  const size_t room = strlen(argv[1]) + sizeof ".locked";
  file_name = malloc(room);
  if (file_name == NULL) fail("no memory");
  snprintf(file_name, room, "%s.locked", argv[1]);
  const int fd = open(file_name, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd < 0 || ftruncate(fd, block) != 0) fail("%s: %s", file_name, strerror(errno));
  close(fd);

  check_call(cuFileDriverOpen(), "cuFileDriverOpen");
  use_memory_of_gpu(); /* once, before threads do */
  pthread_t threads[3];
  size_t numbers[] = {0, 1};
  unsigned seen[2] = {0, 0};
  pthread_barrier_init(&all_here, NULL, 3);
  for (size_t i = 0; i < 2; ++i) {
    if (pthread_create(&threads[i], NULL, write_range, &numbers[i]) != 0) fail("no thread");
  }
  if (pthread_create(&threads[2], NULL, read_whole_writes, seen) != 0) fail("no thread");
  for (size_t i = 0; i < 3; ++i) pthread_join(threads[i], NULL);
  pthread_barrier_destroy(&all_here);
  check_file();
  check_call(cuFileDriverClose(), "cuFileDriverClose");
  printf("08_lock_the_range: %d writes of each of two overlapping ranges; %d reads saw the first writer's %u times and the second's %u times, "
         "never half of one\n", rounds, rounds, seen[0], seen[1]);
  unlink(file_name);
  free(file_name);
  return EXIT_SUCCESS;
}
