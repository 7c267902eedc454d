// Reads boards. A board may be from another version, partly removed, or hostile, so its contents are copied and checked before use.
#pragma once

#include <chrono>

#include "penstock/processes.hpp"
#include "sys/board_folder.hpp"

namespace penstock::stats {

inline constexpr std::chrono::milliseconds answer_time{200};
inline constexpr std::chrono::milliseconds all_answers_time{1000};  // for all unresponsive processes together
inline constexpr std::chrono::milliseconds least_answer_time{5};    // for each process, once that is used up

// The public functions, for boards in a given folder.
result<process_stats> observe_process(sys::board_folder& folder, int pid, bool with_requests);
process_list observe_processes(sys::board_folder& folder, bool with_requests);

}  // namespace penstock::stats
