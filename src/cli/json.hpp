// How the commands print JSON. One thread.
#pragma once

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <string>

#include "penstock/status.hpp"

namespace penstock::cli {

// To stdout, with a line feed. File names need not be UTF-8: what is not is replaced.
inline void print_json(const nlohmann::json& document) {
  fmt::print("{}\n", document.dump(2, ' ', false, nlohmann::json::error_handler_t::replace));
}

// The text of an error, or null.
inline nlohmann::json error_json(const status& error) {
  return error.ok() ? nlohmann::json(nullptr) : nlohmann::json(std::string(error.message()));
}

}  // namespace penstock::cli
