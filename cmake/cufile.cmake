# libcufile.so.0: NVIDIA's C interface over the engine, and the audit module that gives it to programs which name NVIDIA's file.
# Both lie in a folder of their own, in the build tree and installed, so that nothing finds them by accident.

file(GLOB cufile_sources CONFIGURE_DEPENDS src/cufile/*.cc)
list(FILTER cufile_sources EXCLUDE REGEX "/(audit|device_node|direct_io)\\.cc$")

set(cufile_output_dir ${PROJECT_BINARY_DIR}/cufile)

# Compiled once, for the library and for its tests; the settings for the command too. Knows the public API only: core's headers are in src/
# too, but check_includes watches.
set(settings_sources ${cufile_sources})
list(FILTER settings_sources INCLUDE REGEX "/settings[^/]*\\.cc$")
list(REMOVE_ITEM cufile_sources ${settings_sources})
add_library(penstock_cufile_settings OBJECT ${settings_sources})
add_library(penstock_cufile_objects OBJECT ${cufile_sources})
foreach(objects penstock_cufile_settings penstock_cufile_objects)
  target_include_directories(${objects} PUBLIC ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}/src)
  target_compile_options(${objects} PRIVATE -Wconversion)
  target_link_libraries(${objects} PUBLIC penstock_flags penstock_fmt nlohmann_json::nlohmann_json)
endforeach()

# output.cc: libpenstock exports none of it.
add_library(
  penstock_cufile SHARED $<TARGET_OBJECTS:penstock_cufile_objects> $<TARGET_OBJECTS:penstock_cufile_settings> src/base/output.cc)
add_library(penstock::cufile ALIAS penstock_cufile)
target_include_directories(
  penstock_cufile
  PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include/cufile> $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}/penstock/cufile>
  PRIVATE ${PROJECT_SOURCE_DIR}/src)
# A program in C sees cufile.h only: neither the C++ API nor its language level.
target_link_libraries(
  penstock_cufile PRIVATE penstock_flags penstock_fmt penstock ${CMAKE_DL_LIBS} Threads::Threads)
target_link_options(
  penstock_cufile
  PRIVATE
  -Wl,--exclude-libs,ALL
  -Wl,--version-script=${PROJECT_SOURCE_DIR}/cmake/cufile.map
  -Wl,-z,nodelete)  # threads and registered streams outlive a dlclose
if(PENSTOCK_SANITIZE STREQUAL "none")
  target_link_options(penstock_cufile PRIVATE -Wl,-z,defs)
endif()
# The real file's name says which cuFile it stands for, the SONAME is NVIDIA's.
set_target_properties(
  penstock_cufile
  PROPERTIES LINKER_LANGUAGE CXX
             OUTPUT_NAME cufile
             VERSION 1.17.0
             SOVERSION 0
             LIBRARY_OUTPUT_DIRECTORY ${cufile_output_dir}
             LINK_DEPENDS ${PROJECT_SOURCE_DIR}/cmake/cufile.map
             BUILD_WITH_INSTALL_RPATH ${PROJECT_IS_TOP_LEVEL}
             INSTALL_RPATH "$ORIGIN;$ORIGIN/.."
             EXPORT_NAME cufile)

# These run inside other programs, so they use only the C library and no sanitizer. audit runs inside the dynamic linker, before the program's own
# libraries. `penstock run` preloads direct_io, and with --nvidia-fs-node also device_node.
foreach(module audit device_node direct_io)
  add_library(penstock_${module} MODULE src/cufile/${module}.cc)
  target_compile_options(
    penstock_${module}
    PRIVATE -Wall
            -Wextra
            -Wconversion
            -fno-exceptions
            -fno-rtti
            -fno-threadsafe-statics
            -fno-sanitize=all)
  target_link_options(penstock_${module} PRIVATE -fno-sanitize=all -nodefaultlibs -Wl,-z,defs)
  target_link_libraries(penstock_${module} PRIVATE c)
  set_target_properties(penstock_${module} PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${cufile_output_dir})
endforeach()

if(PENSTOCK_INSTALL)
  install(TARGETS penstock_cufile EXPORT penstock_targets LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}/penstock COMPONENT library)
  install(TARGETS penstock_audit penstock_device_node penstock_direct_io LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}/penstock COMPONENT library)
  install(FILES include/cufile/cufile.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/penstock/cufile COMPONENT development)

  # As penstock.pc, found from where it lies.
  file(RELATIVE_PATH pc_to_prefix ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_PREFIX})
  string(REGEX REPLACE "/$" "" pc_to_prefix "${pc_to_prefix}")
  file(RELATIVE_PATH pc_libdir ${CMAKE_INSTALL_PREFIX} ${CMAKE_INSTALL_FULL_LIBDIR})
  file(RELATIVE_PATH pc_includedir ${CMAKE_INSTALL_PREFIX} ${CMAKE_INSTALL_FULL_INCLUDEDIR})
  configure_file(cmake/penstock-cufile.pc.in ${PROJECT_BINARY_DIR}/penstock-cufile.pc @ONLY)
  install(FILES ${PROJECT_BINARY_DIR}/penstock-cufile.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT development)
endif()
