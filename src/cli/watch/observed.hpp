// What other processes do, in words and in JSON: what `penstock stats` and `penstock top` share. Free functions; safe from any thread.
#pragma once

#include <initializer_list>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>

#include "penstock/processes.hpp"

namespace penstock::cli {

// A table of processes: its titles, and a line for each: "1234  train.py  4 GiB  0 B  512  3  2 failed, advice: tiny-sequential-calls".
std::string stats_title();
std::string stats_line(const process_stats& seen);
// "16 processes ended without closing (1, 2, ...); d lists them".
std::string ended_line(std::span<const int> pids, std::string_view how_to_see_them);
// With commas; what is empty is left out.
std::string joined(std::initializer_list<std::string> parts);
// level 1: totals and throughput; 2: with histograms by path; 3: also by device. Lines, each with its line feed.
std::string describe(const process_stats& seen, int level);
// What is said where there are none. of_those_named: of the processes whose numbers were given.
std::string_view no_processes(bool of_those_named = false);
nlohmann::json to_json(const process_stats& seen);
// "advice: unaligned register-in-a-loop"; empty where there is none.
std::string advice_codes(const engine_stats& stats);
// Text, remedy and code, on one line.
std::string describe(const advice& given);
nlohmann::json to_json(const advice& given);
// "4 GiB sent in 2 tensors, 0 B received in 0 tensors".
std::string describe(const channel_stats& of);

// What it had from servers of objects, in one line.
std::string describe_servers(const usage_stats& of);
// What programs of cuFile registered and submitted, in one line.
std::string describe_cufile(const usage_stats& of);
nlohmann::json to_json(const usage_stats& usage);
// "/data/x read 1 MiB at 4096 to cuda:0, for 1.2 s".
std::string describe(const request_info& request);
double age_seconds(const request_info& request);
// The least time of which so many of the pieces took less, in microseconds, from a histogram; 0 where there are none.
double percentile_us(const std::array<std::uint64_t, 24>& histogram, double part);

}  // namespace penstock::cli
