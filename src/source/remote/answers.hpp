// What an answer means that nobody knows anything special of: whether it is asked for again, and when. Pure functions.
#pragma once

#include "source/remote/fetch.hpp"
#include "source/remote/patience.hpp"
#include "source/remote/response_head.hpp"

namespace penstock::source::remote {

// Of a status that is no success: again where the server may answer otherwise later (408, 429, 500, 502, 503, 504), after the pause that it
// asks for; else refused.
[[nodiscard]] verdict judged_by_status(const response_head& head);
// The same verdict as the user wants it: where he has listed the statuses after which it is asked again, his list decides.
[[nodiscard]] verdict as_wanted_by_user(verdict made, const response_head& head, const patience& how);

}  // namespace penstock::source::remote
