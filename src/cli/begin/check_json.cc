#include "cli/begin/check.hpp"
#include "cli/common/check_machine.hpp"
#include "cli/common/json.hpp"

namespace penstock::cli {
namespace {

using nlohmann::json;

json plan_json(const check_plan& found) {
  if (!found.error.ok()) return {{"error", found.error.message()}};
  json parts = json::array();
  for (const plan_part& part : found.what.parts) {
    parts.push_back({{"offset", part.offset}, {"length", part.length}, {"path", part.path_name}, {"reason", part.reason}});
  }
  return {{"parts", std::move(parts)}, {"remarks", found.what.remarks}};
}

}  // namespace

json devices_json(const std::vector<device_info>& devices) {
  json out = json::array();
  for (const device_info& device : devices) {
    out.push_back({{"name", device.name},
                   {"description", device.description},
                   {"pci_bus_id", device.pci_bus_id},
                   {"memory_bytes", device.memory_bytes},
                   {"numa_node", device.numa_node}});
  }
  return out;
}

json to_json(const check_report& report) {
  if (!report.error.ok()) return {{"file", report.file}, {"error", error_json(report.error)}};
  const auto& cached = report.read.what.cached_bytes;
  return {{"file", report.file},
          {"size", report.size},
          {"file_system", report.file_system},
          {"cached_bytes", cached ? json(*cached) : json(nullptr)},
          {"device", report.device},
          {"read", plan_json(report.read)},
          {"write", plan_json(report.write)},
          {"devices", devices_json(report.devices)},
          {"findings", findings_json(report.findings)},
          {"cuda", report.cuda.ok() ? "ok" : std::string(report.cuda.message())}};
}

}  // namespace penstock::cli
