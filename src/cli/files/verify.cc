// penstock verify: prints or checks checksums of files, compares two files, and does what gdsio_verify does.
#include <fmt/format.h>

#include <algorithm>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <system_error>
#include <thread>

#include "base/printable.hpp"
#include "cli/common/command.hpp"
#include "cli/common/inputs.hpp"
#include "cli/common/interrupt.hpp"
#include "cli/common/json.hpp"
#include "cli/common/progress.hpp"
#include "cli/common/say.hpp"
#include "cli/common/text_file.hpp"
#include "cli/common/usage.hpp"
#include "cli/files/checksum_list.hpp"
#include "cli/files/file_reading.hpp"
#include "cli/files/verify_device.hpp"

namespace penstock::cli {
namespace {

constexpr std::uint64_t most_list_bytes = std::uint64_t{256} << 20;

struct verify_options {
  std::vector<std::string> files;
  std::string check;
  bool compare = false;
  std::string algorithm;
  std::string file;  // for the options of gdsio_verify
  device_check of_device;
  output_options output;
};

struct digest_job {
  std::string file;
  digest_kind kind = digest_kind::sha256;
  status error;  // the reason why hashing cannot start
};

struct digest_outcome {
  status error;
  std::string value;
};

// Hashes files on one thread per core, one file each. Calls told in order, one call at a time; told may throw.
class digest_pool {
 public:
  digest_pool(const engine& owner, const std::vector<digest_job>& jobs) : owner_(owner), jobs_(jobs), outcomes_(jobs.size()) {}

  void run(const std::function<void(const digest_job&, const digest_outcome&)>& told) {
    const std::size_t most = std::max(1U, std::thread::hardware_concurrency());
    const ended_threads threads(*this, std::min(most, jobs_.size()));
    if (threads.empty()) work();
    for (std::size_t i = 0; i < jobs_.size(); ++i) {
      std::unique_lock lock(mutex_);
      ended_.wait(lock, [&] { return outcomes_[i].has_value(); });
      lock.unlock();
      told(jobs_[i], *outcomes_[i]);
    }
  }

 private:
  // Joins the threads, which finish the file that they are hashing.
  class ended_threads {
   public:
    ended_threads(digest_pool& pool, std::size_t count) : pool_(pool) {
      try {
        for (std::size_t i = 0; i < count; ++i) threads_.emplace_back([&pool] { pool.work(); });
      } catch (const std::system_error&) {  // continue with the threads that started
      }
    }
    ended_threads(const ended_threads&) = delete;
    ended_threads& operator=(const ended_threads&) = delete;
    ~ended_threads() {
      pool_.next_ = pool_.jobs_.size();
      for (std::thread& each : threads_) each.join();
    }
    [[nodiscard]] bool empty() const { return threads_.empty(); }

   private:
    digest_pool& pool_;
    std::vector<std::thread> threads_;
  };

  void work() {
    for (std::size_t i = next_++; i < jobs_.size(); i = next_++) {
      digest_outcome outcome = digest_of(jobs_[i], i);
      const std::lock_guard lock(mutex_);
      outcomes_[i] = std::move(outcome);
      ended_.notify_one();
    }
  }

  // Only the first file in progress has a progress bar.
  digest_outcome digest_of(const digest_job& job, std::size_t index) {
    if (!job.error.ok()) return {job.error, {}};
    const auto made = make_digest(job.kind);
    if (!made) return {status(made.error()).with_context(job.file), {}};
    std::unique_ptr<progress_bar> bar;
    if (std::size_t none = 0; shown_.compare_exchange_strong(none, index + 1)) bar = make_bar(job.file);
    const auto progress = [&](std::uint64_t done) {
      if (bar) bar->update(done);
      return interrupted();
    };
    status error = read_in_order(
        owner_, job.file, [&](std::span<const std::byte> bytes) { (*made)->update(bytes); }, progress);
    if (bar) bar.reset(), shown_ = 0;
    if (!error.ok()) return {std::move(error), {}};
    auto value = (*made)->value();
    if (!value) return {status(value.error()).with_context(job.file), {}};
    return {status(), *std::move(value)};
  }

