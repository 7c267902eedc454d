# Unchanged clients of NVIDIA cuFile, run on our libcufile.so.0. Each is skipped, with its reason, where what it needs cannot be had.

enable_language(C)

# A library with a sanitizer in it cannot be preloaded into a program without.
if(TARGET penstock_cli AND PENSTOCK_SANITIZE STREQUAL "none")
  foreach(client nvidia_header cuda_python cuda_python_13_2 torch_gds kvikio nixl fastsafetensors cufile_python lmcache kv_engines)
    add_test(
      NAME clients.${client}
      COMMAND
        ${Python3_EXECUTABLE} ${PROJECT_SOURCE_DIR}/tests/clients/run_clients.py --only ${client} --penstock $<TARGET_FILE:penstock_cli>
        --library-dir $<TARGET_FILE_DIR:penstock_cufile> --work-dir ${PROJECT_BINARY_DIR}/clients --cc ${CMAKE_C_COMPILER})
    set_tests_properties(clients.${client} PROPERTIES LABELS clients TIMEOUT 900 SKIP_RETURN_CODE 77)
  endforeach()
endif()
