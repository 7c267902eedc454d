// penstock check: finds what is slow or broken on a machine, and explains which path the bytes of files would take.
#include "cli/begin/check.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <memory>

#include "bench/machine.hpp"
#include "cli/begin/bundle.hpp"
#include "cli/common/check_machine.hpp"
#include "cli/common/command.hpp"
#include "cli/common/inputs.hpp"
#include "cli/common/interrupt.hpp"
#include "cli/common/json.hpp"
#include "cli/common/say.hpp"
#include "cli/common/sizes.hpp"
#include "cli/common/transfer.hpp"
#include "cli/common/transfer_memory.hpp"

namespace penstock::cli {
namespace {

struct check_options {
  std::vector<std::string> files;
  std::vector<std::string> more_files;  // from -f
  std::string root = "/";
  bool platform = false;
  bool catalogue = false;
  machine_view view;
  std::string device;
  std::string settings_file;
  std::string bundle_file;  // "true": a name with the current time; empty: no bundle
  output_options output;
};

// Merges adjacent parts that take the same path for the same reason.
std::vector<plan_part> merge(const std::vector<plan_part>& parts) {
  std::vector<plan_part> out;
  for (const plan_part& part : parts) {
    if (!out.empty() && out.back().path == part.path && out.back().reason == part.reason &&
        out.back().offset + out.back().length == part.offset) {
      out.back().length += part.length;
    } else {
      out.push_back(part);
    }
  }
  return out;
}

check_plan explain(const engine& owner, const file& target, const check_report& report, bool is_write) {
  auto found = owner.explain(target, report.device, report.size, 0, is_write);
  if (!found) return {found.error(), {}};
  found->parts = merge(found->parts);
  // The report states once, for both plans, why there is no GPU.
  std::erase(found->remarks, why_no_gpu(owner));
  return {{}, std::move(*found)};
}

// Checks only the name: opening the file for writing would copy it up on overlayfs and notify watchers of a possible change.
check_plan explain_write(const engine& owner, const file& target, const check_report& report) {
  if (is_url(target.path())) return {{errc::unsupported, "objects on servers cannot be written in place"}, {}};
  if (::access(target.path().c_str(), W_OK) != 0) return {status::from_errno(errno, fmt::format("write {}", target.path())), {}};
  return explain(owner, target, report, true);
}

std::string describe_cached(const check_report& report) {
  if (!report.read.what.cached_bytes) return "unknown";
  const std::uint64_t cached = *report.read.what.cached_bytes;
  const double percent = report.size > 0 ? 100.0 * static_cast<double>(cached) / static_cast<double>(report.size) : 0;
  return fmt::format("{} ({:.0f}%)", format_size(cached), percent);
}

check_report look_at(const engine& owner, const input& named, const std::string& memory) {
  check_report report;
  report.file = named.name;
  report.device = memory;
  report.error = named.error;
  if (!report.error.ok()) return report;
  auto target = owner.open(named.name);
  if (!target) return report.error = target.error(), report;
  auto size = target->size();
  if (!size) return report.error = size.error(), report;
  report.file_system = is_url(named.name) ? "none (a server)" : bench::file_system_of(named.name);
  report.size = *size;
  report.read = explain(owner, *target, report, false);
  report.write = explain_write(owner, *target, report);
  report.devices = owner.devices();
  report.cuda = owner.cuda_status();
  return report;
}

void print_plan(std::string_view title, const check_plan& found) {
  constexpr std::size_t most_lines = 16;
  say("{}\n", title);
  if (!found.error.ok()) {
    say("  not possible: {}\n", found.error.message());
    return;
  }
  std::size_t line = 0;
  for (const plan_part& part : found.what.parts) {
    if (line++ == most_lines) {
      say("  ... and {} more parts (--json lists all)\n", found.what.parts.size() - most_lines);
      break;
    }
    say_hanging(37, "  {:<9} {:>12} at {:<12} {}\n", part.path_name, format_size(part.length), part.offset, part.reason);
  }
  for (const std::string& remark : found.what.remarks) say("  note: {}\n", remark);
}

void print_report(const check_report& report) {
  say("{}\n", report.file);
  say("  size         {} ({} bytes)\n", format_size(report.size), report.size);
  say("  file system  {}\n", report.file_system);
  say("  page cache   {}\n", describe_cached(report));
  print_plan(fmt::format("reads to {} would take", report.device), report.read);
  print_plan(fmt::format("writes from {} would take", report.device), report.write);
  print_findings(report.findings, false);
}

// Printed once for all files.
void print_devices(const engine& owner) {
  say("devices\n");
  for (const device_info& device : owner.devices()) say("  {}, {}\n", describe_device(device), format_size(device.memory_bytes));
  if (const std::string reason = why_no_gpu(owner); !reason.empty()) say("  {}\n", reason);
}

// Prints one object for a single file, and an array for several files or a folder.
void print_as_json(const std::vector<check_report>& reports, const std::vector<input>& inputs, const check_options& wanted) {
  if (wanted.files.size() == 1 && inputs.size() == 1 && inputs.front().name == wanted.files.front())
    return print_json(to_json(reports.front()));
  auto documents = nlohmann::json::array();
  for (const check_report& report : reports) documents.push_back(to_json(report));
  print_json(documents);
}

int check_machine(const check_options& wanted) {
  const auto report = examine(machine::tree(wanted.root));
  auto view = wanted.view;
  view.findings = wanted.platform || (!view.topology && !view.versions);
  view.quiet = wanted.output.quiet;
  wanted.output.json ? print_json(to_json(report, view)) : print_report(report, view);
  return view.findings && report.findings.count(machine::verdict::broken) > 0 ? exit_broken : exit_success;
}

bool is_broken(const check_report& report) {
  return std::ranges::count(report.findings, machine::verdict::broken, &machine::finding::verdict) > 0;
}

// Prints each file's error as it occurs, and passes each report to `then`. Stops early once interrupted() is true.
template <class Then>
std::vector<check_report> look_at_all(const engine& owner, const std::string& memory, const machine_report& known,
                                      const std::vector<input>& inputs, const Then& then) {
  std::vector<check_report> reports;
  for (const input& each : inputs) {
    if (interrupted()) break;
    check_report report = look_at(owner, each, memory);
    if (report.error.ok()) report.findings = findings_of_file(known, report.file);
    if (!report.error.ok()) (void)fail(report.error);
    then(report);
    reports.push_back(std::move(report));
  }
  return reports;
}

int exit_code_of(const std::vector<check_report>& reports) {
  if (std::ranges::any_of(reports, [](const check_report& each) { return !each.error.ok(); })) return exit_failure;
  return std::ranges::any_of(reports, is_broken) ? exit_broken : exit_success;
}

int check_files(const check_options& wanted) {
  auto owner = make_engine();
  if (!owner) return fail(owner.error());
  const auto where = choose_memory(*owner, wanted.device);
  if (!where) return fail(where.error());
  const std::vector<input> inputs = expand_folders(wanted.files);
  const auto reports = look_at_all(*owner, where->name, examine(machine::tree()), inputs, [&](const check_report& report) {
    if (report.error.ok() && !wanted.output.json) print_report(report);
  });
  if (interrupted()) return interrupted_exit_code();
  const int exit_code = exit_code_of(reports);
  if (wanted.output.json) {
    print_as_json(reports, inputs, wanted);
  } else if (!wanted.output.quiet && exit_code != exit_failure) {
    print_devices(*owner);
  }
  return exit_code;
}

// The part of a bundle about the files given on the command line.
struct bundled_files {
  nlohmann::json documents;  // null: no files were given
  int exit_code = exit_success;
};

bundled_files without_files(const status& error) { return {{{"error", error_json(error)}}, fail(error)}; }

bundled_files look_at_named(const check_options& wanted, const machine_report& known) {
  if (wanted.files.empty()) return {nullptr, known.findings.count(machine::verdict::broken) > 0 ? exit_broken : exit_success};
  auto owner = make_engine();
  if (!owner) return without_files(owner.error());
  const auto where = choose_memory(*owner, wanted.device);
  if (!where) return without_files(where.error());
  bundled_files found{nlohmann::json::array(), exit_success};
  const auto reports = look_at_all(*owner, where->name, known, expand_folders(wanted.files), [&](const check_report& report) {
    found.documents.push_back(to_json(report));
    // With a space instead of '=', the name of the bundle is parsed as a file to check.
    if (report.error.code() == errc::not_found && report.file.ends_with(".tar"))
      complain("penstock: use --bundle={} to give the bundle this name\n", report.file);
  });
  found.exit_code = exit_code_of(reports);
  return found;
}

void print_bundle(const bundle& made, const std::string& path, std::uint64_t bytes) {
  say("{}: {}\n", path, format_size(bytes));
  for (const auto& each : made.entries) say_hanging(4, "  {:<32} {:>10}  {}\n", each.name, format_size(each.content.size()), each.what);
  for (const auto& each : made.unread) say("  not included: {}\n", each);
  say("Nothing has been sent. Review the bundle first: tar xf {}, then less penstock-check/*\n", path);
}

nlohmann::json json_of(const bundle& made, const std::string& path, std::uint64_t bytes) {
  auto entries = nlohmann::json::array();
  for (const auto& each : made.entries) entries.push_back({{"name", each.name}, {"what", each.what}, {"bytes", each.content.size()}});
  return {{"bundle", path}, {"bytes", bytes}, {"entries", std::move(entries)}, {"not_in_it", made.unread}};
}

int bundle_up(const check_options& wanted) {
  machine::tree from(wanted.root);
  machine::tree_log log;
  from.log_to(&log);
  const auto known = examine(from);
  const auto files = look_at_named(wanted, known);
  if (interrupted()) return interrupted_exit_code();
  const auto made = make_bundle(from, log, known, files.documents);
  const auto path = wanted.bundle_file == "true" ? bundle_name() : wanted.bundle_file;
  const auto bytes = write_bundle(made, path);
  if (!bytes) return fail(bytes.error());
  wanted.output.json ? print_json(json_of(made, path, *bytes)) : print_bundle(made, path, *bytes);
  return files.exit_code;
}

int check(const check_options& wanted) {
  if (!wanted.bundle_file.empty()) return bundle_up(wanted);
  if (wanted.catalogue) {
    wanted.output.json ? print_json(catalogue_json()) : print_catalogue();
    return exit_success;
  }
  if (!wanted.settings_file.empty()) return check_settings(wanted.settings_file, wanted.output.json);
  return wanted.files.empty() ? check_machine(wanted) : check_files(wanted);
}

}  // namespace

void add_check(CLI::App& app, command& chosen) {
  auto wanted = std::make_shared<check_options>();
  CLI::App& sub = *app.add_subcommand(
      "check", "List the slow and broken parts of this machine and how to fix them; or show which path each part of a file takes, and why");
  auto* file = sub.add_option("FILE", wanted->files, "Files or folders to check (default: the machine)");
  auto* named = sub.add_option("-f,--file", wanted->more_files, "Same as FILE");
  auto* settings = sub.add_option("--cufile-json", wanted->settings_file, "Check a cufile.json instead: show what each of its keys does")
                       ->type_name("FILE");
  auto* platform = sub.add_flag("-p,--platform", wanted->platform, "Check the machine, its libraries and its file systems (the default)");
  auto* topology = sub.add_flag("-t,--topology", wanted->view.topology, "Show which network cards and drives are near which GPU");
  auto* versions = sub.add_flag("-v,--versions", wanted->view.versions, "Show the versions of drivers and libraries");
  auto* root = sub.add_option("--root", wanted->root, "Check a copy of a machine's /proc, /sys and /etc in this folder")
                   ->check(CLI::ExistingDirectory)
                   ->type_name("DIR");
  auto* bundle = sub.add_flag("--bundle", wanted->bundle_file,
                              "Write a tar file for support: findings, the files they are based on, versions and settings, without "
                              "secrets; --bundle=FILE sets its name");
  sub.add_flag("--findings", wanted->catalogue, "Print a Markdown reference of all findings and their remedies");
  for (auto* of_files : {file, named}) {
    settings->excludes(of_files);
    for (auto* of_machine : {platform, topology, versions, root}) of_machine->excludes(of_files);
  }
  for (auto* of_machine : {platform, topology, versions, root, bundle}) settings->excludes(of_machine);
  add_memory_options(sub, wanted->device);
  add_output_options(sub, wanted->output);
  sub.footer(
      "Exit code: 0; 1 if a file could not be checked; 3 if something is broken. Slow parts do not count.\n"
      "check does not need root, opens no file for writing and creates no CUDA context. -p, -f, -v and -t mean the same as in gdscheck.\n"
      "A bundle is written to this machine and sent nowhere: unpack it with tar xf and review it. It contains no data from your files. "
      "Keys, tokens and credentials are replaced by (removed); names of files, mounts, servers and hosts are kept. Its only environment "
      "variables are PENSTOCK_*, CUFILE_* and KVIKIO_*. It is at most 4 MiB large, and only you can read it.");
  sub.callback([wanted, &chosen] {
    wanted->files.insert(wanted->files.end(), wanted->more_files.begin(), wanted->more_files.end());
    chosen.run = [wanted] { return check(*wanted); };
  });
}

}  // namespace penstock::cli
