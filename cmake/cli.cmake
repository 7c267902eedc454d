# The penstock command. Its own files know the public API only; the benchmarks also measure through the lower rooms, which
# the shared library hides. They get those rooms a second time, from an archive: core is left out of it, so there is one engine.

file(GLOB bench_sources CONFIGURE_DEPENDS bench/*.cc)
file(GLOB_RECURSE cli_sources CONFIGURE_DEPENDS src/cli/*.cc)
file(GLOB machine_sources CONFIGURE_DEPENDS src/machine/*.cc)

add_library(penstock_lower_rooms STATIC EXCLUDE_FROM_ALL)
target_sources(penstock_lower_rooms PRIVATE $<TARGET_OBJECTS:penstock_lower_objects>)
target_link_libraries(penstock_lower_rooms INTERFACE ${penstock_system_libraries})
set_target_properties(penstock_lower_rooms PROPERTIES LINKER_LANGUAGE CXX)

# What `check` finds out about a machine. The library has no use for it. Whoever links this also links penstock_lower_rooms or penstock_static.
add_library(penstock_machine STATIC EXCLUDE_FROM_ALL ${machine_sources})
target_link_libraries(penstock_machine PUBLIC penstock_internal)
target_compile_options(penstock_machine PRIVATE -Wconversion)

if(bench_sources)
  # Whoever links this also links either penstock and penstock_lower_rooms, or penstock_static.
  add_library(penstock_bench STATIC EXCLUDE_FROM_ALL ${bench_sources})
  target_include_directories(penstock_bench PUBLIC ${PROJECT_SOURCE_DIR})
  target_link_libraries(penstock_bench PUBLIC penstock_internal penstock_tool_libraries)
endif()

if(cli_sources)
  # The program that measures other libraries travels in the command, so that one that is installed can run it, too.
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS bench/report_peers.py)
  file(READ bench/report_peers.py peers_program)
  file(
    CONFIGURE
    OUTPUT ${PROJECT_BINARY_DIR}/peers_program.cc
    CONTENT "#include \"cli/measure/peers.hpp\"\nnamespace penstock::cli {\nconst char* const peers_program = R\"python(@peers_program@)python\";\n}\n"
    @ONLY)
  add_executable(penstock_cli ${cli_sources} ${PROJECT_BINARY_DIR}/peers_program.cc)
  # Most of the time of a batch goes into CLI11, nlohmann/json and {fmt}: four batches take two thirds of what ten do.
  set_target_properties(penstock_cli PROPERTIES OUTPUT_NAME penstock UNITY_BUILD_BATCH_SIZE 22)
  target_include_directories(penstock_cli PRIVATE ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR})
  target_link_libraries(penstock_cli PRIVATE penstock_flags penstock_tool_libraries penstock_fmt Threads::Threads)
  # `check` explains a cufile.json with the table that libcufile.so.0 obeys.
  target_sources(penstock_cli PRIVATE $<TARGET_OBJECTS:penstock_cufile_settings>)
  if(bench_sources)
    target_link_libraries(penstock_cli PRIVATE penstock_bench)
  endif()
  target_link_libraries(penstock_cli PRIVATE penstock_machine penstock penstock_lower_rooms)
  # The library lies beside the command in the build folder, and in lib/ beside bin/ once installed, wherever the prefix is moved.
  file(RELATIVE_PATH bin_to_lib ${CMAKE_INSTALL_FULL_BINDIR} ${CMAKE_INSTALL_FULL_LIBDIR})
  set_target_properties(penstock_cli PROPERTIES BUILD_WITH_INSTALL_RPATH ON INSTALL_RPATH "$ORIGIN;$ORIGIN/${bin_to_lib}")

  # What `penstock run` has each Python of a program import first; installed with the pages below.
  foreach(module sitecustomize _penstock_door)
    configure_file(python/penstock/_startup/${module}.py ${PROJECT_BINARY_DIR}/share/penstock/_startup/${module}.py COPYONLY)
  endforeach()

  # Manual pages and completions of shells, which the command makes of its own options.
  if(PENSTOCK_INSTALL AND PENSTOCK_SANITIZE STREQUAL "none")
    add_custom_command(TARGET penstock_cli POST_BUILD COMMAND penstock_cli help --write-pages ${PROJECT_BINARY_DIR}/share VERBATIM)
    install(DIRECTORY ${PROJECT_BINARY_DIR}/share/ DESTINATION ${CMAKE_INSTALL_DATADIR} COMPONENT command)
  endif()
endif()
