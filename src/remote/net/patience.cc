#include "remote/net/patience.hpp"

namespace penstock::source::remote {

patience::patience(const network_settings& of, const remote_options& how) : patience(of) {
  constexpr unsigned longest_pause = 8;  // as a multiple of the first pause
  if (how.attempts > 0) {
    attempts = how.attempts;
    asks_again_what_took_long = true;
  }
  if (how.timeout.count() > 0) answer_within = stall_after = question_within = how.timeout;
  if (how.retry_pause.count() > 0) {
    first_pause = how.retry_pause;
    most_pause = longest_pause * how.retry_pause;
    draws_pauses = false;
  }
  asked_again = how.retried_statuses;
  told = how.retries;
  stop_requested = how.stop_requested;
}

}  // namespace penstock::source::remote
