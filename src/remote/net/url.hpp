// URLs of remote objects (http, https, s3, gs and hf) and what they refer to. Values and pure functions, without network access. URLs are
// untrusted input: their length is limited, and no part is put into a request line or a header before it has been validated.
#pragma once

#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "penstock/status.hpp"

namespace penstock::source::remote {

inline constexpr std::size_t most_url_bytes = std::size_t{8} << 10;
inline constexpr std::size_t most_key_bytes = 1024;  // Amazon S3, "Naming Amazon S3 objects"

// Converts ASCII letters to lower case.
[[nodiscard]] std::string in_small_letters(std::string_view text);

// A query may grant access (with a signature or a token), so only unredacted() returns its text.
class url_query {
 public:
  url_query() = default;
  explicit url_query(std::string text) noexcept : text_(std::move(text)) {}
  [[nodiscard]] bool empty() const noexcept { return text_.empty(); }
  // Adds NAME=VALUE, both already percent-encoded.
  void add(std::string_view parameter) { text_.append(text_.empty() ? "" : "&").append(parameter); }
  [[nodiscard]] const std::string& unredacted() const noexcept { return text_; }
  [[nodiscard]] bool operator==(const url_query&) const = default;

 private:
  std::string text_;
};

// The http or https address of a request.
struct url {
  bool tls = false;
  std::string host;  // in lower case; an IPv6 address without brackets
  std::uint16_t port = 0;
  std::string path = "/";  // percent-encoded and sent unchanged, because `.` and `..` may be parts of keys
  url_query query;         // percent-encoded, without the `?`

