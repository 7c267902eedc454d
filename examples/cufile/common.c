#define _GNU_SOURCE /* O_DIRECT */
#include "common.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

void fail(const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  vfprintf(stderr, format, arguments);
  va_end(arguments);
  fputc('\n', stderr);
  exit(EXIT_FAILURE);
}

/* The CUDA driver, opened at run time: the examples build without a CUDA toolkit. A program that has one includes <cuda.h>. */
static struct {
  bool tried, found;
  void* context;
  char why_not[200];
  int (*ctx_set_current)(void* context);
  int (*mem_alloc)(uint64_t* memory, size_t bytes);
  int (*mem_free)(uint64_t memory);
  int (*memset_bytes)(uint64_t target, unsigned char byte, size_t bytes);
  int (*memcpy_to_host)(void* target, uint64_t source, size_t bytes);
} cuda;

static bool find_function(void* library, const char* name, void* function) {
  void* found = dlsym(library, name);
  memcpy(function, &found, sizeof found); /* ISO C has no cast between data and function pointers */
  return found != NULL;
}

static bool open_gpu(void) {
  int (*init)(unsigned flags);
  int (*device_get)(int* device, int ordinal);
  int (*retain)(void** context, int device);
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == NULL) {
    snprintf(cuda.why_not, sizeof cuda.why_not, "no libcuda.so.1");
    return false;
  }
  if (!find_function(library, "cuInit", &init) || !find_function(library, "cuDeviceGet", &device_get) ||
      !find_function(library, "cuDevicePrimaryCtxRetain", &retain) || !find_function(library, "cuCtxSetCurrent", &cuda.ctx_set_current) ||
      !find_function(library, "cuMemAlloc_v2", &cuda.mem_alloc) || !find_function(library, "cuMemFree_v2", &cuda.mem_free) ||
      !find_function(library, "cuMemsetD8_v2", &cuda.memset_bytes) ||
      !find_function(library, "cuMemcpyDtoH_v2", &cuda.memcpy_to_host)) {
    snprintf(cuda.why_not, sizeof cuda.why_not, "libcuda.so.1 lacks functions");
    return false;
  }
  int device = 0;
  int error = init(0);
  if (error == 0) error = device_get(&device, 0);
  if (error == 0) error = retain(&cuda.context, device);
  if (error != 0) snprintf(cuda.why_not, sizeof cuda.why_not, "CUDA error %d", error);
  return error == 0;
}

void use_gpu_in_this_thread(void) {
  if (cuda.found && cuda.ctx_set_current(cuda.context) != 0) fail("the GPU's context cannot be used in this thread");
}

void use_memory_of_gpu(void) {
  if (cuda.tried) return;
  cuda.tried = true;
  cuda.found = open_gpu();
}

void* allocate_memory(size_t bytes) {
  use_memory_of_gpu();
  use_gpu_in_this_thread();
  if (cuda.found) {
    uint64_t memory = 0;
    const int error = cuda.mem_alloc(&memory, bytes);
    if (error != 0) fail("no %zu bytes of GPU memory: CUDA error %d", bytes, error);
    return (void*)(uintptr_t)memory;
  }
  void* memory = NULL;
  if (posix_memalign(&memory, 4096, bytes) != 0) fail("no %zu bytes of memory", bytes);
  return memory;
}

void free_memory(void* memory) {
  if (cuda.found) {
    cuda.mem_free((uint64_t)(uintptr_t)memory);
  } else {
    free(memory);
  }
}

void fill_memory(void* memory, char byte, size_t length) {
  if (!cuda.found) {
    memset(memory, byte, length);
  } else if (cuda.memset_bytes((uint64_t)(uintptr_t)memory, (unsigned char)byte, length) != 0) {
    fail("GPU memory cannot be filled");
  }
}

void fetch_memory(void* target, const void* memory, size_t length) {
  if (!cuda.found) {
    memcpy(target, memory, length);
  } else if (cuda.memcpy_to_host(target, (uint64_t)(uintptr_t)memory, length) != 0) {
    fail("GPU memory cannot be copied back");
  }
}

