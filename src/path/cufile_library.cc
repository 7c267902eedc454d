#include "path/cufile_library.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cctype>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>
#include <utility>
#include <vector>

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/types.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/no_memory.hpp"
#include "sys/library_folders.hpp"

namespace penstock::path {

// --- The part of libcufile's C interface that Penstock needs, under our own names (GPUDirect Storage API reference, CUDA 11.4 to 13.4).

// Outside the unnamed namespace: g++ 13 crashes on a class with external linkage whose members have such types.

// CUfileError_t, returned by value. code is 0 or at least 5001; cuda_code belongs to 5011.
struct cufile_outcome {
  int code;
  int cuda_code;
};
static_assert(sizeof(cufile_outcome) == 8);

// CUfileDescr_t
struct cufile_description {
  int type;
  union {
    int fd;
    void* handle;
  };
  const void* operations;
};
static_assert(sizeof(cufile_description) == 24 && offsetof(cufile_description, fd) == 8);

// CUfileDrvProps_t: 56 bytes so far, with room for fields in later versions.
struct cufile_properties {
  std::uint32_t major_version;
  std::uint32_t minor_version;
  std::uint64_t poll_threshold_kib;
  std::uint64_t max_direct_io_kib;
  std::uint32_t status_flags;   // kinds of storage that are supported
  std::uint32_t control_flags;  // bit 1: compatibility mode is allowed
  std::array<std::uint32_t, 64> rest;
};
static_assert(offsetof(cufile_properties, control_flags) == 28);

namespace {

constexpr int description_is_fd = 1;

constexpr std::uint32_t control_allows_compatibility = 1U << 1;

// Keys for cuFileSetParameterBool and cuFileSetParameterString (CUDA 12.9)
constexpr int allow_compatibility_mode = 1;
constexpr int force_compatibility_mode = 2;
constexpr int use_pci_p2pdma = 7;
constexpr int logfile_path = 1;

constexpr int driver_already_open = 5026;

}  // namespace

struct cufile_functions {
  cufile_outcome (*open)();
  cufile_outcome (*close)();
  cufile_outcome (*get_properties)(cufile_properties*);
  cufile_outcome (*register_handle)(cufile_handle*, cufile_description*);
  void (*deregister_handle)(cufile_handle);
  cufile_outcome (*register_buffer)(const void* base, std::size_t, int flags);
  cufile_outcome (*deregister_buffer)(const void* base);
  ssize_t (*read)(cufile_handle, void*, std::size_t, off_t file_offset, off_t memory_offset);
  ssize_t (*write)(cufile_handle, const void*, std::size_t, off_t file_offset, off_t memory_offset);
  long (*use_count)();  // may be null
  // Null before CUDA 12.9.
  cufile_outcome (*set_size)(int key, std::size_t);
  cufile_outcome (*set_bool)(int key, bool);
  cufile_outcome (*get_bool)(int key, bool*);
  cufile_outcome (*set_string)(int key, const char*);
  cufile_outcome (*get_string)(int key, char*, int length);
};

namespace {

// --- libcufile's errors

constexpr std::array<std::string_view, 49> code_names = {"DRIVER_NOT_INITIALIZED",
                                                         "DRIVER_INVALID_PROPS",
                                                         "DRIVER_UNSUPPORTED_LIMIT",
                                                         "DRIVER_VERSION_MISMATCH",
                                                         "DRIVER_VERSION_READ_ERROR",
                                                         "DRIVER_CLOSING",
                                                         "PLATFORM_NOT_SUPPORTED",
                                                         "IO_NOT_SUPPORTED",
                                                         "DEVICE_NOT_SUPPORTED",
                                                         "NVFS_DRIVER_ERROR",
                                                         "CUDA_DRIVER_ERROR",
                                                         "CUDA_POINTER_INVALID",
                                                         "CUDA_MEMORY_TYPE_INVALID",
                                                         "CUDA_POINTER_RANGE_ERROR",
                                                         "CUDA_CONTEXT_MISMATCH",
                                                         "INVALID_MAPPING_SIZE",
                                                         "INVALID_MAPPING_RANGE",
                                                         "INVALID_FILE_TYPE",
                                                         "INVALID_FILE_OPEN_FLAG",
                                                         "DIO_NOT_SET",
                                                         "unnamed",
                                                         "INVALID_VALUE",
                                                         "MEMORY_ALREADY_REGISTERED",
                                                         "MEMORY_NOT_REGISTERED",
                                                         "PERMISSION_DENIED",
                                                         "DRIVER_ALREADY_OPEN",
                                                         "HANDLE_NOT_REGISTERED",
                                                         "HANDLE_ALREADY_REGISTERED",
                                                         "DEVICE_NOT_FOUND",
                                                         "INTERNAL_ERROR",
                                                         "GETNEWFD_FAILED",
                                                         "unnamed",
                                                         "NVFS_SETUP_ERROR",
                                                         "IO_DISABLED",
                                                         "BATCH_SUBMIT_FAILED",
                                                         "GPU_MEMORY_PINNING_FAILED",
                                                         "BATCH_FULL",
                                                         "ASYNC_NOT_SUPPORTED",
                                                         "INTERNAL_BATCH_SETUP_ERROR",
                                                         "INTERNAL_BATCH_SUBMIT_ERROR",
                                                         "INTERNAL_BATCH_GETSTATUS_ERROR",
                                                         "INTERNAL_BATCH_CANCEL_ERROR",
                                                         "NOMEM_ERROR",
                                                         "IO_ERROR",
                                                         "INTERNAL_BUF_REGISTER_ERROR",
                                                         "HASH_OPR_ERROR",
                                                         "INVALID_CONTEXT_ERROR",
                                                         "NVFS_INTERNAL_DRIVER_ERROR",
                                                         "BATCH_NOCOMPAT_ERROR"};
constexpr int first_code = 5001;

std::string_view name_of(int code) {
  const int index = code - first_code;
  return index >= 0 && index < static_cast<int>(code_names.size()) ? code_names[static_cast<std::size_t>(index)] : "unnamed";
}

errc code_of(int code) {
  switch (code) {
    case 5012:  // CUDA_POINTER_INVALID
    case 5013:  // CUDA_MEMORY_TYPE_INVALID
    case 5014:  // CUDA_POINTER_RANGE_ERROR
      return errc::bad_memory;
    case 5036:  // GPU_MEMORY_PINNING_FAILED
    case 5043:  // NOMEM_ERROR
      return errc::out_of_memory;
    case 5025:  // PERMISSION_DENIED
      return errc::permission_denied;
    case 5011:  // CUDA_DRIVER_ERROR
    case 5015:  // CUDA_CONTEXT_MISMATCH
      return errc::device;
    case 5030:  // INTERNAL_ERROR
    case 5044:  // IO_ERROR
      return errc::io;
    default:
      return errc::unsupported;
  }
}

status answer(std::string_view what, cufile_outcome outcome) {
  if (outcome.code == 0) return {};
  auto message = fmt::format("{}: {} {}", what, outcome.code, name_of(outcome.code));
  if (outcome.cuda_code != 0) message += fmt::format(" (CUDA {})", outcome.cuda_code);
  return {code_of(outcome.code), std::move(message), error_domain::cufile, outcome.code};
}

// Converts the negative result of a read or write. According to the documentation, it is -1 with errno, or -code. The CUDA 13 binaries put
// the code into errno.
status failure(std::string_view what, ssize_t returned, int error_number) {
  const auto number = returned == -1 ? static_cast<ssize_t>(error_number) : -returned;
  if (number >= first_code) return answer(what, {static_cast<int>(number), 0});
  if (number == 0) return {errc::io, fmt::format("{} failed and reported no reason", what), error_domain::cufile};
  return status::from_errno(static_cast<int>(number), std::string(what));
}

// --- could this machine use GPUDirect?

constexpr auto nvidia_fs_version = "/proc/driver/nvidia-fs/version";
constexpr auto nvidia_parameters = "/proc/driver/nvidia/params";

std::string read_text(sys::kernel& kernel, const char* file_name) {
  constexpr std::size_t limit = 64 << 10;
  std::string text(limit, '\0');  // allocated before there is a descriptor that could leak
  const auto fd = kernel.open(file_name, O_RDONLY, 0);
  if (!fd) return {};
  std::size_t length = 0;
  while (length < limit) {
    const auto got = or_no_memory([&] { return kernel.pread(*fd, text.data() + length, limit - length, length); });
    if (!got || *got == 0) break;
    length += *got;
  }
  if (const auto closed = or_no_memory([&] { return kernel.close(*fd); }); !closed.ok()) return {};
  text.resize(length);
  return text;
}

// P2PDMA needs all of the GPU's memory permanently mapped into its BAR. An administrator requests that with this module parameter
// (GPUDirect Storage configuration guide). Registering a file shows whether the kernel and the drive support it.
bool driver_offers_p2pdma(sys::kernel& kernel) {
  auto text = read_text(kernel, nvidia_parameters);
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char letter) { return static_cast<char>(std::tolower(letter)); });
  return text.find("rmforcestaticbar1=1") != std::string::npos || text.find("rmforcestaticbar1=0x1") != std::string::npos;
}

