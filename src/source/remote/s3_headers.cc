#include "source/remote/s3_headers.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <string_view>

#include "base/printable.hpp"
#include "source/remote/url.hpp"

namespace penstock::source::remote {

namespace {

bool may_be_sent(std::string_view value) {
  return std::ranges::all_of(value, [](char c) { return static_cast<unsigned char>(c) >= ' ' && c != '\x7f'; });
}

std::string tags_of(const std::vector<remote_header>& tags) {
  std::string made;
  for (const auto& each : tags)
    made += fmt::format("{}{}={}", made.empty() ? "" : "&", percent_encoded(each.name, false), percent_encoded(each.value, false));
  return made;
}

}  // namespace

result<std::vector<header>> headers_of_new_object(const remote_options& how) {
  const bool has_kms = how.server_side_encryption.starts_with("aws:kms");
  if (!how.sse_kms_key_id.empty() && !has_kms)
    return status(errc::invalid_argument,
                  "the option sse_kms_key_id is for server_side_encryption \"aws:kms\" or \"aws:kms:dsse\", which is not set");
  const std::vector<header> all{{"content-type", how.content_type},
                                {"x-amz-server-side-encryption", how.server_side_encryption},
                                {"x-amz-server-side-encryption-aws-kms-key-id", how.sse_kms_key_id},
                                {"x-amz-storage-class", how.storage_class},
                                {"x-amz-acl", how.acl},
                                {"x-amz-tagging", tags_of(how.tags)}};
  std::vector<header> made;
  for (const auto& each : all) {
    if (!may_be_sent(each.value))
      return status(errc::invalid_argument,
                    fmt::format("\"{}\" has a control character, so it cannot be sent as {}", printable_text(each.value), each.name));
    if (!each.value.empty()) made.push_back(each);
  }
  return made;
}

}  // namespace penstock::source::remote
