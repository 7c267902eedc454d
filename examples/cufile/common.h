/* What the examples share: the file and how it is cut, memory on the GPU (or on the host, where there is none), a clock, and the
   comparison with pread. The examples themselves show the calls of cuFile. Every function that fails says why and ends the program. */
#pragma once

#include <cufile.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

typedef struct example {
  const char* name;
  const char* file_name;
  int fd;
  CUfileHandle_t file;
  size_t total; /* bytes to read; at most what the file has */
  size_t chunk; /* bytes of one read */
  size_t done;  /* bytes read and found right */
  /* spent in what is measured so far, and when the clock was started */
  double seconds, cpu_seconds;
  double started, cpu_started;
} example;

/* Reads the command line, FILE [TOTAL_BYTES] [CHUNK_BYTES], opens the file and registers it with cuFile. */
example begin_example(const char* name, int argc, char** argv);

/* Prints the one line of the result and closes everything. Returns what main returns. */
int end_example(example* run);

/* Only what lies between the two is measured. */
void start_clock(example* run);
void stop_clock(example* run);

/* Says why, and ends the program. */
void fail(const char* format, ...);

/* O_DIRECT where the file system knows it: NVIDIA's library needs that for GPUDirect. */
int open_direct(const char* name, int flags);
CUfileHandle_t register_file(int fd);

/* Looks for a GPU, if nobody has: to be called once before several threads allocate. */
void use_memory_of_gpu(void);

/* GPU memory, aligned as the driver aligns it; host memory, aligned to a page, where there is no GPU. */
void* allocate_memory(size_t bytes);
void free_memory(void* memory);

/* Memory of either kind, filled with one byte, or copied to the host. */
void fill_memory(void* memory, char byte, size_t length);
void fetch_memory(void* target, const void* memory, size_t length);

/* Makes the GPU's context current on the calling thread. The thread that called allocate_memory has it already. */
void use_gpu_in_this_thread(void);

/* Compares memory, which a read of length bytes at file_offset has filled, with what pread gives. */
void check_bytes(const example* run, const void* memory, size_t length, off_t file_offset);

/* Ends the program when a call of cuFile failed, or when a read or write returned anything but the length asked for. */
void check_call(CUfileError_t answer, const char* what);
void check_read(ssize_t answer, size_t length, off_t file_offset);
void check_write(ssize_t answer, size_t length, off_t file_offset);

static inline size_t smaller(size_t a, size_t b) { return a < b ? a : b; }