// --- finding the library

constexpr auto library_name = "libcufile.so.0";

std::vector<std::string> usual_places() {
  auto folders = sys::toolkit_folders("/usr/local/cuda");
  const auto append = [&](const std::vector<std::string>& more) { folders.insert(folders.end(), more.begin(), more.end()); };
  // Parallel toolkits, newest first. The kernel interface cannot list folders, so this tries every version that may exist.
  for (int major = 14; major >= 11; --major) {
    for (int minor = 9; minor >= 0; --minor) append(sys::toolkit_folders(fmt::format("/usr/local/cuda-{}.{}", major, minor)));
  }
  append(sys::distribution_folders());
  return folders;
}

template <class Function>
bool find(void* image, const char* symbol, Function*& function) {
  function = reinterpret_cast<Function*>(dlsym(image, symbol));
  return function != nullptr;
}

// Loaded libraries bind to the global scope first, and NVIDIA's libcufile calls its own exported functions that way (1.15.1, for example
// cuFileHandleRegister). It would therefore call another libcufile that the program is linked with or has preloaded, which does not
// recognize its handles. RTLD_DEEPBIND gives its own functions priority. The sanitizer runtimes reject that flag.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int own_functions_first = 0;
#else
constexpr int own_functions_first = RTLD_DEEPBIND;
#endif