  // Returns host[:port], as in a Host header; without the scheme's default port.
  [[nodiscard]] std::string authority() const;
  // Returns the URL without its query, which contains the signature of a presigned URL. For messages; fmt prints this.
  [[nodiscard]] std::string shown() const;
  // Return path[?query], as in a request line, and the whole URL. Only for connections, because a query may grant access.
  [[nodiscard]] std::string unredacted_target() const;
  [[nodiscard]] std::string unredacted() const;
  [[nodiscard]] bool same_origin(const url& other) const;
  [[nodiscard]] bool operator==(const url&) const = default;
};

// Returns true if the text looks like a remote object's URL, well-formed or not, with any scheme except file://.
[[nodiscard]] bool is_url(std::string_view text);
// Returns the decoded path of file:///PATH or file://localhost/PATH; any other text unchanged.
[[nodiscard]] std::string file_path_of(std::string_view text);
// Converts hf://[datasets/|spaces/]OWNER/NAME[@REVISION]/PATH to its address at a Hugging Face Hub endpoint (https://huggingface.co).
// Returns nullopt for any other scheme. Error: invalid_argument.
[[nodiscard]] std::optional<result<std::string>> hub_address(std::string_view text, std::string_view endpoint);

// Parses a URL. Percent-encodes bytes that a URL may not contain, keeps existing escapes and drops a fragment. Errors: invalid_argument
// (too long, an unsupported scheme, a user name or password, an invalid host or port, a control character). The message contains neither
// the query nor a password.
result<url> parse_http_url(std::string_view text);

// Reduces a URL that could not be parsed to what a message may contain.
[[nodiscard]] std::string shown_text(std::string_view text);

// --- kinds of URL
enum class url_kind : std::uint8_t { s3, s3_public, s3_presigned, webhdfs, http };
[[nodiscard]] std::string_view to_string(url_kind kind) noexcept;

struct s3_object {
  std::string bucket;      // or the ARN of a bucket or access point
  std::string key;         // not encoded; UTF-8
  std::string region;      // from the URL's host or the ARN; otherwise empty
  bool at_google = false;  // gs://: Google Cloud Storage, through its S3 interface
  [[nodiscard]] bool by_access_point() const { return bucket.starts_with("arn:") && bucket.find(":s3:::") == std::string::npos; }
  // Returns s3://BUCKET/KEY for another key in the bucket.
  [[nodiscard]] std::string name_of(std::string_view any_key) const;
};

struct remote_url {
  url_kind kind = url_kind::http;
  bool by_name = false;  // s3://bucket/key: has no address until s3_address() creates one
  url address;
  s3_object object;  // for kinds s3, s3_public and s3_presigned
  [[nodiscard]] std::string shown() const;
};

// Parses any remote URL. The text after `s3://bucket/` (or `s3a://`, `s3n://`, `gs://`, `gcs://`) is the literal key, without escapes,
// query or fragment, as in the AWS command line. A bucket may be specified by its ARN, arn:aws:s3:::BUCKET, and an access point by
// arn:aws:s3:REGION:ACCOUNT:accesspoint/NAME. The kind is the first one that fits, in KvikIO's order; never s3_public, because s3 fits the
// same URLs. Errors: those of parse_http_url; unsupported (another scheme); invalid_argument (a bucket or key that no S3 server allows).
result<remote_url> parse_remote_url(std::string_view text);

// Parses s3://BUCKET or s3://BUCKET/KEY, or the same with gs://. KEY may be a key prefix. Error: invalid_argument.
result<s3_object> parse_s3_prefix(std::string_view text);

// fits() returns true if the URL can be opened as that kind. first_fitting() returns the first such kind.
[[nodiscard]] bool fits(const remote_url& one, url_kind kind);
[[nodiscard]] std::optional<url_kind> first_fitting(const remote_url& one, std::span<const url_kind> kinds);

// Returns true if the query contains the parameters of a presigned S3 URL.
[[nodiscard]] bool is_presigned(const url& one);

// --- S3
// path: HOST/BUCKET/KEY; virtual_host: BUCKET.HOST/KEY. automatic: virtual_host at Amazon, except for a bucket with a dot, because no
// certificate covers its host; path elsewhere.
enum class addressing : std::uint8_t { automatic, path, virtual_host };

struct s3_place {
  std::string region;
  std::optional<url> endpoint;  // the endpoint of a server other than Amazon's
  addressing style = addressing::automatic;
  bool fips = false;       // use Amazon's FIPS endpoints
  bool dualstack = false;  // use Amazon's dual-stack endpoints
  bool tls = true;         // for Amazon's endpoints
};

// Returns the address of an object. Error: invalid_argument (a bucket or region that is not one label of a host name, an invalid key).
result<url> s3_address(const s3_object& object, const s3_place& place);
// Returns the address for listing a bucket.
result<url> s3_bucket_address(const std::string& bucket, const s3_place& place);

// Check bucket names and keys. Amazon's buckets must follow the rules for general purpose buckets. On other servers, names may consist of
// letters, digits, dots, hyphens and underscores.
status check_bucket(std::string_view bucket, bool is_amazons);
status check_key(std::string_view key);
// is_region() returns true for a name that Amazon could use as a label in a host name. is_region_name() returns true for a name that any
// server may use, such as RegionOne, SBG, eu_west_1; such names are only signed.
[[nodiscard]] bool is_region(std::string_view text);
[[nodiscard]] bool is_region_name(std::string_view text);
// Returns true for the host name of an Amazon FIPS endpoint.
[[nodiscard]] bool is_fips_host(std::string_view host);

// --- percent-encoding
// Encodes everything except unreserved characters (RFC 3986); with keep_slash, also keeps slashes.
[[nodiscard]] std::string percent_encoded(std::string_view bytes, bool keep_slash);
// Returns nullopt if a % is not followed by two hexadecimal digits.
[[nodiscard]] std::optional<std::string> percent_decoded(std::string_view text);
// Returns the value of the first parameter with that name, still encoded. Names are compared literally, case-sensitively.
[[nodiscard]] std::optional<std::string_view> query_value(std::string_view query, std::string_view name);

}  // namespace penstock::source::remote

template <>
struct fmt::formatter<penstock::source::remote::url> : fmt::formatter<std::string> {
  template <class Context>
  auto format(const penstock::source::remote::url& address, Context& to) const {
    return fmt::formatter<std::string>::format(address.shown(), to);
  }
};
