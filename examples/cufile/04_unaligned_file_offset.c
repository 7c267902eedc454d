/* Reads that begin in the middle of a block of the file, as those of a record behind a header do. cuFile asks for no alignment, but
   blocks are read whole: the ends of each read cost extra. */
#include "common.h"

enum { header_bytes = 1234 };

int main(int argc, char** argv) {
  example run = begin_example("04_unaligned_file_offset", argc, argv);
  void* memory = allocate_memory(run.chunk);
  check_call(cuFileBufRegister(memory, run.chunk, 0), "cuFileBufRegister");
  for (size_t at = smaller(header_bytes, run.total - 1); at < run.total; at += run.chunk) {
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
