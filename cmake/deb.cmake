# Debian packages by `cpack -G DEB`: penstock (the command), libpenstock0 (the library, and the drop-in libcufile.so.0 in a folder of its own)
# and libpenstock-dev. What a package of Debian has besides the installed files, packaging/debian/stage.cmake adds.

set(PENSTOCK_MAINTAINER "The Penstock authors <maintainers@penstock.invalid>" CACHE STRING "Who answers for the Debian packages: name <address>")

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME penstock)
set(CPACK_PACKAGE_CONTACT ${PENSTOCK_MAINTAINER})
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS
    OWNER_READ
    OWNER_WRITE
    OWNER_EXECUTE
    GROUP_READ
    GROUP_EXECUTE
    WORLD_READ
    WORLD_EXECUTE)
set(CPACK_COMPONENTS_ALL command library development)
set(CPACK_PRE_BUILD_SCRIPTS ${PROJECT_SOURCE_DIR}/packaging/debian/stage.cmake)

set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_RELEASE 1)
set(CPACK_DEBIAN_PACKAGE_PRIORITY optional)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
set(CPACK_DEBIAN_COMPRESSION_TYPE xz)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS ${PROJECT_BINARY_DIR})
if(CMAKE_CROSSCOMPILING AND CMAKE_SYSTEM_PROCESSOR STREQUAL "aarch64")
  # dpkg-shlibdeps would ask what this machine has installed. Of Debian 12, which cmake/aarch64.cmake builds for.
  set(CPACK_DEBIAN_PACKAGE_ARCHITECTURE arm64)
  set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS OFF)
  foreach(each COMMAND LIBRARY)
    set(CPACK_DEBIAN_${each}_PACKAGE_DEPENDS "libc6 (>= 2.36), libgcc-s1 (>= 4.2), libstdc++6 (>= 12)")
  endforeach()
endif()
# Of the very same version: before 1.0 the C++ API of another is another.
set(CPACK_DEBIAN_ENABLE_COMPONENT_DEPENDS ON)
set(CPACK_COMPONENT_COMMAND_DEPENDS library)
set(CPACK_COMPONENT_DEVELOPMENT_DEPENDS library)

# By hand: what cpack would write names libcufile, too, which other packages shall not take from here.
set(library_package libpenstock${PROJECT_VERSION_MAJOR})
file(WRITE ${PROJECT_BINARY_DIR}/deb/shlibs "libpenstock ${PROJECT_VERSION_MAJOR} ${library_package} (= ${PROJECT_VERSION}-${CPACK_DEBIAN_PACKAGE_RELEASE})\n")
file(WRITE ${PROJECT_BINARY_DIR}/deb/triggers "activate-noawait ldconfig\n")
set(CPACK_DEBIAN_LIBRARY_PACKAGE_CONTROL_EXTRA ${PROJECT_BINARY_DIR}/deb/shlibs ${PROJECT_BINARY_DIR}/deb/triggers)

set(CPACK_DEBIAN_COMMAND_PACKAGE_NAME penstock)
set(CPACK_DEBIAN_COMMAND_PACKAGE_SECTION utils)
set(CPACK_DEBIAN_COMMAND_PACKAGE_RECOMMENDS "libssl3 | libssl3t64") # opened by `penstock verify`, for sha256
set(CPACK_COMPONENT_COMMAND_DESCRIPTION
    "command that moves bytes between files and GPU memory\nReads files into GPU or host memory and writes them from there, tells\nwhich way their bytes take and why, measures it beside the ceilings of\nthe machine, and starts programs that use NVIDIA cuFile on Penstock's\nlibrary. Works without a GPU, too."
)

set(CPACK_DEBIAN_LIBRARY_PACKAGE_NAME ${library_package})
set(CPACK_DEBIAN_LIBRARY_PACKAGE_SECTION libs)
set(CPACK_DEBIAN_LIBRARY_PACKAGE_SUGGESTS "libucx0, libcurl4 | libcurl4t64") # libcurl for URLs, with libssl3 for s3://
set(CPACK_COMPONENT_LIBRARY_DESCRIPTION
    "moves bytes between files, GPU memory and host memory\nA library for C++, and in a folder of its own a libcufile.so.0, which\nthe command penstock gives to programs that use NVIDIA cuFile. NVIDIA's\ndriver is used where it is installed, and UCX for pipes over RDMA."
)

set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_NAME libpenstock-dev)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_SECTION libdevel)
set(CPACK_COMPONENT_DEVELOPMENT_DESCRIPTION
    "moves bytes between files, GPU memory and host memory (headers)\nThe headers, and what CMake and pkg-config need to find the library."
)

include(CPack)
