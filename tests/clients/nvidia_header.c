/* A program as a user of NVIDIA cuFile writes it: compiled against NVIDIA's own cufile.h, linked with NVIDIA's libcufile, and started on
 * Penstock's. Checks what such a program sees: results, error numbers and bytes. Memory is a GPU's where there is one, else the host's.
 *
 * Usage: nvidia_header FOLDER [LIBRARY]
 * FOLDER is written to. LIBRARY: the library file that must be in use; anything else fails.
 * Prints one OK line for each group of checks; exits with 1 at the first check that fails, and names it. */
#define _GNU_SOURCE /* O_DIRECT, dladdr */
#include <cufile.h>

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define KIB ((size_t)1024)
#define MIB (1024 * KIB)

static const char* group = "start";

#define CHECK(condition)                                                                          \
  do {                                                                                            \
    if (!(condition)) {                                                                           \
      fprintf(stderr, "FAILED %s: %s (line %d; errno %d)\n", group, #condition, __LINE__, errno); \
      exit(1);                                                                                    \
    }                                                                                             \
  } while (0)

/* Both sides as numbers, shown when they differ. */
#define EQUAL(found, wanted)                                                                                                               \
  do {                                                                                                                                     \
    const long long equal_found = (long long)(found), equal_wanted = (long long)(wanted);                                                  \
    if (equal_found != equal_wanted) {                                                                                                     \
      fprintf(stderr, "FAILED %s: %s is %lld, not %lld (line %d; errno %d)\n", group, #found, equal_found, equal_wanted, __LINE__, errno); \
      exit(1);                                                                                                                             \
    }                                                                                                                                      \
  } while (0)

#define WORKS(call) EQUAL((call).err, CU_FILE_SUCCESS)
#define REFUSED(call, code) EQUAL((call).err, code)

/* -1, and the number in errno. */
#define FAILS(call, number)    \
  do {                         \
    errno = 0;                 \
    EQUAL(call, -1);           \
    EQUAL(errno, (int)number); \
  } while (0)

/* --- memory of a GPU through libcuda.so.1, opened at run time, or of the host */

static struct {
  void* context;
  char why_not[160];
  int (*mem_alloc)(uint64_t* memory, size_t bytes);
  int (*mem_free)(uint64_t memory);
  int (*to_device)(uint64_t target, const void* source, size_t bytes);
  int (*to_host)(void* target, uint64_t source, size_t bytes);
  int (*stream_create)(void** stream, unsigned flags);
  int (*stream_synchronize)(void* stream);
  int (*stream_destroy)(void* stream);
} gpu;
static bool has_gpu;

static bool find(void* library, const char* name, void* function) {
  void* found = dlsym(library, name);
  memcpy(function, &found, sizeof found); /* ISO C has no cast between data and function pointers */
  return found != NULL;
}

static bool open_gpu(void) {
  int (*init)(unsigned);
  int (*device_get)(int*, int);
  int (*retain)(void**, int);
  int (*set_current)(void*);
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == NULL) {
    snprintf(gpu.why_not, sizeof gpu.why_not, "no libcuda.so.1");
    return false;
  }
  if (!find(library, "cuInit", &init) || !find(library, "cuDeviceGet", &device_get) ||
      !find(library, "cuDevicePrimaryCtxRetain", &retain) || !find(library, "cuCtxSetCurrent", &set_current) ||
      !find(library, "cuMemAlloc_v2", &gpu.mem_alloc) || !find(library, "cuMemFree_v2", &gpu.mem_free) ||
      !find(library, "cuMemcpyHtoD_v2", &gpu.to_device) || !find(library, "cuMemcpyDtoH_v2", &gpu.to_host) ||
      !find(library, "cuStreamCreate", &gpu.stream_create) || !find(library, "cuStreamSynchronize", &gpu.stream_synchronize) ||
      !find(library, "cuStreamDestroy_v2", &gpu.stream_destroy)) {
    snprintf(gpu.why_not, sizeof gpu.why_not, "libcuda.so.1 lacks functions");
    return false;
  }
  int device = 0;
  int error = init(0);
  if (error == 0) error = device_get(&device, 0);
  if (error == 0) error = retain(&gpu.context, device);
  if (error == 0) error = set_current(gpu.context);
  if (error != 0) snprintf(gpu.why_not, sizeof gpu.why_not, "CUDA error %d", error);
  return error == 0;
}

static void* new_memory(size_t bytes) {
  if (has_gpu) {
    uint64_t memory = 0;
    EQUAL(gpu.mem_alloc(&memory, bytes), 0);
    return (void*)(uintptr_t)memory;
  }
  void* memory = NULL;
  EQUAL(posix_memalign(&memory, 4096, bytes), 0);
  return memory;
}

static void free_memory(void* memory) {
  if (has_gpu) {
    EQUAL(gpu.mem_free((uint64_t)(uintptr_t)memory), 0);
  } else {
    free(memory);
  }
}

static void put(void* memory, const void* bytes, size_t length) {
  if (has_gpu) {
    EQUAL(gpu.to_device((uint64_t)(uintptr_t)memory, bytes, length), 0);
    EQUAL(gpu.stream_synchronize(NULL), 0); /* small copies return early, and cuFile follows no stream */
  } else {
    memcpy(memory, bytes, length);
  }
}

static void get(void* bytes, const void* memory, size_t length) {
  if (has_gpu) {
    EQUAL(gpu.to_host(bytes, (uint64_t)(uintptr_t)memory, length), 0);
  } else {
    memcpy(bytes, memory, length);
  }
}

/* Byte i of the stream named seed: no period that a page or a slab has. */
static unsigned char byte_at(unsigned seed, size_t i) { return (unsigned char)((i * 2654435761u + seed * 40503u) >> 11 ^ i / 4099); }

static unsigned char* pattern(unsigned seed, size_t length) {
  unsigned char* bytes = malloc(length);
  CHECK(bytes != NULL);
  for (size_t i = 0; i < length; ++i) bytes[i] = byte_at(seed, i);
  return bytes;
}

static void fill(void* memory, unsigned seed, size_t length) {
  unsigned char* bytes = pattern(seed, length);
  put(memory, bytes, length);
  free(bytes);
}

static void wipe(void* memory, size_t length) {
  unsigned char* zeros = calloc(1, length);
  CHECK(zeros != NULL);
  put(memory, zeros, length);
  free(zeros);
}

static bool holds(const void* memory, unsigned seed, size_t from, size_t length) {
  unsigned char* bytes = malloc(length + 1);
  CHECK(bytes != NULL);
  get(bytes, memory, length);
  size_t same = 0;
  while (same < length && bytes[same] == byte_at(seed, from + same)) ++same;
  free(bytes);
  if (same < length) fprintf(stderr, "byte %zu of %zu differs\n", same, length);
  return same == length;
}

/* The file, read without cuFile. */
static bool file_holds(const char* name, off_t offset, unsigned seed, size_t from, size_t length) {
  unsigned char* bytes = malloc(length);
  const int fd = open(name, O_RDONLY | O_CLOEXEC);
  CHECK(bytes != NULL && fd >= 0);
  size_t have = 0;
  while (have < length) {
    const ssize_t count = pread(fd, bytes + have, length - have, offset + (off_t)have);
    if (count <= 0) break;
    have += (size_t)count;
  }
  size_t same = 0;
  while (same < have && bytes[same] == byte_at(seed, from + same)) ++same;
  close(fd);
  free(bytes);
  if (same < length) fprintf(stderr, "byte %zu of %zu in %s differs or is missing\n", same, length, name);
  return same == length;
}

/* --- files */

static char folder[PATH_MAX / 2];

static const char* path(const char* name) {
  static char full[PATH_MAX];
  snprintf(full, sizeof full, "%s/%s", folder, name);
  return full;
}

static void make_file(const char* name, unsigned seed, size_t length) {
  unsigned char* bytes = pattern(seed, length);
  const int fd = open(path(name), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  CHECK(fd >= 0);
  EQUAL(write(fd, bytes, length), length);
  close(fd);
  free(bytes);
}

static CUfileError_t register_fd(int fd, CUfileHandle_t* handle, enum CUfileFileHandleType type) {
  CUfileDescr_t descriptor;
  memset(&descriptor, 0, sizeof descriptor);
  descriptor.type = type;
  descriptor.handle.fd = fd;
  return cuFileHandleRegister(handle, &descriptor);
}

struct opened {
  int fd;
  CUfileHandle_t handle;
};

static struct opened open_registered(const char* name, int flags) {
  struct opened file = {open(path(name), flags | O_CLOEXEC, 0644), NULL};
  if (file.fd < 0 && errno == EINVAL) file.fd = open(path(name), (flags & ~O_DIRECT) | O_CLOEXEC, 0644); /* no O_DIRECT here */
  CHECK(file.fd >= 0);
  WORKS(register_fd(file.fd, &file.handle, CU_FILE_HANDLE_TYPE_OPAQUE_FD));
  CHECK(file.handle != NULL);
  return file;
}

static void close_registered(struct opened file) {
  cuFileHandleDeregister(file.handle);
  close(file.fd);
}

/* --- the groups of checks; each begins and ends with the library closed */

static void close_all(void) {
  while (cuFileUseCount() > 0) WORKS(cuFileDriverClose());
}

static void check_driver(void) {
  int version = 0;
  WORKS(cuFileGetVersion(&version));
  CHECK(version >= 1150 && version % 10 == 0);
  REFUSED(cuFileGetVersion(NULL), CU_FILE_INVALID_VALUE);
  EQUAL(cuFileUseCount(), 0);
  REFUSED(cuFileDriverClose(), CU_FILE_DRIVER_NOT_INITIALIZED);
  WORKS(cuFileDriverOpen());
  EQUAL(cuFileUseCount(), 1);
  WORKS(cuFileDriverOpen());
  EQUAL(cuFileUseCount(), 2);
  WORKS(cuFileDriverClose());
  EQUAL(cuFileUseCount(), 1);
  CUfileDrvProps_t props;
  memset(&props, 0xff, sizeof props);
  WORKS(cuFileDriverGetProperties(&props));
  CHECK((props.fflags & 1u << CU_FILE_BATCH_IO_SUPPORTED) != 0);
  CHECK((props.fflags & 1u << CU_FILE_STREAMS_SUPPORTED) != 0);
  CHECK((props.nvfs.dcontrolflags & 1u << CU_FILE_ALLOW_COMPAT_MODE) != 0);
  EQUAL(props.max_batch_io_size, 128);
  WORKS(cuFileDriverClose());
  EQUAL(cuFileUseCount(), 0);
  REFUSED(cuFileDriverClose(), CU_FILE_DRIVER_NOT_INITIALIZED);
  CHECK(strlen(cufileop_status_error(CU_FILE_HANDLE_NOT_REGISTERED)) > 0);
  printf("OK %s: version %d\n", group, version);
}

static void check_parameters(void) {
  size_t value = 0, least = 0, most = 0;
  WORKS(cuFileSetParameterSizeT(CUFILE_PARAM_POLLTHRESHOLD_SIZE_KB, 64));
  WORKS(cuFileGetParameterSizeT(CUFILE_PARAM_POLLTHRESHOLD_SIZE_KB, &value));
  EQUAL(value, 64);
  WORKS(cuFileSetParameterSizeT(CUFILE_PARAM_POLLTHRESHOLD_SIZE_KB, 4));
  WORKS(cuFileGetParameterMinMaxValue(CUFILE_PARAM_EXECUTION_MAX_IO_QUEUE_DEPTH, &least, &most));
  CHECK(least == 1 && most == 256);
  REFUSED(cuFileGetParameterMinMaxValue(CUFILE_PARAM_PROFILE_STATS, &least, &most), CU_FILE_INVALID_VALUE);
  REFUSED(cuFileGetParameterSizeT((CUFileSizeTConfigParameter_t)1000, &value), CU_FILE_INVALID_VALUE);

  bool flag = false;
  WORKS(cuFileSetParameterBool(CUFILE_PARAM_PREFER_IO_URING, true));
  WORKS(cuFileGetParameterBool(CUFILE_PARAM_PREFER_IO_URING, &flag));
  CHECK(flag);
  WORKS(cuFileSetParameterBool(CUFILE_PARAM_PREFER_IO_URING, false));

  char text[64] = "";
  WORKS(cuFileSetParameterString(CUFILE_PARAM_LOGGING_LEVEL, "INFO"));
  WORKS(cuFileGetParameterString(CUFILE_PARAM_LOGGING_LEVEL, text, sizeof text));
  CHECK(strcmp(text, "INFO") == 0);
  REFUSED(cuFileGetParameterString(CUFILE_PARAM_LOGGING_LEVEL, text, 4), CU_FILE_INVALID_VALUE);
  WORKS(cuFileSetParameterString(CUFILE_PARAM_LOGGING_LEVEL, "ERROR"));
  WORKS(cuFileSetParameterString(CUFILE_PARAM_LOG_DIR, folder));

  const size_t sizes[2] = {64, 1024}, counts[2] = {8, 4};
  size_t sizes_back[2] = {0, 0}, counts_back[2] = {0, 0};
  WORKS(cuFileSetParameterPosixPoolSlabArray(sizes, counts, 2));
  WORKS(cuFileGetParameterPosixPoolSlabArray(sizes_back, counts_back, 2));
  CHECK(memcmp(sizes, sizes_back, sizeof sizes) == 0 && memcmp(counts, counts_back, sizeof counts) == 0);
  WORKS(cuFileSetParameterGpuBounceBufferSlabArray(sizes, counts, 2));
  WORKS(cuFileGetParameterGpuBounceBufferSlabArray(sizes_back, counts_back, 2));
  CHECK(memcmp(sizes, sizes_back, sizeof sizes) == 0 && memcmp(counts, counts_back, sizeof counts) == 0);

  WORKS(cuFileDriverSetPollMode(false, 4));
  WORKS(cuFileDriverSetMaxDirectIOSize(1024));
  WORKS(cuFileDriverSetMaxCacheSize(131072));
  WORKS(cuFileDriverSetMaxPinnedMemSize(33554432));
  REFUSED(cuFileDriverSetMaxDirectIOSize(1), CU_FILE_DRIVER_UNSUPPORTED_LIMIT);

  CUfileP2PFlags_t flags = (CUfileP2PFlags_t)0;
  WORKS(cuFileDriverGetP2PFlags(CU_FILE_NVME_SUPPORTED, &flags));
  WORKS(cuFileDriverSetP2PFlags(CU_FILE_NVME_SUPPORTED, (CUfileP2PFlags_t)0));

  WORKS(cuFileDriverOpen());
  REFUSED(cuFileSetParameterSizeT(CUFILE_PARAM_POLLTHRESHOLD_SIZE_KB, 8), CU_FILE_DRIVER_ALREADY_OPEN);
  REFUSED(cuFileSetParameterBool(CUFILE_PARAM_PREFER_IO_URING, true), CU_FILE_DRIVER_ALREADY_OPEN);
  REFUSED(cuFileSetParameterString(CUFILE_PARAM_LOGGING_LEVEL, "INFO"), CU_FILE_DRIVER_ALREADY_OPEN);
  close_all();
  printf("OK %s\n", group);
}

static void check_registration(void) {
  make_file("small", 1, 10 * KIB);
  CUfileHandle_t handle = NULL;
  REFUSED(register_fd(-1, &handle, CU_FILE_HANDLE_TYPE_OPAQUE_FD), CU_FILE_INVALID_VALUE);
  const int directory = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  CHECK(directory >= 0);
  REFUSED(register_fd(directory, &handle, CU_FILE_HANDLE_TYPE_OPAQUE_FD), CU_FILE_INVALID_FILE_TYPE);
  close(directory);
  int ends[2];
  EQUAL(pipe(ends), 0);
  REFUSED(register_fd(ends[0], &handle, CU_FILE_HANDLE_TYPE_OPAQUE_FD), CU_FILE_INVALID_FILE_TYPE);
  close(ends[0]);
  close(ends[1]);
  const int appending = open(path("small"), O_WRONLY | O_APPEND | O_CLOEXEC);
  REFUSED(register_fd(appending, &handle, CU_FILE_HANDLE_TYPE_OPAQUE_FD), CU_FILE_INVALID_FILE_OPEN_FLAG);
  close(appending);

  struct opened file = open_registered("small", O_RDWR);
  CHECK(cuFileUseCount() == 1); /* opened by the first registration */
  REFUSED(register_fd(file.fd, &handle, CU_FILE_HANDLE_TYPE_OPAQUE_FD), CU_FILE_HANDLE_ALREADY_REGISTERED);
  REFUSED(register_fd(file.fd, &handle, CU_FILE_HANDLE_TYPE_OPAQUE_WIN32), CU_FILE_IO_NOT_SUPPORTED);
  CHECK(handle == NULL);
  const CUfileHandle_t stale = file.handle;
  cuFileHandleDeregister(file.handle);
  cuFileHandleDeregister(NULL);
  WORKS(register_fd(file.fd, &file.handle, CU_FILE_HANDLE_TYPE_OPAQUE_FD));
  char byte = 0;
  FAILS(cuFileRead(stale, &byte, 1, 0, 0), CU_FILE_HANDLE_NOT_REGISTERED);
  close_registered(file);

  void* memory = new_memory(MIB);
  WORKS(cuFileBufRegister(memory, MIB, 0));
  REFUSED(cuFileBufRegister(memory, MIB, 0), CU_FILE_MEMORY_ALREADY_REGISTERED);
  REFUSED(cuFileBufRegister(NULL, MIB, 0), CU_FILE_INVALID_VALUE);
  REFUSED(cuFileBufRegister(memory, 0, 0), CU_FILE_INVALID_VALUE);
  if (has_gpu) REFUSED(cuFileBufRegister((char*)memory + 4096, 64 * MIB, 0), CU_FILE_CUDA_POINTER_RANGE_ERROR);
  WORKS(cuFileBufDeregister(memory));
  REFUSED(cuFileBufDeregister(memory), CU_FILE_MEMORY_NOT_REGISTERED);
  REFUSED(cuFileBufDeregister(NULL), CU_FILE_INVALID_VALUE);
  close_all();
  REFUSED(cuFileBufDeregister(memory), CU_FILE_DRIVER_CLOSING);
  free_memory(memory);
  printf("OK %s\n", group);
}

static void check_transfers(int open_flags) {
  const size_t length = 3 * MIB + 777; /* a multiple of nothing */
  void* memory = new_memory(length + 8 * KIB);
  void* other = new_memory(length + 8 * KIB);
  unlink(path("data"));
  struct opened file = open_registered("data", O_RDWR | O_CREAT | open_flags);

  fill(memory, 2, length);
  EQUAL(cuFileWrite(file.handle, memory, length, 0, 0), length);
  CHECK(file_holds(path("data"), 0, 2, 0, length));
  wipe(other, length);
  EQUAL(cuFileRead(file.handle, other, length, 0, 0), length);
  CHECK(holds(other, 2, 0, length));

  /* registered memory, an offset in it, and one in the file that is aligned to nothing */
  WORKS(cuFileBufRegister(other, length + 8 * KIB, 0));
  wipe(other, length);
  EQUAL(cuFileRead(file.handle, other, 100001, 12345, 4099), 100001);
  CHECK(holds((char*)other + 4099, 2, 12345, 100001));
  fill(memory, 3, 5000);
  EQUAL(cuFileWrite(file.handle, memory, 4321, 777777, 17), 4321);
  CHECK(file_holds(path("data"), 777777, 3, 17, 4321));
  CHECK(file_holds(path("data"), 777000, 2, 777000, 777) && file_holds(path("data"), 777777 + 4321, 2, 777777 + 4321, 5000));

  /* the end of the file */
  wipe(other, 8 * KIB);
  EQUAL(cuFileRead(file.handle, other, 8 * KIB, (off_t)length - 1000, 0), 1000);
  CHECK(holds(other, 2, length - 1000, 1000));
  EQUAL(cuFileRead(file.handle, other, 8 * KIB, (off_t)length, 0), 0);
  EQUAL(cuFileRead(file.handle, other, 8 * KIB, (off_t)(length + MIB), 0), 0);
  EQUAL(cuFileRead(file.handle, other, 0, 0, 0), 0);
  EQUAL(cuFileWrite(file.handle, memory, 0, 0, 0), 0);
  fill(memory, 4, 5000);
  EQUAL(cuFileWrite(file.handle, memory, 5000, (off_t)length + 3, 0), 5000); /* past the end: a hole of three bytes */
  CHECK(file_holds(path("data"), (off_t)length + 3, 4, 0, 5000));

  /* what cannot be */
  FAILS(cuFileRead(file.handle, NULL, 10, 0, 0), EINVAL);
  FAILS(cuFileRead(file.handle, other, 10, -1, 0), CU_FILE_INVALID_VALUE);
  FAILS(cuFileRead(file.handle, other, 10, 0, -1), CU_FILE_INTERNAL_ERROR);
  FAILS(cuFileRead(file.handle, other, length + 8 * KIB, 0, 1), CU_FILE_INVALID_MAPPING_RANGE);
  FAILS(cuFileRead(NULL, other, 10, 0, 0), CU_FILE_HANDLE_NOT_REGISTERED);
  FAILS(cuFileRead((CUfileHandle_t)&file, other, 10, 0, 0), CU_FILE_HANDLE_NOT_REGISTERED);
  struct opened reader = open_registered("data", O_RDONLY | open_flags);
  FAILS(cuFileWrite(reader.handle, memory, 10, 0, 0), CU_FILE_INVALID_FILE_OPEN_FLAG);
  close_registered(reader);
  struct opened writer = open_registered("data", O_WRONLY | open_flags);
  FAILS(cuFileRead(writer.handle, other, 10, 0, 0), CU_FILE_INVALID_FILE_OPEN_FLAG);
  close_registered(writer);

  WORKS(cuFileBufDeregister(other));
  close_registered(file);
  close_all();
  free_memory(memory);
  free_memory(other);
  printf("OK %s\n", group);
}

enum { entries = 32 };

static void prepare(CUfileIOParams_t* operations, CUfileHandle_t handle, void* memory, size_t piece, CUfileOpcode_t opcode) {
  memset(operations, 0, entries * sizeof *operations);
  for (int i = 0; i < entries; ++i) {
    operations[i].mode = CUFILE_BATCH;
    operations[i].fh = handle;
    operations[i].opcode = opcode;
    operations[i].cookie = &operations[i];
    operations[i].u.batch.devPtr_base = memory;
    operations[i].u.batch.devPtr_offset = (off_t)((size_t)i * piece);
    operations[i].u.batch.file_offset = (off_t)((size_t)(entries - 1 - i) * piece); /* in the file, backwards */
    operations[i].u.batch.size = piece;
  }
}

/* Every operation once, complete and whole. */
static void collect(CUfileBatchHandle_t batch, CUfileIOParams_t* operations, size_t piece) {
  bool seen[entries] = {false};
  unsigned done = 0;
  while (done < entries) {
    CUfileIOEvents_t events[entries];
    unsigned count = entries;
    struct timespec limit = {10, 0};
    WORKS(cuFileBatchIOGetStatus(batch, 1, &count, events, &limit));
    CHECK(count > 0 && count <= entries - done);
    for (unsigned i = 0; i < count; ++i) {
      const long which = (CUfileIOParams_t*)events[i].cookie - operations;
      CHECK(which >= 0 && which < entries && !seen[which]);
      seen[which] = true;
      EQUAL(events[i].status, CUFILE_COMPLETE);
      EQUAL(events[i].ret, piece);
    }
    done += count;
  }
}

static void check_batch(void) {
  const size_t piece = 20 * KIB;
  void* memory = new_memory(entries * piece);
  unlink(path("batch"));
  struct opened file = open_registered("batch", O_RDWR | O_CREAT | O_DIRECT);
  CUfileBatchHandle_t batch = NULL;
  REFUSED(cuFileBatchIOSetUp(&batch, 0), CU_FILE_INVALID_VALUE);
  REFUSED(cuFileBatchIOSetUp(&batch, 257), CU_FILE_INVALID_VALUE);
  WORKS(cuFileBatchIOSetUp(&batch, entries));
  static CUfileIOParams_t operations[entries];

  fill(memory, 5, entries * piece);
  prepare(operations, file.handle, memory, piece, CUFILE_WRITE);
  WORKS(cuFileBatchIOSubmit(batch, entries, operations, 0));
  collect(batch, operations, piece);
  for (size_t i = 0; i < entries; ++i) CHECK(file_holds(path("batch"), (off_t)((entries - 1 - i) * piece), 5, i * piece, piece));

  wipe(memory, entries * piece);
  prepare(operations, file.handle, memory, piece, CUFILE_READ);
  WORKS(cuFileBatchIOSubmit(batch, entries, operations, 0));
  collect(batch, operations, piece);
  CHECK(holds(memory, 5, 0, entries * piece));

  /* past the end; too little room for the events asked for; nothing under way */
  CUfileIOEvents_t event;
  unsigned count = 1;
  operations[0].u.batch.file_offset = (off_t)(entries * piece);
  WORKS(cuFileBatchIOSubmit(batch, 1, operations, 0));
  REFUSED(cuFileBatchIOGetStatus(batch, 2, &count, &event, NULL), CU_FILE_INVALID_VALUE);
  count = 1;
  WORKS(cuFileBatchIOGetStatus(batch, 1, &count, &event, NULL));
  EQUAL(count, 1);
  EQUAL(event.status, CUFILE_COMPLETE);
  EQUAL(event.ret, 0);

  operations[0].fh = NULL;
  REFUSED(cuFileBatchIOSubmit(batch, 1, operations, 0), CU_FILE_INTERNAL_BATCH_SUBMIT_ERROR);
  prepare(operations, file.handle, memory, piece, CUFILE_READ);
  WORKS(cuFileBatchIOSubmit(batch, entries, operations, 0));
  WORKS(cuFileBatchIOCancel(batch));
  cuFileBatchIODestroy(batch);
  count = 1;
  REFUSED(cuFileBatchIOSubmit(batch, 1, operations, 0), CU_FILE_INTERNAL_BATCH_SUBMIT_ERROR);
  REFUSED(cuFileBatchIOGetStatus(batch, 0, &count, &event, NULL), CU_FILE_INTERNAL_BATCH_GETSTATUS_ERROR);
  close_registered(file);
  close_all();
  free_memory(memory);
  printf("OK %s\n", group);
}

static void check_streams(void) {
  size_t size = MIB + 5;
  off_t file_offset = 3, memory_offset = 7;
  ssize_t done = -99;
  make_file("stream", 6, 2 * MIB);
  struct opened file = open_registered("stream", O_RDWR | O_DIRECT);
  void* memory = new_memory(2 * MIB);
  if (!has_gpu) {
    WORKS(cuFileStreamRegister(NULL, 0));
    REFUSED(cuFileStreamRegister(NULL, 0x10), CU_FILE_INVALID_VALUE);
    const CUfileError_t refused = cuFileReadAsync(file.handle, memory, &size, &file_offset, &memory_offset, &done, NULL);
    CHECK(refused.err != CU_FILE_SUCCESS); /* host memory has no stream */
    WORKS(cuFileStreamDeregister(NULL));
  } else {
    void* raw = NULL;
    EQUAL(gpu.stream_create(&raw, 1), 0); /* CU_STREAM_NON_BLOCKING */
    const CUstream stream = (CUstream)raw;
    WORKS(cuFileStreamRegister(stream, 0));
    REFUSED(cuFileStreamRegister(stream, 0), CU_FILE_INVALID_VALUE);
    wipe(memory, 2 * MIB);
    WORKS(cuFileReadAsync(file.handle, memory, &size, &file_offset, &memory_offset, &done, stream));
    EQUAL(gpu.stream_synchronize(raw), 0);
    EQUAL(done, size);
    CHECK(holds((char*)memory + 7, 6, 3, size));
    off_t at_end = 2 * MIB - 10;
    WORKS(cuFileReadAsync(file.handle, memory, &size, &at_end, &memory_offset, &done, stream));
    EQUAL(gpu.stream_synchronize(raw), 0);
    EQUAL(done, 10);
    fill(memory, 7, 2 * MIB);
    WORKS(cuFileWriteAsync(file.handle, memory, &size, &file_offset, &memory_offset, &done, stream));
    EQUAL(gpu.stream_synchronize(raw), 0);
    EQUAL(done, size);
    CHECK(file_holds(path("stream"), 3, 7, 7, size));
    REFUSED(cuFileReadAsync(file.handle, memory, NULL, &file_offset, &memory_offset, &done, stream), CU_FILE_INVALID_VALUE);
    WORKS(cuFileStreamDeregister(stream));
    EQUAL(gpu.stream_destroy(raw), 0);
  }
  close_registered(file);
  close_all();
  free_memory(memory);
  printf("OK %s%s\n", group, has_gpu ? "" : ": refused for host memory");
}

static void check_stats(void) {
  int level = -1;
  REFUSED(cuFileSetStatsLevel(-1), CU_FILE_INVALID_VALUE);
  REFUSED(cuFileSetStatsLevel(4), CU_FILE_INVALID_VALUE);
  CUfileStatsLevel1_t one;
  REFUSED(cuFileGetStatsL1(&one), CU_FILE_DRIVER_NOT_INITIALIZED);
  WORKS(cuFileDriverOpen());
  WORKS(cuFileSetStatsLevel(3));
  WORKS(cuFileGetStatsLevel(&level));
  EQUAL(level, 3);
  WORKS(cuFileStatsStart());
  WORKS(cuFileStatsReset());

  make_file("stats", 8, MIB);
  struct opened file = open_registered("stats", O_RDWR);
  void* memory = new_memory(MIB);
  WORKS(cuFileBufRegister(memory, MIB, 0));
  for (int i = 0; i < 4; ++i) EQUAL(cuFileRead(file.handle, memory, 64 * KIB, i * 4096, 0), 64 * KIB);
  EQUAL(cuFileWrite(file.handle, memory, 4 * KIB, 0, 0), 4 * KIB);
  FAILS(cuFileRead(file.handle, memory, 10, -1, 0), CU_FILE_INVALID_VALUE);

  /* Behind each struct a byte that no call may touch. */
  struct {
    CUfileStatsLevel3_t stats;
    unsigned char guard[16];
  } three;
  struct {
    CUfileStatsLevel2_t stats;
    unsigned char guard[16];
  } two;
  memset(&three, 0xa5, sizeof three);
  memset(&two, 0xa5, sizeof two);
  WORKS(cuFileGetStatsL1(&one));
  WORKS(cuFileGetStatsL2(&two.stats));
  WORKS(cuFileGetStatsL3(&three.stats));
  for (int i = 0; i < 16; ++i) CHECK(two.guard[i] == 0xa5 && three.guard[i] == 0xa5);
  EQUAL(one.read_ops.ok, 4);
  EQUAL(one.read_bytes, 256 * KIB);
  EQUAL(one.write_ops.ok, 1);
  EQUAL(one.write_bytes, 4 * KIB);
  EQUAL(one.hdl_register_ops.ok, 1);
  EQUAL(one.buf_register_ops.ok, 1);
  CHECK(memcmp(&one.read_ops, &two.stats.basic.read_ops, sizeof one.read_ops) == 0);
  uint64_t reads = 0, writes = 0;
  for (int i = 0; i < 32; ++i) {
    reads += two.stats.read_size_kb_hist[i];
    writes += three.stats.detailed.write_size_kb_hist[i];
  }
  EQUAL(reads, 4);
  EQUAL(writes, 1);
  CHECK(three.stats.num_gpus <= 16);
  if (has_gpu) {
    CHECK(three.stats.num_gpus >= 1);
    uint64_t on_gpus = 0;
    for (unsigned i = 0; i < three.stats.num_gpus; ++i) on_gpus += three.stats.per_gpu_stats[i].read_bytes;
    EQUAL(on_gpus, 256 * KIB);
  }
  WORKS(cuFileStatsStop());
  EQUAL(cuFileRead(file.handle, memory, 4 * KIB, 0, 0), 4 * KIB);
  WORKS(cuFileGetStatsL1(&one));
  EQUAL(one.read_ops.ok, 4);
  WORKS(cuFileSetStatsLevel(1));
  REFUSED(cuFileGetStatsL2(&two.stats), CU_FILE_INVALID_VALUE);
  WORKS(cuFileSetStatsLevel(0));
  WORKS(cuFileBufDeregister(memory));
  close_registered(file);
  close_all();
  free_memory(memory);
  printf("OK %s\n", group);
}

static void check_machine(void) {
  size_t size_kb = 0;
  if (has_gpu) {
    WORKS(cuFileGetBARSizeInKB(0, &size_kb));
    CHECK(size_kb > 0);
  }
  REFUSED(cuFileGetBARSizeInKB(-1, &size_kb), CU_FILE_INVALID_VALUE);
  REFUSED(cuFileGetBARSizeInKB(1000, &size_kb), CU_FILE_INVALID_VALUE);
  WORKS(cuFileExportPCIeTopology(path("topology.json")));
  char line[256] = "";
  FILE* file = fopen(path("topology.json"), "r");
  CHECK(file != NULL && fgets(line, sizeof line, file) != NULL);
  CHECK(line[0] == '/' || line[0] == '#');
  CHECK(fgets(line, sizeof line, file) != NULL && line[0] == '{');
  fclose(file);
  close_all();
  printf("OK %s\n", group);
}

/* The file that holds cuFileRead must be the one that was asked for. */
static void check_library(const char* wanted) {
  Dl_info found;
  char real[PATH_MAX] = "?", real_wanted[PATH_MAX] = "";
  void* function = dlsym(RTLD_DEFAULT, "cuFileRead");
  CHECK(function != NULL && dladdr(function, &found) != 0 && realpath(found.dli_fname, real) != NULL);
  if (wanted != NULL && (realpath(wanted, real_wanted) == NULL || strcmp(real, real_wanted) != 0)) {
    fprintf(stderr, "FAILED %s: cuFileRead is in %s, not in %s\n", group, real, wanted);
    exit(1);
  }
  printf("OK %s: %s, %s%s\n", group, real, has_gpu ? "GPU memory" : "host memory: ", has_gpu ? "" : gpu.why_not);
}

int main(int argc, char** argv) {
  if (argc < 2 || argc > 3 || strlen(argv[1]) >= sizeof folder) {
    fprintf(stderr, "usage: nvidia_header FOLDER [LIBRARY]\n");
    return 2;
  }
  strcpy(folder, argv[1]);
  setvbuf(stdout, NULL, _IOLBF, 0);
  has_gpu = open_gpu();
  group = "library";
  check_library(argc > 2 ? argv[2] : NULL);
  group = "driver";
  check_driver();
  group = "parameters";
  check_parameters();
  group = "registration";
  check_registration();
  group = "transfers";
  check_transfers(0);
  group = "transfers with O_DIRECT";
  check_transfers(O_DIRECT);
  group = "batch";
  check_batch();
  group = "streams";
  check_streams();
  group = "stats";
  check_stats();
  group = "machine";
  check_machine();
  return 0;
}
