#include "source/remote/answers.hpp"

#include <fmt/format.h>

#include "source/remote/patience.hpp"

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

}  // namespace penstock::source::remote
