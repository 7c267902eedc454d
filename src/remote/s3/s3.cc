#include "remote/s3/s3.hpp"

#include <ctime>
#include <utility>

#include <fmt/format.h>

#include "base/no_memory.hpp"
#include "remote/net/answers.hpp"
#include "remote/net/s3_error.hpp"
#include "remote/object/http.hpp"

namespace penstock::source::remote {

namespace {

constexpr unsigned most_signatures = 3;  // retries per piece after the clock or the credentials were corrected
constexpr unsigned most_regions = 2;     // the most region redirects to follow

std::optional<std::time_t> parse_date(const std::string& text) {
  std::tm parts{};
  const auto* const end = strptime(text.c_str(), "%a, %d %b %Y %H:%M:%S GMT", &parts);
  return end == nullptr ? std::nullopt : std::optional(timegm(&parts));
}

// Maps an S3 error code; nullopt if the status alone is enough.
std::optional<errc> code_of(std::string_view code) {
  if (code == "NoSuchKey" || code == "NoSuchBucket" || code == "NoSuchVersion") return errc::not_found;
  constexpr std::array<std::string_view, 6> denied{"AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch",
                                                   "InvalidToken", "AllAccessDisabled",  "ExpiredToken"};
  if (std::find(denied.begin(), denied.end(), code) != denied.end()) return errc::permission_denied;
  return std::nullopt;
}

class s3_protocol final : public protocol {
 public:
  explicit s3_protocol(std::shared_ptr<s3_account> account) : account_(std::move(account)) {}

  result<std::string> headers(const url& address, std::string_view /*range*/) override {
    auto signed_with = account_->sign_now("GET", address);
    if (!signed_with) return signed_with.error();
    std::string lines;
    for (const auto& each : *signed_with) lines += fmt::format("{}: {}\r\n", each.name, each.value);
    return lines;
  }

  std::optional<verdict> judge(const response_head& head, std::string_view body, fetch& what) override {
    return judged_by_s3(*account_, head, body, what);
  }

 private:
  const std::shared_ptr<s3_account> account_;
};

}  // namespace

std::optional<verdict> judged_by_s3(s3_account& account, const response_head& head, std::string_view body, fetch& what) {
  const auto error = parse_s3_error(body);
  verdict made{.then = verdict::kind::refused, .error = {code_of(error.code).value_or(errc::io), shown_error(head.status, error)}};
  const bool wrong_time = error.code == "RequestTimeTooSkewed";
  if (wrong_time || error.code == "ExpiredToken" || error.code == "InvalidToken") {
    if (++what.renewals > most_signatures) return made;
    wrong_time ? account.correct_time(head.date) : account.credentials_refused();
    made.then = wrong_time ? verdict::kind::renewed : verdict::kind::again;
    return made;
  }
  if (error.code.empty() || head.status == 412 || head.status == 416) return std::nullopt;
  if (may_succeed_later(error.code)) {
    made.then = verdict::kind::again;
    made.throttled = error.code == "SlowDown";
    made.after = judged_by_status(head).after;
    return made;
  }
  return head.status >= 500 ? std::nullopt : std::optional(std::move(made));
}

s3_account::s3_account(std::shared_ptr<credential_source> keys, std::string region, std::function<bool(std::function<void()>)> aside,
                       std::vector<header> added)
    : keys_(std::move(keys)), signer_({.region = std::move(region)}), aside_(std::move(aside)), added_(std::move(added)) {}

result<std::vector<header>> s3_account::sign_by(const std::shared_ptr<const credentials>& by, const signed_request& request) {
  const auto at = std::chrono::system_clock::now() + std::chrono::seconds(ahead_seconds_.load());
  if (added_.empty()) return signer_.sign(request, by, at);
  auto headers = request.headers;
  headers.insert(headers.end(), added_.begin(), added_.end());
  auto made = signer_.sign({.method = request.method, .address = request.address, .headers = headers, .payload_hash = request.payload_hash},
                           by, at);
  if (made) made->insert(made->end(), added_.begin(), added_.end());
  return made;
}

result<std::vector<header>> s3_account::sign(std::string_view method, const url& address) {
  const auto by = keys_->current();
  if (!by) return by.error();
  const std::vector<header> none;
  return sign_by(*by, {.method = method, .address = address, .headers = none});
}

result<std::vector<header>> s3_account::sign_now(const signed_request& request) {
  if (keys_->is_due()) renew_aside();
  const auto by = keys_->kept();
  if (by == nullptr) return status(errc::would_block, "the credentials have expired, and new ones are not available yet");
  return sign_by(by, request);
}

void s3_account::renew_aside() {
  if (renewing_.exchange(true)) return;
  const bool begun = or_without_memory(
      [&] {
        return aside_([self = shared_from_this()] {
          (void)or_no_memory([&]() -> status { return self->keys_->current().error(); });
          self->renewing_.store(false);
        });
      },
      [] { return false; });
  if (!begun) renewing_.store(false);
}

void s3_account::correct_time(std::string_view date) {
  if (const auto there = parse_date(std::string(date))) ahead_seconds_.store(*there - std::time(nullptr));
}

void s3_account::credentials_refused() {
  if (const auto kept = keys_->kept(); kept != nullptr) keys_->refuse(kept);
  renew_aside();
}

std::shared_ptr<protocol> make_s3_protocol(std::shared_ptr<s3_account> account) {
  return std::make_shared<s3_protocol>(std::move(account));
}

result<object_facts> find_s3_object(network& by, std::string name, url address, const patience& how,
                                    const std::function<result<url>(const std::string& region)>& address_in,
                                    const std::function<std::shared_ptr<s3_account>(const std::string& region)>& account_of,
                                    std::shared_ptr<s3_account>& account) {
  bool time_corrected = false;
  for (unsigned regions = 0;;) {
    const auto headers = [&](std::string_view method) { return account->sign(method, address); };
    if (auto signed_once = headers("HEAD"); !signed_once) return signed_once.error().with_context(name);
    const auto told = ask_for_size(by, {.method = "HEAD", .address = address, .headers = headers}, how);
    if (!told) return told.error();
    const auto* const answer = &told->answer;
    if (answer->status == 200 || answer->status == 206 || answer->status == 416) {
      const auto size = size_of(*answer, told->of_head);
      if (!size) return status(errc::unsupported, fmt::format("{}: the server does not report its size", name));
      return object_facts{std::move(name), std::move(address), *size, version_of(*answer)};
    }
    const std::string region(answer->header("x-amz-bucket-region"));
    if (is_region(region) && region != account->region() && regions++ < most_regions) {
      auto there = address_in(region);
      if (!there) return there.error().with_context(name);
      address = *std::move(there);
      account = account_of(region);
      continue;
    }
    const auto error = parse_s3_error(answer->body);
    if (error.code == "RequestTimeTooSkewed" && !std::exchange(time_corrected, true)) {
      account->correct_time(answer->header("date"));
      continue;
    }
    const auto plain = error_of(answer->status, name);
    if (error.code.empty()) return plain;
    if (answer->status == 404) return status(plain.code(), fmt::format("{}: {}", plain.message(), shown_error(answer->status, error)));
    return status(code_of(error.code).value_or(errc::io), fmt::format("{}: {}", name, shown_error(answer->status, error)));
  }
}

}  // namespace penstock::source::remote