bool shadowed(void* image) {
  constexpr auto symbol = "cuFileHandleRegister";
  if (own_functions_first != 0) return false;
  void* program = dlopen(nullptr, RTLD_NOW);
  if (program == nullptr) return false;
  const void* first = dlsym(program, symbol);
  const bool other = first != nullptr && first != dlsym(image, symbol);
  dlclose(program);
  return other;
}

result<std::unique_ptr<cufile_functions>> open_image(const std::string& file_name) {
  // By full path, never by name, because Penstock's own replacement may be loaded under the same soname. The spelling must also be one that
  // no program uses: the audit module of `penstock run` resolves the normal one to the replacement, and the linker caches results by
  // spelling.
  void* image = dlopen(("/." + file_name).c_str(), RTLD_NOW | RTLD_LOCAL | own_functions_first);
  if (image == nullptr) return status(errc::not_found, fmt::format("libcufile could not be loaded: {}", dlerror()));
  const auto refuse = [&](errc code, std::string why) {
    dlclose(image);
    return status(code, std::move(why));
  };
  if (dlsym(image, "penstock_cufile_marker") != nullptr) {
    return refuse(errc::invalid_argument, fmt::format("{} is Penstock's own libcufile, not NVIDIA's", file_name));
  }
  auto functions = std::make_unique<cufile_functions>();
  auto& to = *functions;
  const bool complete = find(image, "cuFileDriverOpen", to.open) && find(image, "cuFileDriverGetProperties", to.get_properties) &&
                        find(image, "cuFileHandleRegister", to.register_handle) &&
                        find(image, "cuFileHandleDeregister", to.deregister_handle) &&
                        find(image, "cuFileBufRegister", to.register_buffer) && find(image, "cuFileBufDeregister", to.deregister_buffer) &&
                        find(image, "cuFileRead", to.read) && find(image, "cuFileWrite", to.write) &&
                        (find(image, "cuFileDriverClose_v2", to.close) || find(image, "cuFileDriverClose", to.close));
  if (!complete) return refuse(errc::unsupported, fmt::format("{} lacks cuFile functions", file_name));
  if (shadowed(image)) {
    return refuse(errc::unsupported, fmt::format("the program is linked with a different libcufile, which would shadow {}", file_name));
  }
  find(image, "cuFileUseCount", to.use_count);
  find(image, "cuFileSetParameterSizeT", to.set_size);
  find(image, "cuFileSetParameterBool", to.set_bool);
  find(image, "cuFileGetParameterBool", to.get_bool);
  find(image, "cuFileSetParameterString", to.set_string);
  find(image, "cuFileGetParameterString", to.get_string);
  return functions;  // never closed, because libcufile's threads and exit handlers outlive its use
}

struct found_library {
  std::string file_name;
  std::unique_ptr<cufile_functions> functions;
};

