// Counts how completed requests were made, for advise(). Free functions, safe to call from any thread. They cannot fail.
#pragma once

#include <cstdint>
#include <functional>

#include "core/request/admission.hpp"
#include "path/data_path.hpp"
#include "stats/book.hpp"

namespace penstock::core {

// Called when a request transferred by its caller has succeeded.
void note_call_use(runtime& with, const admission& admitted, std::uint64_t bytes, std::int64_t nanoseconds) noexcept;
// Called when a piece of a longer request has completed at time `now`.
void note_use(runtime& with, file_core& file, const path::job& ended, std::uint64_t bytes, std::int64_t now) noexcept;
// Called when many small ranges have been read in one job.
void note_ranges_use(stats::book& stats, const path::job& ended,
                     const std::function<file_core&(const path::gather_range&)>& file_of) noexcept;

}  // namespace penstock::core
