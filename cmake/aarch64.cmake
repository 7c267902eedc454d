# Builds for 64-bit ARM on another machine, with Debian's cross compiler, against the libraries of a folder: what tools/aarch64 sets up.

set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)

set(PENSTOCK_AARCH64_ROOT ${CMAKE_CURRENT_LIST_DIR}/../build/aarch64-root CACHE PATH "Folder with a Debian for arm64 in it")
set(CMAKE_TRY_COMPILE_PLATFORM_VARIABLES PENSTOCK_AARCH64_ROOT)
set(CMAKE_SYSROOT ${PENSTOCK_AARCH64_ROOT})
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_LIBRARY_ARCHITECTURE aarch64-linux-gnu)

# Runs what was built, as the command that writes its own manual pages.
set(CMAKE_CROSSCOMPILING_EMULATOR ${CMAKE_CURRENT_LIST_DIR}/../build/aarch64-tools/qemu-aarch64 -L ${PENSTOCK_AARCH64_ROOT})

# Programs are of this machine, all else of that one.
set(CMAKE_FIND_ROOT_PATH ${PENSTOCK_AARCH64_ROOT})
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
if(SKBUILD)  # nanobind is sources, in the environment that makes the wheel
  set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE BOTH)
endif()
set(ENV{PKG_CONFIG_SYSROOT_DIR} ${PENSTOCK_AARCH64_ROOT})
set(ENV{PKG_CONFIG_LIBDIR} ${PENSTOCK_AARCH64_ROOT}/usr/lib/aarch64-linux-gnu/pkgconfig:${PENSTOCK_AARCH64_ROOT}/usr/share/pkgconfig)
