// libpenstock_audit.so, for LD_AUDIT: makes the dynamic linker load Penstock's libcufile for every request for libcufile. LD_PRELOAD alone
// covers only the bare name libcufile.so.0; a program that opens libcufile.so, or NVIDIA's library by its full path, would still get
// NVIDIA's. Our library is the libcufile.so.0 next to this module; without it, nothing changes. The dynamic linker loads this module into
// its own namespace before anything else in the process, so it uses only the C library and allocates nothing. Thread-safe: la_version
// writes everything before any other call, and later calls only read it. See rtld-audit(7).
#include <limits.h>
#include <link.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PENSTOCK_AUDIT_HOOK extern "C" __attribute__((visibility("default")))

namespace {

constexpr char our_name[] = "libcufile.so.0";

char our_library[PATH_MAX];  // the full path; empty if there is no such file

// The cookie of objects whose lookups are not changed. All other objects are the linker itself and the program's libraries.
constexpr char gets_what_it_asks_for = 0;
uintptr_t privileged_cookie() { return reinterpret_cast<uintptr_t>(&gets_what_it_asks_for); }

const char* base_name(const char* path) {
  const char* slash = strrchr(path, '/');
  return slash != nullptr ? slash + 1 : path;
}

// Returns true if the name is the prefix followed by any number of ".N" suffixes.
bool is_versioned(const char* name, const char* prefix) {
  const size_t length = strlen(prefix);
  if (strncmp(name, prefix, length) != 0) return false;
  for (const char* rest = name + length; *rest != '\0';) {
    if (*rest++ != '.') return false;
    const size_t digits = strspn(rest, "0123456789");
    if (digits == 0) return false;
    rest += digits;
  }
  return true;
}

bool is_our_library(const char* path) {
  if (!is_versioned(base_name(path), "libcufile.so")) return false;
  char real[PATH_MAX];
  char ours[PATH_MAX];
  return realpath(path, real) != nullptr && realpath(our_library, ours) != nullptr && strcmp(real, ours) == 0;
}

// Finds the object in this namespace that contains our_library. Does not use dladdr, because glibc before 2.34 crashes in it at this early
// stage.
int look_at(struct dl_phdr_info* object, size_t /*size*/, void* path) {
  const auto wanted = reinterpret_cast<uintptr_t>(our_library);
  for (int i = 0; i < object->dlpi_phnum; ++i) {
    const auto& segment = object->dlpi_phdr[i];
    if (segment.p_type != PT_LOAD || wanted - object->dlpi_addr - segment.p_vaddr >= segment.p_memsz) continue;
    return realpath(object->dlpi_name, static_cast<char*>(path)) != nullptr ? 1 : -1;
  }
  return 0;
}

void find_our_library() {
  char module[PATH_MAX];
  if (dl_iterate_phdr(look_at, module) != 1) return;
  const size_t folder = static_cast<size_t>(base_name(module) - module);
  if (folder + sizeof our_name > sizeof our_library) return;
  memcpy(our_library, module, folder);
  memcpy(our_library + folder, our_name, sizeof our_name);
  if (access(our_library, R_OK) != 0) our_library[0] = '\0';
}

}  // namespace

PENSTOCK_AUDIT_HOOK unsigned int la_version(unsigned int version) {
  find_our_library();
  if (our_library[0] == '\0') return 0;  // makes the linker drop this module
  return version < LAV_CURRENT ? version : LAV_CURRENT;
}

// Penstock itself opens NVIDIA's library by its full path, for the direct path, and must get NVIDIA's. It uses a spelling of the path that
// no program uses ("/./usr/..."). The linker calls la_objsearch only for names that are not loaded yet, so once a program has requested a
// name and got our library, that name keeps referring to ours (observed with glibc 2.36).
PENSTOCK_AUDIT_HOOK unsigned int la_objopen(struct link_map* object, Lmid_t /*space*/, uintptr_t* cookie) {
  if (is_versioned(base_name(object->l_name), "libpenstock.so") || is_our_library(object->l_name)) *cookie = privileged_cookie();
  return 0;  // no symbol hooks, so calls have no overhead
}

PENSTOCK_AUDIT_HOOK char* la_objsearch(const char* name, uintptr_t* cookie, unsigned int flag) {
  // Replace only the original name; the candidates on the search path that the linker tries later need not be replaced.
  const bool replace = flag == LA_SER_ORIG && *cookie != privileged_cookie() && is_versioned(base_name(name), "libcufile.so");
  return replace ? our_library : const_cast<char*>(name);
}
