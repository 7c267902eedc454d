// Counters of processes in the Prometheus text exposition format (version 0.0.4), and the endpoint that serves them. One thread.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "penstock/processes.hpp"

namespace penstock::cli {

// Returns the metrics. Histograms count pieces. Label values are escaped, and invalid UTF-8 in them is replaced.
std::string exposition(const process_list& seen);

// Serves only GET /metrics, on an address of this machine (127.0.0.1 or [::1]). Calls `page` for each request. A client has a few seconds
// and a few KiB for its request. If there are too many clients, the oldest connection is closed. Blocks until `stopped` returns true.
// started: called with the port (port 0: the kernel chooses).
status serve_metrics(const std::string& address, std::uint16_t port, const std::function<std::string()>& page,
                     const std::function<void(std::uint16_t)>& started, const std::function<bool()>& stopped);

}  // namespace penstock::cli
