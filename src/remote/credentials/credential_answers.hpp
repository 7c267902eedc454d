// Parsers for responses that contain credentials: JSON from containers, instance metadata and programs, and XML from STS. Responses are
// untrusted input: their size is checked before parsing, and errors never contain their text. Pure functions.
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>

#include "penstock/status.hpp"
#include "remote/credentials/signature.hpp"

namespace penstock::source::remote {

inline constexpr std::size_t most_credential_bytes = std::size_t{64} << 10;

// Parses AccessKeyId, SecretAccessKey, Token or SessionToken, and Expiration. If there is a Code, it must be Success. what: how messages
// refer to the sender. Error: io.
result<credentials> parse_json_credentials(std::string_view text, std::string_view what);
// Parses the response to AssumeRoleWithWebIdentity. Error: io.
result<credentials> parse_sts_credentials(std::string_view text, std::string_view what);

// Parses an RFC 3339 time, 2026-01-02T03:04:05[.678](Z|+01:00); nullopt if malformed.
std::optional<wall_time> parse_time(std::string_view text);

// Returns true if a text is a valid header value: printable ASCII and not empty.
[[nodiscard]] bool fits_header(std::string_view text);

}  // namespace penstock::source::remote
