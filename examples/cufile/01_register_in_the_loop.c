/* A buffer that is allocated, registered, used once and given back, chunk after chunk: each read pays for a registration. This is what a
   program does that knows its buffers only when it needs them. 02 registers once, 03 never. */
#include "common.h"

int main(int argc, char** argv) {
  example run = begin_example("01_register_in_the_loop", argc, argv);
  for (size_t at = 0; at < run.total; at += run.chunk) {
    const size_t length = smaller(run.chunk, run.total - at);
    void* memory = allocate_memory(length);
    start_clock(&run);
    check_call(cuFileBufRegister(memory, length, 0), "cuFileBufRegister");
    const ssize_t got = cuFileRead(run.file, memory, length, (off_t)at, 0);
    check_read(got, length, (off_t)at);
    check_call(cuFileBufDeregister(memory), "cuFileBufDeregister");
    stop_clock(&run);
    check_bytes(&run, memory, length, (off_t)at);
    free_memory(memory);
    run.done += length;
  }
  return end_example(&run);
}
