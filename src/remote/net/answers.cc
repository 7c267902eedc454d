#include "remote/net/answers.hpp"

#include <utility>

#include <fmt/format.h>

namespace penstock::source::remote {

namespace {

errc code_of_status(int status) noexcept {
  if (status == 401 || status == 403 || status == 407) return errc::permission_denied;
  return status == 404 || status == 410 ? errc::not_found : errc::io;
}

}  // namespace

verdict judged_by_status(const response_head& head) {
  verdict made{.then = verdict::kind::again,
               .error = {code_of_status(head.status), fmt::format("the server answered with status {}", head.status)}};
  if (!is_for_now(head.status)) made.then = verdict::kind::refused;
  made.after = pause_of(head.retry_after);
  made.throttled = head.status == 429 || head.status == 503;
  return made;
}

// The list only affects retries that are due to the status.
verdict as_wanted_by_user(verdict made, const response_head& head, const patience& how) {
  made.http_status = head.status;
  if (!how.asked_again || head.status < 400) return made;
  const bool by_status = made.then == verdict::kind::again && is_for_now(head.status);
  const bool listed = how.is_worth_another_try(head.status);
  if (made.then == verdict::kind::refused && listed) made.then = verdict::kind::again;
  if (by_status && !listed) made.then = verdict::kind::refused;
  return made;
}

}  // namespace penstock::source::remote
