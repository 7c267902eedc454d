# What Penstock is built with. Nothing is downloaded; what is missing is named with the package that holds it.

function(penstock_require found what debian_package)
  if(NOT found)
    message(
      FATAL_ERROR
        "${what} not found: install the package ${debian_package} (Debian and Ubuntu: apt-get install ${debian_package}; or run tools/setup, which installs all that is needed)."
    )
  endif()
endfunction()

find_package(Threads)
penstock_require("${Threads_FOUND}" "POSIX threads" libc6-dev)

find_package(fmt CONFIG QUIET)
penstock_require("${fmt_FOUND}" "The {fmt} library" libfmt-dev)

# Never libfmt.so: what is built here runs where it is not installed. With version 9 (Debian 12, Ubuntu 24.04) what is not a template
# is compiled once; with any other, in each source.
if(fmt_VERSION VERSION_GREATER_EQUAL 9 AND fmt_VERSION VERSION_LESS 10)
  add_library(penstock_fmt STATIC EXCLUDE_FROM_ALL src/base/fmt_compiled.cc)
  target_include_directories(penstock_fmt SYSTEM PUBLIC $<TARGET_PROPERTY:fmt::fmt-header-only,INTERFACE_INCLUDE_DIRECTORIES>)
  target_link_libraries(penstock_fmt PRIVATE penstock_flags)
else()
  add_library(penstock_fmt INTERFACE)
  target_link_libraries(penstock_fmt INTERFACE fmt::fmt-header-only)
endif()

set(penstock_system_libraries Threads::Threads ${CMAKE_DL_LIBS})

# io_uring is optional: without it src/sys answers "unsupported", as it does under a seccomp profile that denies it.
find_path(PENSTOCK_URING_INCLUDE liburing.h)
find_library(PENSTOCK_URING_STATIC NAMES liburing.a)
find_library(PENSTOCK_URING_SHARED NAMES uring)
mark_as_advanced(PENSTOCK_URING_INCLUDE PENSTOCK_URING_STATIC PENSTOCK_URING_SHARED)
set(PENSTOCK_HAVE_URING 0)
if(PENSTOCK_URING_INCLUDE AND (PENSTOCK_URING_STATIC OR PENSTOCK_URING_SHARED))
  set(PENSTOCK_HAVE_URING 1)
  if(PENSTOCK_URING_STATIC)
    # Preferred, so that the library runs where liburing is not installed; but some distributions build the archive without -fPIC.
    include(CheckCXXSourceCompiles)
    set(CMAKE_REQUIRED_FLAGS -fPIC)
    set(CMAKE_REQUIRED_LINK_OPTIONS -shared)
    set(CMAKE_REQUIRED_LIBRARIES -Wl,--whole-archive ${PENSTOCK_URING_STATIC} -Wl,--no-whole-archive)
    check_cxx_source_compiles("int penstock_probe() { return 0; }" PENSTOCK_URING_STATIC_IS_PIC)
    unset(CMAKE_REQUIRED_FLAGS)
    unset(CMAKE_REQUIRED_LINK_OPTIONS)
    unset(CMAKE_REQUIRED_LIBRARIES)
  endif()
  if(PENSTOCK_URING_STATIC AND PENSTOCK_URING_STATIC_IS_PIC)
    list(APPEND penstock_system_libraries ${PENSTOCK_URING_STATIC})
  elseif(PENSTOCK_URING_SHARED)
    list(APPEND penstock_system_libraries ${PENSTOCK_URING_SHARED})
  else()
    set(PENSTOCK_HAVE_URING 0)
  endif()
endif()
if(NOT PENSTOCK_HAVE_URING)
  message(WARNING "liburing not found: building without io_uring, which reads from disk need to be fast. Install the package liburing-dev.")
endif()

# UCX is optional: src/sys/ucx.cc is built with its headers, and opens its libraries at run time where they are.
find_path(PENSTOCK_UCX_INCLUDE ucp/api/ucp.h)
mark_as_advanced(PENSTOCK_UCX_INCLUDE)
set(ucx_found OFF)
if(PENSTOCK_UCX_INCLUDE)
  set(ucx_found ON)
endif()
option(PENSTOCK_UCX "Build with UCX's headers, for pipes over RDMA" ${ucx_found})
if(PENSTOCK_UCX)
  penstock_require("${PENSTOCK_UCX_INCLUDE}" "UCX (or configure with -DPENSTOCK_UCX=OFF)" libucx-dev)
  set(ucx_options -DPENSTOCK_HAVE_UCX=1)
  if(NOT PENSTOCK_UCX_INCLUDE STREQUAL "/usr/include")
    list(APPEND ucx_options -isystem ${PENSTOCK_UCX_INCLUDE})
  endif()
  set_source_files_properties(src/sys/ucx.cc PROPERTIES COMPILE_OPTIONS "${ucx_options}")
endif()

# What the code of the rooms sees: their headers, {fmt} and whether there is io_uring.
add_library(penstock_internal INTERFACE)
target_include_directories(penstock_internal INTERFACE ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}/src)
target_link_libraries(penstock_internal INTERFACE penstock_flags penstock_fmt Threads::Threads)
target_compile_definitions(penstock_internal INTERFACE PENSTOCK_HAVE_URING=${PENSTOCK_HAVE_URING})
if(PENSTOCK_HAVE_URING)
  target_include_directories(penstock_internal SYSTEM INTERFACE ${PENSTOCK_URING_INCLUDE})
endif()

if(PENSTOCK_BUILD_CLI OR PENSTOCK_BUILD_TESTS)
  find_package(CLI11 CONFIG QUIET)
  penstock_require("${CLI11_FOUND}" "CLI11 (for the penstock command; or configure with -DPENSTOCK_BUILD_CLI=OFF)" libcli11-dev)
  find_package(nlohmann_json CONFIG QUIET)
  penstock_require("${nlohmann_json_FOUND}" "nlohmann/json (for the penstock command; or configure with -DPENSTOCK_BUILD_CLI=OFF)" nlohmann-json3-dev)
  find_path(PENSTOCK_XXHASH_INCLUDE xxhash.h)
  mark_as_advanced(PENSTOCK_XXHASH_INCLUDE)
  penstock_require("${PENSTOCK_XXHASH_INCLUDE}" "xxHash (for the penstock command and the tests)" libxxhash-dev)

  # For the command, the benchmarks and the tests; the library itself uses none of these.
  add_library(penstock_tool_libraries INTERFACE)
  target_link_libraries(penstock_tool_libraries INTERFACE CLI11::CLI11 nlohmann_json::nlohmann_json)
  target_include_directories(penstock_tool_libraries SYSTEM INTERFACE ${PENSTOCK_XXHASH_INCLUDE})
endif()

if(PENSTOCK_BUILD_TESTS)
  find_package(GTest CONFIG QUIET)
  penstock_require("${GTest_FOUND}" "GoogleTest (for the tests; or configure with -DPENSTOCK_BUILD_TESTS=OFF)" libgtest-dev)
  find_package(Python3 COMPONENTS Interpreter QUIET)
  penstock_require("${Python3_FOUND}" "Python 3 (for the tests; or configure with -DPENSTOCK_BUILD_TESTS=OFF)" python3)
endif()
