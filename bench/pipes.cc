#include "bench/pipes.hpp"

#include <fmt/format.h>
#include <spawn.h>
#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <deque>
#include <memory>
#include <optional>
#include <thread>

#include "base/output.hpp"
#include "base/printable.hpp"
#include "bench/meter.hpp"
#include "bench/pipes_report.hpp"
#include "device/device.hpp"
#include "penstock/pipe.hpp"

extern char** environ;

namespace penstock::bench {

namespace {

constexpr std::uint64_t most_in_flight_bytes = std::uint64_t{1} << 30;
constexpr std::uint64_t most_in_flight = 16;
constexpr unsigned copying_threads = 8;

std::uint64_t window_of(std::uint64_t size) { return std::clamp<std::uint64_t>(most_in_flight_bytes / size, 2, most_in_flight); }

int failed(const pipe_bench_options& options, const status& why) {
  if (options.failed) {
    options.failed(why);
  } else {
    print_error(fmt::format("penstock: pipe-bench: {}\n", printable_text(std::string(why.message()))));
  }
  return 1;
}

// An engine, and memory of one device or of the host.
class place {
 public:
  static result<place> make(const std::string& device) {
    place made;
    auto engine = penstock::engine::create();
    if (!engine) return engine.error();
    made.engine_ = std::make_unique<penstock::engine>(*std::move(engine));
    made.device_ = device;
    return made;
  }
  [[nodiscard]] penstock::engine& engine() const { return *engine_; }
  [[nodiscard]] bool on_host() const { return device_ == "host"; }
  status resize(std::uint64_t bytes) {
    if (on_host()) {
      on_host_.assign(bytes, std::byte{0});
      return {};
    }
    on_device_ = {};
    auto made = engine_->allocate(device_, bytes);
    if (!made) return made.error();
    on_device_ = *std::move(made);
    return {};
  }
  [[nodiscard]] std::byte* data() { return on_host() ? on_host_.data() : static_cast<std::byte*>(on_device_.data()); }

