// Feeds any bytes to the parsers of credentials: files of the AWS tools, JSON, the XML of STS, times. Accepted values are valid in a
// header; error messages contain nothing of a rejected value. Built with clang's -fsanitize=fuzzer, or with replay_main.cc for a replay.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "remote/credentials/credential_answers.hpp"
#include "remote/credentials/profiles.hpp"

using namespace penstock;
using namespace penstock::source::remote;

namespace {

void require(bool truth) {
  if (!truth) std::abort();
}

void check(const result<credentials>& read) {
  if (!read.ok()) {
    require(read.error().code() == errc::io && read.error().message().size() < 200 && read.error().message().starts_with("a server: "));
    for (const char c : read.error().message()) require(c >= ' ' && c < 0x7f);
    return;
  }
  require(fits_header(read->access_key_id) && fits_header(read->secret_access_key.reveal()) && !read->anonymous());
  require(read->session_token.empty() || fits_header(read->session_token.reveal()));
  if (read->expires_at) require(signing_time(*read->expires_at).size() == 16);
}

void read_as_profile(std::string_view text, profile_format format) {
  profile one;
  const bool is_there = read_profile(text, format, "default", one);
  require(is_there || (one.access_key_id.empty() && one.secret_access_key.empty() && one.settings.empty()));
  require(one.access_key_id.find('\n') == std::string::npos && one.credential_process.find('\n') == std::string::npos);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  read_as_profile(text, profile_format::credentials);
  read_as_profile(text, profile_format::config);
  check(parse_json_credentials(text, "a server"));
  check(parse_sts_credentials(text, "a server"));
  if (const auto time = parse_time(text)) require(signing_time(*time).size() == 16);
  return 0;
}