  std::unique_ptr<progress_bar> make_bar(const std::string& path) const {
    auto handle = owner_.open(path);
    return std::make_unique<progress_bar>("reading", path, handle ? handle->size().value_or(0) : 0);
  }

  const engine& owner_;
  const std::vector<digest_job>& jobs_;
  std::atomic<std::size_t> next_{0}, shown_{0};
  std::mutex mutex_;
  std::condition_variable ended_;
  std::vector<std::optional<digest_outcome>> outcomes_;
};

nlohmann::json document_of(const digest_job& job, const digest_outcome& outcome) {
  const bool good = outcome.error.ok();
  return {{"file", job.file},
          {"algorithm", name_of(job.kind)},
          {"checksum", good ? nlohmann::json(outcome.value) : nlohmann::json(nullptr)},
          {"error", error_json(outcome.error)}};
}

// Prints names unchanged for sha256sum -c, but makes them printable on a terminal.
void print_checksum(const listed_checksum& one) {
  const std::string line = checksum_line(one);
  put_exactly((columns_of(stdout) > 0 ? printable_text(line) : line) + "\n");
}

int print_checksums(const verify_options& wanted, const engine& owner) {
  std::vector<digest_job> jobs;
  const digest_kind kind = digest_named(wanted.algorithm).value_or(digest_kind::sha256);
  if (const auto possible = make_digest(kind); !possible) return fail(possible.error());
  for (const input& each : expand_folders(wanted.files)) jobs.push_back({each.name, kind, each.error});
  auto documents = nlohmann::json::array();
  bool all_good = true;
  digest_pool(owner, jobs).run([&](const digest_job& job, const digest_outcome& outcome) {
    all_good = all_good && outcome.error.ok();
    if (wanted.output.json) {
      documents.push_back(document_of(job, outcome));
    } else if (outcome.error.ok()) {
      print_checksum({kind, outcome.value, shown_name(job.file)});
    } else if (!interrupted()) {
      (void)fail(outcome.error);
    }
  });
  if (wanted.output.json) print_json({{"files", std::move(documents)}});
  return all_good ? exit_success : exit_failure;
}

struct check_counts {
  unsigned wrong = 0, unread = 0, improper = 0;
  [[nodiscard]] bool good() const { return wrong + unread + improper == 0; }
};

// Uses the wording of sha256sum -c.
void warn(const check_counts& counts) {
  const auto line = [](unsigned count, const char* one, const char* many) {
    if (count > 0) complain("penstock: WARNING: {} {}\n", count, count == 1 ? one : many);
  };
  line(counts.improper, "line is improperly formatted", "lines are improperly formatted");
  line(counts.unread, "listed file could not be read", "listed files could not be read");
  line(counts.wrong, "computed checksum did NOT match", "computed checksums did NOT match");
}

int check_checksums(const verify_options& wanted, const engine& owner) {
  const auto kind = wanted.algorithm.empty() ? std::nullopt : digest_named(wanted.algorithm);
  auto text = read_text(wanted.check, most_list_bytes);
  if (!text) return interrupted() ? exit_failure : fail(text.error());
  const checksum_list list = parse_checksum_list(*std::move(text), kind);
  if (list.entries.empty()) return fail({errc::invalid_argument, fmt::format("{} contains no checksums", wanted.check)});
  std::vector<digest_job> jobs;
  for (const listed_checksum& each : list.entries) jobs.push_back({each.file, each.kind, {}});
  check_counts counts;
  counts.improper = list.improper_lines;
  auto documents = nlohmann::json::array();
  std::size_t next = 0;
  digest_pool(owner, jobs).run([&](const digest_job& job, const digest_outcome& outcome) {
    const std::string& expected = list.entries[next++].value;
    if (interrupted()) return;
    const bool right = outcome.error.ok() && outcome.value == expected;
    if (!outcome.error.ok()) ++counts.unread;
    if (outcome.error.ok() && !right) ++counts.wrong;
    if (wanted.output.json) {
      documents.push_back(document_of(job, outcome));
      documents.back()["right"] = right;
      return;
    }
    if (!outcome.error.ok()) (void)fail(outcome.error);
    if (!right || !wanted.output.quiet)
      say("{}: {}\n", name_in_one_line(job.file), right ? "OK" : outcome.error.ok() ? "FAILED" : "FAILED open or read");
  });
  if (wanted.output.json) {
    print_json({{"files", std::move(documents)}, {"improper_lines", counts.improper}});
  } else {
    warn(counts);
  }
  return counts.good() ? exit_success : exit_failure;
}

std::string describe_difference(const std::string& one, const std::string& other, const file_difference& found) {
  const std::uint64_t shorter = std::min(found.sizes[0], found.sizes[1]);
  if (found.offset < shorter) return fmt::format("{} and {} differ at offset {}", one, other, found.offset);
  const bool first_ends = found.sizes[0] < found.sizes[1];
  return fmt::format("{} ends at offset {}; up to there it equals {}, which is {} bytes longer", first_ends ? one : other, shorter,
                     first_ends ? other : one, std::max(found.sizes[0], found.sizes[1]) - shorter);
}

int compare_files(const verify_options& wanted, const engine& owner) {
  const std::string &one = wanted.files[0], &other = wanted.files[1];
  auto handle = owner.open(one);
  if (!handle) return fail(handle.error());
  auto size = handle->size();
  if (!size) return fail(size.error());
  progress_bar bar("comparing", one, *size);
  const auto found = first_difference(owner, one, other, [&](std::uint64_t done) {
    bar.update(done);
    return interrupted();
  });
  if (!found) return interrupted() ? exit_failure : fail(found.error());
  if (wanted.output.json) {
    nlohmann::json document{{"files", wanted.files}, {"equal", !*found}, {"offset", nullptr}};
    if (*found) document["offset"] = (*found)->offset;
    print_json(document);
  } else if (*found) {
    say("{}\n", describe_difference(one, other, **found));
  } else if (!wanted.output.quiet) {
    say("{} and {} are equal: {} bytes\n", one, other, *size);
  }
  return *found ? exit_failure : exit_success;
}

int usage_error(const char* why) {
  note_failure(fmt::format("verify: {}", why));
  complain("penstock: verify: {}\nRun `penstock help verify` for its options.\n", why);
  return exit_usage;
}

int verify_all(const verify_options& wanted) {
  if (wanted.compare && wanted.files.size() != 2) return usage_error("--compare requires two files");
  if (wanted.check.empty() && wanted.file.empty() && wanted.files.empty()) return usage_error("a file is required");
  if ((!wanted.check.empty() || !wanted.file.empty()) && !wanted.files.empty()) return usage_error("too many files");
  auto owner = make_engine();
  if (!owner) return fail(owner.error());
  int code = exit_success;
  if (!wanted.file.empty()) {
    code = check_by_device(*owner, wanted.file, wanted.of_device, wanted.output);
  } else if (!wanted.check.empty()) {
    code = check_checksums(wanted, *owner);
  } else {
    code = wanted.compare ? compare_files(wanted, *owner) : print_checksums(wanted, *owner);
  }
  return interrupted() ? interrupted_exit_code() : code;
}

}  // namespace

void add_verify(CLI::App& app, command& chosen) {
  auto wanted = std::make_shared<verify_options>();
  CLI::App& sub = *app.add_subcommand("verify", "Print or check checksums of files, or compare two files");
  sub.add_option("FILE", wanted->files, "Files, or folders with all their files");
  auto* check =
      sub.add_option("-c,--check", wanted->check, "Check the files in this list, as sha256sum -c does (- is stdin)")->type_name("FILE");
  auto* compare = sub.add_flag("--compare", wanted->compare, "Compare two files and show where they first differ")->excludes(check);
  sub.add_option("-a,--algorithm", wanted->algorithm, "Checksum algorithm (default sha256; --check detects it for each line)")
      ->check(one_of({digest_names.begin(), digest_names.end()}))
      ->excludes(compare);
  add_device_check_options(sub, wanted->file, wanted->of_device)->excludes(check)->excludes(compare);
  add_output_options(sub, wanted->output);
  sub.footer(
      "With -f, verify works like gdsio_verify and accepts its options: it reads the file into device memory and compares it with a plain "
      "read.");
  sub.callback([wanted, &chosen] { chosen.run = [wanted] { return verify_all(*wanted); }; });
}

}  // namespace penstock::cli
