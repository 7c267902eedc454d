// A client of libcufile.so.0 that exits, forks and unloads in the ways that clients do. Usage: life LIBRARY FILE MODE; life_test.py has the
// expected result of each mode. Opens the library at run time, as most clients do.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cufile.h"

#undef cuFileDriverClose

enum { piece_bytes = 1 << 20, readers = 4 };

static void* library;
static const char* library_name;
static const char* file_name;

#define CALL(name) ((__typeof__(&name))find(#name))

static void* find(const char* name) {
  void* found = dlsym(library, name);
  if (found == NULL) {
    fprintf(stderr, "no %s\n", name);
    exit(90);
  }
  return found;
}

static void load(void) {
  library = dlopen(library_name, RTLD_NOW | RTLD_LOCAL);
  if (library == NULL) {
    fprintf(stderr, "%s\n", dlerror());
    exit(91);
  }
}

static CUfileHandle_t register_file(void) {
  CUfileDescr_t what;
  CUfileHandle_t handle = NULL;
  memset(&what, 0, sizeof what);
  what.type = CU_FILE_HANDLE_TYPE_OPAQUE_FD;
  what.handle.fd = open(file_name, O_RDONLY);
  if (what.handle.fd < 0 || CALL(cuFileHandleRegister)(&handle, &what).err != CU_FILE_SUCCESS) exit(92);
  return handle;
}

static void read_once(CUfileHandle_t handle) {
  char* memory = malloc(piece_bytes);
  if (memory == NULL || CALL(cuFileRead)(handle, memory, piece_bytes, 0, 0) != piece_bytes) exit(93);
  free(memory);
}

static void* read_forever(void* handle) {
  char* memory = malloc(piece_bytes);
  for (off_t at = 0; memory != NULL; at = (at + piece_bytes) % (8 * piece_bytes)) {
    if (CALL(cuFileRead)(handle, memory, piece_bytes, at, 0) < 0) break;
  }
  free(memory);
  return NULL;
}

static void start_readers(CUfileHandle_t handle) {
  for (int i = 0; i < readers; ++i) {
    pthread_t thread;
    if (pthread_create(&thread, NULL, read_forever, handle) != 0) exit(94);
    pthread_detach(thread);
  }
}

// Entries that are still running, or have ended without being collected.
static void submit_batch(CUfileHandle_t handle) {
  static char memory[8][piece_bytes];
  CUfileBatchHandle_t batch;
  CUfileIOParams_t entries[8];
  if (CALL(cuFileBatchIOSetUp)(&batch, 8).err != CU_FILE_SUCCESS) exit(95);
  memset(entries, 0, sizeof entries);
  for (int i = 0; i < 8; ++i) {
    entries[i].mode = CUFILE_BATCH;
    entries[i].fh = handle;
    entries[i].opcode = CUFILE_READ;
    entries[i].u.batch.devPtr_base = memory[i];
    entries[i].u.batch.file_offset = (off_t)i * piece_bytes;
    entries[i].u.batch.size = piece_bytes;
  }
  if (CALL(cuFileBatchIOSubmit)(batch, 8, entries, 0).err != CU_FILE_SUCCESS) exit(96);
}

static void leave_in_flight(void) {
  CUfileHandle_t handle = register_file();
  read_once(handle);
  start_readers(handle);
  submit_batch(handle);
}

static CUfileHandle_t late_handle;

// As a client's static destructor does.
static void use_at_exit(void) {
  read_once(late_handle);
  CALL(cuFileHandleDeregister)(late_handle);
  if (CALL(cuFileDriverClose)().err != CU_FILE_SUCCESS) _exit(97);
}

static void reopen(void) {
  for (int round = 0; round < 3; ++round) {
    read_once(register_file());
    if (dlclose(library) != 0) exit(98);
    load();
  }
}

static void fork_under_load(void) {
  CUfileHandle_t handle = register_file();
  read_once(handle);
  start_readers(handle);
  for (int i = 0; i < 8; ++i) {
    pid_t child = fork();
    if (child == 0) {
      char byte;
      if (CALL(cuFileRead)(handle, &byte, 1, 0, 0) != -1) _exit(1);
      read_once(register_file());
      _exit(0);
    }
    int outcome = -1;
    if (child < 0 || waitpid(child, &outcome, 0) != child || outcome != 0) exit(99);
    read_once(handle);
  }
}

int main(int count, char** arguments) {
  if (count != 4) return 2;
  library_name = arguments[1];
  file_name = arguments[2];
  const char* mode = arguments[3];
  load();
  if (strcmp(mode, "exit_in_flight") == 0) {
    leave_in_flight();
    exit(7);
  } else if (strcmp(mode, "quick_exit_in_flight") == 0) {
    leave_in_flight();
    _exit(8);
  } else if (strcmp(mode, "use_at_exit") == 0) {
    late_handle = register_file();
    atexit(use_at_exit);
  } else if (strcmp(mode, "reopen") == 0) {
    reopen();
  } else if (strcmp(mode, "fork") == 0) {
    fork_under_load();
  } else if (strcmp(mode, "read") == 0) {
    read_once(register_file());
  } else {
    return 2;
  }
  return 0;
}
