/* Reads to an unaligned place in a registered buffer. The base of the registration and the offset in it are handed in apart: a pointer
   into the middle of a registered buffer works too, but is then not known to be registered. */
#include "common.h"

enum { offset_in_memory = 777 };

int main(int argc, char** argv) {
  example run = begin_example("05_unaligned_buffer_offset", argc, argv);
  char* memory = allocate_memory(run.chunk + offset_in_memory);
  check_call(cuFileBufRegister(memory, run.chunk + offset_in_memory, 0), "cuFileBufRegister");
  for (size_t at = 0; at < run.total; at += run.chunk) {
    const size_t length = smaller(run.chunk, run.total - at);
    start_clock(&run);
    const ssize_t got = cuFileRead(run.file, memory, length, (off_t)at, offset_in_memory);
    stop_clock(&run);
    check_read(got, length, (off_t)at);
    check_bytes(&run, memory + offset_in_memory, length, (off_t)at);
    run.done += length;
  }
  check_call(cuFileBufDeregister(memory), "cuFileBufDeregister");
  free_memory(memory);
  return end_example(&run);
}
