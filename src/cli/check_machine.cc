#include "cli/check_machine.hpp"

#include "machine/examine.hpp"

namespace penstock::cli {

machine_report examine(const machine::tree& from) {
  machine_report report;
  report.platform = machine::gather_platform(from);
  report.findings.append(machine::judge_platform(report.platform));
  return report;
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
    for (const auto of : {machine::verdict::ok, machine::verdict::slow, machine::verdict::broken, machine::verdict::unknown}) {
      document["counts"][std::string(to_string(of))] = report.findings.count(of);
    }
  }
  return document;
}

}  // namespace penstock::cli
