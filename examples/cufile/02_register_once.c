/* One buffer, registered once and read into again and again: the cost of the registration is spread over all reads. */
#include "common.h"

int main(int argc, char** argv) {
  example run = begin_example("02_register_once", argc, argv);
  void* memory = allocate_memory(run.chunk);
  start_clock(&run);
  check_call(cuFileBufRegister(memory, run.chunk, 0), "cuFileBufRegister");
  stop_clock(&run);
  for (size_t at = 0; at < run.total; at += run.chunk) {
    const size_t length = smaller(run.chunk, run.total - at);
    start_clock(&run);
    const ssize_t got = cuFileRead(run.file, memory, length, (off_t)at, 0);
    stop_clock(&run);
    check_read(got, length, (off_t)at);
    check_bytes(&run, memory, length, (off_t)at);
    run.done += length;
  }
  check_call(cuFileBufDeregister(memory), "cuFileBufDeregister");
  free_memory(memory);
  return end_example(&run);
}
