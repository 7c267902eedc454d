#include "cli/common/check_machine.hpp"

#include <sys/stat.h>

#include <algorithm>
#include <filesystem>

#include "cli/common/own_libraries.hpp"
#include "cufile/settings_sources.hpp"
#include "machine/examine.hpp"
#include "machine/loader.hpp"
#include "machine/summary.hpp"
#include "machine/topology.hpp"
#include "penstock/penstock.hpp"

namespace penstock::cli {
namespace {

// Returns the path under which this process can open the file. If a link in a copied tree points outside the tree, returns a path that does
// not exist.
std::string place_of_settings(const machine::tree& from, const std::string& file) {
  if (from.is_this_machine() || !file.starts_with('/')) return file;
  const auto real = from.real(file);
  return from.outside(real.empty() ? file + "/." : real);
}

// Returns the settings that apply to a program with the environment in /proc/self/environ.
machine::settings_facts gather_settings(const machine::tree& from) {
  const machine::loader linker(from);
  std::string kept;  // keeps the last result alive
  const auto lookup = [&](const char* name) -> const char* {
    kept = linker.variable(name);
    return kept.empty() ? nullptr : kept.c_str();
  };
  machine::settings_facts found;
  const auto named = linker.variable("CUFILE_ENV_PATH_JSON");
  found.file = named.empty() ? "/etc/cufile.json" : named;
  const auto traced = cufile::trace_settings(lookup, place_of_settings(from, found.file), found.file);
  found.file_exists = traced.file_exists;
  found.problem = traced.problem.message();
  found.refused = traced.refused;
  for (const auto& each : traced.values)
    found.values.push_back({std::string(each.key), each.value, std::string(each.standard), each.source});
  return found;
}

// Without a driver, initializing CUDA would add nothing.
void ask_cuda(machine_report& report) {
  if (!report.libraries.cuda || report.platform.driver_version.empty()) return;
  report.libraries.driver = machine::ask_cuda(report.libraries.cuda->file);
  for (auto& gpu : report.platform.gpus) {
    const auto seen = std::ranges::find(report.libraries.driver.gpus, gpu.address, &machine::cuda_gpu::address);
    if (seen != report.libraries.driver.gpus.end()) gpu.capability = seen->capability;
  }
}

}  // namespace

machine_report examine(const machine::tree& from) {
  machine_report report;
  report.platform = machine::gather_platform(from);
  report.libraries = machine::gather_libraries(from);
  report.libraries.settings = gather_settings(from);
  if (from.is_this_machine()) {
    ask_cuda(report);
    const auto own = find_own_libraries(true);
    report.libraries.own_known = own.error.empty();
    if (!own.folder.empty()) report.libraries.own_cufile = own.folder + "/" + library_name;
  }
  report.storage = machine::gather_storage(from);
  report.findings.append(machine::judge_platform(report.platform));
  report.findings.append(machine::judge_libraries(report.platform, report.libraries));
  report.findings.append(machine::judge_file_systems(report.platform, report.libraries.settings, report.storage));
  return report;
}

std::vector<machine::finding> findings_of_file(const machine_report& report, const std::string& file) {
  std::vector<machine::finding> found;
  std::error_code failed;
  const auto real = std::filesystem::canonical(file, failed);
  const auto* mount = failed ? nullptr : machine::mount_of(report.storage, real.string());
  if (mount == nullptr) return found;
  for (const auto& each : report.findings.all()) {
    const bool concerns = each.subject == mount->point || std::ranges::count(mount->drives, each.subject) > 0;
    const bool of_lustre = mount->type == "lustre" && each.id.starts_with("fs.lustre");
    if (each.where == machine::group::file_systems && (concerns || of_lustre)) found.push_back(each);
  }
  struct stat info {};
  if (::stat(real.c_str(), &info) != 0) return found;
  constexpr std::uint64_t unit = 512;  // unit of st_blocks, independent of the file system's block size
  const machine::file_facts facts{file, static_cast<std::uint64_t>(info.st_size), static_cast<std::uint64_t>(info.st_blocks) * unit};
  const auto holes = machine::judge_holes(report.findings, *mount, facts);
  found.insert(found.end(), holes.all().begin(), holes.all().end());
  return found;
}

std::vector<std::pair<std::string, std::string>> versions(const machine_report& report) {
  const auto in_name = [](const auto& library) { return library ? machine::version_in_name(library->file) : std::string(); };
  return {{"penstock", std::string(version())},
          {"kernel", report.platform.release},
          {"nvidia_driver", report.platform.driver_version},
          {"nvidia_fs", report.platform.nvidia_fs.version},
          {"libcuda", in_name(report.libraries.cuda)},
          {"nvidia_libcufile", machine::version_in_name(report.libraries.nvidia_cufile)},
          {"rdma_driver", report.storage.rdma_driver_version},
          {"lustre", report.storage.lustre.version}};
}

nlohmann::json findings_json(const std::vector<machine::finding>& all) {
  auto out = nlohmann::json::array();
  for (const auto& each : all) {
    out.push_back({{"id", each.id},
                   {"group", to_string(each.where)},
                   {"subject", each.subject},
                   {"verdict", to_string(each.verdict)},
                   {"reason", each.reason},
                   {"remedy", each.remedy}});
  }
  return out;
}

nlohmann::json to_json(const machine_report& report, const machine_view& view) {
  auto document = nlohmann::json::object();
  if (view.findings) {
    document["findings"] = findings_json(report.findings.all());
    document["summary"] = machine::summary(report.platform, report.findings);
    for (const auto of : {machine::verdict::ok, machine::verdict::slow, machine::verdict::broken, machine::verdict::unknown}) {
      document["counts"][std::string(to_string(of))] = report.findings.count(of);
    }
  }
  if (view.versions) {
    for (const auto& [name, found] : versions(report))
      document["versions"][name] = found.empty() ? nlohmann::json(nullptr) : nlohmann::json(found);
  }
  if (view.topology) {
    document["topology"] = nlohmann::json::array();
    for (const auto& each : machine::neighbours(report.platform)) {
      document["topology"].push_back(
          {{"gpu", each.gpu}, {"peer", each.peer}, {"what", each.what}, {"relation", each.relation}, {"shared", each.shared}});
    }
  }
  return document;
}

}  // namespace penstock::cli
