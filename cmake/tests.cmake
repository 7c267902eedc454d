# One executable per folder of tests/: tests/sys/*.cc becomes penstock_sys_tests. tests/support is linked into all of them.
# A suite or a test whose name begins with long_ carries the label `long`, and is left out of a plain ./test.

include(GoogleTest)

file(GLOB_RECURSE support_sources CONFIGURE_DEPENDS tests/support/*.cc)
add_library(penstock_test_support INTERFACE)
target_include_directories(penstock_test_support INTERFACE ${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/tests)
target_link_libraries(penstock_test_support INTERFACE penstock_internal penstock_tool_libraries GTest::gtest)
if(support_sources)
  add_library(penstock_test_support_objects STATIC ${support_sources})
  set_target_properties(penstock_test_support_objects PROPERTIES UNITY_BUILD OFF)  # each is linked only where it is used
  target_link_libraries(penstock_test_support_objects PRIVATE penstock_test_support)
  target_link_libraries(penstock_test_support INTERFACE penstock_test_support_objects)
endif()

# Serves the file systems that hang and lie (tests/support/fuse_world). Without libfuse3 the tests that need them are skipped.
find_package(PkgConfig QUIET)
if(PkgConfig_FOUND)
  pkg_check_modules(fuse3 QUIET IMPORTED_TARGET fuse3>=3.12)
endif()
if(TARGET PkgConfig::fuse3)
  add_executable(penstock_fuse_server tests/fuse_server/fuse_server.cc)
  set_target_properties(penstock_fuse_server PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
  target_include_directories(penstock_fuse_server PRIVATE tests)
  target_compile_features(penstock_fuse_server PRIVATE cxx_std_20)
  # Like a disk it does not keep the kernel from reading a page while it writes the next byte.
  target_compile_options(penstock_fuse_server PRIVATE -fno-sanitize=all)
  target_link_options(penstock_fuse_server PRIVATE -fno-sanitize=all)
  target_link_libraries(penstock_fuse_server PRIVATE PkgConfig::fuse3)
  target_compile_definitions(penstock_test_support_objects PRIVATE PENSTOCK_FUSE_SERVER_PATH="$<TARGET_FILE:penstock_fuse_server>")
  add_dependencies(penstock_test_support_objects penstock_fuse_server)

  # The file system that bench/late_mount_bench.py and bench/ranks_bench.py read. Built on demand: ninja penstock_late_mount
  add_executable(penstock_late_mount EXCLUDE_FROM_ALL bench/late_mount/late_mount.cc)
  set_target_properties(penstock_late_mount PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bench)
  target_compile_features(penstock_late_mount PRIVATE cxx_std_20)
  target_link_libraries(penstock_late_mount PRIVATE PkgConfig::fuse3)
endif()

# What bench/remote_bench.py measures as the ceiling.
add_executable(penstock_plain_web bench/plain_web/plain_web.cc)
set_target_properties(penstock_plain_web PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bench)
target_compile_features(penstock_plain_web PRIVATE cxx_std_20)
target_link_libraries(penstock_plain_web PRIVATE Threads::Threads ${CMAKE_DL_LIBS})

# The other process of a pipe, for tests that kill it.
add_executable(penstock_pipe_peer tests/pipe_peer/pipe_peer.cc)
set_target_properties(penstock_pipe_peer PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
target_link_libraries(penstock_pipe_peer PRIVATE penstock_static)

# A process of those that share a node's cache, for tests that kill it.
add_executable(penstock_cache_reader tests/cache_reader/cache_reader.cc tests/support/pattern.cc)
set_target_properties(penstock_cache_reader PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
target_include_directories(penstock_cache_reader PRIVATE tests)
target_link_libraries(penstock_cache_reader PRIVATE penstock_static)

set(long_tests "long_*:*.long_*:*/long_*")
# Test folders with many small cases that fill memory. ./test runs them in a few processes instead of one per case, in half the CPU time.
set(rooms_together contract pipe)
set(processes_together 16)
# Test folders that are quick to compile, and whose tests spend much time in their own code.
set(rooms_that_compute fault memory storm)

function(penstock_add_test_folder folder)
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS tests/${folder}/*.cc)
  list(FILTER sources EXCLUDE REGEX "/(cufile_recorder|cuda_stand_in)\\.cc$")  # libraries of their own, below
  if(folder STREQUAL "storm")
    list(APPEND sources ${PROJECT_SOURCE_DIR}/tests/memory/failing_allocations.cc)
  endif()
  # What replaces operator new: compiled with its callers, g++ would see that its memory comes from malloc, and warn.
  set(replacing_new ${sources})
  list(FILTER replacing_new INCLUDE REGEX "/failing_[^/]*\\.cc$")
  set_source_files_properties(${replacing_new} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
  if(NOT sources MATCHES "_test\\.cc")
    return()
  endif()
  set(target penstock_${folder}_tests)
  add_executable(${target} ${sources})
  set_target_properties(${target} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
  # For the tests' own code, which takes two thirds longer to compile with -O1. The library and tests/support keep the release options.
  set(optimization -O0)
  if(folder IN_LIST rooms_that_compute)
    set(optimization -O1)
  endif()
  target_compile_options(${target} PRIVATE $<$<CONFIG:Release>:${optimization}>)
  target_link_libraries(${target} PRIVATE penstock_test_support)
  if(TARGET penstock_bench)
    target_link_libraries(${target} PRIVATE penstock_bench)
  endif()
  if(TARGET penstock_machine)
    target_link_libraries(${target} PRIVATE penstock_machine)
  endif()
  set(environment "")
  set(time_limit 180)
  if(NOT PENSTOCK_SANITIZE STREQUAL "none")
    set(time_limit 900)
  endif()
  if(folder STREQUAL "cufile" AND PENSTOCK_SANITIZE STREQUAL "thread")
    # The engine that the faces share lives until the process ends, and so do its threads.
    set(environment ENVIRONMENT "TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1:report_thread_leaks=0")
  endif()
  if(folder STREQUAL "contract")
    target_compile_definitions(${target} PRIVATE PENSTOCK_CACHE_READER_PATH="$<TARGET_FILE:penstock_cache_reader>")
    add_dependencies(${target} penstock_cache_reader)
  endif()
  if(folder STREQUAL "cufile")
    target_link_libraries(${target} PRIVATE penstock_cufile_objects penstock_cufile_settings)
    target_compile_definitions(${target} PRIVATE PENSTOCK_CUFILE_PAGE="${PROJECT_SOURCE_DIR}/docs/reference/cufile-json.md")
  endif()
  target_link_libraries(${target} PRIVATE penstock_static GTest::gtest_main)
  if(folder STREQUAL "remote")
    target_compile_definitions(${target} PRIVATE PENSTOCK_S3_SERVER_PATH="${PROJECT_SOURCE_DIR}/tests/support/s3_server.py")
  endif()
  if(folder STREQUAL "cli")
    target_compile_definitions(${target} PRIVATE PENSTOCK_MACHINES_PATH="${PROJECT_SOURCE_DIR}/tests/cli/machines")
  endif()
  if(folder STREQUAL "pipe")
    target_compile_definitions(${target} PRIVATE PENSTOCK_PIPE_PEER_PATH="$<TARGET_FILE:penstock_pipe_peer>")
    add_dependencies(${target} penstock_pipe_peer)
  endif()
  if(TARGET penstock_cli)
    target_compile_definitions(${target} PRIVATE PENSTOCK_CLI_PATH="$<TARGET_FILE:penstock_cli>")
    add_dependencies(${target} penstock_cli)
  endif()
  set(label ${folder})
  if(folder IN_LIST rooms_together AND PENSTOCK_SANITIZE STREQUAL "none")
    set(label ${folder}_alone)
    math(EXPR last "${processes_together} - 1")
    foreach(index RANGE ${last})
      set(name ${folder}.together_${index})
      add_test(NAME ${name} CONFIGURATIONS together
               COMMAND ${Python3_EXECUTABLE} ${PROJECT_SOURCE_DIR}/tests/support/together.py $<TARGET_FILE:${target}> ${folder}.
                       ${index} ${processes_together} ${long_tests} ${PROJECT_BINARY_DIR}/together/${name}.xml)
      set_tests_properties(${name} PROPERTIES LABELS together COST 100 TIMEOUT 1800)  # they start first
    endforeach()
  endif()
  # Listed when the tests run, not when they are built: a broken test executable does not break the build.
  gtest_discover_tests(
    ${target}
    DISCOVERY_MODE PRE_TEST
    DISCOVERY_TIMEOUT 60
    TEST_PREFIX ${folder}.
    NO_PRETTY_VALUES
    TEST_FILTER "-${long_tests}"
    PROPERTIES TIMEOUT ${time_limit} LABELS ${label} ${environment})
  gtest_discover_tests(
    ${target}
    DISCOVERY_MODE PRE_TEST
    DISCOVERY_TIMEOUT 60
    TEST_PREFIX ${folder}.
    NO_PRETTY_VALUES
    TEST_FILTER "${long_tests}"
    PROPERTIES TIMEOUT 4500 LABELS long)
endfunction()

file(GLOB test_folders CONFIGURE_DEPENDS RELATIVE ${PROJECT_SOURCE_DIR}/tests LIST_DIRECTORIES true tests/*)
foreach(folder IN LISTS test_folders)
  if(IS_DIRECTORY ${PROJECT_SOURCE_DIR}/tests/${folder} AND NOT folder MATCHES "^(support|install|tools)$")
    penstock_add_test_folder(${folder})
  endif()
endforeach()

# A stand-in for NVIDIA's libcufile, which the tests of the direct path load: whole, as of CUDA 11.4, and marked as Penstock's own.
if(TARGET penstock_path_tests)
  foreach(variant "" _EARLY _OWN)
    string(TOLOWER cufile_recorder${variant} recorder)
    add_library(${recorder} MODULE tests/path/cufile_recorder.cc)
    target_include_directories(${recorder} PRIVATE ${PROJECT_SOURCE_DIR}/tests)
    target_compile_definitions(${recorder} PRIVATE CUFILE_RECORDER${variant})
    target_link_libraries(${recorder} PRIVATE penstock_flags)
    if(NOT variant STREQUAL "_OWN")  # that one is there for one test only, and gone again
      target_link_options(${recorder} PRIVATE LINKER:-z,nodelete)
    endif()
    set_target_properties(${recorder} PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
    add_dependencies(penstock_path_tests ${recorder})
    target_compile_definitions(penstock_path_tests PRIVATE CUFILE_RECORDER${variant}_PATH="$<TARGET_FILE:${recorder}>")
  endforeach()
  if(TARGET penstock_cufile_tests)
    add_dependencies(penstock_cufile_tests cufile_recorder)
    target_compile_definitions(penstock_cufile_tests PRIVATE CUFILE_RECORDER_PATH="$<TARGET_FILE:cufile_recorder>")
  endif()
endif()

# A tool that NVTX loads, which writes down what it is told.
if(TARGET penstock_core_tests AND PENSTOCK_NVTX_INCLUDE)
  add_library(nvtx_injection MODULE tests/core/nvtx_injection.c)
  target_include_directories(nvtx_injection SYSTEM PRIVATE ${PENSTOCK_NVTX_INCLUDE})
  set_target_properties(nvtx_injection PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
  add_dependencies(penstock_core_tests nvtx_injection)
  target_compile_definitions(penstock_core_tests PRIVATE PENSTOCK_NVTX_INJECTION_PATH="$<TARGET_FILE:nvtx_injection>")
endif()

# A stand-in for NVIDIA's driver library, which `penstock check` starts: what it answers stands in its environment.
if(TARGET penstock_machine_tests)
  add_library(cuda_stand_in MODULE tests/machine/cuda_stand_in.cc)
  target_link_libraries(cuda_stand_in PRIVATE penstock_flags)
  set_target_properties(cuda_stand_in PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
  add_dependencies(penstock_machine_tests cuda_stand_in)
  target_compile_definitions(penstock_machine_tests PRIVATE CUDA_STAND_IN_PATH="$<TARGET_FILE:cuda_stand_in>")
endif()

# Every header compiles alone: one generated source per header, linked into nothing. The public ones, which users include in any order, with the
# tests; the others, which are many, with tools.long_every_file_compiles_alone.
function(penstock_add_header_checks target)
  file(GLOB_RECURSE headers CONFIGURE_DEPENDS RELATIVE ${PROJECT_SOURCE_DIR} ${ARGN})
  set(header_sources)
  foreach(header IN LISTS headers)
    string(REGEX REPLACE "^(include|src)/" "" include_name ${header})
    string(MAKE_C_IDENTIFIER ${header} identifier)
    set(header_source ${PROJECT_BINARY_DIR}/header_checks/${identifier}.cc)
    file(CONFIGURE OUTPUT ${header_source} CONTENT "#include \"@include_name@\"\n" @ONLY)
    list(APPEND header_sources ${header_source})
  endforeach()
  add_library(${target} OBJECT ${header_sources})
  set_target_properties(${target} PROPERTIES UNITY_BUILD OFF)
  target_compile_options(${target} PRIVATE -O0 -g0)  # nobody runs them
  target_link_libraries(${target} PRIVATE penstock_test_support)
endfunction()
penstock_add_header_checks(penstock_public_header_checks include/*.hpp)
penstock_add_header_checks(penstock_header_checks src/*.hpp bench/*.hpp tests/*.hpp)
set_target_properties(penstock_header_checks PROPERTIES EXCLUDE_FROM_ALL ON)

# The examples are built as a user builds them, against the shared library, and run: what the README shows works.
file(GLOB examples CONFIGURE_DEPENDS examples/*.cc)
foreach(example IN LISTS examples)
  get_filename_component(name ${example} NAME_WE)
  add_executable(penstock_example_${name} ${example})
  set_target_properties(
    penstock_example_${name}
    PROPERTIES UNITY_BUILD OFF
               OUTPUT_NAME ${name}
               RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/examples)
  target_link_libraries(penstock_example_${name} PRIVATE penstock::penstock penstock_flags)
endforeach()
set(example_file ${PROJECT_BINARY_DIR}/examples/data)
add_test(NAME examples.file COMMAND ${Python3_EXECUTABLE} -c "import os; open('${example_file}', 'wb').write(os.urandom(40000011))")
set_tests_properties(examples.file PROPERTIES FIXTURES_SETUP example_file LABELS examples TIMEOUT 60)
foreach(name read_file async_reads batch_of_ranges cancel_and_deadline)
  add_test(NAME examples.${name} COMMAND penstock_example_${name} ${example_file})
endforeach()
add_test(NAME examples.stream_ordered COMMAND penstock_example_stream_ordered ${example_file} ${example_file}.copy)
add_test(NAME examples.stream_ordered_bytes COMMAND ${CMAKE_COMMAND} -E compare_files ${example_file} ${example_file}.copy)
# They make small models where they run.
foreach(name IN ITEMS load_model load_parts stream_model)
  add_test(NAME examples.${name} COMMAND penstock_example_${name})
  set_tests_properties(examples.${name} PROPERTIES LABELS examples TIMEOUT 60 WORKING_DIRECTORY ${PROJECT_BINARY_DIR}/examples)
endforeach()
# It makes a folder where it runs, and finds it there the next time.
add_test(NAME examples.key_value_store COMMAND penstock_example_key_value_store)
set_tests_properties(examples.key_value_store PROPERTIES LABELS examples TIMEOUT 60 WORKING_DIRECTORY ${PROJECT_BINARY_DIR}/examples)
add_test(NAME examples.pipe COMMAND penstock_example_pipe)
set_tests_properties(examples.pipe PROPERTIES LABELS examples TIMEOUT 60)
set_tests_properties(examples.stream_ordered PROPERTIES FIXTURES_SETUP example_copy)
set_tests_properties(examples.stream_ordered_bytes PROPERTIES FIXTURES_REQUIRED example_copy)
set_tests_properties(
  examples.read_file examples.async_reads examples.batch_of_ranges examples.cancel_and_deadline examples.stream_ordered examples.stream_ordered_bytes
  PROPERTIES LABELS examples TIMEOUT 60)
set_property(TEST examples.read_file examples.async_reads examples.batch_of_ranges examples.cancel_and_deadline examples.stream_ordered
             PROPERTY FIXTURES_REQUIRED example_file)

# --- checks that are not GoogleTest
find_program(PENSTOCK_PKG_CONFIG NAMES pkg-config pkgconf)
mark_as_advanced(PENSTOCK_PKG_CONFIG)

add_test(NAME tools.check_includes COMMAND ${Python3_EXECUTABLE} ${PROJECT_SOURCE_DIR}/tools/check_includes.py)
add_test(NAME tools.check_includes_test COMMAND ${Python3_EXECUTABLE} ${PROJECT_SOURCE_DIR}/tests/tools/check_includes_test.py)
add_test(NAME tools.check_imports COMMAND ${Python3_EXECUTABLE} ${PROJECT_SOURCE_DIR}/tools/check_imports.py)
add_test(NAME tools.check_imports_test COMMAND ${Python3_EXECUTABLE} ${PROJECT_SOURCE_DIR}/tests/tools/check_imports_test.py)
add_test(NAME tools.check_counts COMMAND ${Python3_EXECUTABLE} ${PROJECT_SOURCE_DIR}/tools/check_counts.py)
add_test(NAME tools.check_counts_test COMMAND ${Python3_EXECUTABLE} ${PROJECT_SOURCE_DIR}/tests/tools/check_counts_test.py)
add_test(NAME tools.run_clients_test COMMAND ${Python3_EXECUTABLE} ${PROJECT_SOURCE_DIR}/tests/tools/run_clients_test.py)
add_test(NAME tools.fetch_engines_test COMMAND ${Python3_EXECUTABLE} ${PROJECT_SOURCE_DIR}/tests/tools/fetch_engines_test.py)
add_test(NAME tools.together_test COMMAND ${Python3_EXECUTABLE} ${PROJECT_SOURCE_DIR}/tests/tools/together_test.py)
add_test(NAME tools.test_summary_test COMMAND ${Python3_EXECUTABLE} ${PROJECT_SOURCE_DIR}/tests/tools/test_summary_test.py)
add_test(NAME tools.reliability_doc_test COMMAND ${Python3_EXECUTABLE} ${PROJECT_SOURCE_DIR}/tests/tools/reliability_doc_test.py
                                               ${CMAKE_CTEST_COMMAND} ${PROJECT_BINARY_DIR})
add_test(NAME tools.printing_test COMMAND ${Python3_EXECUTABLE} ${PROJECT_SOURCE_DIR}/tests/tools/printing_test.py)
add_test(NAME tools.seams_test COMMAND ${Python3_EXECUTABLE} ${PROJECT_SOURCE_DIR}/tests/tools/seams_test.py)
add_test(NAME tools.aarch64_test COMMAND ${Python3_EXECUTABLE} ${PROJECT_SOURCE_DIR}/tests/tools/aarch64_test.py)
add_test(NAME tools.portability_test COMMAND ${Python3_EXECUTABLE} ${PROJECT_SOURCE_DIR}/tests/tools/portability_test.py)
add_test(NAME tools.architecture_doc_test COMMAND ${Python3_EXECUTABLE} ${PROJECT_SOURCE_DIR}/tests/tools/architecture_doc_test.py)
add_test(NAME tools.scope_doc_test COMMAND ${Python3_EXECUTABLE} ${PROJECT_SOURCE_DIR}/tests/tools/scope_doc_test.py)
set_tests_properties(tools.aarch64_test tools.architecture_doc_test tools.portability_test tools.seams_test tools.check_includes tools.check_includes_test tools.check_imports
                     tools.check_imports_test tools.check_counts tools.check_counts_test tools.fetch_engines_test
                     tools.test_summary_test tools.together_test tools.reliability_doc_test
                     tools.scope_doc_test PROPERTIES LABELS tools TIMEOUT 120)

add_test(NAME abi.a_compiler_set_to_cpp17_says_that_cpp20_is_needed
         COMMAND ${CMAKE_CXX_COMPILER} -std=c++17 -fsyntax-only -I${PROJECT_SOURCE_DIR}/include -x c++
                 ${PROJECT_SOURCE_DIR}/include/penstock/penstock.hpp)
set_tests_properties(abi.a_compiler_set_to_cpp17_says_that_cpp20_is_needed PROPERTIES LABELS abi TIMEOUT 60 PASS_REGULAR_EXPRESSION
                                                                                      "Penstock needs C..20: compile with")

# A proxy that disturbs HTTP, and the S3 servers that tests can start here.
foreach(helper faulty_proxy s3_server)
  add_test(NAME tools.${helper}_test COMMAND ${Python3_EXECUTABLE} ${PROJECT_SOURCE_DIR}/tests/tools/${helper}_test.py)
  set_tests_properties(tools.${helper}_test PROPERTIES LABELS tools TIMEOUT 300)
endforeach()

add_test(NAME tools.glibc_stubs_test COMMAND ${Python3_EXECUTABLE} ${PROJECT_SOURCE_DIR}/tests/tools/glibc_stubs_test.py ${CMAKE_CXX_COMPILER})
set_tests_properties(tools.glibc_stubs_test PROPERTIES LABELS tools TIMEOUT 120 SKIP_RETURN_CODE 77)

add_test(NAME tools.long_wheels_test COMMAND ${Python3_EXECUTABLE} ${PROJECT_SOURCE_DIR}/tests/tools/wheels_test.py)
set_tests_properties(tools.long_wheels_test PROPERTIES LABELS long TIMEOUT 4500 SKIP_RETURN_CODE 77)

add_test(NAME tools.every_file_is_formatted COMMAND ${PROJECT_SOURCE_DIR}/tools/check_format)
set_tests_properties(tools.every_file_is_formatted PROPERTIES LABELS tools TIMEOUT 300 SKIP_REGULAR_EXPRESSION "check_format: skipped")

add_test(NAME tools.check_prose COMMAND ${Python3_EXECUTABLE} ${PROJECT_SOURCE_DIR}/tools/check_prose)
add_test(NAME tools.check_prose_test COMMAND ${Python3_EXECUTABLE} ${PROJECT_SOURCE_DIR}/tests/tools/check_prose_test.py)
set_tests_properties(tools.check_prose tools.check_prose_test PROPERTIES LABELS tools TIMEOUT 60)
foreach(linter ruff codespell shellcheck actionlint workflows dependabot)
  add_test(NAME tools.${linter}_finds_nothing COMMAND ${Python3_EXECUTABLE} ${PROJECT_SOURCE_DIR}/tests/tools/lint_test.py ${linter})
  set_tests_properties(tools.${linter}_finds_nothing PROPERTIES LABELS tools TIMEOUT 120 SKIP_RETURN_CODE 77)
endforeach()

add_test(NAME tools.long_clang_tidy_of_changed_files COMMAND ${PROJECT_SOURCE_DIR}/tools/check_tidy)
set_tests_properties(tools.long_clang_tidy_of_changed_files PROPERTIES LABELS long TIMEOUT 4500 SKIP_RETURN_CODE 77)

# What the release build leaves out to be quick: each source and each header compiled alone, which shows whether it includes what it uses.
if(PROJECT_IS_TOP_LEVEL AND PENSTOCK_SANITIZE STREQUAL "none")
  cmake_host_system_information(RESULT cores QUERY NUMBER_OF_LOGICAL_CORES)
  add_test(NAME tools.long_debug_is_configured COMMAND ${CMAKE_COMMAND} --preset debug WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
  add_test(
    NAME tools.long_every_file_compiles_alone
    COMMAND ${CMAKE_COMMAND} --build --preset debug --parallel ${cores} --target all penstock_header_checks
    WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
  set_tests_properties(tools.long_debug_is_configured PROPERTIES FIXTURES_SETUP debug_build LABELS long TIMEOUT 300)
  set_tests_properties(tools.long_every_file_compiles_alone PROPERTIES FIXTURES_REQUIRED debug_build LABELS long TIMEOUT 4500)
endif()

add_test(NAME tools.soak_test COMMAND ${Python3_EXECUTABLE} ${PROJECT_SOURCE_DIR}/tests/tools/soak_test.py $<TARGET_FILE:penstock_storm_tests>)
set_tests_properties(tools.soak_test PROPERTIES LABELS tools TIMEOUT 600 SKIP_RETURN_CODE 77)

add_test(NAME docs.containers_test COMMAND ${Python3_EXECUTABLE} ${PROJECT_SOURCE_DIR}/tests/tools/containers_test.py)
add_test(NAME docs.settings_page_test COMMAND ${Python3_EXECUTABLE} ${PROJECT_SOURCE_DIR}/tests/tools/settings_page_test.py)
set_tests_properties(docs.containers_test docs.settings_page_test PROPERTIES LABELS docs TIMEOUT 60)
add_test(NAME tools.release_test COMMAND ${Python3_EXECUTABLE} ${PROJECT_SOURCE_DIR}/tests/tools/release_test.py)
set_tests_properties(tools.release_test PROPERTIES LABELS tools TIMEOUT 60)
add_test(NAME tools.long_release_dry_run COMMAND ${Python3_EXECUTABLE} ${PROJECT_SOURCE_DIR}/tests/tools/release_test.py --long)
set_tests_properties(tools.long_release_dry_run PROPERTIES LABELS long TIMEOUT 6000 SKIP_RETURN_CODE 77)

foreach(selection short long)
  set(name tools.source_build_test)
  if(selection STREQUAL "long")
    set(name tools.long_source_build_test)
  endif()
  add_test(NAME ${name} COMMAND ${Python3_EXECUTABLE} ${PROJECT_SOURCE_DIR}/tests/tools/source_build_test.py ${selection} ${CMAKE_COMMAND}
                                ${CMAKE_CXX_COMPILER})
endforeach()
set_tests_properties(tools.source_build_test PROPERTIES LABELS tools TIMEOUT 300)
set_tests_properties(tools.long_source_build_test PROPERTIES LABELS long TIMEOUT 4500 SKIP_RETURN_CODE 77)

set(docs_site_test ${PROJECT_SOURCE_DIR}/tests/tools/docs_site_test.py)
add_test(NAME docs.links_lead_somewhere COMMAND ${Python3_EXECUTABLE} ${docs_site_test} links)
add_test(NAME docs.long_the_site_is_built COMMAND ${Python3_EXECUTABLE} ${docs_site_test} site)
set_tests_properties(docs.links_lead_somewhere PROPERTIES LABELS docs TIMEOUT 60)
set_tests_properties(docs.long_the_site_is_built PROPERTIES LABELS long TIMEOUT 900 SKIP_RETURN_CODE 77)

if(TARGET penstock_cli)
  add_test(NAME tools.pages_test COMMAND ${Python3_EXECUTABLE} ${PROJECT_SOURCE_DIR}/tests/tools/pages_test.py $<TARGET_FILE:penstock_cli>)
  set_tests_properties(tools.pages_test PROPERTIES LABELS tools TIMEOUT 120)
  add_test(NAME tools.performance_test COMMAND ${Python3_EXECUTABLE} ${PROJECT_SOURCE_DIR}/tests/tools/performance_test.py $<TARGET_FILE:penstock_cli>)
  set_tests_properties(tools.performance_test PROPERTIES LABELS tools TIMEOUT 300 SKIP_RETURN_CODE 77)
  foreach(selection page browser)
    add_test(NAME tools.report_${selection}_test COMMAND ${Python3_EXECUTABLE} ${PROJECT_SOURCE_DIR}/tests/tools/report_test.py ${selection}
                                                         $<TARGET_FILE:penstock_cli>)
    set_tests_properties(tools.report_${selection}_test PROPERTIES LABELS tools TIMEOUT 300 SKIP_RETURN_CODE 77)
  endforeach()
endif()

# What leaves the library and what a user's build finds: asked of a plain build, since a sanitizer adds symbols and link flags.
if(PENSTOCK_SANITIZE STREQUAL "none")
  add_test(NAME abi.exported_symbols COMMAND ${Python3_EXECUTABLE} ${PROJECT_SOURCE_DIR}/tests/abi/exported_symbols.py --nm ${CMAKE_NM}
                                             $<TARGET_FILE:penstock>)
  set(with_cufile)
  if(TARGET penstock_cufile)
    set(with_cufile $<TARGET_FILE:penstock_cufile>)
  endif()
  add_test(NAME abi.threads_have_room COMMAND ${Python3_EXECUTABLE} ${PROJECT_SOURCE_DIR}/tests/abi/thread_room_test.py $<TARGET_FILE:penstock>
                                              ${with_cufile})
  set_tests_properties(abi.exported_symbols abi.threads_have_room PROPERTIES LABELS abi TIMEOUT 60)
  if(TARGET penstock_cli)
    # What tools/wheels would not link for the older glibc; the Python package's own half is asked by test_glibc.py.
    add_test(
      NAME abi.what_goes_into_a_wheel_links_with_glibc_2_28
      COMMAND
        ${Python3_EXECUTABLE} ${PROJECT_SOURCE_DIR}/packaging/manylinux/glibc_stubs.py $<TARGET_FILE:penstock> $<TARGET_FILE:penstock_cli>
        $<TARGET_FILE:penstock_cufile> $<TARGET_FILE:penstock_audit> $<TARGET_FILE:penstock_device_node> $<TARGET_FILE:penstock_direct_io>)
    set_tests_properties(abi.what_goes_into_a_wheel_links_with_glibc_2_28 PROPERTIES LABELS abi TIMEOUT 60 SKIP_RETURN_CODE 77)
  endif()
  if(PENSTOCK_INSTALL AND PENSTOCK_PKG_CONFIG AND TARGET penstock_cli)
    add_test(NAME install.a_program_finds_the_installed_library
             COMMAND ${PROJECT_SOURCE_DIR}/tests/install/install_test --cmake ${CMAKE_COMMAND} --build ${PROJECT_BINARY_DIR} --generator
                     ${CMAKE_GENERATOR} --compiler ${CMAKE_CXX_COMPILER} --pkg-config ${PENSTOCK_PKG_CONFIG})
    set_tests_properties(install.a_program_finds_the_installed_library PROPERTIES LABELS install TIMEOUT 300)
  endif()

  # Every command of the pages, as it stands there, a test for each page. Those that build all of it once more, or that measure for long,
  # run with --long only.
  if(PENSTOCK_INSTALL AND PENSTOCK_PKG_CONFIG AND TARGET penstock_cli)
    set(commands_test ${Python3_EXECUTABLE} ${PROJECT_SOURCE_DIR}/tests/tools/docs_commands_test.py)
    file(GLOB pages CONFIGURE_DEPENDS RELATIVE ${PROJECT_SOURCE_DIR} docs/*/*.md)
    list(REMOVE_ITEM pages docs/reference/messages.md) # it quotes messages, and has no commands
    foreach(page README.md CONTRIBUTING.md ${pages})
      cmake_path(GET page STEM name)
      add_test(NAME docs.commands_of_${name}_run COMMAND ${commands_test} short ${CMAKE_COMMAND} ${PROJECT_BINARY_DIR} ${page})
      set_tests_properties(docs.commands_of_${name}_run PROPERTIES LABELS docs TIMEOUT 300)
    endforeach()
    add_test(NAME docs.long_commands_of_the_pages_run COMMAND ${commands_test} long ${CMAKE_COMMAND} ${PROJECT_BINARY_DIR})
    set_tests_properties(docs.long_commands_of_the_pages_run PROPERTIES LABELS long TIMEOUT 4500)
    add_test(NAME docs.long_a_newcomer_types_what_the_readme_says COMMAND ${Python3_EXECUTABLE}
                                                                          ${PROJECT_SOURCE_DIR}/tests/tools/newcomer_test.py)
    set_tests_properties(docs.long_a_newcomer_types_what_the_readme_says PROPERTIES LABELS long TIMEOUT 4500 SKIP_RETURN_CODE 77)

    add_test(NAME install.long_debian_packages COMMAND ${Python3_EXECUTABLE} ${PROJECT_SOURCE_DIR}/tests/tools/deb_test.py ${CMAKE_CPACK_COMMAND}
                                                       ${PROJECT_BINARY_DIR})
    set_tests_properties(install.long_debian_packages PROPERTIES LABELS long TIMEOUT 1200 SKIP_RETURN_CODE 77)
  endif()
endif()