result<found_library> find_library(sys::kernel& kernel, const std::string& configured) {
  if (!configured.empty()) {
    if (configured.front() != '/') {
      return status(errc::invalid_argument, fmt::format("libcufile must be given by its full path, not as {}", configured));
    }
    if (!kernel.path_exists(configured)) return status(errc::not_found, fmt::format("libcufile was not found at {}", configured));
    auto functions = open_image(configured);
    if (!functions) return functions.error();
    return found_library{configured, std::move(*functions)};
  }
  status last(errc::not_found,
              fmt::format("{} was not found in {}, the same folders below /usr/local/cuda-*, {}", library_name,
                          fmt::join(sys::toolkit_folders("/usr/local/cuda"), ", "), fmt::join(sys::distribution_folders(), " or ")));
  for (const auto& folder : usual_places()) {
    auto file_name = fmt::format("{}/{}", folder, library_name);
    if (!kernel.path_exists(file_name)) continue;
    auto functions = open_image(file_name);
    if (functions) return found_library{std::move(file_name), std::move(*functions)};
    last = functions.error();
  }
  return last;
}

// --- process exit

// Set when exit() has started. From then on libcufile is not called, not even to close it, because an engine may be destroyed after
// libcufile's own objects. libcufile closes itself at exit.
constinit std::atomic<bool> process_ends{false};  // NOLINT(cppcoreguidelines-avoid-non-const-global-variables): see above

// The number of engines that have opened libcufile themselves.
constinit std::atomic<int> opened_here{0};  // NOLINT(cppcoreguidelines-avoid-non-const-global-variables): libcufile belongs to the process

status ended() { return {errc::closed, "the process is exiting"}; }

// Called once libcufile is open, so that its own handlers are already registered and run later.
void watch_exit(cufile_outcome (*of)()) noexcept {
  static std::atomic<cufile_outcome (*)()> watched{nullptr};
  if (watched.exchange(of) != of) (void)std::atexit([] { process_ends.store(true); });
}

}  // namespace

// --- the library

cufile_library::cufile_library(std::unique_ptr<cufile_functions> functions) : functions_(std::move(functions)) {}

cufile_library::~cufile_library() { (void)close(); }

status cufile_library::close() {
  if (process_ends) return ended();
  const bool was_open = !std::exchange(opened_, false);
  if (!was_open) {
    opened_here.fetch_sub(1);
    if (auto closed = answer("libcufile did not close", functions_->close()); !closed.ok()) return closed;
  }
  if (opened_here.load() > 0) return {};  // another engine closes it
  const bool stays_open = functions_->use_count != nullptr ? functions_->use_count() > 0 : was_open;
  if (!stays_open) return {};
  return {errc::unsupported, "this program has opened libcufile, which cannot be frozen: call cuFileDriverClose() first"};
}

status cufile_library::possible(sys::kernel& kernel) {
  if (driver_offers_p2pdma(kernel) || kernel.path_exists(nvidia_fs_version)) return {};
  return {errc::unsupported,
          fmt::format("nvidia-fs is not loaded ({} is missing), and the driver is not set up for P2PDMA ({} has no RMForceStaticBar1=1)",
                      nvidia_fs_version, nvidia_parameters)};
}

result<std::unique_ptr<cufile_library>> cufile_library::load(sys::kernel& kernel, const std::string& file_name,
                                                             const cufile_parameters& parameters) {
  if (process_ends) return ended();
  if (auto why = possible(kernel); !why.ok()) return why;
  const bool p2pdma = driver_offers_p2pdma(kernel);
  auto found = find_library(kernel, file_name);
  if (!found) return found.error();
  std::unique_ptr<cufile_library> library(new cufile_library(std::move(found->functions)));
  library->set(parameters);
  if (auto started = library->start(p2pdma, found->file_name); !started.ok()) return started;
  return library;
}

// Parameters that an older library does not recognize or considers out of range keep the library's defaults.
void cufile_library::set(const cufile_parameters& parameters) {
  auto& call = *functions_;
  for (const auto& [key, value] : parameters.sizes) {
    if (call.set_size != nullptr) call.set_size(key, value);
  }
  for (const auto& [key, value] : parameters.flags) {
    if (call.set_bool != nullptr) call.set_bool(key, value);
  }
}

