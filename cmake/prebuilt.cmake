# The library, the command and the cuFile face of a finished build (PENSTOCK_PREBUILT), as if they were targets of this one.

add_library(penstock SHARED IMPORTED)
add_library(penstock::penstock ALIAS penstock)
set_target_properties(
  penstock
  PROPERTIES IMPORTED_LOCATION ${PENSTOCK_PREBUILT}/libpenstock.so.${PROJECT_VERSION}
             IMPORTED_SONAME libpenstock.so.${PROJECT_VERSION_MAJOR}
             INTERFACE_INCLUDE_DIRECTORIES ${PROJECT_SOURCE_DIR}/include)

# The file itself: a link to it could not go into a wheel.
file(REAL_PATH ${PENSTOCK_PREBUILT}/cufile/libcufile.so.0 cufile_file)
add_library(penstock_cufile SHARED IMPORTED)
set_target_properties(penstock_cufile PROPERTIES IMPORTED_LOCATION ${cufile_file} IMPORTED_SONAME libcufile.so.0)
foreach(module audit device_node direct_io)
  add_library(penstock_${module} MODULE IMPORTED)
  set_target_properties(penstock_${module} PROPERTIES IMPORTED_LOCATION ${PENSTOCK_PREBUILT}/cufile/libpenstock_${module}.so)
endforeach()
add_executable(penstock_cli IMPORTED)
set_target_properties(penstock_cli PROPERTIES IMPORTED_LOCATION ${PENSTOCK_PREBUILT}/penstock)
