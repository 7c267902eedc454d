// JSON output of the commands. One thread.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "base/shown_urls.hpp"
#include "cli/common/say.hpp"
#include "penstock/status.hpp"

namespace penstock::cli {

// Records that --json requires a document on stdout. If the command fails before it prints one, keep_json_promise() prints {"error": "..."}
// with the last error message.
void promise_json() noexcept;
void note_failure(std::string_view message);
void note_printed_json() noexcept;
// Called by main with the exit code of the command.
void keep_json_promise(int exit_code);

// JSON strings may contain DEL and the control characters U+0080 to U+009F (two bytes in UTF-8), which terminals interpret. This function
// escapes them like those below U+0020. They do not occur outside strings.
inline std::string without_controls(std::string_view json) {
  std::string text;
  for (std::size_t i = 0; i < json.size(); ++i) {
    const auto byte = static_cast<unsigned char>(json[i]);
    const auto next = i + 1 < json.size() ? static_cast<unsigned char>(json[i + 1]) : 0U;
    const bool is_pair = byte == 0xc2 && next < 0xa0;
    if (is_pair || byte == 0x7f) {
      text += fmt::format("\\u{:04x}", is_pair ? next : byte);
      i += is_pair ? 1 : 0;
    } else {
      text += json[i];
    }
  }
  return text;
}

// Returns the document with credentials removed from URLs in strings, as say() does.
inline nlohmann::json shown_document(nlohmann::json document) {
  if (document.is_string()) return without_url_secrets(document.get_ref<const std::string&>());
  if (document.is_structured()) {
    for (auto& each : document) each = shown_document(std::move(each));
  }
  return document;
}

// Prints to stdout, with a line feed. File names need not be UTF-8: invalid bytes are replaced.
inline void print_json(const nlohmann::json& document) {
  note_printed_json();
  put_exactly(without_controls(shown_document(document).dump(2, ' ', false, nlohmann::json::error_handler_t::replace)) + "\n");
}

// Returns the text of an error, or null on success.
inline nlohmann::json error_json(const status& error) {
  return error.ok() ? nlohmann::json(nullptr) : nlohmann::json(std::string(error.message()));
}

}  // namespace penstock::cli