status cufile_library::start(bool p2pdma, const std::string& file_name) {
  auto& call = *functions_;
  // Parameters take effect only on open. If the program has opened this library itself, the parameters are rejected (5026), and the
  // program's settings are checked below.
  if (call.set_bool != nullptr) {
    call.set_bool(allow_compatibility_mode, false);
    if (p2pdma) call.set_bool(use_pci_p2pdma, true);
  }
  // Unless the user chose a log file (CUFILE_LOGFILE_PATH), libcufile writes its errors to cufile.log in the working directory, where
  // Penstock must not leave any files. Errors that occur before it reads its parameters are still written there (1.15.1 without
  // libcuda.so.1).
  if (call.set_string != nullptr && call.get_string != nullptr) {
    std::array<char, 4096> chosen{};
    if (call.get_string(logfile_path, chosen.data(), static_cast<int>(chosen.size())).code != 0) call.set_string(logfile_path, "/dev/null");
  }
  const auto outcome = call.open();
  if (outcome.code != 0 && outcome.code != driver_already_open)
    return answer(fmt::format("libcufile ({}) did not start", file_name), outcome);
  watch_exit(call.open);
  opened_ = outcome.code == 0;
  if (opened_) opened_here.fetch_add(1);
  if (auto allowed = forbid_compatibility_mode(file_name); !allowed.ok()) return allowed;

  cufile_properties properties{};
  if (auto known = answer(fmt::format("libcufile ({}) did not report its properties", file_name), call.get_properties(&properties));
      !known.ok()) {
    return known;
  }
  // Not all versions have a flag for files served by P2PDMA. In those that lack it, only registration decides.
  if (!p2pdma && properties.status_flags == 0) {
    return {errc::unsupported, fmt::format("libcufile ({}) supports no GPU-direct storage here", file_name)};
  }
  return {};
}

// In compatibility mode, any file can be registered, wherever it is stored, and its bytes pass through host memory. In some versions the
// flag in the properties does not follow the parameter, so it is used only if the parameter cannot be read.
status cufile_library::forbid_compatibility_mode(const std::string& file_name) {
  auto& call = *functions_;
  bool allowed = true;
  bool forced = false;
  if (call.get_bool != nullptr) {
    if (auto asked =
            answer(fmt::format("libcufile ({}) did not report its mode", file_name), call.get_bool(allow_compatibility_mode, &allowed));
        !asked.ok()) {
      return asked;
    }
    if (call.get_bool(force_compatibility_mode, &forced).code != 0) forced = false;
  } else {
    cufile_properties properties{};
    if (call.get_properties(&properties).code == 0) allowed = (properties.control_flags & control_allows_compatibility) != 0;
  }
  if (!allowed && !forced) return {};
  return {errc::unsupported,
          fmt::format("libcufile ({}) may use its compatibility mode, which is not GPU-direct; in its cufile.json, {} must be false",
                      file_name, forced ? "force_compat_mode" : "allow_compat_mode")};
}

result<cufile_handle> cufile_library::register_file(int fd) {
  if (process_ends) return ended();
  cufile_description description{};
  description.type = description_is_fd;
  description.fd = fd;
  cufile_handle handle = nullptr;
  auto registered = answer("libcufile refused this file", functions_->register_handle(&handle, &description));
  if (!registered.ok()) return registered;
  return handle;
}

void cufile_library::deregister_file(cufile_handle handle) {
  if (!process_ends) functions_->deregister_handle(handle);
}

status cufile_library::register_buffer(std::byte* base, std::uint64_t bytes) {
  constexpr int no_flags = 0;
  if (process_ends) return ended();
  const auto outcome = functions_->register_buffer(base, bytes, no_flags);
  if (outcome.code == 0) return {};
  return answer(fmt::format("libcufile did not register {} bytes of memory", bytes), outcome);
}

void cufile_library::deregister_buffer(std::byte* base) {
  if (!process_ends) functions_->deregister_buffer(base);
}

result<std::size_t> cufile_library::read(cufile_handle handle, const cufile_memory& target, std::size_t bytes, std::uint64_t file_offset) {
  if (process_ends) return ended();
  errno = 0;
  const auto returned = functions_->read(handle, target.base, bytes, static_cast<off_t>(file_offset), static_cast<off_t>(target.offset));
  if (returned < 0) return failure("cuFileRead", returned, errno);
  return static_cast<std::size_t>(returned);
}

result<std::size_t> cufile_library::write(cufile_handle handle, const cufile_memory& source, std::size_t bytes, std::uint64_t file_offset) {
  if (process_ends) return ended();
  errno = 0;
  const auto returned = functions_->write(handle, source.base, bytes, static_cast<off_t>(file_offset), static_cast<off_t>(source.offset));
  if (returned < 0) return failure("cuFileWrite", returned, errno);
  return static_cast<std::size_t>(returned);
}

}  // namespace penstock::path
