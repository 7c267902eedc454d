// Counters of processes in Prometheus' text exposition format (version 0.0.4), and the endpoint that serves them. One thread.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "penstock/processes.hpp"

namespace penstock::cli {

// Histograms are counted in pieces. Values of labels are escaped, and what is not UTF-8 in them is replaced.
std::string exposition(const process_list& seen);

// Answers GET /metrics on an address of this machine (127.0.0.1 or [::1]) with `page`, made anew for each; nothing else. A client has a few
// seconds and a few KiB for its request; of more clients than there is room for the oldest goes. Blocks until `stopped`.
// started: is told the port (port 0: the kernel chooses).
status serve_metrics(const std::string& address, std::uint16_t port, const std::function<std::string()>& page,
                     const std::function<void(std::uint16_t)>& started, const std::function<bool()>& stopped);

}  // namespace penstock::cli