 private:
  std::unique_ptr<penstock::engine> engine_;
  std::string device_;
  std::vector<std::byte> on_host_;
  device_buffer on_device_;
};

// --- bare copy

double median(std::vector<double>& of) {
  if (of.empty()) return 0;
  std::nth_element(of.begin(), of.begin() + static_cast<std::ptrdiff_t>(of.size() / 2), of.end());
  return of[of.size() / 2];
}

struct raw_copy {
  double one_us = 0;    // one copy, including the wait for it
  double many_gbs = 0;  // copies queued one after the other
};

double memcpy_gbs(std::byte* to, const std::byte* from, std::uint64_t size, double seconds) {
  const unsigned threads = std::clamp(std::thread::hardware_concurrency() / 2, 1U, copying_threads);
  const stopwatch watch;
  std::uint64_t bytes = 0;
  while (watch.seconds() < seconds) {
    std::vector<std::thread> workers;
    const std::uint64_t part = (size + threads - 1) / threads;
    for (std::uint64_t at = 0; at < size; at += part)
      workers.emplace_back([=] { std::memcpy(to + at, from + at, std::min(part, size - at)); });
    for (auto& each : workers) each.join();
    bytes += size;
  }
  return gigabytes_per_second(bytes, watch.seconds());
}

// Measures a copy between both memories within this process: by the receiver's device if it has one, else by the sender's, else by threads.
result<raw_copy> measure_raw(const std::string& from, const std::string& to, std::uint64_t size, double seconds) {
  raw_copy told;
  const bool host_only = from == "host" && to == "host";
  std::vector<std::byte> first(host_only ? size : 0, std::byte{1});
  std::vector<std::byte> second(host_only ? size : 0, std::byte{2});
  if (host_only) {
    const stopwatch watch;
    std::uint64_t count = 0;
    for (; watch.seconds() < seconds / 4; ++count) std::memcpy(second.data(), first.data(), size);
    told.one_us = watch.seconds() / static_cast<double>(count) * 1e6;
    told.many_gbs = size < (std::uint64_t{1} << 20) ? gigabytes_per_second(size, told.one_us / 1e6)
                                                    : memcpy_gbs(second.data(), first.data(), size, seconds / 2);
    return told;
  }
  const auto driver = (from == "host" ? to : from).starts_with("cuda") ? device::make_cuda_driver() : device::make_host_driver();
  const auto session_of = [&](const std::string& name) -> result<device::session*> {
    return name == "host" ? result<device::session*>(nullptr) : driver->open(std::atoi(name.c_str() + name.find(':') + 1), nullptr);
  };
  const auto session_of_from = session_of(from);
  const auto session_of_to = session_of(to);
  if (!session_of_from) return session_of_from.error();
  if (!session_of_to) return session_of_to.error();
  if (*session_of_from != nullptr && *session_of_to != nullptr) (*session_of_to)->allow_copies_from(**session_of_from);
  auto& session = *session_of_to != nullptr ? **session_of_to : **session_of_from;
  std::vector<std::byte> pinned(from == "host" || to == "host" ? size : 0);
  if (!pinned.empty()) {
    if (auto wrong = session.pin(pinned.data(), size, false); !wrong.ok()) return wrong;
  }
  const auto memory_of = [&](device::session* of) -> result<void*> {
    return of == nullptr ? result<void*>(pinned.data()) : of->allocate(size);
  };
  const auto source_memory = memory_of(*session_of_from);
  const auto target_memory = memory_of(*session_of_to);
  const auto stream = session.make_stream();
  if (!source_memory || !target_memory || !stream) return status(errc::out_of_memory, "no memory for the bare copy");
  status wrong;
  const auto copies = [&](std::uint64_t count) {
    for (std::uint64_t i = 0; i < count && wrong.ok(); ++i) wrong = session.copy(*target_memory, *source_memory, size, *stream);
    if (wrong.ok()) wrong = session.synchronize(*stream);
  };
  copies(2);
  std::vector<double> times;
  for (const stopwatch all; wrong.ok() && all.seconds() < seconds / 4;) {
    const stopwatch one;
    copies(1);
    times.push_back(one.seconds());
  }
  std::uint64_t count = 0;
  const stopwatch watch;
  for (; wrong.ok() && watch.seconds() < seconds / 2; count += window_of(size)) copies(window_of(size));
  told.many_gbs = gigabytes_per_second(count * size, watch.seconds());
  told.one_us = median(times) * 1e6;
  (void)session.destroy_stream(*stream);
  if (*session_of_from != nullptr) (void)(*session_of_from)->release(*source_memory);
  if (*session_of_to != nullptr) (void)(*session_of_to)->release(*target_memory);
  if (!pinned.empty()) (void)session.unpin(pinned.data());
  if (!wrong.ok()) return wrong;
  return told;
}

// --- the two processes. Orders travel as the metadata of messages: "echo SIZE COUNT", "echo-unposted SIZE COUNT", "take SIZE COUNT",
// "cpu", "end".

status give(const pipe& to, const std::string& order) { return to.send({order, {}, {}}).wait().error; }

// Receives `count` tensors of this size into the memories in turn. Posts twice as many receives as the sender has tensors in flight.
status take(const pipe& over, std::byte* into, std::uint64_t size, std::uint64_t count) {
  const auto window = window_of(size);
  struct slot {
    incoming_message message;
    operation receiving;
  };
  std::deque<slot> slots(std::min(2 * window, count));
  const auto post = [&](slot& each, std::uint64_t index) {
    std::byte* const memory = into + index % window * size;
    each.receiving = over.receive(each.message, std::vector<incoming_target>{{memory, size}});
  };
  for (std::uint64_t i = 0; i < slots.size(); ++i) post(slots[i], i);
  if (auto wrong = give(over, "ready"); !wrong.ok()) return wrong;
  for (std::uint64_t i = 0; i < count; ++i) {
    auto& each = slots[i % slots.size()];
    if (const auto outcome = each.receiving.wait(); !outcome.ok()) return outcome.error;
    if (i + slots.size() < count) post(each, i % slots.size());
  }
  return {};
}

status send(const pipe& over, const std::byte* from, std::uint64_t size, std::uint64_t count) {
  const auto window = window_of(size);
  incoming_message ready;
  if (const auto outcome = over.next(ready).wait(); !outcome.ok()) return outcome.error;
  std::deque<operation> sent;
  for (std::uint64_t i = 0; i < count; ++i) {
    sent.push_back(over.send({"", {}, {{from, size}}}));
    if (sent.size() < window && i + 1 < count) continue;
    if (const auto outcome = sent.front().wait(); !outcome.ok()) return outcome.error;
    sent.pop_front();
  }
  for (auto& each : sent) {
    if (const auto outcome = each.wait(); !outcome.ok()) return outcome.error;
  }
  return {};
}

struct order {
  std::string what;
  std::uint64_t size = 0;
  std::uint64_t count = 0;
};

// Receives the messages of an echo in turn into the same memory. Receives are either posted long before the messages arrive, or start once
// each message has arrived.
class echo_receives {
 public:
  echo_receives(const pipe& over, std::byte* into, const order& asked)
      : over_(over), into_(into), size_(asked.size), posted_(asked.what == "echo" ? asked.count : 0) {
    for (std::uint64_t i = 0; i < ahead; ++i) post(i);
  }
  // Call it outside the timed part, once the message with this index has arrived.
  void post_behind(std::uint64_t index) { post(index + ahead); }
  status await(std::uint64_t index) {
    auto& come = come_[index % ahead];
    if (index < posted_) return receiving_[index % ahead].wait().error;
    if (auto outcome = over_.next(come).wait(); !outcome.ok()) return outcome.error;
    return come.receive({{into_, size_}}).wait().error;
  }

