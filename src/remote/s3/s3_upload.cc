#include "remote/s3/s3_upload.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "remote/net/url.hpp"
#include "remote/net/xml_scanner.hpp"

namespace penstock::source::remote {

namespace {

constexpr std::size_t most_upload_id_bytes = 1024;
constexpr std::size_t most_etag_bytes = 256;

bool is_plain(std::string_view text) {
  return std::ranges::all_of(text, [](char c) { return c > ' ' && c < '\x7f'; });
}

// Removes the white space that a server sends while it is working.
std::string_view without_lead(std::string_view text) {
  const auto first = text.find_first_not_of(" \t\r\n");
  return first == std::string_view::npos ? std::string_view() : text.substr(first);
}

std::string escaped(std::string_view text) {
  std::string made;
  for (const char c : text) {
    switch (c) {
      case '&':
        made += "&amp;";
        break;
      case '<':
        made += "&lt;";
        break;
      case '>':
        made += "&gt;";
        break;
      default:
        made += c;
    }
  }
  return made;
}

}  // namespace

std::string upload_query(std::string_view upload_id, unsigned number) {
  const auto id = fmt::format("uploadId={}", percent_encoded(upload_id, false));
  return number == 0 ? id : fmt::format("partNumber={}&{}", number, id);
}

std::string completion_of(const std::vector<std::string_view>& etags) {
  std::string made("<CompleteMultipartUpload xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">");
  for (std::size_t i = 0; i < etags.size(); ++i)
    made += fmt::format("<Part><PartNumber>{}</PartNumber><ETag>{}</ETag></Part>", i + 1, escaped(etags[i]));
  return made + "</CompleteMultipartUpload>";
}

std::optional<std::string> upload_id_of(std::string_view body) {
  xml_scanner xml(without_lead(body));
  for (auto event = xml.next(); event == xml_event::begin || event == xml_event::end; event = xml.next()) {
    if (event != xml_event::end || xml.depth() != 2 || xml.name() != "UploadId") continue;
    const auto& id = xml.text();
    return !id.empty() && id.size() <= most_upload_id_bytes && is_plain(id) ? std::optional(id) : std::nullopt;
  }
  return std::nullopt;
}

bool says_completed(std::string_view body) {
  xml_scanner xml(without_lead(body));
  bool is_result = false;
  for (auto event = xml.next();; event = xml.next()) {
    if (event == xml_event::done || event == xml_event::broken) return event == xml_event::done && is_result;
    if (xml.depth() == 1) is_result = xml.name() == "CompleteMultipartUploadResult";
  }
}

bool fits_completion(std::string_view etag) { return !etag.empty() && etag.size() <= most_etag_bytes && is_plain(etag); }

}  // namespace penstock::source::remote
