// Signs requests as S3 wants it: AWS Signature Version 4 in headers ("Authenticating Requests", Amazon S3 API reference), over the
// HMAC-SHA256 of sys/secret. A signer belongs to whoever sends requests to one region; thread-safe.
#pragma once

#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "penstock/status.hpp"
#include "source/remote/control.hpp"
#include "source/remote/secret_text.hpp"
#include "source/remote/url.hpp"

namespace penstock::source::remote {

using wall_time = std::chrono::system_clock::time_point;

// Who asks. An anonymous one has no keys, and its requests are not signed.
struct credentials {
  std::string access_key_id;
  secret_text secret_access_key;
  secret_text session_token;            // empty: keys that last
  std::optional<wall_time> expires_at;  // nothing: never
  std::string found_in;                 // in words, for messages
  [[nodiscard]] bool anonymous() const noexcept { return access_key_id.empty(); }
};

struct signing_scope {
  std::string region;
  std::string service = "s3";
};

inline constexpr std::string_view unsigned_payload = "UNSIGNED-PAYLOAD";
// Of no bytes: what a GET sends.
inline constexpr std::string_view empty_payload_hash = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

// What is signed. The address is signed as it is sent, so it must be sent as it is: nobody may take `.` or `//` out of its path. `host` is
// signed as address.authority(), and needs no line in headers; all of headers are signed, so none may be one that a proxy changes.
struct signed_request {
  std::string_view method = "GET";
  const url& address;
  const std::vector<header>& headers;
  std::string_view payload_hash = empty_payload_hash;  // in hexadecimal, or unsigned_payload
};

class signer {
 public:
  explicit signer(signing_scope scope) : scope_(std::move(scope)) {}

  // The headers to add: x-amz-date, x-amz-content-sha256 (for S3), x-amz-security-token (where there is a token), authorization. None for
  // anonymous credentials. The key for the day is derived once, so that a request costs two hashes. at: the server's time, within 15
  // minutes. Errors: unsupported (no libcrypto).
  result<std::vector<header>> sign(const signed_request& request, const std::shared_ptr<const credentials>& by, wall_time at);

  [[nodiscard]] const signing_scope& scope() const noexcept { return scope_; }

 private:
  // Derived for one day and one secret, whose owner it keeps, so that no other can come to lie at its address.
  struct day_key {
    std::string day;
    std::shared_ptr<const credentials> of;
    secret_text key;
  };
  result<secret_text> key_of(const std::string& day, const std::shared_ptr<const credentials>& by);

  const signing_scope scope_;
  std::mutex mutex_;  // guards last_
  day_key last_;
};

// 20130524T000000Z; its first eight characters are the day.
[[nodiscard]] std::string signing_time(wall_time at);
// In small hexadecimal digits. Errors: unsupported (no libcrypto).
result<std::string> payload_hash(std::string_view payload);

[[nodiscard]] std::string in_base64(std::string_view bytes);
// For the header Content-MD5: in base64. Errors: unsupported (no libcrypto), io (MD5 is forbidden here).
result<std::string> content_md5(std::string_view payload);

// The text whose hash is signed, of headers that are all signed, in any order. For tests, which compare it with published ones.
struct canonical_request {
  std::string text;
  std::string signed_headers;
};
canonical_request make_canonical(const signed_request& request, const std::vector<header>& headers);

}  // namespace penstock::source::remote
