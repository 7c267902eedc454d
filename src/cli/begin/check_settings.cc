// penstock check --cufile-json: prints what libcufile.so.0 does with each key of a cufile.json.
#include <fmt/format.h>

#include "cli/begin/check.hpp"
#include "cli/common/command.hpp"
#include "cli/common/json.hpp"
#include "cli/common/say.hpp"
#include "cufile/settings.hpp"

namespace penstock::cli {
namespace {

std::string_view word_for(cufile::key_fate fate) {
  switch (fate) {
    case cufile::key_fate::obeyed:
      return "obeyed";
    case cufile::key_fate::without_effect:
      return "accepted without effect";
    case cufile::key_fate::unknown:
      return "unknown";
    case cufile::key_fate::refused:
      break;
  }
  return "refused";
}

void print_as_json(const std::string& file, const std::vector<cufile::setting_report>& keys) {
  auto out = nlohmann::json::array();
  for (const auto& each : keys) {
    out.push_back({{"key", each.key}, {"value", each.value}, {"fate", word_for(each.fate)}, {"remark", each.remark}});
  }
  print_json({{"file", file}, {"keys", std::move(out)}});
}

void print_lines(const std::string& file, const std::vector<cufile::setting_report>& keys) {
  say("{}\n", file);
  for (const auto& each : keys) say("  {} = {}: {}\n", each.key, each.value, each.remark);
  if (keys.empty()) say("  no keys\n");
}

}  // namespace

int check_settings(const std::string& file, bool as_json) {
  const auto keys = cufile::report(file);
  if (!keys) return fail(keys.error());
  as_json ? print_as_json(file, *keys) : print_lines(file, *keys);
  return exit_success;
}

}  // namespace penstock::cli
