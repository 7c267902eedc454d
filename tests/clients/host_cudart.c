/* The functions of CUDA's runtime, driver and random-number library that the clients call, on host memory, for machines without a GPU. Built as
 * libcudart.so.13, which comes first in LD_LIBRARY_PATH there. cuFile accepts host memory too, so a client's files and checks are the same as with
 * a GPU. Penstock finds no libcuda.so.1. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { OK = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, ALIGNMENT = 65536, ALLOCATIONS = 65536 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static void* allocated[ALLOCATIONS];

/* Replaces old_address in the list by new_address. Returns 0 if it was not found. */
static int replace(void* old_address, void* new_address) {
  int found = 0;
  pthread_mutex_lock(&lock);
  for (int i = 0; i < ALLOCATIONS && !found; ++i) {
    if (allocated[i] == old_address) {
      allocated[i] = new_address;
      found = 1;
    }
  }
  pthread_mutex_unlock(&lock);
  return found;
}

int cudaGetDeviceCount(int* count) {
  *count = 1;
  return OK;
}

int cudaGetDevice(int* device) {
  *device = 0;
  return OK;
}

int cudaSetDevice(int device) {
  return device == 0 ? OK : INVALID_VALUE;
}

int cudaMalloc(void** memory, size_t bytes) {
  *memory = aligned_alloc(ALIGNMENT, (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT);
  return *memory && replace(NULL, *memory) ? OK : OUT_OF_MEMORY;
}

int cudaMallocHost(void** memory, size_t bytes) {
  return cudaMalloc(memory, bytes);
}

int cudaHostAlloc(void** memory, size_t bytes, unsigned flags) {
  (void)flags;
  return cudaMalloc(memory, bytes);
}

int cudaMallocManaged(void** memory, size_t bytes, unsigned flags) {
  (void)flags;
  return cudaMalloc(memory, bytes);
}

/* Refuses an address that is not an allocation, as CUDA does. */
int cudaFree(void* memory) {
  if (memory && !replace(memory, NULL)) return INVALID_VALUE;
  free(memory);
  return OK;
}

int cudaFreeHost(void* memory) {
  return cudaFree(memory);
}

/* Describes all memory as unknown to CUDA. */
int cudaPointerGetAttributes(void* attributes, const void* memory) {
  (void)memory;
  memset(attributes, 0, 2 * sizeof(int) + 2 * sizeof(void*) + 8 * sizeof(long));
  return OK;
}

int cudaMemcpy(void* target, const void* source, size_t bytes, int kind) {
  (void)kind;
  memmove(target, source, bytes);
  return OK;
}

int cudaMemcpyAsync(void* target, const void* source, size_t bytes, int kind, void* stream) {
  (void)stream;
  return cudaMemcpy(target, source, bytes, kind);
}

int cudaMemset(void* memory, int value, size_t bytes) {
  memset(memory, value, bytes);
  return OK;
}

int cudaMemsetAsync(void* memory, int value, size_t bytes, void* stream) {
  (void)stream;
  return cudaMemset(memory, value, bytes);
}

int cudaHostRegister(void* memory, size_t bytes, unsigned flags) {
  (void)memory, (void)bytes, (void)flags;
  return OK;
}

int cudaHostUnregister(void* memory) {
  (void)memory;
  return OK;
}

int cudaDeviceSynchronize(void) {
  return OK;
}

int cudaStreamSynchronize(void* stream) {
  (void)stream;
  return OK;
}

int cudaStreamCreateWithFlags(void** stream, unsigned flags) {
  (void)flags;
  *stream = NULL;
  return OK;
}

int cudaStreamDestroy(void* stream) {
  (void)stream;
  return OK;
}

int cuInit(unsigned flags) {
  (void)flags;
  return OK;
}

int cuGetErrorName(int error, const char** name) {
  *name = error == INVALID_VALUE ? "CUDA_ERROR_INVALID_VALUE" : "another error";
  return OK;
}

int curandCreateGenerator(void** generator, int kind) {
  (void)kind;
  *generator = NULL;
  return OK;
}

int curandSetPseudoRandomGeneratorSeed(void* generator, unsigned long long seed) {
  (void)generator;
  srand((unsigned)seed);
  return OK;
}

int curandGenerate(void* generator, unsigned* numbers, size_t count) {
  (void)generator;
  for (size_t i = 0; i < count; ++i) numbers[i] = (unsigned)rand();
  return OK;
}

int curandDestroyGenerator(void* generator) {
  (void)generator;
  return OK;
}

int cudaGetLastError(void) {
  return OK;
}

const char* cudaGetErrorName(int error) {
  return error == OK ? "cudaSuccess" : "an error of the stand-in";
}

const char* cudaGetErrorString(int error) {
  return cudaGetErrorName(error);
}
