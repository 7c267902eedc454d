// How requests are made, counted where they end: what advise() looks at. Free functions; safe from any thread; none of them fails.
#pragma once

#include <cstdint>
#include <functional>

#include "core/request/admission.hpp"
#include "path/data_path.hpp"
#include "stats/book.hpp"

namespace penstock::core {

// A call that its caller carried himself has ended well.
void note_call_use(runtime& with, const admission& admitted, std::uint64_t bytes, std::int64_t nanoseconds) noexcept;
// A piece of a longer request has ended at such a time.
void note_use(runtime& with, file_core& file, const path::job& ended, std::uint64_t bytes, std::int64_t now) noexcept;
// Many small ranges have been read in one job.
void note_ranges_use(stats::book& stats, const path::job& ended,
                     const std::function<file_core&(const path::gather_range&)>& file_of) noexcept;

}  // namespace penstock::core
