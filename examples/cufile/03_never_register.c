/* Memory that is never registered: any address of an allocation will do, and there is nothing to take back. */
#include "common.h"

int main(int argc, char** argv) {
  example run = begin_example("03_never_register", argc, argv);
  void* memory = allocate_memory(run.chunk);
  for (size_t at = 0; at < run.total; at += run.chunk) {
    const size_t length = smaller(run.chunk, run.total - at);
    start_clock(&run);
    const ssize_t got = cuFileRead(run.file, memory, length, (off_t)at, 0);
    stop_clock(&run);
    check_read(got, length, (off_t)at);
    check_bytes(&run, memory, length, (off_t)at);
    run.done += length;
  }
  free_memory(memory);
  return end_example(&run);
}
