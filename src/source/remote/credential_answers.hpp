// What those answer who hand out credentials: the JSON of containers, of an instance's metadata and of programs, and the XML of STS. It
// comes from outside: bounded before it is read, and no error says what was in it. Pure functions.
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>

#include "penstock/status.hpp"
#include "source/remote/signature.hpp"

namespace penstock::source::remote {

inline constexpr std::size_t most_credential_bytes = std::size_t{64} << 10;

// AccessKeyId, SecretAccessKey, Token or SessionToken, Expiration; of an answer with a Code, only one that is Success counts.
// what: who answered, for messages. Errors: io.
result<credentials> parse_json_credentials(std::string_view text, std::string_view what);
// Of AssumeRoleWithWebIdentity. Errors: io.
result<credentials> parse_sts_credentials(std::string_view text, std::string_view what);

// 2026-01-02T03:04:05[.678](Z|+01:00) of RFC 3339; nothing where it is none.
std::optional<wall_time> parse_time(std::string_view text);

// Whether a text may stand in a header: printable ASCII, and something.
[[nodiscard]] bool fits_header(std::string_view text);

}  // namespace penstock::source::remote
