// penstock load: measures how fast this machine loads a model into device memory.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <sstream>
#include <utility>

#include "bench/ceilings.hpp"
#include "bench/meter.hpp"
#include "cli/common/command.hpp"
#include "cli/common/figures.hpp"
#include "cli/common/interrupt.hpp"
#include "cli/common/json.hpp"
#include "cli/common/say.hpp"
#include "cli/common/sizes.hpp"
#include "cli/common/transfer_memory.hpp"
#include "cli/common/usage.hpp"
#include "cli/models/load_pass.hpp"

namespace penstock::cli {
namespace {

using nlohmann::json;

struct load_options {
  std::vector<std::string> files;
  std::vector<std::string> devices;
  std::string cache = "auto";
  unsigned links = 0;  // as in engine_options
  unsigned repeat = 1;
  bool time = false;
  bool verify = false;
  output_options output;
};

// A hardware limit, measured without the engine.
struct load_ceiling {
  std::string device;  // empty: the limit of the disk
  std::string name;
  double gbs = 0;
  status error;  // the reason if there is none
};

// --- additional measurements

load_ceiling link_of(const std::string& device) {
  const auto link = bench::ceiling_meter(device).link();
  if (!link) return {device, {}, 0, link.error()};
  return {device, "pinned memory to device", link->to_device_gbs, {}};
}

// Measures the drive, which limits reads of a file that is not in the page cache.
load_ceiling disk_of(const std::string& device, const std::string& path, std::uint64_t bytes) {
  constexpr std::uint64_t most = std::uint64_t{1} << 30;
  const auto found = bench::ceiling_meter(device).direct_read(path, std::min(bytes, most));
  if (!found) return {{}, {}, 0, found.error()};
  return {{}, fmt::format("disk, O_DIRECT, {}", found->how), found->value, {}};
}

bool is_cold(const loaded_file& file) { return file.cached_bytes && *file.cached_bytes < file.file_bytes / 2; }

std::vector<load_ceiling> ceilings_of(const load_request& wanted, const std::vector<load_pass>& passes) {
  std::vector<load_ceiling> made;
  for (const device_info& each : wanted.devices) {
    const bool seen = std::ranges::count(made, each.name, &load_ceiling::device) > 0;
    if (!seen && !interrupted()) made.push_back(link_of(each.name));
  }
  for (const load_pass& pass : passes) {
    const auto cold = std::ranges::find_if(pass.files, is_cold);
    if (cold == pass.files.end() || interrupted()) continue;
    made.push_back(disk_of(wanted.devices.front().name, cold->path, cold->file_bytes));
    break;
  }
  return made;
}

const load_ceiling* link_ceiling(const std::vector<load_ceiling>& all, const std::string& device) {
  const auto found = std::ranges::find(all, device, &load_ceiling::device);
  return found == all.end() || !found->error.ok() ? nullptr : &*found;
}

double speed_of(const loaded_device& device) { return bench::gigabytes_per_second(device.bytes, device.seconds); }

// --- text output

std::string cached_words_of(const loaded_file& file) {
  if (!file.cached_bytes || file.file_bytes == 0) return "";
  return fmt::format(", {:.0f} % in the page cache",
                     100.0 * static_cast<double>(*file.cached_bytes) / static_cast<double>(file.file_bytes));
}

void print_sources(const load_pass& pass) {
  for (const loaded_file& each : pass.files) {
    say("{}: {}, {}, {}{}\n", each.path, each.kind, counted(each.tensors, each.kind == "checkpoint" ? "storage" : "tensor"),
        format_size(each.tensor_bytes), cached_words_of(each));
  }
  for (const load_way& each : pass.ways) say("  {:<9} {:>12}  {}\n", each.path, format_size(each.bytes), each.reason);
  for (const std::string& each : pass.remarks) say("  note: {}\n", each);
}

figures figures_of(const load_pass& pass) {
  figures made;
  for (const loaded_device& each : pass.devices) made.bytes += each.bytes;
  made.seconds = pass.read_seconds;
  made.cpu_seconds = pass.read_cpu_seconds;
  made.path = pass.path;
  return made;
}

void print_devices(const load_pass& pass) {
  for (const loaded_device& each : pass.devices) {
    const std::string verdict = !each.equal ? "" : *each.equal ? ", verified" : ", WRONG BYTES";
    say("{}: {} in {:.3f} s, {:.2f} GB/s{}\n", each.name, format_size(each.bytes), each.seconds, speed_of(each), verdict);
  }
  say("{}, {}: {}\n", counted(pass.files.size(), "file"), counted(pass.tensors, "tensor"), describe(figures_of(pass)));
}

void print_times(const load_pass& pass) {
  say("  opening      {:.3f} s, files and their headers\n", pass.open_seconds);
  say("  allocating   {:.3f} s\n", pass.allocate_seconds);
  say("  reading      {:.3f} s\n", pass.read_seconds);
}

void print_pass(const load_pass& pass, const load_options& wanted) {
  if (!wanted.output.quiet) print_sources(pass);
  if (pass.devices.empty()) return;
  print_devices(pass);
  if (wanted.time) print_times(pass);
}

void print_ceilings(const std::vector<load_ceiling>& ceilings, const std::vector<load_pass>& passes, bool quiet) {
  for (const load_ceiling& each : ceilings) {
    const std::string of = each.device.empty() ? "" : each.device + ", ";
    if (!each.error.ok()) {
      say("ceiling: none for {}: {}\n", each.device.empty() ? "the disk" : each.device, each.error.message());
      continue;
    }
    std::string reached;
    for (const load_pass& pass : passes) {
      for (const loaded_device& device : pass.devices) {
        if (device.name == each.device)
          reached += fmt::format("{}{:.0f}%", reached.empty() ? ": reached " : ", ", 100 * speed_of(device) / each.gbs);
      }
    }
    say("ceiling: {}{}, {:.2f} GB/s{}\n", of, each.name, each.gbs, reached);
  }
  if (!ceilings.empty() && passes.size() == 1 && !quiet)
    say("  note: the first load of a process also pins memory and starts threads; --repeat 2 shows how fast the next one is\n");
}

// --- JSON output

json json_of(const loaded_device& device, const std::vector<load_ceiling>& ceilings) {
  json made{{"device", device.name},
            {"bytes", device.bytes},
            {"seconds", device.seconds},
            {"gb_per_s", speed_of(device)},
            {"ceiling_gb_per_s", nullptr},
            {"fraction_of_ceiling", nullptr},
            {"verified", device.equal ? json(*device.equal) : json(nullptr)}};
  if (const load_ceiling* link = link_ceiling(ceilings, device.name)) {
    made["ceiling_gb_per_s"] = link->gbs;
    made["fraction_of_ceiling"] = speed_of(device) / link->gbs;
  }
  return made;
}

json json_of(const load_pass& pass, const std::vector<load_ceiling>& ceilings) {
  json made{{"bytes", pass.bytes},
            {"tensors", pass.tensors},
            {"files", json::array()},
            {"plan", json::array()},
            {"remarks", pass.remarks},
            {"devices", json::array()},
            {"open_seconds", pass.open_seconds},
            {"allocate_seconds", pass.allocate_seconds},
            {"read_seconds", pass.read_seconds},
            {"cpu_seconds", pass.read_cpu_seconds},
            {"path", pass.path},
            {"error", error_json(pass.error)}};
  for (const loaded_file& each : pass.files) {
    made["files"].push_back({{"file", each.path},
                             {"kind", each.kind},
                             {"tensors", each.tensors},
                             {"bytes", each.tensor_bytes},
                             {"cached_bytes", each.cached_bytes ? json(*each.cached_bytes) : json(nullptr)}});
  }
  for (const load_way& each : pass.ways) made["plan"].push_back({{"path", each.path}, {"bytes", each.bytes}, {"reason", each.reason}});
  for (const loaded_device& each : pass.devices) made["devices"].push_back(json_of(each, ceilings));
  return made;
}

void print_as_json(const std::vector<load_pass>& passes, const std::vector<load_ceiling>& ceilings) {
  json document{{"loads", json::array()}, {"ceilings", json::array()}};
  for (const load_pass& each : passes) document["loads"].push_back(json_of(each, ceilings));
  for (const load_ceiling& each : ceilings) {
    document["ceilings"].push_back({{"device", each.device.empty() ? json(nullptr) : json(each.device)},
                                    {"name", each.name},
                                    {"gb_per_s", each.error.ok() ? json(each.gbs) : json(nullptr)},
                                    {"error", error_json(each.error)}});
  }
  print_json(document);
}

// --- the command

// Splits a list at the commas.
std::vector<std::string> words_of(const std::string& list) {
  std::vector<std::string> words;
  std::istringstream text(list);
  for (std::string word; std::getline(text, word, ',');) words.push_back(word);
  return words;
}

std::vector<std::string> names_of_gpus(const std::string& list) {
  auto names = words_of(list);
  for (std::string& each : names) {
    const bool is_number = !each.empty() && each.find_first_not_of("0123456789") == std::string::npos;
    if (!is_number) throw CLI::ValidationError("--gpus", fmt::format("\"{}\" is not a GPU number", each));
    each = "cuda:" + each;
  }
  return names;
}

result<load_request> request_of(const engine& owner, const load_options& wanted) {
  load_request made;
  made.files = wanted.files;
  made.verify = wanted.verify;
  auto cache = parse_cache_use(wanted.cache);
  if (!cache) return cache.error();
  made.io.cache = *cache;
  made.io.links = wanted.links;
  std::vector<std::string> names = wanted.devices;
  if (names.empty()) names.emplace_back();  // the engine's first device
  for (const std::string& name : names) {
    auto device = choose_device(owner, name);
    if (!device) return device.error();
    made.devices.push_back(*std::move(device));
  }
  return made;
}

void print_beginning(const engine& owner, const load_options& wanted, const load_request& request) {
  if (wanted.output.json || wanted.output.quiet) return;
  std::string names;
  for (const device_info& each : request.devices) names += (names.empty() ? "" : ", ") + describe_device(each);
  say("to {}\n", names);
  if (const std::string reason = why_no_gpu(owner); wanted.devices.empty() && !reason.empty()) say("{}\n", reason);
}

int load(const load_options& wanted) {
  auto owner = make_engine();
  if (!owner) return fail(owner.error());
  const auto request = request_of(*owner, wanted);
  if (!request) return fail(request.error());
  print_beginning(*owner, wanted, *request);
  std::vector<load_pass> passes;
  for (unsigned i = 0; i < wanted.repeat && (passes.empty() || passes.back().error.ok()); ++i) {
    passes.push_back(load_once(*owner, *request));
    if (!wanted.output.json) print_pass(passes.back(), wanted);
  }
  const status error = passes.back().error;
  std::vector<load_ceiling> ceilings;
  if (wanted.time && error.ok()) ceilings = ceilings_of(*request, passes);
  wanted.output.json ? print_as_json(passes, ceilings) : print_ceilings(ceilings, passes, wanted.output.quiet);
  if (interrupted()) {
    complain("penstock: interrupted\n");
    return interrupted_exit_code();
  }
  return error.ok() ? exit_success : fail(error);
}

}  // namespace

void add_load(CLI::App& app, command& chosen) {
  auto wanted = std::make_shared<load_options>();
  CLI::App& sub = *app.add_subcommand("load", "Load a model into device memory; show the speed and what limits it");
  sub.add_option("FILE", wanted->files,
                 "safetensors files, GGUF files, torch.save checkpoints, indexes (.json) of such files, or folders with model.safetensors "
                 "or its index")
      ->required();
  const auto take_names = [wanted](const std::string& list) { wanted->devices = words_of(list); };
  auto* devices = sub.add_option_function<std::string>(
                         "--device", take_names,
                         "Devices by name; each receives the whole model: cuda:0,cuda:1 (default: the first that `penstock devices` lists)")
                      ->type_name("DEVICE,...");
  const auto take_numbers = [wanted](const std::string& list) { wanted->devices = names_of_gpus(list); };
  sub.add_option_function<std::string>("--gpus", take_numbers, "GPUs by number: 0,1 is cuda:0,cuda:1")
      ->type_name("N,...")
      ->excludes(devices);
  add_cache_option(sub, wanted->cache);
  sub.add_option("--links", wanted->links,
                 "Fill each GPU over this many PCIe links, 1 to 8, through neighbouring GPUs (default: PENSTOCK_LINKS)")
      ->check(whole_number(1, 8));
  sub.add_flag("--time", wanted->time,
               "Show where the time was spent, and measure the ceilings of the link and, if it is read, of the disk");
  sub.add_flag("--verify", wanted->verify, "Copy the bytes back and compare their hash with that of a plain read");
  sub.add_option("--repeat", wanted->repeat, "Number of loads (default 1)")->check(whole_number(1));
  add_output_options(sub, wanted->output);
  sub.callback([wanted, &chosen] { chosen.run = [wanted] { return load(*wanted); }; });
}

}  // namespace penstock::cli
