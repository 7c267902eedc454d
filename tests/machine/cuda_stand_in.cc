// Replaces NVIDIA's libcuda.so.1: two GPUs, or the error that the variable STAND_IN_ERROR asks for.
#include <cstdio>
#include <cstdlib>

#pragma GCC visibility push(default)
extern "C" {

int cuInit(unsigned /*flags*/) {
  const char* error = std::getenv("STAND_IN_ERROR");
  return error == nullptr ? 0 : std::atoi(error);
}

int cuGetErrorName(int error, const char** name) {
  if (error != 802) return 1;
  *name = "CUDA_ERROR_SYSTEM_NOT_READY";
  return 0;
}

int cuDriverGetVersion(int* version) {
  *version = 13010;
  return 0;
}

int cuDeviceGetCount(int* count) {
  *count = 2;
  return 0;
}

int cuDeviceGet(int* device, int ordinal) {
  *device = ordinal;
  return 0;
}

int cuDeviceGetAttribute(int* value, int attribute, int device) {
  const bool major = attribute == 75;
  *value = device == 0 ? (major ? 9 : 0) : (major ? 10 : 3);
  return 0;
}

// The second as NVML would write it.
int cuDeviceGetPCIBusId(char* name, int length, int device) {
  std::snprintf(name, static_cast<std::size_t>(length), device == 0 ? "0000:1B:00.0" : "00000000:2C:00.0");
  return 0;
}
}
#pragma GCC visibility pop
