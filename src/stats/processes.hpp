// Reading boards. Whoever writes one may be of another version, gone half way, or hostile: what is read is copied, checked and only then
// looked at.
#pragma once

#include <chrono>

#include "penstock/processes.hpp"
#include "sys/board_folder.hpp"

namespace penstock::stats {

inline constexpr std::chrono::milliseconds answer_time{200};
inline constexpr std::chrono::milliseconds all_answers_time{1000};  // of those that do not answer, together;
inline constexpr std::chrono::milliseconds least_answer_time{5};    // once that is over

// The public functions, for boards in a given folder.
result<process_stats> observe_process(sys::board_folder& folder, int pid, bool with_requests);
process_list observe_processes(sys::board_folder& folder, bool with_requests);

}  // namespace penstock::stats
