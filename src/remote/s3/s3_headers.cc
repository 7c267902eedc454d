#include "remote/s3/s3_headers.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <string_view>

#include "base/printable.hpp"
#include "remote/credentials/signature.hpp"
#include "remote/net/url.hpp"

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
    return status(errc::invalid_argument, "the option sse_kms_key_id requires server_side_encryption \"aws:kms\" or \"aws:kms:dsse\"");
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
                    fmt::format("\"{}\" contains a control character, so it cannot be sent as {}", printable_text(each.value), each.name));
    if (!each.value.empty()) made.push_back(each);
  }
  return made;
}

result<std::vector<header>> headers_of_customer_key(const remote_options& how) {
  constexpr std::size_t key_bytes = 32;
  const auto& key = how.sse_customer_key;
  if (key.empty()) return std::vector<header>();
  if (key.size() != key_bytes)
    return status(errc::invalid_argument,
                  fmt::format("the option sse_customer_key is {} bytes long; an AES-256 key must be {} bytes long", key.size(), key_bytes));
  if (!how.server_side_encryption.empty())
    return status(errc::invalid_argument, "the options sse_customer_key and server_side_encryption are mutually exclusive");
  auto sum = content_md5(key);
  if (!sum) return sum.error();
  const std::string name = "x-amz-server-side-encryption-customer-";
  return std::vector<header>{{name + "algorithm", "AES256"}, {name + "key", in_base64(key)}, {name + "key-md5", *std::move(sum)}};
}

}  // namespace penstock::source::remote
