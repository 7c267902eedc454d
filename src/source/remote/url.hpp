// URLs of remote objects: http, https, s3, gs and hf, and what each stands for. Values and pure functions: no network, safe from any
// thread. A URL comes from outside: its length is bounded, and nothing of it reaches a request line or a header before it is known to fit
// there.
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

// A to z for A to Z; all else as it is.
[[nodiscard]] std::string in_small_letters(std::string_view text);

// A query may give access (a signature, a token), so it has no way to be printed but by that name.
class url_query {
 public:
  url_query() = default;
  explicit url_query(std::string text) noexcept : text_(std::move(text)) {}
  [[nodiscard]] bool empty() const noexcept { return text_.empty(); }
  // Adds NAME=VALUE, which are encoded.
  void add(std::string_view parameter) { text_.append(text_.empty() ? "" : "&").append(parameter); }
  [[nodiscard]] const std::string& unredacted() const noexcept { return text_; }
  [[nodiscard]] bool operator==(const url_query&) const = default;

 private:
  std::string text_;
};

// What a request is sent to, by http or https.
struct url {
  bool tls = false;
  std::string host;  // in small letters; an IPv6 address without its brackets
  std::uint16_t port = 0;
  std::string path = "/";  // percent-encoded, and sent as it is: `.` and `..` are parts of keys
  url_query query;         // percent-encoded, without the `?`

  // host[:port], as in a Host header: a port only where it is not the scheme's.
  [[nodiscard]] std::string authority() const;
  // For messages, and what fmt makes of it: without the query, in which presigned URLs have their signature.
  [[nodiscard]] std::string shown() const;
  // For connections alone, since a query may give access: path[?query], as in a request line, and the whole URL.
  [[nodiscard]] std::string unredacted_target() const;
  [[nodiscard]] std::string unredacted() const;
  [[nodiscard]] bool same_origin(const url& other) const;
  [[nodiscard]] bool operator==(const url&) const = default;
};

// Whether a text is meant as a URL of a remote object, well-formed or not and of whatever scheme, and not as the name of a file, which
// file:// is.
[[nodiscard]] bool is_url(std::string_view text);
// The path in file:///PATH or file://localhost/PATH, decoded; any other text as it is.
[[nodiscard]] std::string file_path_of(std::string_view text);
// hf://[datasets/|spaces/]OWNER/NAME[@REVISION]/PATH as the address of the Hugging Face Hub at that endpoint (https://huggingface.co);
// nothing if it is no hf:// at all. Errors: invalid_argument.
[[nodiscard]] std::optional<result<std::string>> hub_address(std::string_view text, std::string_view endpoint);

// Bytes that may not stand in a URL are percent-encoded, those that already are stay so; a fragment is dropped.
// Errors: invalid_argument (too long, another scheme, a user name or password, a bad host or port, a control character). The message has
// neither the query nor a password.
result<url> parse_http_url(std::string_view text);

// Any text, cut to what may be shown of a URL that could not be parsed.
[[nodiscard]] std::string shown_text(std::string_view text);

// --- what a URL stands for
enum class url_kind : std::uint8_t { s3, s3_public, s3_presigned, webhdfs, http };
[[nodiscard]] std::string_view to_string(url_kind kind) noexcept;

struct s3_object {
  std::string bucket;      // or the ARN of one, or of an access point
  std::string key;         // as it is, not encoded; UTF-8
  std::string region;      // that the host of the URL or the ARN names; else empty
  bool at_google = false;  // gs://: of Google Cloud Storage, which is asked by its S3 interface
  [[nodiscard]] bool by_access_point() const { return bucket.starts_with("arn:") && bucket.find(":s3:::") == std::string::npos; }
  // s3://BUCKET/KEY, of another key of the bucket.
  [[nodiscard]] std::string name_of(std::string_view any_key) const;
};

struct remote_url {
  url_kind kind = url_kind::http;
  bool by_name = false;  // s3://bucket/key: it has no address until s3_address() makes one
  url address;
  s3_object object;  // of an s3, s3_public or s3_presigned one
  [[nodiscard]] std::string shown() const;
};

// What follows `s3://bucket/` (or `s3a://`, `s3n://`, `gs://`, `gcs://`) is the key as it is: nothing in it is an escape, a query or a
// fragment, as with the AWS command line. A bucket may be named by its ARN, arn:aws:s3:::BUCKET, and so may an access point,
// arn:aws:s3:REGION:ACCOUNT:accesspoint/NAME. The kind is the first that fits, in KvikIO's order. s3_public is never the result, because s3
// fits wherever it does. Errors: as parse_http_url; unsupported (another scheme); invalid_argument (a bucket or a key that no server of S3
// allows).
result<remote_url> parse_remote_url(std::string_view text);

// s3://BUCKET, s3://BUCKET/KEY, or the same with gs://. KEY may be the beginning of a key. Errors: invalid_argument.
result<s3_object> parse_s3_prefix(std::string_view text);

// Whether the URL may be opened as that kind; and the first of several that it may be opened as.
[[nodiscard]] bool fits(const remote_url& one, url_kind kind);
[[nodiscard]] std::optional<url_kind> first_fitting(const remote_url& one, std::span<const url_kind> kinds);

// Whether the query has what a presigned URL of any S3 server has.
[[nodiscard]] bool is_presigned(const url& one);

// --- S3
// path: HOST/BUCKET/KEY; virtual_host: BUCKET.HOST/KEY. automatic: virtual_host at Amazon, but for a bucket with a dot, whose host no
// certificate covers; path elsewhere.
enum class addressing : std::uint8_t { automatic, path, virtual_host };

struct s3_place {
  std::string region;
  std::optional<url> endpoint;  // of a server that is not Amazon's
  addressing style = addressing::automatic;
  bool fips = false;       // ask Amazon's FIPS endpoints
  bool dualstack = false;  // ask Amazon's dual-stack endpoints
  bool tls = true;         // of them
};

// Where an object lies. Errors: invalid_argument (a bucket or region that would not be one label of a host, a key that is no key).
result<url> s3_address(const s3_object& object, const s3_place& place);
// Where a bucket is listed.
result<url> s3_bucket_address(const std::string& bucket, const s3_place& place);

// Rules for general purpose buckets; a server that is not Amazon's may have other names of letters, digits, dots, hyphens and underscores.
status check_bucket(std::string_view bucket, bool is_amazons);
status check_key(std::string_view key);
// Of Amazon's, which is a label of a host; and of any server, which is only signed: RegionOne, SBG, eu_west_1.
[[nodiscard]] bool is_region(std::string_view text);
[[nodiscard]] bool is_region_name(std::string_view text);
// Whether a host is one of Amazon's endpoints of FIPS.
[[nodiscard]] bool is_fips_host(std::string_view host);

// --- percent-encoding
// All but unreserved characters (RFC 3986); with keep_slash, slashes stay too.
[[nodiscard]] std::string percent_encoded(std::string_view bytes, bool keep_slash);
// Nothing where a % is not followed by two hexadecimal digits.
[[nodiscard]] std::optional<std::string> percent_decoded(std::string_view text);
// The value of the first parameter of that name, as it stands in the query; a name is compared as it stands, capitals and all.
[[nodiscard]] std::optional<std::string_view> query_value(std::string_view query, std::string_view name);

}  // namespace penstock::source::remote

template <>
struct fmt::formatter<penstock::source::remote::url> : fmt::formatter<std::string> {
  template <class Context>
  auto format(const penstock::source::remote::url& address, Context& to) const {
    return fmt::formatter<std::string>::format(address.shown(), to);
  }
};
