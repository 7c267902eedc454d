#include "cli/recorded_machine.hpp"

#include <fmt/format.h>

#include <cstring>
#include <fstream>
#include <functional>
#include <iterator>
#include <sstream>
#include <stdexcept>

namespace penstock::cli_test {
namespace {

namespace fs = std::filesystem;

std::string next_word(std::istream& from) {
  std::string word;
  from >> word;
  return word;
}

std::string rest_of(std::istream& from) {
  std::string rest;
  std::getline(from >> std::ws, rest);
  return rest;
}

// "class=0x030200 vendor=0x10de"; model= takes all that follows.
std::map<std::string, std::string> settings_in(const std::string& text) {
  std::map<std::string, std::string> found;
  std::istringstream words(text);
  for (std::string word; words >> word;) {
    const auto equals = word.find('=');
    if (equals == std::string::npos) throw std::runtime_error("no name=value: " + word);
    const auto name = word.substr(0, equals);
    found[name] = word.substr(equals + 1);
    if (name == "model") {
      std::string more;
      std::getline(words, more);
      found[name] += more;
    }
  }
  return found;
}

std::string address_of(const std::string& bus_path) { return fs::path(bus_path).filename().string(); }

void put_word(std::string& bytes, std::size_t at, unsigned value) {
  bytes[at] = static_cast<char>(value & 0xffU);
  bytes[at + 1] = static_cast<char>(value >> 8U & 0xffU);
}

// The registers of a port: its kind in the PCI Express capability, and access control among the extended ones.
std::string registers_of(const std::string& kind, const std::string& acs) {
  std::string bytes(acs == "hidden" ? 64 : 4096, '\0');
  bytes[0x34] = 0x40;
  if (acs == "hidden") return bytes;
  put_word(bytes, 0x40, 0x10);
  put_word(bytes, 0x42, (kind == "switch" ? 6U : 4U) << 4U);
  put_word(bytes, 0x100, acs == "none" ? 0x01 : 0x0d);
  put_word(bytes, 0x106, acs == "on" ? 0x1d : 0);
  return bytes;
}

void write_link(const std::function<void(const std::string&, const std::string&)>& write, const std::string& which,
                const std::string& value) {
  const auto slash = value.find('/');
  write(which + "_link_speed", value.substr(0, slash) + ".0 GT/s PCIe\n");
  write(which + "_link_width", value.substr(slash + 1) + "\n");
}

template <class Number>
void put(std::string& to, Number value) {
  char bytes[sizeof value];
  std::memcpy(bytes, &value, sizeof value);
  to.append(bytes, sizeof value);
}

}  // namespace

std::string loader_cache(const std::vector<std::pair<std::string, std::string>>& libraries) {
  constexpr std::size_t head = 48;
  constexpr std::size_t entry = 24;
  std::string names;
  std::string entries;
  const auto place = [&](const std::string& text) {
    const auto at = head + libraries.size() * entry + names.size();
    names += text + '\0';
    return static_cast<std::uint32_t>(at);
  };
  for (const auto& [name, path] : libraries) {
    put<std::int32_t>(entries, 0x0303);
    put<std::uint32_t>(entries, place(name));
    put<std::uint32_t>(entries, place(path));
    put<std::uint32_t>(entries, 0);
    put<std::uint64_t>(entries, 0);
  }
  std::string out = "glibc-ld.so.cache1.1";
  put<std::uint32_t>(out, static_cast<std::uint32_t>(libraries.size()));
  put<std::uint32_t>(out, static_cast<std::uint32_t>(names.size()));
  out.resize(head, '\0');
  return out + entries + names;
}

recorded_machine::recorded_machine(const std::string& file, fs::path root) : root_(std::move(root)) {
  std::ifstream lines(file);
  if (!lines) throw std::runtime_error("cannot open " + file);
  int number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    std::istringstream words(line);
    const auto verb = next_word(words);
    if (verb.empty() || verb.starts_with('#')) continue;
    auto rest = rest_of(words);
    if (verb == "file" && rest.ends_with(" <<")) {
      rest.resize(rest.size() - 2);
      for (std::string more; std::getline(lines, more) && more != ".";) rest += more + "\n", ++number;
      ++number;
    }
    if (!take(verb, rest)) throw std::runtime_error(fmt::format("{}:{}: not understood: {}", file, number, line));
  }
  finish();
}

bool recorded_machine::take(const std::string& verb, const std::string& rest) {
  std::istringstream words(rest);
  if (verb == "file") {
    const auto path = next_word(words);
    words.get();
    write(path, std::string(std::istreambuf_iterator<char>(words), {}) + (rest.ends_with('\n') ? "" : "\n"));
  } else if (verb == "dir") {
    fs::create_directories(root_ / rest);
  } else if (verb == "link") {
    const auto path = next_word(words);
    link(path, next_word(words));
  } else if (verb == "env") {
    environment_ += rest + '\0';
  } else if (verb == "library") {
    add_library(rest);
  } else if (verb == "pci" || verb == "bridge") {
    const auto bus_path = next_word(words);
    verb == "pci" ? add_pci(bus_path, settings_in(rest_of(words))) : add_bridge(bus_path, settings_in(rest_of(words)));
  } else if (verb == "gpu") {
    add_gpu(rest);
  } else if (verb == "rdma") {
    add_rdma(rest);
  } else if (verb == "drive") {
    add_drive(rest);
  } else if (verb == "expect") {
    expected_.push_back(rest);
  } else if (verb == "exit") {
    exit_code_ = std::stoi(rest);
  } else {
    return false;
  }
  return true;
}

