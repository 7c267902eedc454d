#include "machine/pci_facts.hpp"

#include <array>
#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <optional>

#include <fmt/format.h>

#include "sys/pci.hpp"

namespace penstock::machine {

namespace {

constexpr auto devices_folder = "/sys/bus/pci/devices";

// "32.0 GT/s PCIe" and "16". For a link that is down, and on many virtual machines, they are "Unknown", 0 or 255.
pci_link link_of(const tree& from, const std::string& folder, const std::string& which) {
  pci_link found;
  found.gigatransfers = std::strtod(from.line(folder + "/" + which + "_link_speed").c_str(), nullptr);
  const auto lanes = from.number(folder + "/" + which + "_link_width").value_or(0);
  if (lanes <= 32) found.lanes = static_cast<unsigned>(lanes);
  return found;
}

// The configuration registers of a device (PCI Express Base Specification, 7.5 and 7.7.11).
class registers {
 public:
  explicit registers(std::string bytes) : bytes_(std::move(bytes)) {}
  [[nodiscard]] std::optional<unsigned> word(std::size_t at) const {
    if (at + 2 > bytes_.size()) return std::nullopt;
    return byte(at) | byte(at + 1) << 8U;
  }
  // Returns the offset of a capability in the first 256 bytes; 0 if it is missing or hidden.
  [[nodiscard]] std::size_t capability(unsigned id) const {
    std::size_t at = bytes_.size() > 0x34 ? byte(0x34) & 0xfcU : 0;
    for (int steps = 0; at >= 0x40 && at + 2 <= bytes_.size() && steps < 48; ++steps) {
      if (byte(at) == id) return at;
      at = byte(at + 1) & 0xfcU;
    }
    return 0;
  }
  [[nodiscard]] std::size_t extended_capability(unsigned id) const {
    std::size_t at = 0x100;
    for (int steps = 0; at >= 0x100 && at + 4 <= bytes_.size() && steps < 960; ++steps) {
      if (word(at) == id) return at;
      at = *word(at + 2) >> 4U;
    }
    return 0;
  }
  [[nodiscard]] bool shows_all() const { return bytes_.size() >= 4096; }
  [[nodiscard]] bool shows_capabilities() const { return bytes_.size() >= 256; }

 private:
  [[nodiscard]] unsigned byte(std::size_t at) const { return static_cast<unsigned char>(bytes_[at]); }
  std::string bytes_;
};

acs_state acs_of(const registers& shown) {
  constexpr unsigned access_control = 0x000d;
  constexpr unsigned steers = 0x000d;  // source validation, request redirect, completion redirect
  const auto at = shown.extended_capability(access_control);
  if (at == 0) return shown.shows_all() ? acs_state::none : acs_state::hidden;
  const auto control = shown.word(at + 6);
  if (!control) return acs_state::hidden;
  return (*control & steers) != 0 ? acs_state::on : acs_state::off;
}

bool is_switch_port(const registers& shown) {
  constexpr unsigned express = 0x10;
  const auto at = shown.capability(express);
  const auto flags = at == 0 ? std::nullopt : shown.word(at + 2);
  if (!flags) return false;
  const unsigned type = (*flags >> 4U) & 0xfU;
  return type == 5 || type == 6;
}

// depth: the number of bridges above this one. If the registers are hidden, a bridge below another bridge is assumed to be a switch port.
pci_bridge describe_bridge(const tree& from, const std::string& address, std::size_t depth) {
  const auto folder = fmt::format("{}/{}", devices_folder, address);
  const registers shown(from.read(folder + "/config", 4096).value_or(""));
  const bool is_switch = shown.shows_capabilities() ? is_switch_port(shown) : depth > 0;
  return {address, is_switch, acs_of(shown), link_of(from, folder, "max")};
}

}  // namespace

// Up to 5 GT/s, 8 of 10 bits are data; above that, 128 of 130.
double pci_link::gigabits() const noexcept { return gigatransfers * lanes * (gigatransfers < 8 ? 0.8 : 128.0 / 130.0); }

std::string to_string(const pci_link& link) { return fmt::format("{:g} GT/s x{}", link.gigatransfers, link.lanes); }

std::string root_bus(const pci_facts& device) {
  const auto& first = device.bridges.empty() ? device.basics.address : device.bridges.front().address;
  return first.substr(0, first.rfind(':'));
}

std::vector<pci_facts> gather_pci(const tree& from) {
  std::vector<pci_facts> all;
  const auto root = from.outside(devices_folder);
  for (const auto& address : sys::list_pci_addresses(root)) {
    pci_facts found;
    found.basics = sys::describe_pci_device(address, root);
    if (found.basics.kind == pci_kind::other) continue;
    const auto folder = fmt::format("{}/{}", devices_folder, address);
    found.vendor = static_cast<unsigned>(std::strtoul(from.line(folder + "/vendor").c_str(), nullptr, 16));
    found.model = static_cast<unsigned>(std::strtoul(from.line(folder + "/device").c_str(), nullptr, 16));
    found.driver = from.target_name(folder + "/driver");
    found.is_nvme = from.line(folder + "/class").starts_with("0x0108");
    found.has_iommu_group = from.exists(folder + "/iommu_group");
    found.iommu_type = from.line(folder + "/iommu_group/type");
    found.now = link_of(from, folder, "current");
    found.most = link_of(from, folder, "max");
    for (const auto& bridge : found.basics.bridges) found.bridges.push_back(describe_bridge(from, bridge, found.bridges.size()));
    all.push_back(std::move(found));
  }
  return all;
}

}  // namespace penstock::machine
