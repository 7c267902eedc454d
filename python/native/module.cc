// penstock._native: the public C++ API as Python sees it. Translation only; python/penstock/__init__.py is what users import.
#include <nanobind/nanobind.h>

#include "buffers.hpp"
#include "completions.hpp"
#include "device.hpp"
#include "file.hpp"
#include "futures.hpp"
#include "info.hpp"
#include "streams.hpp"

NB_MODULE(_native, module) {
  using namespace penstock::python;
  add_completions(module);
  add_buffers(module);
  add_devices(module);
  add_futures(module);
  add_streams(module);
  add_files(module);
  add_info(module);
}