void recorded_machine::write(const std::string& path, const std::string& content) const {
  fs::create_directories((root_ / path).parent_path());
  std::ofstream(root_ / path, std::ios::binary) << content;
}

void recorded_machine::link(const std::string& path, const std::string& target) const {
  fs::create_directories((root_ / path).parent_path());
  fs::create_directories(root_ / target);
  fs::create_symlink(fs::path(target).lexically_relative(fs::path(path).parent_path()), root_ / path);
}

void recorded_machine::add_pci(const std::string& bus_path, const settings& of) const {
  const auto folder = "sys/devices/" + bus_path;
  const auto put_file = [&](const std::string& name, const std::string& content) { write(folder + "/" + name, content); };
  link("sys/bus/pci/devices/" + address_of(bus_path), folder);
  for (const auto& [name, value] : of) {
    if (name == "node") {
      put_file("numa_node", value + "\n");
    } else if (name == "now" || name == "most") {
      write_link(put_file, name == "now" ? "current" : "max", value);
    } else if (name == "window") {
      put_file("resource", fmt::format("{:#018x} {:#018x} {:#018x}\n", 0, std::stoull(value) * (1U << 20) - 1, 0x14220c));
    } else if (name == "driver") {
      link(folder + "/driver", "sys/bus/pci/drivers/" + value);
    } else if (name == "iommu") {
      link(folder + "/iommu_group", "sys/kernel/iommu_groups/" + address_of(bus_path));
      put_file("iommu_group/type", value + "\n");
    } else {
      put_file(name, value + "\n");  // class, vendor
    }
  }
}

void recorded_machine::add_bridge(const std::string& bus_path, const settings& of) const {
  add_pci(bus_path, {{"class", "0x060400"}, {"vendor", "0x1000"}, {"most", of.contains("most") ? of.at("most") : "32/16"}});
  write("sys/devices/" + bus_path + "/config", registers_of(of.at("kind"), of.at("acs")));
}

void recorded_machine::add_gpu(const std::string& rest) const {
  std::istringstream words(rest);
  const auto address = next_word(words);
  const auto minor = next_word(words);
  write(fmt::format("proc/driver/nvidia/gpus/{}/information", address),
        fmt::format("Model: \t\t {}\nIRQ:   \t\t 100\nBus Location: \t {}\nDevice Minor: \t {}\n", rest_of(words), address, minor));
}

void recorded_machine::add_rdma(const std::string& rest) const {
  std::istringstream words(rest);
  const auto name = next_word(words);
  const auto address = next_word(words);
  const auto state = next_word(words);
  const auto layer = next_word(words);
  const auto device = fs::relative(fs::canonical(root_ / "sys/bus/pci/devices" / address), fs::canonical(root_)).string();
  const auto folder = device + "/infiniband/" + name;
  write(folder + "/ports/1/state", (state == "ACTIVE" ? "4: " : "1: ") + state + "\n");
  write(folder + "/ports/1/link_layer", layer + "\n");
  write(folder + "/ports/1/rate", rest_of(words) + "\n");
  link(folder + "/device", device);
  link("sys/class/infiniband/" + name, folder);
}

void recorded_machine::add_drive(const std::string& rest) const {
  std::istringstream words(rest);
  const auto name = next_word(words);
  const auto numbers = next_word(words);
  const auto bus_path = next_word(words);
  const auto of = settings_in(rest_of(words));
  const auto either = [&](const char* key, const char* standard) { return of.contains(key) ? of.at(key) : std::string(standard); };
  const auto folder = "sys/devices/" + bus_path + "/nvme/block/" + name;
  write(folder + "/dev", numbers + "\n");
  write(folder + "/queue/max_sectors_kb", either("max", "1280") + "\n");
  write(folder + "/queue/max_hw_sectors_kb", either("can", "1280") + "\n");
  write(folder + "/queue/nr_requests", either("depth", "1023") + "\n");
  write(folder + "/queue/rotational", either("rotates", "0") + "\n");
  write(folder + "/queue/scheduler", either("scheduler", "[none] mq-deadline") + "\n");
  write("sys/devices/" + bus_path + "/nvme/model", either("model", "Drive") + "\n");
  if (of.contains("transport")) write("sys/devices/" + bus_path + "/nvme/transport", of.at("transport") + "\n");
  link(folder + "/device", "sys/devices/" + bus_path + "/nvme");
  link("sys/dev/block/" + numbers, folder);
  link("sys/block/" + name, folder);
}

void recorded_machine::add_library(const std::string& rest) {
  std::istringstream words(rest);
  const auto name = next_word(words);
  const auto path = next_word(words);
  libraries_.emplace_back(name, path);
  if (!fs::exists(root_ / path.substr(1))) write(path.substr(1), "");
}

void recorded_machine::finish() const {
  if (!environment_.empty()) write("proc/self/environ", environment_);
  if (!libraries_.empty()) write("etc/ld.so.cache", loader_cache(libraries_));
}

}  // namespace penstock::cli_test
