#include "cli/watch/prometheus.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include <nlohmann/json.hpp>
#include <string_view>
#include <vector>

namespace penstock::cli {
namespace {

std::string escaped(std::string_view text) {
  // A program may have any name; the JSON library replaces invalid UTF-8.
  const auto valid = nlohmann::json::parse(nlohmann::json(std::string(text)).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace))
                         .get<std::string>();
  std::string told;
  for (const char each : valid) {
    if (each == '\\' || each == '"') told += '\\';
    if (each == '\n') {
      told += "\\n";
    } else {
      told += each;
    }
  }
  return told;
}

struct metric {
  std::string_view name, type, help;
};

class writer {
 public:
  void begin(const metric& of) { text_ += fmt::format("# HELP {0} {2}\n# TYPE {0} {1}\n", of.name, of.type, of.help); }
  void add(std::string_view name, const std::string& labels, double value) { text_ += fmt::format("{}{{{}}} {}\n", name, labels, value); }
  void add(std::string_view name, const std::string& labels, std::uint64_t value) {
    text_ += fmt::format("{}{{{}}} {}\n", name, labels, value);
  }
  std::string take() { return std::move(text_); }

 private:
  std::string text_;
};

std::string labels_of(const process_stats& process) {
  return fmt::format("pid=\"{}\",program=\"{}\"", process.pid, escaped(process.program));
}

template <class Value>
void per_process(writer& to, const process_list& seen, const metric& of, Value value) {
  to.begin(of);
  for (const auto& process : seen.processes) to.add(of.name, labels_of(process), value(process));
}

template <class Value>
void per_path(writer& to, const process_list& seen, const metric& of, Value value) {
  to.begin(of);
  for (const auto& process : seen.processes) {
    for (const auto& path : process.stats.by_path) {
      if (path.operations + path.fallbacks == 0) continue;
      to.add(of.name, fmt::format("{},path=\"{}\"", labels_of(process), escaped(path.name)), value(path));
    }
  }
}

template <class Value>
void per_device(writer& to, const process_list& seen, const metric& of, Value value) {
  to.begin(of);
  for (const auto& process : seen.processes) {
    for (const auto& device : process.stats.by_device) {
      to.add(of.name, fmt::format("{},device=\"{}\"", labels_of(process), escaped(device.name)), value(device));
    }
  }
}

template <class Value>
void per_channel(writer& to, const process_list& seen, const metric& of, Value value) {
  to.begin(of);
  for (const auto& process : seen.processes) {
    for (const auto& channel : process.stats.by_channel) {
      to.add(of.name, fmt::format("{},channel=\"{}\"", labels_of(process), escaped(channel.name)), value(channel));
    }
  }
}

void latencies(writer& to, const process_list& seen) {
  constexpr std::string_view name = "penstock_piece_seconds";
  to.begin({name, "histogram", "Duration of the pieces of requests, by path."});
  for (const auto& process : seen.processes) {
    for (const auto& path : process.stats.by_path) {
      if (path.operations == 0) continue;
      const auto labels = fmt::format("{},path=\"{}\"", labels_of(process), escaped(path.name));
      std::uint64_t below = 0;
      // The last bucket has no upper bound.
      for (std::size_t i = 0; i + 1 < path.latency_histogram.size(); ++i) {
        below += path.latency_histogram[i];
        const auto bound = static_cast<double>(std::uint64_t{2} << i) / 1e6;
        to.add("penstock_piece_seconds_bucket", fmt::format("{},le=\"{}\"", labels, bound), below);
      }
      below += path.latency_histogram.back();
      to.add("penstock_piece_seconds_bucket", labels + ",le=\"+Inf\"", below);
      to.add("penstock_piece_seconds_sum", labels, static_cast<double>(path.busy_ns) / 1e9);
      to.add("penstock_piece_seconds_count", labels, below);
    }
  }
}

}  // namespace

