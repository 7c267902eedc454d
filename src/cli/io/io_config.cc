// Reads gdsio's configuration files: sections of KEY=VALUE.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <functional>
#include <map>
#include <sstream>
#include <type_traits>

#include "cli/common/sizes.hpp"
#include "cli/common/text_file.hpp"
#include "cli/common/transfer_memory.hpp"
#include "cli/common/usage.hpp"
#include "cli/io/io_plan.hpp"

namespace penstock::cli {
namespace {

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view blanks = " \t\r";
  const std::size_t begin = std::min(text.find_first_not_of(blanks), text.size());
  text.remove_prefix(begin);
  return text.substr(0, text.find_last_not_of(blanks) + 1);
}

template <class Number>
status take_number(std::string_view text, Number most, Number& target) {
  Number number{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const bool in_range = number <= most && !(std::is_floating_point_v<Number> && number < 0);  // also rejects "nan"
  if (error != std::errc() || end != text.data() + text.size() || !in_range)
    return {errc::invalid_argument, fmt::format("\"{}\" is not a number from 0 to {}", text, most)};
  target = number;
  return {};
}

template <class Value, class Target>
status take(result<Value> parsed, Target& target) {
  if (!parsed) return parsed.error();
  target = *parsed;
  return {};
}

status take_flag(std::string_view text, bool& target, bool when_set = true) {
  unsigned number = 0;
  if (status error = take_number(text, 1U, number); !error.ok()) return error;
  target = number == 1 ? when_set : !when_set;
  return {};
}

using taker = std::function<status(io_plan&, std::string_view)>;
using job_taker = std::function<status(io_job&, std::string_view)>;

const std::map<std::string, taker, std::less<>>& global_keys() {
  static const std::map<std::string, taker, std::less<>> keys{
      {"name", [](io_plan&, std::string_view) { return status(); }},
      {"enable_nvlinks",
       [](io_plan&, std::string_view text) {
         bool ignored = false;  // the driver chooses the route of copies
         return take_flag(text, ignored);
       }},
      {"xfer_type",
       [](io_plan& plan, std::string_view text) {
         unsigned number = 0;
         status error = take_number(text, transfer_types - 1, number);
         if (error.ok()) plan.transfer = static_cast<transfer_type>(number);
         return error;
       }},
      {"rw", [](io_plan& plan, std::string_view text) { return take(parse_io_type(text), plan.io); }},
      {"bs", [](io_plan& plan, std::string_view text) { return take(parse_io_sizes(text), plan.sizes); }},
      {"io_size", [](io_plan& plan, std::string_view text) { return take(parse_io_sizes(text), plan.sizes); }},
      {"size", [](io_plan& plan, std::string_view text) { return take(parse_gdsio_size(text), plan.size); }},
      {"runtime", [](io_plan& plan, std::string_view text) { return take_number(text, 1e9, plan.seconds); }},
      {"do_verify", [](io_plan& plan, std::string_view text) { return take_flag(text, plan.read_back); }},
      {"skip_bufregister", [](io_plan& plan, std::string_view text) { return take_flag(text, plan.register_memory, false); }},
      {"random_seed", [](io_plan& plan, std::string_view text) { return take_number(text, ~std::uint64_t{0}, plan.seed); }},
      {"refill_buffer", [](io_plan& plan, std::string_view text) { return take_flag(text, plan.refill); }},
      {"fill_random",
       [](io_plan&, std::string_view text) {
         bool ignored = false;  // writes always use pseudo-random data
         return take_flag(text, ignored);
       }},
      {"unaligned_random",
       [](io_plan& plan, std::string_view text) {
         bool set = false;
         status error = take_flag(text, set);
         if (error.ok() && set) plan.alignment = 4096;
         return error;
       }},
      {"batch_size", [](io_plan& plan, std::string_view text) { return take_number(text, 65536U, plan.depth); }},
  };
  return keys;
}

const std::map<std::string, job_taker, std::less<>>& job_keys() {
  static const std::map<std::string, job_taker, std::less<>> keys{
      {"gpu_dev_id",
       [](io_job& job, std::string_view text) {
         job.device = device_called(std::string(text));
         return status();
       }},
      {"numa_node", [](io_job& job, std::string_view text) { return take_number(text, 1 << 20, job.numa_node); }},
      {"num_threads", [](io_job& job, std::string_view text) { return take_number(text, 65536U, job.threads); }},
      {"directory",
       [](io_job& job, std::string_view text) {
         job.directory = text;
         return status();
       }},
      {"filename",
       [](io_job& job, std::string_view text) {
         job.file = text;
         return status();
       }},
      {"mem_type",
       [](io_job& job, std::string_view text) {
         unsigned number = 0;
         status error = take_number(text, buffer_types - 1, number);
         if (error.ok()) job.memory = static_cast<buffer_type>(number);
         return error;
       }},
      {"start_offset", [](io_job& job, std::string_view text) { return take(parse_gdsio_size(text), job.offset); }},
      {"size", [](io_job& job, std::string_view text) { return take(parse_gdsio_size(text), job.size); }},
      {"io_size", [](io_job& job, std::string_view text) { return take(parse_gdsio_size(text), job.io_size); }},
  };
  return keys;
}

// Parses one file, line by line.
class reader {
 public:
  reader(std::string path, std::vector<std::string>& remarks) : path_(std::move(path)), remarks_(remarks) {}

  status line(std::string_view text) {
    ++number_;
    text = trimmed(text);
    if (text.empty() || text.front() == '#' || text.front() == ';') return {};
    if (text.front() == '[') return section(text);
    const std::size_t equals = text.find('=');
    if (equals == std::string_view::npos) return wrong("expected KEY=VALUE, [global] or [JOB]");
    return key(trimmed(text.substr(0, equals)), trimmed(text.substr(equals + 1)));
  }

  io_plan plan;

 private:
  status wrong(std::string_view why) const { return {errc::invalid_argument, fmt::format("{}:{}: {}", path_, number_, why)}; }

  status section(std::string_view text) {
    if (text.back() != ']') return wrong("a section name must end with ]");
    in_global_ = trimmed(text.substr(1, text.size() - 2)) == "global";
    if (!in_global_) plan.jobs.emplace_back();
    return {};
  }

  status key(std::string_view name, std::string_view value) {
    if (in_global_) return take_by(global_keys(), plan, name, value);
    if (plan.jobs.empty()) return wrong("settings must follow a section name, such as [global]");
    // Applies to all jobs, so it belongs to the plan.
    if (name == "fd_type") return take_flag(value, plan.direct, false);
    return take_by(job_keys(), plan.jobs.back(), name, value);
  }

  template <class Keys, class Target>
  status take_by(const Keys& keys, Target& target, std::string_view name, std::string_view value) {
    const auto found = keys.find(name);
    if (found == keys.end()) {
      std::vector<std::string> names;
      for (const auto& each : keys) names.push_back(each.first);
      remarks_.push_back(fmt::format("{}:{}: {} has no effect here{}", path_, number_, name, suggestion(name, names)));
      return {};
    }
    const status error = found->second(target, value);
    return error.ok() ? error : wrong(fmt::format("{}: {}", name, error.message()));
  }

  std::string path_;
  std::vector<std::string>& remarks_;
  unsigned number_ = 0;
  bool in_global_ = false;
};

}  // namespace

result<io_plan> read_io_config(const std::string& path, std::vector<std::string>& remarks) {
  constexpr std::uint64_t most_bytes = std::uint64_t{16} << 20;
  auto whole = read_text(path, most_bytes);
  if (!whole) return whole.error();
  std::istringstream file(*std::move(whole));
  reader lines(path, remarks);
  for (std::string text; std::getline(file, text);) {
    if (status error = lines.line(text); !error.ok()) return error;
  }
  if (lines.plan.jobs.empty()) return status(errc::invalid_argument, fmt::format("{} contains no job section, such as [job1]", path));
  return std::move(lines.plan);
}

}  // namespace penstock::cli
