#include "cufile_calls.hpp"

#include <cstdint>

#include "arguments.hpp"
#include "cufile/cufile.h"

namespace penstock::python {

namespace {

using namespace nb::literals;

template <class Call>
nb::int_ address_of(Call* call) {
  return nb::int_(reinterpret_cast<std::uintptr_t>(call));
}

// The code is compiled into this module. Loading libcufile.so.0 instead would make every later library in the process that needs a library
// of that name use it, such as PyTorch, which needs NVIDIA's.
nb::dict cufile_calls() {
  nb::dict told;
  told["driver_open"] = address_of(cuFileDriverOpen);
  told["driver_close"] = address_of(cuFileDriverClose);
  told["use_count"] = address_of(cuFileUseCount);
  told["get_version"] = address_of(cuFileGetVersion);
  told["driver_get_properties"] = address_of(cuFileDriverGetProperties);
  told["driver_set_poll_mode"] = address_of(cuFileDriverSetPollMode);
  told["driver_set_max_direct_io_size"] = address_of(cuFileDriverSetMaxDirectIOSize);
  told["driver_set_max_cache_size"] = address_of(cuFileDriverSetMaxCacheSize);
  told["driver_set_max_pinned_mem_size"] = address_of(cuFileDriverSetMaxPinnedMemSize);
  told["handle_register"] = address_of(cuFileHandleRegister);
  told["handle_deregister"] = address_of(cuFileHandleDeregister);
  told["buf_register"] = address_of(cuFileBufRegister);
  told["buf_deregister"] = address_of(cuFileBufDeregister);
  told["read"] = address_of(cuFileRead);
  told["write"] = address_of(cuFileWrite);
  told["readv"] = address_of(cuFileReadv);
  told["writev"] = address_of(cuFileWritev);
  told["read_async"] = address_of(cuFileReadAsync);
  told["write_async"] = address_of(cuFileWriteAsync);
  told["stream_register"] = address_of(cuFileStreamRegister);
  told["stream_deregister"] = address_of(cuFileStreamDeregister);
  told["batch_io_set_up"] = address_of(cuFileBatchIOSetUp);
  told["batch_io_submit"] = address_of(cuFileBatchIOSubmit);
  told["batch_io_get_status"] = address_of(cuFileBatchIOGetStatus);
  told["batch_io_cancel"] = address_of(cuFileBatchIOCancel);
  told["batch_io_destroy"] = address_of(cuFileBatchIODestroy);
  told["get_parameter_size_t"] = address_of(cuFileGetParameterSizeT);
  told["set_parameter_size_t"] = address_of(cuFileSetParameterSizeT);
  told["get_parameter_bool"] = address_of(cuFileGetParameterBool);
  told["set_parameter_bool"] = address_of(cuFileSetParameterBool);
  told["get_parameter_string"] = address_of(cuFileGetParameterString);
  told["set_parameter_string"] = address_of(cuFileSetParameterString);
  told["get_parameter_min_max_value"] = address_of(cuFileGetParameterMinMaxValue);
  told["get_parameter_posix_pool_slab_array"] = address_of(cuFileGetParameterPosixPoolSlabArray);
  told["set_parameter_posix_pool_slab_array"] = address_of(cuFileSetParameterPosixPoolSlabArray);
  told["get_stats_level"] = address_of(cuFileGetStatsLevel);
  told["set_stats_level"] = address_of(cuFileSetStatsLevel);
  told["stats_start"] = address_of(cuFileStatsStart);
  told["stats_stop"] = address_of(cuFileStatsStop);
  told["stats_reset"] = address_of(cuFileStatsReset);
  told["get_stats_l1"] = address_of(cuFileGetStatsL1);
  told["get_stats_l2"] = address_of(cuFileGetStatsL2);
  told["get_stats_l3"] = address_of(cuFileGetStatsL3);
  told["get_bar_size_in_kb"] = address_of(cuFileGetBARSizeInKB);
  return told;
}

const char* cufile_words(nb::handle status) {
  constexpr std::int64_t most = 8191;  // the largest value that fits into the bits of the enumeration
  constexpr std::int64_t none = 1;
  const auto number = signed_integer(status, "status");
  return cufileop_status_error(static_cast<CUfileOpError>(number < 0 || number > most ? none : number));
}

}  // namespace

void add_cufile_calls(nb::module_& module) {
  module.def("_cufile_calls", &cufile_calls,
             "Returns the addresses of cuFile's C functions over this process's engine, by the names that cuda-python gives them.");
  module.def("_cufile_words", &cufile_words, "status"_a, "Returns a description of a cuFile status.");
}

}  // namespace penstock::python
