// Signs requests for S3: AWS Signature Version 4 in headers ("Authenticating Requests", Amazon S3 API reference), with HMAC-SHA256 from
// sys/secret. A signer belongs to the code that sends requests to one region. Thread-safe.
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
#include "remote/credentials/secret_text.hpp"
#include "remote/net/control.hpp"
#include "remote/net/url.hpp"

namespace penstock::source::remote {

using wall_time = std::chrono::system_clock::time_point;

// Signing keys. Anonymous credentials have no keys, and requests with them are not signed.
struct credentials {
  std::string access_key_id;
  secret_text secret_access_key;
  secret_text session_token;            // empty: long-term keys
  std::optional<wall_time> expires_at;  // nullopt: never
  std::string found_in;                 // where they were found, for messages
  [[nodiscard]] bool anonymous() const noexcept { return access_key_id.empty(); }
};

struct signing_scope {
  std::string region;
  std::string service = "s3";
};

inline constexpr std::string_view unsigned_payload = "UNSIGNED-PAYLOAD";
// The hash of an empty body, as in a GET.
inline constexpr std::string_view empty_payload_hash = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

// The signed parts of a request. The address must be sent exactly as is: nothing may remove `.` or `//` from its path. `host` is signed as
// address.authority() and need not be in headers. All headers are signed, so a proxy must not change any of them.
struct signed_request {
  std::string_view method = "GET";
  const url& address;
  const std::vector<header>& headers;
  std::string_view payload_hash = empty_payload_hash;  // hexadecimal, or unsigned_payload
};

class signer {
 public:
  explicit signer(signing_scope scope) : scope_(std::move(scope)) {}

  // Returns the headers to add: x-amz-date, x-amz-content-sha256 (for S3), x-amz-security-token (if there is a token), authorization. No
  // headers for anonymous credentials. The day's key is derived only once, so a request costs two hashes. at: the server's time, accurate
  // to 15 minutes. Error: unsupported (no libcrypto).
  result<std::vector<header>> sign(const signed_request& request, const std::shared_ptr<const credentials>& by, wall_time at);

  [[nodiscard]] const signing_scope& scope() const noexcept { return scope_; }

 private:
  // A key derived for one day and one secret. Keeps the credentials alive, so that no others can get the same address.
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

// Returns a time such as 20130524T000000Z. The first eight characters are the day.
[[nodiscard]] std::string signing_time(wall_time at);
// Returns the hash in lower-case hexadecimal. Error: unsupported (no libcrypto).
result<std::string> payload_hash(std::string_view payload);

[[nodiscard]] std::string in_base64(std::string_view bytes);
// Returns the value of a Content-MD5 header, in base64. Errors: unsupported (no libcrypto), io (MD5 is disabled).
result<std::string> content_md5(std::string_view payload);

// The text whose hash is signed, for headers in any order; all of them are signed. For tests, which compare it with published examples.
struct canonical_request {
  std::string text;
  std::string signed_headers;
};
canonical_request make_canonical(const signed_request& request, const std::vector<header>& headers);

}  // namespace penstock::source::remote
