/* One allocation, and for each thread a part of it: its own descriptor, its own handle and its own registration of that part. Each reads its
   part of the file at once. Nothing is shared, so nobody waits for anybody. */
#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

#include "common.h"

enum { thread_count = 10 };

typedef struct part {
  const example* run;
  char* memory;
  size_t length;
  off_t file_offset;
} part;

static void* read_part(void* argument) {
  const part* mine = argument;
  if (mine->length == 0) return NULL; /* the file has fewer blocks than there are threads */
  use_gpu_in_this_thread();
  const int fd = open_direct(mine->run->file_name, O_RDONLY);
  CUfileHandle_t file = register_file(fd);
  check_call(cuFileBufRegister(mine->memory, mine->length, 0), "cuFileBufRegister");
  check_read(cuFileRead(file, mine->memory, mine->length, mine->file_offset, 0), mine->length, mine->file_offset);
  check_call(cuFileBufDeregister(mine->memory), "cuFileBufDeregister");
  cuFileHandleDeregister(file);
  close(fd);
  return NULL;
}

int main(int argc, char** argv) {
  pthread_t threads[thread_count];
  part parts[thread_count];
  example run = begin_example("07_handle_for_each_thread", argc, argv);
  run.chunk = (run.total / thread_count + 4096) / 4096 * 4096; /* whole blocks, so that O_DIRECT reads need no copy of their ends */
  char* memory = allocate_memory(run.total);
  for (size_t i = 0; i < thread_count; ++i) {
    const size_t at = smaller(i * run.chunk, run.total);
    parts[i] = (part){&run, memory + at, smaller(run.chunk, run.total - at), (off_t)at};
  }
  start_clock(&run);
  for (size_t i = 0; i < thread_count; ++i) {
    if (pthread_create(&threads[i], NULL, read_part, &parts[i]) != 0) fail("no thread");
  }
  for (size_t i = 0; i < thread_count; ++i) pthread_join(threads[i], NULL);
  stop_clock(&run);
  check_bytes(&run, memory, run.total, 0);
  run.done = run.total;
  free_memory(memory);
  return end_example(&run);
}
