#include "machine/lustre_facts.hpp"

#include <charconv>

#include <fmt/format.h>

namespace penstock::machine {

namespace {

// Some versions write sizes as "512.00".
std::optional<std::uint64_t> leading_number(const std::string& text) {
  std::uint64_t value = 0;
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), value);
  if (parsed.ec != std::errc() || (parsed.ptr != text.data() + text.size() && *parsed.ptr != '.')) return std::nullopt;
  return value;
}

// kind: "osc", "llite". Newer clients expose the values in sysfs, older ones in /proc.
std::vector<lustre_value> values_of(const tree& from, const std::string& kind, const std::string& parameter) {
  std::vector<lustre_value> all;
  for (const char* root : {"/sys/fs/lustre", "/proc/fs/lustre"}) {
    const auto folder = fmt::format("{}/{}", root, kind);
    for (const auto& name : from.list(folder)) {
      if (const auto value = leading_number(from.line(fmt::format("{}/{}/{}", folder, name, parameter)))) all.push_back({name, *value});
    }
    if (!all.empty()) break;
  }
  return all;
}

std::string parameter_file(const std::string& module, const std::string& parameter) {
  return fmt::format("/sys/module/{}/parameters/{}", module, parameter);
}

// The kernel writes "(null)" for a string parameter that is not set.
std::optional<std::string> text_parameter(const tree& from, const std::string& module, const std::string& parameter) {
  const auto file = parameter_file(module, parameter);
  if (!from.read(file)) return std::nullopt;
  auto text = from.line(file);
  return text == "(null)" ? std::string() : text;
}

}  // namespace

lustre_facts gather_lustre(const tree& from) {
  lustre_facts found;
  for (const char* file : {"/sys/fs/lustre/version", "/proc/fs/lustre/version"}) {
    if (found.version.empty()) found.version = from.line(file);
  }
  found.pages_per_rpc = values_of(from, "osc", "max_pages_per_rpc");
  found.rpcs_in_flight = values_of(from, "osc", "max_rpcs_in_flight");
  found.checksums = values_of(from, "osc", "checksums");
  found.dirty_mib = values_of(from, "osc", "max_dirty_mb");
  found.idle_timeout_s = values_of(from, "osc", "idle_timeout");
  found.read_ahead_mib = values_of(from, "llite", "max_read_ahead_mb");
  found.cpu_partitions = from.number(parameter_file("libcfs", "cpu_npartitions"));
  found.cpu_pattern = text_parameter(from, "libcfs", "cpu_pattern");
  found.networks = text_parameter(from, "lnet", "networks");
  found.peer_credits = from.number(parameter_file("ko2iblnd", "peer_credits"));
  found.concurrent_sends = from.number(parameter_file("ko2iblnd", "concurrent_sends"));
  found.peer_credits_hiw = from.number(parameter_file("ko2iblnd", "peer_credits_hiw"));
  found.map_on_demand = from.number(parameter_file("ko2iblnd", "map_on_demand"));
  return found;
}

}  // namespace penstock::machine
