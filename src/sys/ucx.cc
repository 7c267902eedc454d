#include <dlfcn.h>

#include <fmt/format.h>

#include "sys/fabric.hpp"

#if PENSTOCK_HAVE_UCX

#include <poll.h>
#include <ucp/api/ucp.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cassert>
#include <cerrno>
#include <cstdlib>
#include <list>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>

#include "base/intrusive_list.hpp"
#include "base/no_memory.hpp"
#include "sys/fork_guard.hpp"
#include "sys/peer.hpp"
#include "sys/wake_up.hpp"

namespace penstock::sys {

namespace {

using namespace std::chrono_literals;
using told = fabric_line::told;
using steady = std::chrono::steady_clock;

constexpr auto awake = 20us;           // how long to keep polling after progress, while transfers are in flight
constexpr unsigned most_steps = 64;    // progress calls for one line per round
constexpr int most_limits = 10;        // all transfers together may take this many times the limit
constexpr auto most_meeting = 500ms;   // how long a line that should end waits for the peer's greeting
constexpr std::uint64_t greeting = 0;  // the tag for greetings
constexpr auto most_closing = 1s;      // the most time that closing an endpoint may take, whatever the network does
constexpr auto most_at_exit = 10s;     // how long an exiting process waits for fabric threads

// --- the library

struct library {
  status problem;
  decltype(&::ucp_config_read) config_read = nullptr;
  decltype(&::ucp_config_modify) config_modify = nullptr;
  decltype(&::ucp_config_release) config_release = nullptr;
  decltype(&::ucp_init_version) init = nullptr;
  decltype(&::ucp_cleanup) cleanup = nullptr;
  decltype(&::ucp_context_query) context_query = nullptr;
  decltype(&::ucp_worker_create) worker_create = nullptr;
  decltype(&::ucp_worker_destroy) worker_destroy = nullptr;
  decltype(&::ucp_worker_get_address) worker_get_address = nullptr;
  decltype(&::ucp_worker_release_address) worker_release_address = nullptr;
  decltype(&::ucp_worker_get_efd) worker_get_efd = nullptr;
  decltype(&::ucp_worker_arm) worker_arm = nullptr;
  decltype(&::ucp_worker_progress) worker_progress = nullptr;
  decltype(&::ucp_ep_create) ep_create = nullptr;
  decltype(&::ucp_ep_close_nbx) ep_close = nullptr;
  decltype(&::ucp_tag_send_nbx) tag_send = nullptr;
  decltype(&::ucp_tag_recv_nbx) tag_recv = nullptr;
  decltype(&::ucp_request_cancel) request_cancel = nullptr;
  decltype(&::ucp_request_check_status) request_check = nullptr;
  decltype(&::ucp_request_free) request_free = nullptr;
  decltype(&::ucs_status_string) status_string = nullptr;
};

class symbols {
 public:
  symbols(void* handle, status& problem) : handle_(handle), problem_(problem) {}
  // Finds a symbol in libucp.so.0 or in a library that it depends on.
  template <class Function>
  void find(Function& into, const char* name) {
    into = reinterpret_cast<Function>(dlsym(handle_, name));
    if (into == nullptr && problem_.ok()) problem_ = {errc::unsupported, fmt::format("UCX is too old: libucp.so.0 does not have {}", name)};
  }