std::string exposition(const process_list& seen) {
  writer to;
  using process = const process_stats&;
  using path = const path_stats&;
  using device = const device_stats&;
  using channel = const channel_stats&;
  per_process(to, seen, {"penstock_process_running", "gauge", "1 while the process runs, 0 if it exited without closing."},
              [](process of) { return std::uint64_t{of.ended ? 0U : 1U}; });
  per_path(to, seen, {"penstock_read_bytes_total", "counter", "Bytes read, by path."},
           [](path of) { return of.bytes - std::min(of.bytes, of.written_bytes); });
  per_path(to, seen, {"penstock_written_bytes_total", "counter", "Bytes written, by path."}, [](path of) { return of.written_bytes; });
  per_path(to, seen, {"penstock_pieces_total", "counter", "Pieces of requests transferred, by path."},
           [](path of) { return of.operations; });
  per_path(to, seen, {"penstock_piece_errors_total", "counter", "Pieces that failed, by path."}, [](path of) { return of.errors; });
  per_path(to, seen, {"penstock_fallbacks_total", "counter", "Pieces that one path handed over to another."},
           [](path of) { return of.fallbacks; });
  per_path(to, seen, {"penstock_active_seconds_total", "counter", "Time with at least one piece in flight, by path."},
           [](path of) { return static_cast<double>(of.active_ns) / 1e9; });
  per_device(to, seen, {"penstock_device_reads_total", "counter", "Read requests finished, by device."},
             [](device of) { return of.reads; });
  per_device(to, seen, {"penstock_device_writes_total", "counter", "Write requests finished, by device."},
             [](device of) { return of.writes; });
  per_device(to, seen, {"penstock_device_read_bytes_total", "counter", "Bytes read, by device."}, [](device of) { return of.read_bytes; });
  per_device(to, seen, {"penstock_device_written_bytes_total", "counter", "Bytes written, by device."},
             [](device of) { return of.written_bytes; });
  per_channel(to, seen, {"penstock_channel_sent_tensors_total", "counter", "Tensors sent over pipes, by channel."},
              [](channel of) { return of.sent_tensors; });
  per_channel(to, seen, {"penstock_channel_sent_bytes_total", "counter", "Bytes of tensors sent over pipes, by channel."},
              [](channel of) { return of.sent_bytes; });
  per_channel(to, seen, {"penstock_channel_received_tensors_total", "counter", "Tensors received over pipes, by channel."},
              [](channel of) { return of.received_tensors; });
  per_channel(to, seen, {"penstock_channel_received_bytes_total", "counter", "Bytes of tensors received over pipes, by channel."},
              [](channel of) { return of.received_bytes; });
  for (const auto& counter : usage_counters()) {
    const auto name = fmt::format("penstock_{}_total", counter.name);
    const auto help = fmt::format("{}.", counter.what);
    per_process(to, seen, {name, "counter", help}, [&](process of) { return of.stats.usage.*counter.value; });
  }
  per_process(to, seen, {"penstock_requests_failed_total", "counter", "Requests that failed."}, [](process of) { return of.stats.failed; });
  per_process(to, seen, {"penstock_requests_cancelled_total", "counter", "Requests that were cancelled."},
              [](process of) { return of.stats.cancelled; });
  per_process(to, seen, {"penstock_requests_timed_out_total", "counter", "Requests whose deadline passed."},
              [](process of) { return of.stats.timed_out; });
  per_process(to, seen, {"penstock_pinned_bytes", "gauge", "Pinned memory, as last reported by the process."},
              [](process of) { return of.stats.pinned_bytes; });
  const metric loss{"penstock_advice_loss_seconds", "gauge",
                    "Seconds lost to the problems that `penstock stats` reports, by advice code; NaN: unknown."};
  to.begin(loss);
  for (const auto& each : seen.processes) {
    for (const auto& given : advise(each.stats)) {
      to.add(loss.name, fmt::format("{},code=\"{}\"", labels_of(each), given.code), given.loss_seconds.value_or(std::nan("")));
    }
  }
  const metric under_way{"penstock_requests_under_way", "gauge", "Requests in flight, for processes that respond."};
  to.begin(under_way);
  for (const auto& each : seen.processes) {
    if (each.requests) to.add(under_way.name, labels_of(each), std::uint64_t{each.requests->size() + each.requests_not_shown});
  }
  latencies(to, seen);
  const metric unreadable{"penstock_unreadable_boards", "gauge",
                          "Processes whose counters cannot be read (for example, a different version)."};
  to.begin(unreadable);
  auto text = to.take();
  text += fmt::format("{} {}\n", unreadable.name, seen.problems.size());
  return text;
}

}  // namespace penstock::cli