static double seconds_of(clockid_t clock) {
  struct timespec now;
  clock_gettime(clock, &now);
  return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

void start_clock(example* run) {
  run->started = seconds_of(CLOCK_MONOTONIC);
  run->cpu_started = seconds_of(CLOCK_PROCESS_CPUTIME_ID); /* of all threads, cuFile's too */
}

void stop_clock(example* run) {
  run->seconds += seconds_of(CLOCK_MONOTONIC) - run->started;
  run->cpu_seconds += seconds_of(CLOCK_PROCESS_CPUTIME_ID) - run->cpu_started;
}

int open_direct(const char* name, int flags) {
  int fd = open(name, flags | O_DIRECT | O_CLOEXEC);
  if (fd < 0 && errno == EINVAL) fd = open(name, flags | O_CLOEXEC);
  if (fd < 0) fail("%s: %s", name, strerror(errno));
  return fd;
}

CUfileHandle_t register_file(int fd) {
  CUfileDescr_t descriptor = {0};
  descriptor.type = CU_FILE_HANDLE_TYPE_OPAQUE_FD;
  descriptor.handle.fd = fd;
  CUfileHandle_t file = NULL;
  check_call(cuFileHandleRegister(&file, &descriptor), "cuFileHandleRegister");
  return file;
}

static size_t parse_bytes(const char* word) {
  char* end = NULL;
  const unsigned long long bytes = strtoull(word, &end, 10);
  if (bytes == 0 || *end != '\0') fail("%s is no number of bytes", word);
  return (size_t)bytes;
}

example begin_example(const char* name, int argc, char** argv) {
  if (argc < 2 || argc > 4) fail("usage: %s FILE [TOTAL_BYTES] [CHUNK_BYTES]", argc > 0 ? argv[0] : name);
  example run = {0};
  run.name = name;
  run.file_name = argv[1];
  run.fd = open_direct(run.file_name, O_RDONLY);
  struct stat about;
  if (fstat(run.fd, &about) != 0) fail("%s: %s", run.file_name, strerror(errno));
  run.total = (size_t)about.st_size;
  if (argc > 2) run.total = smaller(run.total, parse_bytes(argv[2]));
  run.chunk = argc > 3 ? parse_bytes(argv[3]) : (size_t)1 << 20;
  if (run.total == 0) fail("%s is empty", run.file_name);

  check_call(cuFileDriverOpen(), "cuFileDriverOpen");
  run.file = register_file(run.fd);
  return run;
}

int end_example(example* run) {
  const double gigabytes = (double)run->done * 1e-9;
  printf("%s: %.2f GB/s, %.3f CPU s/GB; %zu bytes in chunks of %zu read into %s and found right%s%s%s\n", run->name,
         gigabytes / run->seconds, run->cpu_seconds / gigabytes, run->done, run->chunk, cuda.found ? "GPU memory" : "host memory",
         cuda.found ? "" : " (no GPU: ", cuda.why_not, cuda.found ? "" : ")");
  cuFileHandleDeregister(run->file);
  check_call(cuFileDriverClose(), "cuFileDriverClose");
  close(run->fd);
  return EXIT_SUCCESS;
}

void check_bytes(const example* run, const void* memory, size_t length, off_t file_offset) {
  char* expected = malloc(length);
  char* found = malloc(length);
  if (expected == NULL || found == NULL) fail("no %zu bytes of memory", length);
  const int plain = open(run->file_name, O_RDONLY | O_CLOEXEC); /* without O_DIRECT, which asks for alignment */
  size_t have = 0;
  while (plain >= 0 && have < length) {
    const ssize_t count = pread(plain, expected + have, length - have, file_offset + (off_t)have);
    if (count <= 0) break;
    have += (size_t)count;
  }
  if (have < length) fail("%s: pread of %zu bytes at %lld gave %zu", run->file_name, length, (long long)file_offset, have);
  close(plain);
  fetch_memory(found, memory, length);
  for (size_t i = 0; i < length; ++i) {
    if (found[i] != expected[i]) fail("%s: byte %lld differs", run->name, (long long)file_offset + (long long)i);
  }
  free(expected);
  free(found);
}

void check_call(CUfileError_t answer, const char* what) {
  if (answer.err == CU_FILE_SUCCESS) return;
  fail("%s: %s (%d%s%d)", what, CUFILE_ERRSTR(answer.err), answer.err, IS_CUDA_ERR(answer) ? ", CUDA error " : ", ", answer.cu_err);
}

static void check_transfer(const char* what, ssize_t answer, size_t length, off_t file_offset) {
  if (answer == (ssize_t)length) return;
  if (answer >= 0) fail("%s at %lld: %zd bytes instead of %zu", what, (long long)file_offset, answer, length);
  /* -1: errno holds a number of the system or of cuFile; older versions return a number of cuFile, negative */
  const int error = answer == -1 ? errno : (int)-answer;
  fail("%s at %lld: %s (%d)", what, (long long)file_offset, IS_CUFILE_ERR(error) ? CUFILE_ERRSTR(error) : strerror(error), error);
}

void check_read(ssize_t answer, size_t length, off_t file_offset) { check_transfer("read", answer, length, file_offset); }

void check_write(ssize_t answer, size_t length, off_t file_offset) { check_transfer("write", answer, length, file_offset); }
