// The default interpretation of a response: whether to retry, and when. Pure functions.
#pragma once

#include "remote/net/fetch.hpp"
#include "remote/net/patience.hpp"
#include "remote/net/response_head.hpp"

namespace penstock::source::remote {

// Judges an error status: again for temporary ones (408, 429, 500, 502, 503, 504), after the pause that the server requests; otherwise
// refused.
[[nodiscard]] verdict judged_by_status(const response_head& head);
// Applies the user's list of statuses to retry, if there is one, to a verdict.
[[nodiscard]] verdict as_wanted_by_user(verdict made, const response_head& head, const patience& how);

}  // namespace penstock::source::remote
