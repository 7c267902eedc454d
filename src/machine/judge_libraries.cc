// Judges the facts from gather_libraries, and cuFile's settings.
#include <algorithm>
#include <cstdlib>

#include <fmt/format.h>

#include "machine/examine.hpp"

namespace penstock::machine {

namespace {

std::string or_unknown(std::string version) { return version.empty() ? "unknown" : version; }

void judge_start(const platform_facts& platform, const library_facts& known, findings& out) {
  constexpr int no_device = 100;  // CUDA_ERROR_NO_DEVICE
  const auto& driver = known.driver;
  if (!driver.asked) return;
  if (driver.code == no_device && !known.visible_gpus.empty()) return out.add("cuda.hidden", {}, {{"value", known.visible_gpus}});
  if (driver.code != 0) return out.add("cuda.fails", {}, {{"error", driver.error}});
  const auto all = std::max(platform.gpus.size(), driver.gpus.size());
  out.add("cuda.starts", {}, {{"version", driver.version}, {"count", std::to_string(driver.gpus.size())}, {"all", std::to_string(all)}});
  if (!platform.lends_dma_bufs()) return;
  for (const auto& gpu : driver.gpus) {
    if (!gpu.lends_dma_bufs) out.add("dma_buf.not_lent", gpu.address);
  }
}

void judge_cuda(const platform_facts& platform, const library_facts& known, findings& out) {
  if (!known.cuda) return out.add(platform.driver_version.empty() ? "cuda.none" : "cuda.missing");
  const auto version = version_in_name(known.cuda->file);
  if (!version.empty() && !platform.driver_version.empty() && version != platform.driver_version) {
    return out.add("cuda.mismatch", {}, {{"file", known.cuda->file}, {"version", version}, {"module", platform.driver_version}});
  }
  out.add("cuda.found", {}, {{"file", known.cuda->file}, {"version", version.empty() ? "" : ", version " + version}});
  judge_start(platform, known, out);
}

void judge_cufile(const platform_facts& platform, const library_facts& known, findings& out) {
  if (!known.nvidia_cufile.empty()) {
    out.add("cufile.nvidia", {}, {{"file", known.nvidia_cufile}, {"version", or_unknown(version_in_name(known.nvidia_cufile))}});
  } else {
    out.add(platform.gpu_direct() && !platform.gpus.empty() ? "cufile.nvidia_missing" : "cufile.nvidia_none");
  }
  if (known.own_known) out.add(known.own_cufile.empty() ? "cufile.ours_missing" : "cufile.ours", {}, {{"file", known.own_cufile}});
  if (known.loaded_cufile) {
    const auto whose = known.loaded_is_ours ? "Penstock's" : "NVIDIA's";
    out.add("cufile.loads", {}, {{"whose", whose}, {"file", known.loaded_cufile->file}, {"how", known.loaded_cufile->how}});
  } else {
    out.add("cufile.loads_none");
  }
  for (const auto& file : known.missing_preloads) out.add("cufile.bad_preload", {}, {{"file", file}});
}

void judge_ucx(const platform_facts& platform, const library_facts& known, findings& out) {
  if (known.ucx) return out.add("ucx.found", {}, {{"file", known.ucx->file}});
  out.add(platform.has_active_port() ? "ucx.missing" : "ucx.none");
}

bool is(const setting_fact* setting, std::string_view value) { return setting != nullptr && setting->value == value; }

void judge_advice(const platform_facts& platform, const settings_facts& known, findings& out) {
  const bool direct = platform.gpu_direct() && !platform.gpus.empty();
  const auto* allow = known.find("properties.allow_compat_mode");
  const auto* force = known.find("properties.force_compat_mode");
  if (is(allow, "false") && !direct) out.add("settings.no_compat", {}, {{"source", allow->source}});
  if (is(force, "true") && direct) out.add("settings.forced_compat", {}, {{"source", force->source}});
  constexpr unsigned long small_kb = 1024;
  const auto* size = known.find("properties.max_direct_io_size_kb");
  if (size != nullptr && !size->source.empty() && std::strtoul(size->value.c_str(), nullptr, 10) < small_kb) {
    out.add("settings.small_direct_io", {}, {{"value", size->value}, {"source", size->source}});
  }
}

void judge_settings(const platform_facts& platform, const settings_facts& known, findings& out) {
  if (!known.problem.empty()) {
    out.add("settings.unusable", {}, {{"why", known.problem}});
  } else if (!known.file.empty()) {
    out.add(known.file_exists ? "settings.found" : "settings.default", {}, {{"file", known.file}});
  }
  for (const auto& why : known.refused) out.add("settings.refused", {}, {{"why", why}});
  for (const auto& each : known.values) {
    if (each.source.empty() || each.value == each.standard) continue;
    const auto standard = each.standard.empty() ? "none" : each.standard;
    out.add("settings.value", each.key, {{"value", each.value}, {"source", each.source}, {"standard", standard}});
  }
  judge_advice(platform, known, out);
}

}  // namespace

findings judge_libraries(const platform_facts& platform, const library_facts& known) {
  findings out;
  judge_cuda(platform, known, out);
  judge_cufile(platform, known, out);
  judge_ucx(platform, known, out);
  judge_settings(platform, known.settings, out);
  return out;
}

}  // namespace penstock::machine
