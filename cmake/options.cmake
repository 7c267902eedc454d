# What holds for every target: warnings, sanitizers, visibility, where things are put.

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_CXX_SCAN_FOR_MODULES OFF)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)

# build/release/penstock and build/release/libpenstock.so; found by each other also when the folder is copied elsewhere.
if(PROJECT_IS_TOP_LEVEL)
  set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR})
  set(CMAKE_LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR})
  set(CMAKE_ARCHIVE_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR})
endif()
set(CMAKE_BUILD_RPATH_USE_ORIGIN ON)
if(SKBUILD)
  add_link_options(-s)  # a wheel has the symbols that the dynamic linker needs
endif()

if(NOT DEFINED CMAKE_CXX_COMPILER_LAUNCHER AND PROJECT_IS_TOP_LEVEL)
  find_program(PENSTOCK_CCACHE ccache)
  mark_as_advanced(PENSTOCK_CCACHE)
  if(PENSTOCK_CCACHE)
    set(CMAKE_CXX_COMPILER_LAUNCHER ${PENSTOCK_CCACHE})
  endif()
endif()

# Several sources of a target are compiled as one, which takes a third of the time, since most of it goes into headers. The preset debug
# compiles each alone, which shows whether it includes what it uses.
if(PROJECT_IS_TOP_LEVEL AND NOT DEFINED CMAKE_UNITY_BUILD)
  set(CMAKE_UNITY_BUILD ON)
endif()
set(CMAKE_UNITY_BUILD_BATCH_SIZE 24 CACHE STRING "Sources compiled as one")

# Flags of our own targets, which all link this.
add_library(penstock_flags INTERFACE)
target_compile_options(
  penstock_flags
  INTERFACE -Wall
            -Wextra
            -UNDEBUG  # broken invariants are asserts that stay on, in every build type
)

if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # g++ collects its garbage at 512 MiB, not at a few: a tenth less time.
  target_compile_options(penstock_flags INTERFACE "SHELL:--param ggc-min-heapsize=524288")
endif()

if(CMAKE_UNITY_BUILD AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # g++ warns of types in headers that hold types of an unnamed namespace, and takes the sources that one includes for headers.
  target_compile_options(penstock_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Wno-subobject-linkage>)
endif()

if(PENSTOCK_SANITIZE STREQUAL "address")
  set(sanitizer_flags -fsanitize=address,undefined -fno-sanitize-recover=all)
elseif(PENSTOCK_SANITIZE STREQUAL "thread")
  set(sanitizer_flags -fsanitize=thread)
elseif(NOT PENSTOCK_SANITIZE STREQUAL "none")
  message(FATAL_ERROR "PENSTOCK_SANITIZE is none, address or thread; not '${PENSTOCK_SANITIZE}'.")
endif()
if(NOT PENSTOCK_SANITIZE STREQUAL "none")
  # -Wmaybe-uninitialized: g++'s manual warns of false alarms with sanitizers. The release build has it.
  target_compile_options(penstock_flags INTERFACE ${sanitizer_flags} -O1 -g1 -fno-omit-frame-pointer -Wno-maybe-uninitialized)
  add_link_options(${sanitizer_flags})
endif()
if(PENSTOCK_SANITIZE STREQUAL "thread" AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # g++ warns of every std::atomic_thread_fence, also of those inside the standard library: the sanitizer does not model fences.
  target_compile_options(penstock_flags INTERFACE -Wno-tsan)
endif()
