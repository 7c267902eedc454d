#include "machine/cuda_driver.hpp"

#include <array>
#include <cctype>

#include <dlfcn.h>
#include <fmt/format.h>

namespace penstock::machine {

namespace {

// The part of CUDA's driver interface that this file uses; the values are from its reference.
struct driver {
  int (*init)(unsigned flags) = nullptr;
  int (*get_error_name)(int error, const char** name) = nullptr;
  int (*driver_get_version)(int* version) = nullptr;
  int (*device_get_count)(int* count) = nullptr;
  int (*device_get)(int* device, int ordinal) = nullptr;
  int (*device_get_attribute)(int* value, int attribute, int device) = nullptr;
  int (*device_get_pci_bus_id)(char* name, int length, int device) = nullptr;
};
constexpr int compute_capability_major = 75;
constexpr int compute_capability_minor = 76;
constexpr int dma_buf_supported = 124;

template <class Function>
bool take(void* library, const char* name, Function& into) {
  into = reinterpret_cast<Function>(::dlsym(library, name));
  return into != nullptr;
}

bool take_all(void* library, driver& into) {
  return take(library, "cuInit", into.init) && take(library, "cuGetErrorName", into.get_error_name) &&
         take(library, "cuDriverGetVersion", into.driver_get_version) && take(library, "cuDeviceGetCount", into.device_get_count) &&
         take(library, "cuDeviceGet", into.device_get) && take(library, "cuDeviceGetAttribute", into.device_get_attribute) &&
         take(library, "cuDeviceGetPCIBusId", into.device_get_pci_bus_id);
}

std::string name_of(const driver& cuda, int error) {
  const char* name = nullptr;
  const bool known = cuda.get_error_name(error, &name) == 0 && name != nullptr;
  return fmt::format("{} ({})", known ? name : "an unnamed error", error);
}

cuda_gpu describe(const driver& cuda, int device) {
  cuda_gpu found;
  std::array<char, 32> address{};
  if (cuda.device_get_pci_bus_id(address.data(), static_cast<int>(address.size()) - 1, device) == 0) {
    for (const char* each = address.data(); *each != 0; ++each)
      found.address += static_cast<char>(std::tolower(static_cast<unsigned char>(*each)));
    constexpr std::size_t long_form = 16;  // with a 32-bit domain, as NVML prints it
    if (found.address.size() == long_form && found.address.starts_with("0000")) found.address.erase(0, 4);
  }
  int major = 0;
  int minor = 0;
  if (cuda.device_get_attribute(&major, compute_capability_major, device) == 0 &&
      cuda.device_get_attribute(&minor, compute_capability_minor, device) == 0) {
    found.capability = fmt::format("{}.{}", major, minor);
  }
  int lends = 0;
  if (cuda.device_get_attribute(&lends, dma_buf_supported, device) == 0) found.lends_dma_bufs = lends != 0;
  return found;
}

}  // namespace

cuda_state ask_cuda(const std::string& file) {
  cuda_state found;
  found.asked = true;
  found.code = -1;
  void* library = ::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* said = ::dlerror();
    return found.error = said != nullptr ? said : "the library cannot be loaded", found;
  }
  driver cuda;
  if (!take_all(library, cuda)) return found.error = file + " lacks functions of CUDA's driver interface", found;
  found.code = cuda.init(0);
  if (found.code != 0) return found.error = name_of(cuda, found.code), found;
  if (int version = 0; cuda.driver_get_version(&version) == 0) found.version = fmt::format("{}.{}", version / 1000, version % 1000 / 10);
  int count = 0;
  if (const int code = cuda.device_get_count(&count); code != 0) return found.code = code, found.error = name_of(cuda, code), found;
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    if (int device = 0; cuda.device_get(&device, ordinal) == 0) found.gpus.push_back(describe(cuda, device));
  }
  return found;
}

}  // namespace penstock::machine
