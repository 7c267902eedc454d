#include "cufile/settings_sources.hpp"

#include <fmt/format.h>

#include "cufile/settings_keys.hpp"

namespace penstock::cufile {

namespace {

std::string without_quotes(const std::string& text) {
  const bool quoted = text.size() >= 2 && text.front() == '"' && text.back() == '"';
  return quoted ? text.substr(1, text.size() - 2) : text;
}

sourced_setting* find(std::vector<sourced_setting>& values, std::string_view key) {
  for (auto& each : values) {
    if (each.key == key) return &each;
  }
  return nullptr;
}

void take_file(const std::string& file, const std::string& name, sourced_settings& found) {
  const auto lines = report(file);
  if (!lines) {
    found.file_exists = lines.error().code() != errc::not_found;
    if (found.file_exists) found.problem = lines.error();
    return;
  }
  found.file_exists = true;
  for (const auto& line : *lines) {
    const key* const where = find_key(line.key);
    const bool taken = line.fate == key_fate::obeyed || line.fate == key_fate::without_effect;
    if (!taken || where == nullptr) {
      found.refused.push_back(fmt::format("{}: {} = {}: {}", name, line.key, line.value, line.remark));
      continue;
    }
    auto& value = *find(found.values, where->name);
    value.value = without_quotes(line.value);
    value.source = name;
  }
}

void take_variable(const key& where, const char* text, sourced_settings& found) {
  settings scratch;
  if (const auto why = store_text(where, text, scratch); !why.empty()) {
    found.refused.push_back(fmt::format("environment variable {}={}: {}", where.variable, text, why));
    return;
  }
  auto& value = *find(found.values, where.name);
  const bool is_flag = where.kind == key_kind::flag && where.parameter >= 0;
  value.value = !is_flag ? text : scratch.flags[static_cast<std::size_t>(where.parameter)] ? "true" : "false";
  value.source = where.variable;
}

}  // namespace

sourced_settings trace_settings(const environment_lookup& lookup, const std::string& file, const std::string& file_name) {
  sourced_settings found;
  for (const key& where : all_keys()) found.values.push_back({where.name, std::string(where.standard), where.standard, {}});
  take_file(file, file_name, found);
  for (const key& where : all_keys()) {
    const char* text = where.variable == nullptr ? nullptr : lookup(where.variable);
    if (text != nullptr && *text != '\0') take_variable(where, text, found);
  }
  return found;
}

}  // namespace penstock::cufile
