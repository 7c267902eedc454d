// The network fabrics of an engine's pipes: one for host memory, and one for the network cards that are nearest to a GPU in use. Each is
// opened when it is first needed. Thread-safe.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "device/device.hpp"
#include "penstock/status.hpp"
#include "sys/fabric.hpp"

namespace penstock::channel {

class fabrics {
 public:
  // named: the user asks for channels over a fabric by name, which are then used within a host and over tcp too. only_loopback: in that
  // case, since pipes over tcp are, where there is no secret. sysfs: where it is mounted.
  fabrics(std::shared_ptr<sys::fabrics> door, bool named, bool only_loopback, std::string sysfs)
      : door_(std::move(door)), named_(named), only_loopback_(only_loopback), sysfs_(std::move(sysfs)) {}

  // Why a pipe does not use them; nothing when it may. local: its ends are on one host. May open the one for host memory.
  std::optional<std::string> refuses(bool local);
  // Why, further, they are of no use for memory of GPUs.
  std::optional<std::string> refuses_gpus();
  // For memory of the host, and of the host device.
  result<std::shared_ptr<sys::fabric>> of_host();
  // For memory of the GPU of this session, at this PCI address. Errors too: unsupported, with the reason.
  result<std::shared_ptr<sys::fabric>> of_gpu(device::session& session, const std::string& pci_bus_id);

 private:
  using opened = result<std::shared_ptr<sys::fabric>>;
  opened open(const std::string& devices, std::size_t rails, device::session* session);

  const std::shared_ptr<sys::fabrics> door_;
  const bool named_;
  const bool only_loopback_;
  const std::string sysfs_;
  std::mutex lock_;                       // guards what follows; held while one is opened
  std::map<std::string, opened> opened_;  // by the network cards; empty: whichever the fabric likes. What has failed fails again
  std::map<std::string, std::vector<std::string>> cards_;  // by PCI address
};

}  // namespace penstock::channel
