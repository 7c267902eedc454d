/* One registered buffer and one registered file, shared by threads: each reads its own part of the file to its own part of the buffer.
   The rounds keep what is measured apart from what is compared; a real program needs no barrier. */
#define _GNU_SOURCE /* pthread_barrier_t */
#include <pthread.h>

#include "common.h"

enum { thread_count = 4 };

static example run;
static char* memory; /* thread_count chunks */
static pthread_barrier_t all_here;

static void* read_parts(void* argument) {
  const size_t me = (size_t)((char*)argument - memory) / run.chunk; /* each thread is handed its part of the buffer */
  use_gpu_in_this_thread();
  for (size_t round = 0; round < run.total; round += thread_count * run.chunk) {
    const size_t at = round + me * run.chunk;
    const size_t length = at < run.total ? smaller(run.chunk, run.total - at) : 0;
    if (pthread_barrier_wait(&all_here) == PTHREAD_BARRIER_SERIAL_THREAD) start_clock(&run);
    pthread_barrier_wait(&all_here);
    if (length > 0) check_read(cuFileRead(run.file, memory, length, (off_t)at, (off_t)(me * run.chunk)), length, (off_t)at);
    if (pthread_barrier_wait(&all_here) == PTHREAD_BARRIER_SERIAL_THREAD) stop_clock(&run);
    pthread_barrier_wait(&all_here);
    if (length > 0) check_bytes(&run, memory + me * run.chunk, length, (off_t)at);
  }
  return NULL;
}

int main(int argc, char** argv) {
  pthread_t threads[thread_count];
  run = begin_example("06_shared_by_threads", argc, argv);
  memory = allocate_memory(thread_count * run.chunk);
  check_call(cuFileBufRegister(memory, thread_count * run.chunk, 0), "cuFileBufRegister");
  pthread_barrier_init(&all_here, NULL, thread_count);
  for (size_t i = 0; i < thread_count; ++i) {
    if (pthread_create(&threads[i], NULL, read_parts, memory + i * run.chunk) != 0) return EXIT_FAILURE;
  }
  for (size_t i = 0; i < thread_count; ++i) pthread_join(threads[i], NULL);
  pthread_barrier_destroy(&all_here);
  run.done = run.total;
  check_call(cuFileBufDeregister(memory), "cuFileBufDeregister");
  free_memory(memory);
  return end_example(&run);
}
