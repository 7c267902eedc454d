// The report of the pipe benchmark: a table printed line by line, or one JSON document at the end. One thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "bench/pipes.hpp"
#include "penstock/pipe.hpp"

namespace penstock::bench {

struct pipe_row {
  std::uint64_t size = 0;
  double one_way_us = 0, many_gbs = 0;      // with receives posted in advance
  double unposted_us = 0;                   // one way, if the receiver provides memory only after the message's descriptor arrives
  double raw_one_us = 0, raw_many_gbs = 0;  // of the bare copy
  double cpu_per_gb = 0;                    // CPU seconds of both processes
  std::string channels;                     // channels that carried the bytes, with the share of pushed tensors
  bool right = false;                       // the bytes that came back are those that were sent
};

class pipe_report {
 public:
  explicit pipe_report(const pipe_bench_options& options) : options_(options) {}
  void begin(const pipe_plan& plan);
  void add(const pipe_row& row);
  void end() const;

 private:
  [[nodiscard]] bool is_wide() const { return options_.columns >= 108; }
  const pipe_bench_options& options_;
  pipe_plan plan_;
  std::vector<pipe_row> rows_;
};

}  // namespace penstock::bench
