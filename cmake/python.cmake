# The Python package's native half: penstock._native, and what a wheel carries beside it. Built by scikit-build-core (pyproject.toml),
# or by hand with -DPENSTOCK_BUILD_PYTHON=ON and a Python that has nanobind.

# With the code of libcufile.so.0, which penstock.cufile stands on; but for what speaks at the end of a program that has loaded that library
# and not used it. (A prebuilt one brings no objects of theirs.)
file(GLOB native_sources CONFIGURE_DEPENDS python/native/*.cc src/cufile/*.cc)
list(FILTER native_sources EXCLUDE REGEX "/cufile/(audit|device_node|direct_io|summary)\\.cc$")
list(APPEND native_sources src/base/output.cc)  # libpenstock exports none of it

# STABLE_ABI: one binary for Python 3.12 and newer; with 3.10 and 3.11 it is that version's own. NOMINSIZE: a call must cost little.
nanobind_add_module(
  penstock_native
  STABLE_ABI
  NB_STATIC
  NOMINSIZE
  NB_SUPPRESS_WARNINGS
  ${native_sources})
target_compile_options(penstock_native PRIVATE -Wconversion)
target_include_directories(penstock_native PRIVATE ${PROJECT_SOURCE_DIR}/python/native ${PROJECT_SOURCE_DIR}/src)
# cuFile's names must be this module's own, also where NVIDIA's library is in the process.
target_link_options(penstock_native PRIVATE -Wl,--version-script=${PROJECT_SOURCE_DIR}/cmake/native.map)
target_link_libraries(penstock_native PRIVATE penstock_flags penstock::penstock fmt::fmt-header-only nlohmann_json::nlohmann_json Threads::Threads)
set_target_properties(
  penstock_native
  PROPERTIES OUTPUT_NAME _native
             LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/python
             LINK_DEPENDS ${PROJECT_SOURCE_DIR}/cmake/native.map
             BUILD_WITH_INSTALL_RPATH ON
             INSTALL_RPATH "$ORIGIN/lib")

# The component "python" is the folder penstock/ of a wheel. A wheel holds no links: each library goes in once, under its SONAME.
install(TARGETS penstock_native LIBRARY DESTINATION . COMPONENT python EXCLUDE_FROM_ALL)
install(
  PROGRAMS $<TARGET_FILE:penstock>
  RENAME $<TARGET_SONAME_FILE_NAME:penstock>
  DESTINATION lib
  COMPONENT python EXCLUDE_FROM_ALL)
if(TARGET penstock_cufile)
  install(
    PROGRAMS $<TARGET_FILE:penstock_cufile>
    RENAME $<TARGET_SONAME_FILE_NAME:penstock_cufile>
    DESTINATION lib/penstock
    COMPONENT python EXCLUDE_FROM_ALL)
  foreach(module audit device_node direct_io)
    install(PROGRAMS $<TARGET_FILE:penstock_${module}> DESTINATION lib/penstock COMPONENT python EXCLUDE_FROM_ALL)
  endforeach()
endif()
if(TARGET penstock_cli)
  install(PROGRAMS $<TARGET_FILE:penstock_cli> DESTINATION bin COMPONENT python EXCLUDE_FROM_ALL)
endif()

# The commit that the wheel is made from, which penstock.kvikio tells: asked when it is made. Nothing where this is no checkout of its own.
install(
  CODE "
    execute_process(COMMAND git -C \"${PROJECT_SOURCE_DIR}\" rev-parse --show-toplevel HEAD
                    OUTPUT_VARIABLE told ERROR_QUIET OUTPUT_STRIP_TRAILING_WHITESPACE)
    if(told MATCHES \"^([^\n]+)\n([0-9a-f]+)$\" AND CMAKE_MATCH_1 STREQUAL \"${PROJECT_SOURCE_DIR}\")
      file(WRITE \"\${CMAKE_INSTALL_PREFIX}/GIT_COMMIT\" \"\${CMAKE_MATCH_2}\n\")
    endif()"
  COMPONENT python EXCLUDE_FROM_ALL)

# All that the wheel holds.
add_custom_target(penstock_python DEPENDS penstock_native)
if(NOT PENSTOCK_PREBUILT)
  foreach(part penstock_cli penstock_cufile penstock_audit penstock_device_node penstock_direct_io)
    if(TARGET ${part})
      add_dependencies(penstock_python ${part})
    endif()
  endforeach()
endif()
