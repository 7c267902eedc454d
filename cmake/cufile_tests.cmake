# Tests of libcufile.so.0 that are not GoogleTest, and its examples, which are C programs as a user of cuFile writes them.

enable_language(C)

set(cufile_abi_arguments --cc ${CMAKE_C_COMPILER} --cxx ${CMAKE_CXX_COMPILER} --nm ${CMAKE_NM} --readelf ${CMAKE_READELF} --cache
                         ${PROJECT_BINARY_DIR}/nvidia)
set(cufile_run_arguments --cc ${CMAKE_C_COMPILER} --audit $<TARGET_FILE:penstock_audit>)
# A sanitizer adds symbols to the library, and cannot be preloaded into a program without.
if(PENSTOCK_SANITIZE STREQUAL "none")
  list(APPEND cufile_abi_arguments --library $<TARGET_FILE:penstock_cufile>)
  if(TARGET penstock_cli)
    list(APPEND cufile_run_arguments --penstock $<TARGET_FILE:penstock_cli>)
  endif()
endif()

add_test(NAME abi.cufile COMMAND ${Python3_EXECUTABLE} ${PROJECT_SOURCE_DIR}/tests/abi/cufile_abi_test.py ${cufile_abi_arguments})
set_tests_properties(abi.cufile PROPERTIES LABELS abi TIMEOUT 300 SKIP_RETURN_CODE 77)

add_test(NAME tools.cufile_run_test COMMAND ${Python3_EXECUTABLE} ${PROJECT_SOURCE_DIR}/tests/tools/cufile_run_test.py ${cufile_run_arguments})
set_tests_properties(tools.cufile_run_test PROPERTIES LABELS tools TIMEOUT 180 SKIP_RETURN_CODE 77)

if(TARGET penstock_cli_tests)
  add_dependencies(penstock_cli_tests penstock_cufile penstock_audit penstock_device_node penstock_direct_io)
endif()

# --- how a client ends: a program of its own, since it exits, forks and unloads
add_executable(penstock_cufile_life tests/cufile/life.c)
target_include_directories(penstock_cufile_life PRIVATE include/cufile)
target_compile_options(penstock_cufile_life PRIVATE -Wall -Wextra)
target_link_libraries(penstock_cufile_life PRIVATE ${CMAKE_DL_LIBS} Threads::Threads)
set_target_properties(penstock_cufile_life PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
add_dependencies(penstock_cufile_life penstock_cufile)
add_test(NAME cufile.life COMMAND ${Python3_EXECUTABLE} ${PROJECT_SOURCE_DIR}/tests/cufile/life_test.py $<TARGET_FILE:penstock_cufile_life>
                                  $<TARGET_FILE:penstock_cufile>)
set_tests_properties(cufile.life PROPERTIES LABELS cufile TIMEOUT 300)

# --- fuzzers: built plain, they replay their corpus; with clang and -DPENSTOCK_FUZZ=ON, they look for more
option(PENSTOCK_FUZZ "Build the fuzzers with libFuzzer (needs clang)" OFF)
file(GLOB fuzzers CONFIGURE_DEPENDS tests/fuzz/*_fuzz.cc)
foreach(fuzzer IN LISTS fuzzers)
  get_filename_component(name ${fuzzer} NAME_WE)
  string(REGEX REPLACE "_fuzz$" "" corpus ${name})
  add_executable(penstock_${name} ${fuzzer})
  target_link_libraries(penstock_${name} PRIVATE penstock_test_support penstock_cufile_objects penstock_cufile_settings
                                                  penstock_static)
  set_target_properties(penstock_${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
  if(PENSTOCK_FUZZ)
    target_compile_options(penstock_${name} PRIVATE -fsanitize=fuzzer)
    target_link_options(penstock_${name} PRIVATE -fsanitize=fuzzer)
  elseif(corpus STREQUAL "cufile_calls" AND PENSTOCK_SANITIZE STREQUAL "thread")
    # Its client submits several transfers of one piece of memory at once: races of its own.
    target_sources(penstock_${name} PRIVATE tests/fuzz/replay_main.cc)
  else()
    target_sources(penstock_${name} PRIVATE tests/fuzz/replay_main.cc)
    add_test(NAME fuzz.replay_${corpus} COMMAND penstock_${name} ${PROJECT_SOURCE_DIR}/tests/fuzz/corpus/${corpus})
    set_tests_properties(fuzz.replay_${corpus} PROPERTIES LABELS fuzz TIMEOUT 120)
  endif()
endforeach()

# --- the examples, each run on a file whose size is a multiple of nothing
set(cufile_example_file ${PROJECT_BINARY_DIR}/examples/cufile/data)
add_test(NAME examples.cufile_file COMMAND ${Python3_EXECUTABLE} -c "import os; open('${cufile_example_file}', 'wb').write(os.urandom(5000011))")
set_tests_properties(examples.cufile_file PROPERTIES FIXTURES_SETUP cufile_example_file LABELS examples TIMEOUT 60)

file(GLOB cufile_examples CONFIGURE_DEPENDS examples/cufile/[0-9]*.c)
foreach(example IN LISTS cufile_examples)
  get_filename_component(name ${example} NAME_WE)
  set(target penstock_example_cufile_${name})
  add_executable(${target} ${example} examples/cufile/common.c)
  set_target_properties(
    ${target}
    PROPERTIES UNITY_BUILD OFF
               OUTPUT_NAME ${name}
               RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/examples/cufile
               C_STANDARD 11
               C_STANDARD_REQUIRED ON
               C_EXTENSIONS OFF)
  target_compile_options(${target} PRIVATE -Wall -Wextra)
  target_link_libraries(${target} PRIVATE penstock::cufile ${CMAKE_DL_LIBS} Threads::Threads)
  add_test(NAME examples.cufile_${name} COMMAND ${target} ${cufile_example_file} 5000000 300000)
  set_tests_properties(examples.cufile_${name} PROPERTIES FIXTURES_REQUIRED cufile_example_file LABELS examples TIMEOUT 120)
endforeach()
