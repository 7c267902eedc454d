# Unchanged clients of NVIDIA cuFile, run on our libcufile.so.0. A client whose needs this machine does not meet is skipped, with the reason.

enable_language(C)

# A library with a sanitizer in it cannot be preloaded into a program without.
if(TARGET penstock_cli AND PENSTOCK_SANITIZE STREQUAL "none")
  set(run_clients ${PROJECT_SOURCE_DIR}/tests/clients/run_clients.py)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${run_clients})
  execute_process(COMMAND ${Python3_EXECUTABLE} -B ${run_clients} list --names OUTPUT_VARIABLE names COMMAND_ERROR_IS_FATAL ANY)
  string(STRIP "${names}" names)
  string(REPLACE "\n" ";" names "${names}")
  foreach(client ${names})
    add_test(
      NAME clients.${client}
      COMMAND
        ${Python3_EXECUTABLE} ${run_clients} run --only ${client} --penstock $<TARGET_FILE:penstock_cli>
        --library-dir $<TARGET_FILE_DIR:penstock_cufile> --work-dir ${PROJECT_BINARY_DIR}/clients --cc ${CMAKE_C_COMPILER}
        --python ${PROJECT_SOURCE_DIR}/build/venv/bin/python)
    set_tests_properties(clients.${client} PROPERTIES LABELS clients TIMEOUT 900 SKIP_RETURN_CODE 77)
  endforeach()
endif()
