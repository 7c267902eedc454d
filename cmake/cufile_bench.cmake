# penstock_cufile_bench: rows that NVIDIA's libcufile and ours both have, each library in a process of its own; see
# bench/cufile_vs_nvidia/compare.py. Built on demand: ninja penstock_cufile_bench

find_package(CLI11 CONFIG QUIET)
if(CLI11_FOUND)
  add_executable(penstock_cufile_bench EXCLUDE_FROM_ALL bench/cufile_vs_nvidia/cufile_bench.cc)
  target_include_directories(penstock_cufile_bench PRIVATE ${PROJECT_SOURCE_DIR}/include)
  target_link_libraries(
    penstock_cufile_bench
    PRIVATE penstock_flags
            penstock
            CLI11::CLI11
            penstock_fmt
            nlohmann_json::nlohmann_json
            ${CMAKE_DL_LIBS}
            Threads::Threads)
endif()
