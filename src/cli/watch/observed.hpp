// Activity of other processes as text and JSON, shared by `penstock stats` and `penstock top`. Free functions; thread-safe.
#pragma once

#include <initializer_list>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>

#include "penstock/processes.hpp"

namespace penstock::cli {

// The header of a table of processes. A row reads "1234  train.py  4 GiB  0 B  512  3  2 failed, advice: tiny-sequential-calls".
std::string stats_title();
std::string stats_line(const process_stats& seen);
// Returns "16 processes exited without closing (1, 2, ...); d lists them".
std::string ended_line(std::span<const int> pids, std::string_view how_to_see_them);
// Joins the parts with commas. Skips empty parts.
std::string joined(std::initializer_list<std::string> parts);
// Returns lines, each with a line feed. level 1: totals and throughput; 2: also histograms by path; 3: also by device.
std::string describe(const process_stats& seen, int level);
// Returns the message for an empty list. of_those_named: the user selected processes by PID.
std::string_view no_processes(bool of_those_named = false);
nlohmann::json to_json(const process_stats& seen);
// Returns "advice: unaligned register-in-a-loop", or an empty string without advice.
std::string advice_codes(const engine_stats& stats);
// Returns text, remedy and code on one line.
std::string describe(const advice& given);
nlohmann::json to_json(const advice& given);
// Returns "4 GiB sent in 2 tensors, 0 B received in 0 tensors".
std::string describe(const channel_stats& of);

// Summarizes reads from object servers in one line.
std::string describe_servers(const usage_stats& of);
// Summarizes what cuFile programs registered and submitted in one line.
std::string describe_cufile(const usage_stats& of);
nlohmann::json to_json(const usage_stats& usage);
// Returns "/data/x read 1 MiB at 4096 to cuda:0, for 1.2 s".
std::string describe(const request_info& request);
double age_seconds(const request_info& request);
// Returns the time in microseconds that this fraction (0 to 1) of the pieces stayed below: the upper bound of its histogram bucket. 0 if
// empty.
double percentile_us(const std::array<std::uint64_t, 24>& histogram, double part);

}  // namespace penstock::cli
