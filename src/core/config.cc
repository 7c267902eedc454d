#include "core/config.hpp"

#include <cctype>
#include <charconv>
#include <cstdlib>
#include <mutex>
#include <string>

#include <fmt/format.h>

#include "base/output.hpp"

namespace penstock {

namespace {

status bad_variable(const char* name, std::string_view value, const std::string& expected) {
  return {errc::invalid_argument, fmt::format("environment variable {}={}: expected {}", name, value, expected)};
}

// Returns the value of a variable; empty if it is not set.
std::string_view variable(const char* name) {
  const char* value = std::getenv(name);  // NOLINT(concurrency-mt-unsafe): read only
  return value == nullptr ? std::string_view() : std::string_view(value);
}

template <class Integer>
status read_integer(const char* name, Integer least, Integer most, Integer& target) {
  const auto text = variable(name);
  if (text.empty()) return {};
  Integer value{};
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (problem != std::errc() || end != text.data() + text.size() || value < least || value > most) {
    return bad_variable(name, text, fmt::format("a whole number from {} to {}", least, most));
  }
  target = value;
  return {};
}

// Parses a number of bytes with an optional suffix K, M, G or T.
status read_bytes(const char* name, std::uint64_t& target) {
  constexpr std::string_view units = "KMGT";
  auto text = variable(name);
  if (text.empty()) return {};
  const auto unit = units.find(text.back());
  const unsigned shift = unit == std::string_view::npos ? 0 : 10 * (static_cast<unsigned>(unit) + 1);
  const auto digits = shift == 0 ? text : text.substr(0, text.size() - 1);
  std::uint64_t value = 0;
  const auto [end, problem] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (digits.empty() || problem != std::errc() || end != digits.data() + digits.size() || value > (std::uint64_t{1} << 60) >> shift)
    return bad_variable(name, text, "a number of bytes, such as 200G");
  target = value << shift;
  return {};
}

status read_switch(const char* name, bool& target) {
  const auto text = variable(name);
  if (text.empty()) return {};
  if (text != "0" && text != "1") return bad_variable(name, text, "0 or 1");
  target = text == "1";
  return {};
}

}  // namespace

result<engine_options> core::read_environment(const path::path_table& paths) {
  engine_options options;
  if (const auto text = variable("PENSTOCK_PATH"); !text.empty()) {
    const auto parsed = paths.parse(text);
    if (!parsed) return parsed.error().with_context("environment variable PENSTOCK_PATH");
    options.path = *parsed;
  }
  if (const auto text = variable("PENSTOCK_PREFER"); !text.empty()) {
    const auto parsed = parse_preference(text);
    if (!parsed) return parsed.error().with_context("environment variable PENSTOCK_PREFER");
    options.prefer = *parsed;
  }
  if (const auto text = variable("PENSTOCK_CACHE"); !text.empty()) {
    const auto parsed = parse_cache_use(text);
    if (!parsed) return parsed.error().with_context("environment variable PENSTOCK_CACHE");
    options.cache = *parsed;
    static std::once_flag warned;
    if (text == "keep")
      std::call_once(warned, [] { print_error("penstock: PENSTOCK_CACHE=keep is deprecated: use PENSTOCK_CACHE=fill\n"); });
  }
  if (auto problem = read_integer("PENSTOCK_LANES", 0U, 64U, options.lanes); !problem.ok()) return problem;
  std::size_t pinned_mib = options.pinned_budget_bytes >> 20;
  if (auto problem = read_integer("PENSTOCK_PINNED_MIB", std::size_t{36}, std::size_t{16384}, pinned_mib); !problem.ok()) return problem;
  options.pinned_budget_bytes = pinned_mib << 20;
  if (variable("PENSTOCK_LINKS") != "auto") {
    if (auto problem = read_integer("PENSTOCK_LINKS", 1U, 8U, options.links); !problem.ok()) return problem;
  }
  constexpr std::uint64_t most_bytes_per_second = std::uint64_t{1} << 50;
  if (auto problem = read_integer("PENSTOCK_BYTES_PER_SECOND", std::uint64_t{0}, most_bytes_per_second, options.bytes_per_second);
      !problem.ok())
    return problem;
  std::size_t pinned_file_mib = options.pinned_file_budget_bytes >> 20;
  if (auto problem = read_integer("PENSTOCK_PINNED_FILE_MIB", std::size_t{0}, std::size_t{1} << 40, pinned_file_mib); !problem.ok())
    return problem;
  options.pinned_file_budget_bytes = pinned_file_mib << 20;
  if (auto problem = read_switch("PENSTOCK_CUDA", options.use_cuda); !problem.ok()) return problem;
  if (auto problem = read_switch("PENSTOCK_IO_URING", options.use_io_uring); !problem.ok()) return problem;
  if (auto problem = read_switch("PENSTOCK_STATS", options.use_board); !problem.ok()) return problem;
  if (const auto text = variable("PENSTOCK_LOG"); !text.empty()) {
    if (text != "summary") return bad_variable("PENSTOCK_LOG", text, "summary");
    options.log_summary = true;
  }
  options.node_cache_dir = variable("PENSTOCK_CACHE_DIR");
  if (!options.node_cache_dir.empty() && !options.node_cache_dir.starts_with('/'))
    return bad_variable("PENSTOCK_CACHE_DIR", options.node_cache_dir, "an absolute path");
  if (auto problem = read_bytes("PENSTOCK_CACHE_BYTES", options.node_cache_bytes); !problem.ok()) return problem;
  if (auto problem = read_switch("PENSTOCK_NVTX", options.use_nvtx); !problem.ok()) return problem;
  if (auto problem = read_switch("PENSTOCK_ALLOW_CREDENTIAL_PROCESS", options.allow_credential_process); !problem.ok()) return problem;
  options.cufile_library = variable("PENSTOCK_CUFILE_LIBRARY");
  return options;
}

source::remote::network_settings core::read_web_environment() {
  source::remote::network_settings made;
  const auto bundle = variable("CURL_CA_BUNDLE");
  made.door.ca_file = bundle;
  for (const auto* name : {"SSL_CERT_FILE", "AWS_CA_BUNDLE"}) {
    if (made.door.ca_file.empty()) made.door.ca_file = variable(name);
  }
  made.door.ca_folder = variable("SSL_CERT_DIR");
  for (const auto* name : {"http_proxy", "all_proxy", "ALL_PROXY"}) made.door.proxied |= !variable(name).empty();
  for (const auto* name : {"https_proxy", "HTTPS_PROXY"}) made.door.tls_proxied |= !variable(name).empty();
  return made;
}

std::optional<std::string> core::environment_variable(std::string_view name) {
  const auto* const value = std::getenv(std::string(name).c_str());  // NOLINT(concurrency-mt-unsafe): read only
  return value == nullptr ? std::nullopt : std::optional<std::string>(value);
}

result<engine_options> engine_options::from_environment() { return core::read_environment(path::built_in_paths()); }

}  // namespace penstock
