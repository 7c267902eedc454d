// The exported calls for the machine: BAR sizes, paths between GPUs and storage, the PCI topology.
#include <fmt/format.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "cufile/addresses.hpp"
#include "cufile/cufile.h"
#include "cufile/driver.hpp"
#include "cufile/errors.hpp"
#include "cufile/raw.hpp"

namespace {

using penstock::device_info;
using penstock::engine;
using penstock::pci_device;
using penstock::pci_kind;
using penstock::cufile::answer;
using penstock::cufile::driver;
using penstock::cufile::guarded;
using penstock::cufile::is_writable;
using penstock::cufile::raw;
using penstock::cufile::text_at;

CUfileError_t bar_size(int gpu, size_t* size_kb) {
  if (gpu < 0 || !is_writable(size_kb)) return answer(CU_FILE_INVALID_VALUE);
  auto& library = driver::current();
  if (const auto opened = library.open_if_closed(); opened.err != CU_FILE_SUCCESS) return opened;
  const auto name = fmt::format("cuda:{}", gpu);
  for (const auto& device : library.owner().devices()) {
    if (device.name != name) continue;
    *size_kb = device.window_bytes / 1024;
    return answer(CU_FILE_SUCCESS);
  }
  return answer(CU_FILE_INVALID_VALUE);
}

const char* to_string(pci_kind kind) {
  switch (kind) {
    case pci_kind::gpu:
      return "gpu";
    case pci_kind::storage:
      return "storage";
    case pci_kind::network:
      return "network";
    case pci_kind::other:
      break;
  }
  return "other";
}

nlohmann::json topology(const engine& owner) {
  auto devices = nlohmann::json::array();
  for (const auto& device : owner.pci_devices()) {
    if (device.kind == pci_kind::other) continue;
    devices.push_back({{"address", device.address},
                       {"kind", to_string(device.kind)},
                       {"numa_node", device.numa_node},
                       {"window_bytes", device.window_bytes},
                       {"bridges", device.bridges}});
  }
  auto gpus = nlohmann::json::array();
  for (const auto& device : owner.devices()) {
    if (!device.pci_bus_id.empty())
      gpus.push_back({{"name", device.name}, {"description", device.description}, {"address", device.pci_bus_id}});
  }
  return {{"pci_devices", devices}, {"gpus", gpus}};
}

CUfileError_t export_topology(const char* text) {
  const auto file_name = text_at(text);
  if (!file_name || file_name->empty()) return answer(CU_FILE_INVALID_VALUE);
  auto& library = driver::current();
  if (const auto opened = library.open_if_closed(); opened.err != CU_FILE_SUCCESS) return opened;
  std::ofstream out(*file_name, std::ios::trunc);
  out << "// PCI devices that take part in transfers, and the bridges above each, from the root port down\n"
      << topology(library.owner()).dump(2) << '\n';
  out.close();
  return answer(out.good() ? CU_FILE_SUCCESS : CU_FILE_IO_ERROR);
}

}  // namespace

CUfileError_t cuFileGetBARSizeInKB(int gpu, size_t* size_kb) {
  return guarded([&] { return bar_size(gpu, size_kb); });
}

CUfileError_t cuFileExportPCIeTopology(const char* file_name) {
  return guarded([&] { return export_topology(file_name); });
}

CUfileError_t cuFileDriverGetP2PFlags(CUfileDriverStatusFlags_t storage, CUfileP2PFlags_t* flags) {
  return guarded([&] { return driver::current().get_p2p(raw(storage), flags); });
}

CUfileError_t cuFileDriverSetP2PFlags(CUfileDriverStatusFlags_t storage, CUfileP2PFlags_t flags) {
  return guarded([&] { return driver::current().set_p2p(raw(storage), raw(flags)); });
}