 private:
  static constexpr std::uint64_t ahead = 4;
  void post(std::uint64_t index) {
    if (index < posted_) receiving_[index % ahead] = over_.receive(come_[index % ahead], std::vector<incoming_target>{{into_, size_}});
  }

  const pipe& over_;
  std::byte* const into_;
  const std::uint64_t size_;
  const std::uint64_t posted_;  // number of messages
  std::array<incoming_message, ahead> come_;
  std::array<operation, ahead> receiving_;
};

// Sends one message at a time back and forth. trips: receives the seconds of each round trip.
status echo(const pipe& over, std::byte* memory, const order& asked, bool begins, std::vector<double>* trips) {
  echo_receives receives(over, memory, asked);
  for (std::uint64_t i = 0; i < asked.count; ++i) {
    const stopwatch watch;
    operation sent;
    if (begins) sent = over.send({"", {}, {{memory, asked.size}}});
    if (auto wrong = receives.await(i); !wrong.ok()) return wrong;
    if (!begins) sent = over.send({"", {}, {{memory, asked.size}}});
    if (const auto outcome = sent.wait(); !outcome.ok()) return outcome.error;
    if (trips != nullptr) trips->push_back(watch.seconds());
    receives.post_behind(i);
  }
  return {};
}

result<order> next_order(const pipe& from) {
  incoming_message come;
  if (const auto outcome = from.next(come).wait(); !outcome.ok()) return outcome.error;
  order told;
  std::array<char, 16> word{};
  unsigned long long size = 0;
  unsigned long long count = 0;
  if (std::sscanf(std::string(come.metadata()).c_str(), "%15s %llu %llu", word.data(), &size, &count) < 1) {
    return status(errc::io, "an order of the other process was not understood");
  }
  return order{word.data(), size, count};
}

// Returns the CPU seconds of the other process.
result<double> cpu_of(const pipe& other) {
  if (auto wrong = give(other, "cpu"); !wrong.ok()) return wrong;
  incoming_message come;
  if (const auto outcome = other.next(come).wait(); !outcome.ok()) return outcome.error;
  return std::atof(std::string(come.metadata()).c_str());
}

// Returns the one-way time of a message in microseconds. what: the order for this kind of echo.
result<double> measure_one_way(const pipe& other, place& memory, const std::string& what, std::uint64_t size, double seconds) {
  const auto echoes = [&](std::uint64_t count) -> result<double> {
    if (auto wrong = give(other, fmt::format("{} {} {}", what, size, count)); !wrong.ok()) return wrong;
    std::vector<double> trips;
    if (auto wrong = echo(other, memory.data(), {what, size, count}, true, &trips); !wrong.ok()) return wrong;
    return median(trips) / 2;
  };
  if (const auto warm = echoes(8); !warm) return warm.error();
  const auto first = echoes(8);
  if (!first) return first.error();
  const auto one_way = echoes(std::clamp<std::uint64_t>(static_cast<std::uint64_t>(seconds / 2 / *first / 2), 2, 20'000));
  if (!one_way) return one_way.error();
  return *one_way * 1e6;
}

struct many_figures {
  double gbs = 0;
  double cpu_per_gb = 0;
};

result<many_figures> measure_many(const pipe& other, place& memory, std::uint64_t size, double seconds) {
  const auto takes = [&](std::uint64_t count) -> result<double> {
    if (auto wrong = give(other, fmt::format("take {} {}", size, count)); !wrong.ok()) return wrong;
    const stopwatch watch;
    if (auto wrong = send(other, memory.data(), size, count); !wrong.ok()) return wrong;
    return watch.seconds();
  };
  const auto warm = takes(window_of(size));
  if (!warm) return warm.error();
  const auto count =
      std::clamp<std::uint64_t>(static_cast<std::uint64_t>(seconds / *warm * static_cast<double>(window_of(size))), 4, 100'000);
  const auto before = cpu_of(other);
  if (!before) return before.error();
  const stopwatch watch;
  const auto many = takes(count);
  if (!many) return many.error();
  const auto after = cpu_of(other);
  if (!after) return after.error();
  return many_figures{gigabytes_per_second(count * size, *many),
                      (watch.cpu_seconds() + *after - *before) / (static_cast<double>(count * size) / 1e9)};
}

// Returns the channels that carried bytes between two snapshots, with the percentage of pushed tensors.
std::string channels_since(const std::vector<channel_stats>& before, const std::vector<channel_stats>& now) {
  std::string by;
  for (const auto& each : now) {
    const auto same = std::find_if(before.begin(), before.end(), [&](const auto& one) { return one.name == each.name; });
    const auto old = same == before.end() ? channel_stats{} : *same;
    if (each.sent_bytes == old.sent_bytes) continue;
    const auto pushed = each.pushed_tensors - old.pushed_tensors;
    by += (by.empty() ? "" : ", ") + each.name;
    if (pushed > 0)
      by += fmt::format(" ({:.0f}% pushed)",
                        100.0 * static_cast<double>(pushed) /
                            static_cast<double>(each.sent_tensors - old.sent_tensors + each.received_tensors - old.received_tensors));
  }
  return by;
}

// Measures everything for one size except for the bare copy.
result<pipe_row> measure(const pipe& other, place& memory, std::uint64_t size, double seconds) {
  pipe_row told;
  told.size = size;
  if (auto wrong = memory.resize(size); !wrong.ok()) return wrong;
  std::vector<std::byte> content(size);
  for (std::size_t i = 0; i < size; ++i) content[i] = static_cast<std::byte>(i * 131 + (i >> 11) * 17 + 5);
  if (auto wrong = memory.engine().copy(memory.data(), content.data(), size); !wrong.ok()) return wrong;
  std::vector<std::byte> back(size);
  told.right = true;
  const auto one_way = [&](const std::string& what) -> result<double> {
    auto measured = measure_one_way(other, memory, what, size, seconds);
    if (!measured) return measured;
    if (auto wrong = memory.engine().copy(back.data(), memory.data(), size); !wrong.ok()) return wrong;
    told.right = told.right && back == content;
    return measured;
  };
  const auto before = other.stats();
  const auto posted = one_way("echo");
  if (!posted) return posted.error();
  const auto many = measure_many(other, memory, size, seconds);
  if (!many) return many.error();
  told.channels = channels_since(before, other.stats());  // taken here, so that the share of pushed tensors is that of posted receives
  const auto unposted = one_way("echo-unposted");
  if (!unposted) return unposted.error();
  told.one_way_us = *posted;
  told.unposted_us = *unposted;
  told.many_gbs = many->gbs;
  told.cpu_per_gb = many->cpu_per_gb;
  return told;
}

status run_all(const pipe& other, place& memory, const pipe_bench_options& options, bool& right) {
  const auto plan = other.explain();
  if (!plan) return plan.error();
  pipe_report report(options);
  report.begin(*plan);
  auto sizes = options.sizes;
  if (sizes.empty()) sizes = {4 << 10, 64 << 10, 1 << 20, 16 << 20, 256 << 20, 1 << 30};
  for (const auto size : sizes) {
    const auto raw = measure_raw(options.from, options.to, size, options.seconds);
    if (!raw) return raw.error().with_context("the bare copy");
    auto told = measure(other, memory, size, options.seconds);
    if (!told) return told.error();
    told->raw_one_us = raw->one_us;
    told->raw_many_gbs = raw->many_gbs;
    report.add(*told);
    right = right && told->right;
  }
  report.end();
  return {};
}

}  // namespace

int serve_pipes(const pipe_bench_options& options) {
  auto memory = place::make(options.to);
  if (!memory) return failed(options, memory.error());
  auto context = pipe_context::create(memory->engine(), {.channels = options.channels, .connections = options.connections});
  if (!context) return failed(options, context.error());
  auto other = context->connect(options.url);
  if (!other) return failed(options, other.error());
  for (;;) {
    const auto asked = next_order(*other);
    if (!asked) return failed(options, asked.error());
    status wrong;
    if (asked->what == "end") return 0;
    if (asked->what == "cpu") {
      wrong = give(*other, fmt::format("{}", process_cpu_seconds()));
    } else {
      const bool echoes = asked->what.starts_with("echo");
      wrong = memory->resize(asked->size * (echoes ? 1 : window_of(asked->size)));
      if (wrong.ok()) {
        wrong = echoes ? echo(*other, memory->data(), *asked, false, nullptr) : take(*other, memory->data(), asked->size, asked->count);
      }
    }
    if (!wrong.ok()) return failed(options, wrong);
  }
}

int run_pipes(const pipe_bench_options& options, const std::string& program) {
  auto memory = place::make(options.from);
  if (!memory) return failed(options, memory.error());
  auto context = pipe_context::create(memory->engine(), {.channels = options.channels, .connections = options.connections});
  if (!context) return failed(options, context.error());
  auto listener = context->listen(options.url);
  if (!listener) return failed(options, listener.error());
  std::vector<std::string> words{program, "pipe-bench", "--serve",       listener->url(),
                                 "--to",  options.to,   "--connections", std::to_string(options.connections)};
  for (const auto& each : options.channels) words.insert(words.end(), {"--channel", each});
  std::vector<char*> arguments;
  for (auto& each : words) arguments.push_back(each.data());
  arguments.push_back(nullptr);
  pid_t process = 0;
  if (const int error = posix_spawn(&process, program.c_str(), nullptr, nullptr, arguments.data(), environ); error != 0) {
    return failed(options, status::from_errno(error, fmt::format("start {}", program)));
  }
  pipe other;
  bool right = true;
  status wrong = listener->accept(other, {deadline_clock::now() + std::chrono::seconds(60)}).wait().error;
  if (wrong.ok()) wrong = run_all(other, *memory, options, right);
  if (wrong.ok()) wrong = give(other, "end");
  other.close();
  int ended = 0;
  ::waitpid(process, &ended, 0);
  if (!wrong.ok()) return failed(options, wrong);
  return right && ended == 0 ? 0 : 1;
}

}  // namespace penstock::bench
