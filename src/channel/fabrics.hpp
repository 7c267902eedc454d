// The network fabrics of an engine's pipes: one for host memory, and one for the network cards nearest to each GPU in use. Each is opened
// on first use. Thread-safe.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/resident.hpp"
#include "device/device.hpp"
#include "penstock/status.hpp"
#include "sys/fabric.hpp"

namespace penstock::channel {

class fabrics final : public core::resident {
 public:
  // named: the user selected fabric channels by name, so they are also used within a host and over tcp. only_loopback: restricts that case,
  // as for pipes over tcp without a secret. sysfs: its mount point.
  fabrics(std::shared_ptr<sys::fabrics> door, bool named, bool only_loopback, std::string sysfs)
      : door_(std::move(door)), named_(named), only_loopback_(only_loopback), sysfs_(std::move(sysfs)) {}

  // Closes the fabrics until the next use. Error: unsupported if a pipe object still uses one.
  status rest(deadline_clock::time_point until) override;
  // Returns why a pipe does not use fabrics; nothing if it may. local: its ends are on one host. May open the fabric for host memory.
  std::optional<std::string> refuses(bool local);
  // Returns why a fabric cannot be used for GPU memory either.
  std::optional<std::string> refuses_gpus();
  // Returns the fabric for host memory and for the host device.
  result<std::shared_ptr<sys::fabric>> of_host();
  // Returns the fabric for the memory of this session's GPU, which has this PCI address. Additional error: unsupported, with the reason.
  result<std::shared_ptr<sys::fabric>> of_gpu(device::session& session, const std::string& pci_bus_id);

 private:
  using opened = result<std::shared_ptr<sys::fabric>>;
  opened open(const std::string& devices, std::size_t rails, device::session* session);

  const std::shared_ptr<sys::fabrics> door_;
  const bool named_;
  const bool only_loopback_;
  const std::string sysfs_;
  std::mutex lock_;                       // guards the members below; held while a fabric is opened
  std::map<std::string, opened> opened_;  // by network cards; empty: the fabric chooses. Failures are cached and returned again
  std::map<std::string, std::vector<std::string>> cards_;  // by PCI address
};

}  // namespace penstock::channel