 private:
  void* const handle_;
  status& problem_;
};

// Keeps UCX from printing messages and from handling the program's signals.
void make_quiet(void* handle) {
  if (std::getenv("UCX_LOG_LEVEL") == nullptr) {
    using set_value = ucs_status_t (*)(const char* name, const char* value);
    const auto set = reinterpret_cast<set_value>(dlsym(handle, "ucs_global_opts_set_value"));
    if (set != nullptr) (void)set("LOG_LEVEL", "FATAL");
  }
  const auto disable = reinterpret_cast<void (*)()>(dlsym(handle, "ucs_debug_disable_signals"));
  if (disable != nullptr) disable();
}

void end_all_fabrics() noexcept;

library open_library() {
  library found;
  // NODELETE: the library leaves hooks and threads behind.
  void* const handle = dlopen("libucp.so.0", RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (handle == nullptr) {
    const char* const why = dlerror();
    found.problem = {errc::unsupported, fmt::format("UCX is not installed ({})", why == nullptr ? "libucp.so.0" : why)};
    return found;
  }
  (void)std::atexit(&end_all_fabrics);  // runs before the destructors of the library loaded above
  make_quiet(handle);
  symbols in(handle, found.problem);
  in.find(found.config_read, "ucp_config_read");
  in.find(found.config_modify, "ucp_config_modify");
  in.find(found.config_release, "ucp_config_release");
  in.find(found.init, "ucp_init_version");
  in.find(found.cleanup, "ucp_cleanup");
  in.find(found.context_query, "ucp_context_query");
  in.find(found.worker_create, "ucp_worker_create");
  in.find(found.worker_destroy, "ucp_worker_destroy");
  in.find(found.worker_get_address, "ucp_worker_get_address");
  in.find(found.worker_release_address, "ucp_worker_release_address");
  in.find(found.worker_get_efd, "ucp_worker_get_efd");
  in.find(found.worker_arm, "ucp_worker_arm");
  in.find(found.worker_progress, "ucp_worker_progress");
  in.find(found.ep_create, "ucp_ep_create");
  in.find(found.ep_close, "ucp_ep_close_nbx");
  in.find(found.tag_send, "ucp_tag_send_nbx");
  in.find(found.tag_recv, "ucp_tag_recv_nbx");
  in.find(found.request_cancel, "ucp_request_cancel");
  in.find(found.request_check, "ucp_request_check_status");
  in.find(found.request_free, "ucp_request_free");
  in.find(found.status_string, "ucs_status_string");
  return found;
}

const library& ucx() {
  static const library opened = open_library();
  return opened;
}

status error_of(ucs_status_t code, const char* call) {
  const auto kind = code == UCS_ERR_NO_MEMORY ? errc::out_of_memory : code == UCS_ERR_CANCELED ? errc::cancelled : errc::io;
  return {kind, fmt::format("{}: {}", call, ucx().status_string(code))};
}

// --- transfers. The fabric's thread owns all state except the two lists of requests from other threads

struct line_state;

struct transfer {
  line_state* of = nullptr;
  std::uint64_t number = 0;
  std::uint64_t tag = 0;
  fabric_buffer memory;
  told done;
  bool sends = false;
  bool finished = false;  // UCX has reported the outcome of the request
  ucs_status_t outcome = UCS_INPROGRESS;
  std::uint64_t come = 0;   // bytes received
  void* request = nullptr;  // null once the request is freed
};

// A request from another thread to a line.
struct step {
  enum class kind : std::uint8_t { connect, begin, cancel };
  kind what = kind::connect;
  std::shared_ptr<line_state> of;
  std::vector<std::byte> address;
  std::list<transfer> begun;  // at most one transfer
  std::uint64_t number = 0;
};

// A time limit for all transfers up to a given number.
struct time_limit {
  steady::time_point from;
  std::chrono::milliseconds time;
  std::uint64_t last_number = 0;
};

struct line_state {
  ucp_worker_h worker = nullptr;
  int readable = -1;  // the worker's event descriptor
  std::vector<std::byte> address;
  told ended;
  std::atomic<std::uint64_t> last_number{0};

  // --- Guarded by the fabric's lock
  bool end_asked = false;
  status end_why;
  std::optional<time_limit> limit_asked;

  // --- Used only by the fabric's thread
  ucp_ep_h endpoint = nullptr;
  std::list<transfer> under_way;
  // The peer's greeting and our own. UCX 1.13 aborts the process if the peer's worker is destroyed while the endpoints are being connected
  // (openucx/ucx#8175, fixed in 1.14). So, as far as this process can ensure it, no line ends before both greetings have arrived.
  std::array<transfer, 2> greetings;
  std::array<std::byte, 2> greeted{};
  bool has_met = false;
  status ending;  // why the line should end; ok: it should not
  steady::time_point ending_since;
  status failed;  // why the line must end immediately; ok: it need not
  std::vector<time_limit> limits;
  steady::time_point finished_at;  // when the last transfer finished
  bool over = false;               // the worker has been destroyed
};

struct fabric_state {
  ucp_context_h context = nullptr;
  wake_up wake;
  fork_guard fork;
  std::function<void()> on_thread;
  fabric_state* next_served = nullptr;

  std::mutex lock;  // guards the members up to and including over
  std::list<step> steps;
  std::list<std::shared_ptr<line_state>> added;
  bool stopping = false;
  bool process_ends = false;  // ends all lines
  int making = 0;             // number of lines that other threads are creating
  bool over = false;          // the thread no longer uses UCX or reads anything

  std::list<std::shared_ptr<line_state>> lines;  // used only by the fabric's thread

  void call() const noexcept { wake.wake(); }
};

// This process's fabrics that have a thread. UCX frees its tables in destructors when the process exits, so all lines must end before that,
// and nothing may call UCX afterwards.
class served_fabrics {
 public:
  static served_fabrics& of_process() {
    static std::atomic<served_fabrics*> current{nullptr};  // never destroyed
    for (;;) {
      auto* found = current.load();
      if (found != nullptr && !found->fork_.forked()) return *found;
      auto made = std::make_unique<served_fabrics>();
      made->of_parent_ = found;
      if (current.compare_exchange_strong(found, made.get())) return *made.release();
    }
  }
  // Returns false if the process is exiting.
  bool add(fabric_state& state) noexcept {
    const std::lock_guard guard(lock_);
    if (!process_ends_) all_.push_back(state);
    return !process_ends_;
  }
  void remove(fabric_state& state) noexcept {
    const std::lock_guard guard(lock_);
    (void)all_.take_if([&](const fabric_state& each) { return &each == &state; });
  }
  [[nodiscard]] bool process_ends() const noexcept {
    const std::lock_guard guard(lock_);
    return process_ends_;
  }
  void end() noexcept {
    {
      const std::lock_guard guard(lock_);
      process_ends_ = true;
      (void)all_.take_if([](fabric_state& each) {
        const std::lock_guard own(each.lock);
        each.process_ends = true;
        each.call();
        return false;
      });
    }
    const auto limit = steady::now() + most_at_exit;
    while (has_others() && steady::now() < limit) std::this_thread::sleep_for(1ms);
  }
  [[gnu::tls_model("initial-exec")]] inline static thread_local bool is_on_thread_of_one = false;

 private:
  [[nodiscard]] bool has_others() const noexcept {
    const std::lock_guard guard(lock_);
    return all_.size() > (is_on_thread_of_one ? 1 : 0);
  }

  const fork_guard fork_;
  served_fabrics* of_parent_ = nullptr;  // the list of the process that forked this one; no longer used
  mutable std::mutex lock_;              // guards the members below
  intrusive_list<fabric_state, &fabric_state::next_served> all_;
  bool process_ends_ = false;
};

void end_all_fabrics() noexcept { served_fabrics::of_process().end(); }

status the_process_ends() { return {errc::closed, "the process is exiting"}; }

void finish(transfer& which, ucs_status_t outcome, std::uint64_t come) {
  which.finished = true;
  which.outcome = outcome;
  which.come = come;
}

void sent(void* /*request*/, ucs_status_t outcome, void* of) {
  auto& which = *static_cast<transfer*>(of);
  finish(which, outcome, which.memory.bytes);
}

void received(void* /*request*/, ucs_status_t outcome, const ucp_tag_recv_info_t* facts, void* of) {
  finish(*static_cast<transfer*>(of), outcome, facts == nullptr || outcome != UCS_OK ? 0 : facts->length);
}

void endpoint_failed(void* of, ucp_ep_h /*endpoint*/, ucs_status_t why) {
  auto& line = *static_cast<line_state*>(of);
  if (line.failed.ok()) line.failed = {errc::closed, fmt::format("UCX has lost the connection to the peer: {}", ucx().status_string(why))};
}

void fail(line_state& line, const status& why) {
  if (line.failed.ok()) line.failed = why;
}

void ask_to_end(line_state& line, const status& why) {
  if (!line.ending.ok()) return;
  line.ending = why;
  line.ending_since = steady::now();
}

void begin(transfer& which);

void greet(line_state& line, bool sends) {
  auto& which = line.greetings[sends ? 1 : 0];
  which.of = &line;
  which.tag = greeting;
  which.sends = sends;
  which.memory = {&line.greeted[sends ? 1 : 0], 1, false};
  begin(which);
}

void connect(line_state& line, const std::vector<std::byte>& address) {
  ucp_ep_params_t wanted{};
  wanted.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE | UCP_EP_PARAM_FIELD_ERR_HANDLER;
  wanted.address = reinterpret_cast<const ucp_address_t*>(address.data());
  wanted.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  wanted.err_handler = {&endpoint_failed, &line};
  const auto made = ucx().ep_create(line.worker, &wanted, &line.endpoint);
  if (made == UCS_OK) {
    greet(line, true);
    return;
  }
  line.endpoint = nullptr;
  fail(line, error_of(made, "ucp_ep_create"));
}

void begin(transfer& which) {
  auto& line = *which.of;
  if (which.sends && line.endpoint == nullptr) {
    fail(line, {errc::io, "the line must be connected before anything can be sent"});
    return;
  }
  ucp_request_param_t how{};
  how.op_attr_mask =
      UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_MEMORY_TYPE | UCP_OP_ATTR_FLAG_NO_IMM_CMPL;
  how.user_data = &which;
  how.memory_type = which.memory.of_cuda ? UCS_MEMORY_TYPE_CUDA : UCS_MEMORY_TYPE_HOST;
  ucs_status_ptr_t made = nullptr;
  if (which.sends) {
    how.cb.send = &sent;
    made = ucx().tag_send(line.endpoint, which.memory.memory, which.memory.bytes, which.tag, &how);
  } else {
    how.cb.recv = &received;
    made = ucx().tag_recv(line.worker, which.memory.memory, which.memory.bytes, which.tag, ~std::uint64_t{0}, &how);
  }
  if (UCS_PTR_IS_ERR(made)) {
    fail(line, error_of(UCS_PTR_STATUS(made), which.sends ? "ucp_tag_send_nbx" : "ucp_tag_recv_nbx"));
  } else if (made != nullptr) {
    which.request = made;
  } else if (!which.finished) {
    finish(which, UCS_OK, which.memory.bytes);
  }
}

void cancel(line_state& line, std::uint64_t number) {
  const auto found = std::find_if(line.under_way.begin(), line.under_way.end(), [&](const auto& each) { return each.number == number; });
  if (found == line.under_way.end() || found->finished || found->request == nullptr) return;
  ucx().request_cancel(line.worker, found->request);
}

// Returns ok if the transfer succeeded. Errors other than cancelled end the whole line: only that guarantees that the memory is no longer
// accessed.
status outcome_of(const transfer& which) {
  if (which.outcome != UCS_OK) return error_of(which.outcome, which.sends ? "ucp_tag_send_nbx" : "ucp_tag_recv_nbx");
  if (which.come == which.memory.bytes) return {};
  return {errc::io, fmt::format("received {} bytes; expected {}", which.come, which.memory.bytes)};
}

void meet(line_state& line) {
  bool both = true;
  for (auto& each : line.greetings) {
    both = both && each.finished;
    if (!each.finished || each.request == nullptr) continue;
    ucx().request_free(std::exchange(each.request, nullptr));
    if (const auto outcome = outcome_of(each); !outcome.ok()) fail(line, outcome);
  }
  line.has_met = both;
}

void tell_what_has_finished(line_state& line) {
  if (!line.has_met) meet(line);
  for (auto each = line.under_way.begin(); each != line.under_way.end();) {
    if (!each->finished) {
      ++each;
      continue;
    }
    const auto outcome = outcome_of(*each);
    if (!outcome.ok() && outcome.code() != errc::cancelled) {
      fail(line, outcome);
      ++each;
      continue;
    }
    if (each->request != nullptr) ucx().request_free(each->request);
    line.finished_at = steady::now();
    std::list<transfer> done;
    done.splice(done.end(), line.under_way, each++);
    done.front().done(outcome);
  }
}

void close_endpoint(line_state& line) {
  if (line.endpoint == nullptr) return;
  ucp_request_param_t how{};
  how.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
  how.flags = UCP_EP_CLOSE_FLAG_FORCE;
  auto* const closing = ucx().ep_close(std::exchange(line.endpoint, nullptr), &how);
  if (!UCS_PTR_IS_PTR(closing)) return;
  const auto until = steady::now() + most_closing;
  while (ucx().request_check(closing) == UCS_INPROGRESS && steady::now() < until) ucx().worker_progress(line.worker);
  ucx().request_free(closing);
}

// UCX 1.13 does not complete a receive that has started if the sender dies, even when the endpoint is closed. Once the worker is destroyed,
// nothing can write to the memory.
void end_line(line_state& line) {
  line.over = true;
  close_endpoint(line);
  ucx().worker_destroy(line.worker);
  for (auto& each : line.under_way) {
    const auto outcome = each.finished ? outcome_of(each) : line.failed;
    each.done(outcome.ok() ? outcome : line.failed);
  }
  line.under_way.clear();
}

void take(step& asked) {
  auto& line = *asked.of;
  if (line.over || !line.failed.ok()) {
    for (auto& each : asked.begun) {
      if (line.over) each.done(line.failed);
    }
    if (!line.over) line.under_way.splice(line.under_way.end(), asked.begun);
    return;
  }
  if (!line.ending.ok() && asked.what != step::kind::cancel) {
    line.under_way.splice(line.under_way.end(), asked.begun);  // completes with the other transfers
    return;
  }
  switch (asked.what) {
    case step::kind::connect:
      connect(line, asked.address);
      break;
    case step::kind::begin: {
      auto& which = asked.begun.front();
      line.under_way.splice(line.under_way.end(), asked.begun);
      begin(which);
      break;
    }
    case step::kind::cancel:
      cancel(line, asked.number);
      break;
  }
}

// Ends the line if a time limit has expired. Returns when the next one expires.
std::optional<steady::time_point> look_at_limits(line_state& line) {
  const auto now = steady::now();
  std::optional<steady::time_point> next;
  if (!line.ending.ok()) {
    next = line.ending_since + most_meeting;
    if (line.has_met || *next <= now) fail(line, line.ending);
    return next;
  }
  std::erase_if(line.limits, [&](const time_limit& limit) {
    const auto held_up = [&](const transfer& each) { return each.number <= limit.last_number; };
    return std::none_of(line.under_way.begin(), line.under_way.end(), held_up);
  });
  for (const auto& limit : line.limits) {
    const auto when = std::min(std::max(limit.from, line.finished_at) + limit.time, limit.from + most_limits * limit.time);
    if (when <= now) ask_to_end(line, {errc::closed, "UCX did not complete the transfers in flight in time"});
    next = std::min(next.value_or(when), when);
  }
  return next;
}

// Makes progress on one line. Returns true if there was any.
bool progress(line_state& line) {
  bool moved = false;
  for (unsigned i = 0; i < most_steps && line.failed.ok() && ucx().worker_progress(line.worker) != 0; ++i) moved = true;
  tell_what_has_finished(line);
  return moved;
}

// Called with the fabric's lock held, together with taking the steps: a limit taken before the transfers that it covers would find none and
// be dropped.
void take_limit(line_state& line) {
  const auto limit = std::exchange(line.limit_asked, std::nullopt);
  if (!limit) return;
  const bool noted = or_without_memory([&] { return line.limits.push_back(*limit), true; }, [] { return false; });
  if (!noted) ask_to_end(line, no_memory());
}

// Takes requests from other threads. Returns false if the fabric should end.
bool take_what_is_asked(fabric_state& of) {
  std::list<std::shared_ptr<line_state>> added;
  std::list<step> steps;
  {
    const std::lock_guard guard(of.lock);
    added.swap(of.added);
    steps.swap(of.steps);
    for (const auto& line : of.lines) take_limit(*line);
    for (const auto& line : added) take_limit(*line);
  }
  for (const auto& line : added) greet(*line, false);
  of.lines.splice(of.lines.end(), added);
  for (auto& each : steps) take(each);
  steps.clear();
  const std::lock_guard guard(of.lock);
  for (const auto& line : of.lines) {
    if (line->end_asked) ask_to_end(*line, line->end_why);
    if (of.process_ends) fail(*line, the_process_ends());
  }
  const bool is_idle = of.lines.empty() && of.added.empty() && of.steps.empty() && of.making == 0;
  of.over = (of.stopping || of.process_ends) && is_idle;
  return !of.over;
}

// Ends lines that have failed. Returns true if there were any.
bool end_those_that_failed(fabric_state& of) {
  bool any = false;
  for (auto each = of.lines.begin(); each != of.lines.end();) {
    if ((*each)->failed.ok()) {
      ++each;
      continue;
    }
    any = true;
    std::list<std::shared_ptr<line_state>> gone;
    gone.splice(gone.end(), of.lines, each++);
    auto& line = *gone.front();
    end_line(line);
    bool asked = false;
    {
      const std::lock_guard guard(of.lock);
      asked = line.end_asked;
    }
    if (!asked && line.ended) line.ended(line.failed);
    line.ended = nullptr;
  }
  return any;
}

// Sleeps until a request or data arrives, or a time limit expires.
void sleep(fabric_state& of, std::optional<steady::time_point> limit) {
  std::vector<pollfd> waited;
  const bool made = or_without_memory(
      [&] {
        waited.reserve(of.lines.size() + 1);
        return true;
      },
      [] { return false; });
  if (!made) {
    std::this_thread::sleep_for(1ms);
    return;
  }
  waited.push_back({of.wake.descriptor(), POLLIN, 0});
  for (const auto& line : of.lines) {
    const auto armed = ucx().worker_arm(line->worker);
    if (armed == UCS_ERR_BUSY) return;  // something has just arrived
    if (armed != UCS_OK) {
      fail(*line, error_of(armed, "ucp_worker_arm"));
      return;
    }
    waited.push_back({line->readable, POLLIN, 0});
  }
  int time = -1;
  if (limit) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(*limit - steady::now()).count();
    time = static_cast<int>(std::clamp<std::int64_t>(left, 0, 60'000));
  }
  if (::poll(waited.data(), waited.size(), time) > 0 && waited.front().revents != 0) of.wake.clear();
}

void serve(const std::shared_ptr<fabric_state>& of) {
  served_fabrics::is_on_thread_of_one = true;
  if (of->on_thread) of->on_thread();
  auto moved_at = steady::now();
  while (take_what_is_asked(*of)) {
    bool moved = false;
    bool waits = false;
    std::optional<steady::time_point> limit;
    for (const auto& line : of->lines) {
      moved = progress(*line) || moved;
      waits = waits || !line->under_way.empty();
      if (const auto next = look_at_limits(*line)) limit = std::min(limit.value_or(*next), *next);
    }
    moved = end_those_that_failed(*of) || moved;
    if (moved) moved_at = steady::now();
    if (moved || (waits && steady::now() - moved_at < awake)) continue;
    sleep(*of, limit);
  }
  ucx().cleanup(of->context);
  served_fabrics::of_process().remove(*of);
}

// --- The public interface

// While this object exists, the fabric's thread keeps UCX open.
class making_a_line {
 public:
  explicit making_a_line(fabric_state& of) noexcept : of_(of) {
    const std::lock_guard guard(of_.lock);
    may_ = !of_.over;
    if (may_) ++of_.making;
  }
  making_a_line(const making_a_line&) = delete;
  making_a_line& operator=(const making_a_line&) = delete;
  ~making_a_line() {
    if (!may_) return;
    const std::lock_guard guard(of_.lock);
    --of_.making;
    of_.call();  // the thread may be waiting for this
  }
  [[nodiscard]] bool may() const noexcept { return may_; }

 private:
  fabric_state& of_;
  bool may_ = false;
};

// In a forked child, the destructor leaks the state and makes no calls, because the thread belongs to the parent.
class ucx_fabric final : public fabric, public std::enable_shared_from_this<ucx_fabric> {
 public:
  ucx_fabric(std::shared_ptr<fabric_state> of, bool knows_cuda) : state_(std::move(of)), knows_cuda_(knows_cuda) {}
  ucx_fabric(const ucx_fabric&) = delete;
  ucx_fabric& operator=(const ucx_fabric&) = delete;
  ~ucx_fabric() override;

  status start();
  [[nodiscard]] bool knows_cuda() const noexcept override { return knows_cuda_; }
  result<std::unique_ptr<fabric_line>> make_line(told ended) override;
  [[nodiscard]] fabric_state& state() const noexcept { return *state_; }

 private:
  const std::shared_ptr<fabric_state> state_;
  const bool knows_cuda_;
  std::thread thread_;
};

class ucx_line final : public fabric_line {
 public:
  ucx_line(std::shared_ptr<ucx_fabric> by, std::shared_ptr<line_state> of) : fabric_(std::move(by)), state_(std::move(of)) {}
  ucx_line(const ucx_line&) = delete;
  ucx_line& operator=(const ucx_line&) = delete;
  ~ucx_line() override { end({errc::closed, "the line was closed"}); }

  [[nodiscard]] const std::vector<std::byte>& address() const noexcept override { return state_->address; }

  void connect(std::vector<std::byte> address) override {
    step asked;
    asked.address = std::move(address);
    ask(std::move(asked));
  }
  void send(std::uint64_t tag, const fabric_buffer& from, told done) override { begin(tag, from, std::move(done), true); }
  std::uint64_t receive(std::uint64_t tag, const fabric_buffer& to, told done) override { return begin(tag, to, std::move(done), false); }
  void cancel(std::uint64_t receive) override {
    step asked;
    asked.what = step::kind::cancel;
    asked.number = receive;
    ask(std::move(asked));
  }
  void limit(std::chrono::milliseconds time) override {
    if (fabric_->state().fork.forked()) return;
    const std::lock_guard guard(fabric_->state().lock);
    state_->limit_asked = time_limit{steady::now(), time, state_->last_number.load()};
    fabric_->state().call();
  }
  void end(const status& why) override {
    assert(!why.ok());
    if (fabric_->state().fork.forked()) return;
    const std::lock_guard guard(fabric_->state().lock);
    if (std::exchange(state_->end_asked, true)) return;
    state_->end_why = why;
    fabric_->state().call();
  }

 private:
  std::uint64_t begin(std::uint64_t tag, const fabric_buffer& memory, told done, bool sends) {
    step asked;
    asked.what = step::kind::begin;
    auto& made = asked.begun.emplace_back();
    made.of = state_.get();
    made.number = ++state_->last_number;
    made.tag = tag;
    made.memory = memory;
    made.done = std::move(done);
    made.sends = sends;
    const auto number = made.number;
    ask(std::move(asked));
    return number;
  }
  void ask(step what) {
    if (fabric_->state().fork.forked()) return;
    what.of = state_;
    std::list<step> one;
    one.push_back(std::move(what));
    {
      const std::lock_guard guard(fabric_->state().lock);
      if (!fabric_->state().over) {
        fabric_->state().steps.splice(fabric_->state().steps.end(), one);
        fabric_->state().call();
        return;
      }
    }
    for (auto& each : one.front().begun) each.done(the_process_ends());
  }

  const std::shared_ptr<ucx_fabric> fabric_;
  const std::shared_ptr<line_state> state_;
};

status ucx_fabric::start() {
  if (!served_fabrics::of_process().add(*state_)) return the_process_ends();
  try {
    thread_ = std::thread([of = state_] { serve(of); });
  } catch (const std::system_error& refused) {
    served_fabrics::of_process().remove(*state_);
    return {errc::out_of_memory, fmt::format("start UCX's thread: {}", refused.what()), error_domain::os, refused.code().value()};
  }
  return {};
}

ucx_fabric::~ucx_fabric() {
  if (state_->fork.forked()) {
    (void)new (std::nothrow) std::thread(std::move(thread_));  // this thread exists only in the parent, so it cannot be joined or detached
    (void)new (std::nothrow) std::shared_ptr<fabric_state>(state_);
    return;
  }
  if (!thread_.joinable()) {
    ucx().cleanup(state_->context);
    return;
  }
  {
    const std::lock_guard guard(state_->lock);
    state_->stopping = true;
    state_->call();
  }
  if (thread_.get_id() == std::this_thread::get_id()) {
    thread_.detach();
  } else {
    thread_.join();
  }
}

result<std::unique_ptr<fabric_line>> ucx_fabric::make_line(told ended) {
  if (state_->fork.forked()) return status(errc::forked, "the fabric belongs to the parent process");
  const making_a_line made_here(*state_);
  if (!made_here.may()) return the_process_ends();
  auto made = std::make_shared<line_state>();
  std::list<std::shared_ptr<line_state>> one{made};
  ucp_worker_params_t wanted{};
  wanted.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  wanted.thread_mode = UCS_THREAD_MODE_SERIALIZED;  // used first by this thread, then by the fabric's
  if (const auto done = ucx().worker_create(state_->context, &wanted, &made->worker); done != UCS_OK) {
    return error_of(done, "ucp_worker_create");
  }
  auto problem = or_no_memory([&]() -> status {
    ucp_address_t* address = nullptr;
    std::size_t bytes = 0;
    if (const auto done = ucx().worker_get_address(made->worker, &address, &bytes); done != UCS_OK) {
      return error_of(done, "ucp_worker_get_address");
    }
    const std::unique_ptr<ucp_address_t, std::function<void(ucp_address_t*)>> held(
        address, [&](ucp_address_t* which) { ucx().worker_release_address(made->worker, which); });
    const auto* const first = reinterpret_cast<const std::byte*>(address);
    made->address.assign(first, first + bytes);
    const auto done = ucx().worker_get_efd(made->worker, &made->readable);
    return done == UCS_OK ? status() : error_of(done, "ucp_worker_get_efd");
  });
  if (!problem.ok()) {
    ucx().worker_destroy(made->worker);
    return problem;
  }
  made->ended = std::move(ended);
  auto line = std::make_unique<ucx_line>(shared_from_this(), made);
  const std::lock_guard guard(state_->lock);
  state_->added.splice(state_->added.end(), one);
  return std::unique_ptr<fabric_line>(std::move(line));
}

// The user's own settings (UCX_TLS, UCX_NET_DEVICES) take precedence.
status configure(ucp_config_t& config, const fabric_options& options) {
  const auto set = [&](const char* name, const char* value) -> status {
    if (std::getenv(("UCX_" + std::string(name)).c_str()) != nullptr) return {};
    const auto done = ucx().config_modify(&config, name, value);
    return done == UCS_OK ? status() : error_of(done, "ucp_config_modify").with_context(name);
  };
  // Within a host, Penstock's own transports are better than UCX's shared memory. Names unknown to this version of UCX are harmless.
  if (auto wrong = set("TLS", options.only_rdma ? "ib,cuda_copy,gdr_copy" : "ib,tcp,self,cuda_copy,gdr_copy"); !wrong.ok()) return wrong;
  if (!options.devices.empty()) {
    if (auto wrong = set("NET_DEVICES", options.devices.c_str()); !wrong.ok()) return wrong;
  }
  if (options.rails > 0) {
    if (auto wrong = set("MAX_RNDV_RAILS", std::to_string(options.rails).c_str()); !wrong.ok()) return wrong;
  }
  // UCX 1.13 aborts the process if a tcp endpoint fails while zero-copy fragments are in flight (uct_iface.h:884).
  if (!options.only_rdma) {
    if (auto wrong = set("ZCOPY_THRESH", "inf"); !wrong.ok()) return wrong;
    // So do the new protocols in later versions (1.16: datatype_iter.inl:318). Before 1.14, neither they nor this setting exist.
    (void)set("PROTO_ENABLE", "n");
  }
  // Uses rendezvous for all messages: without it, UCX cannot abandon a message that arrives in several fragments.
  return set("RNDV_THRESH", "1");
}

class ucx_fabrics_impl final : public fabrics {
 public:
  status usable() override { return ucx().problem; }
  result<std::shared_ptr<fabric>> open(const fabric_options& options) override {
    if (!ucx().problem.ok()) return ucx().problem;
    if (served_fabrics::of_process().process_ends()) return the_process_ends();
    auto state = std::make_shared<fabric_state>();
    state->on_thread = options.on_thread;
    auto wake = wake_up::make();
    if (!wake) return wake.error();
    state->wake = *std::move(wake);
    ucp_config_t* config = nullptr;
    if (const auto done = ucx().config_read(nullptr, nullptr, &config); done != UCS_OK) return error_of(done, "ucp_config_read");
    auto problem = or_no_memory([&] { return configure(*config, options); });
    ucp_params_t wanted{};
    wanted.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_MT_WORKERS_SHARED;
    // No RMA: over tcp, UCX would read any address that another process requests.
    wanted.features = UCP_FEATURE_TAG | UCP_FEATURE_WAKEUP;
    wanted.mt_workers_shared = 1;
    const auto done = problem.ok() ? ucx().init(UCP_API_MAJOR, UCP_API_MINOR, &wanted, config, &state->context) : UCS_OK;
    ucx().config_release(config);
    if (!problem.ok()) return problem;
    if (done != UCS_OK) return error_of(done, "ucp_init");
    ucp_context_attr_t facts{};
    facts.field_mask = UCP_ATTR_FIELD_MEMORY_TYPES;
    const bool told = ucx().context_query(state->context, &facts) == UCS_OK;
    const bool knows_cuda = told && (facts.memory_types & UCS_BIT(UCS_MEMORY_TYPE_CUDA)) != 0;
    auto made = std::make_shared<ucx_fabric>(std::move(state), knows_cuda);
    if (auto refused = made->start(); !refused.ok()) return refused;
    return std::shared_ptr<fabric>(std::move(made));
  }
};

}  // namespace

std::shared_ptr<fabrics> ucx_fabrics() { return std::make_shared<ucx_fabrics_impl>(); }

}  // namespace penstock::sys

#else

namespace penstock::sys {

namespace {

class no_fabrics final : public fabrics {
 public:
  status usable() override { return {errc::unsupported, "Penstock was built without UCX's headers"}; }
  result<std::shared_ptr<fabric>> open(const fabric_options& /*options*/) override { return usable(); }
};

}  // namespace

std::shared_ptr<fabrics> ucx_fabrics() { return std::make_shared<no_fabrics>(); }

}  // namespace penstock::sys

#endif
