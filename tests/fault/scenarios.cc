#include "fault/scenarios.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <future>
#include <optional>

#include "device/owned.hpp"
#include "support/pattern.hpp"

namespace penstock::testing {

namespace {

constexpr std::uint64_t read_seed = 1;
constexpr std::uint64_t base_seed = 2;   // of the file that is written
constexpr std::uint64_t write_seed = 3;  // of what is written to it
constexpr std::size_t file_bytes = 10 * mib + 777;
constexpr std::size_t guard_bytes = 8 * kib;
constexpr auto poison = std::byte{0xee};

const kept_file& read_file() {
  static const kept_file file("read", read_seed, file_bytes);
  return file;
}
const kept_file& written_file() {
  static const kept_file file("written", base_seed, file_bytes);
  return file;
}
const std::vector<std::byte>& new_bytes() {
  static const auto bytes = pattern::make(file_bytes, write_seed);
  return bytes;
}

// Memory of the host or of the device, which the test can look at and set without the engine.
class buffer {
 public:
  buffer(bool on_device, std::size_t bytes) : bytes_(bytes), host_(on_device ? 0 : bytes), on_device_(on_device) {}
  [[nodiscard]] std::byte* data() { return on_device_ ? bare_device::shared().memory() : host_.data(); }
  void put(std::span<const std::byte> content, std::size_t at = 0) {
    if (on_device_) {
      bare_device::shared().put(data() + at, content);
    } else {
      std::memcpy(host_.data() + at, content.data(), content.size());
    }
  }
  void fill(std::byte value) { put(std::vector<std::byte>(bytes_, value)); }
  [[nodiscard]] std::vector<std::byte> get() {
    std::vector<std::byte> content(bytes_);
    if (on_device_) {
      bare_device::shared().get(content, data());
    } else {
      content = host_;
    }
    return content;
  }

 private:
  std::size_t bytes_;
  std::vector<std::byte> host_;
  bool on_device_;
};

bool same(const std::byte* left, const std::byte* right, std::size_t bytes) { return bytes == 0 || std::memcmp(left, right, bytes) == 0; }

bool all_are(const std::byte* from, std::size_t bytes, std::byte value) {
  return std::all_of(from, from + bytes, [=](std::byte each) { return each == value; });
}

open_options for_writing(bool direct) {
  open_options options;
  options.write = true;
  options.direct_writes = direct;
  return options;
}

file must_open(faulty_world& world, const kept_file& which, const open_options& options = {}) {
  auto opened = world.engine().open(which.path(), options);
  if (!opened) throw std::runtime_error(std::string(opened.error().message()));
  return std::move(*opened);
}

// A part of a file whose bytes the outcome speaks of.
struct part {
  std::size_t offset = 0;
  std::size_t length = 0;
};

void note_error(findings& found, const status& error) {
  if (error.ok()) return;
  found.failed = true;
  found.errors.push_back(error);
}

// Of a read: memory holds the request between two guards.
void judge_read(findings& found, const io_result& outcome, const part& asked, const std::byte* memory, std::string_view which = "") {
  const auto& content = read_file().content();
  const std::size_t there = std::min(asked.length, content.size() - asked.offset);
  if (outcome.bytes_done > there) {
    found.wrong += fmt::format("{}bytes_done is {} of {}; ", which, outcome.bytes_done, there);
    return;
  }
  note_error(found, outcome.error);
  if (outcome.ok() && outcome.bytes_done < there) found.short_count = true;
  if (!same(memory, content.data() + asked.offset, outcome.bytes_done)) {
    found.wrong += fmt::format("{}the first {} bytes are not the file's; ", which, outcome.bytes_done);
  }
}

// Of a write: file is what the file holds now, source what was to be written.
void judge_write(findings& found, const io_result& outcome, const part& asked, const std::vector<std::byte>& file, const std::byte* source,
                 std::string_view which = "") {
  if (outcome.bytes_done > asked.length) {
    found.wrong += fmt::format("{}bytes_done is {} of {}; ", which, outcome.bytes_done, asked.length);
    return;
  }
  note_error(found, outcome.error);
  if (outcome.ok() && outcome.bytes_done < asked.length) found.wrong += fmt::format("{}short write without an error; ", which);
  if (file.size() < asked.offset + outcome.bytes_done || !same(file.data() + asked.offset, source, outcome.bytes_done)) {
    found.wrong += fmt::format("{}the first {} bytes did not reach the file; ", which, outcome.bytes_done);
  }
}

void judge_outside(findings& found, const std::vector<std::byte>& file, const part& asked) {
  const auto& before = written_file().content();
  const std::size_t end = std::min(asked.offset + asked.length, before.size());
  if (file.size() != std::max(before.size(), file.size()) || !same(file.data(), before.data(), asked.offset) ||
      !same(file.data() + end, before.data() + end, before.size() - end)) {
    found.wrong += "bytes of the file outside the request changed; ";
  }
}

// --- one transfer

enum class manner { blocking, async, callback, stream };

struct transfer_case {
  bool is_write = false;
  manner how = manner::blocking;
  bool on_device = true;
  part asked = {};
  heat temperature = heat::hot;
  bool direct_writes = false;
  io_options options = {};
  bool is_pinned = false;  // by file::pin()
};

class one_transfer final : public scenario {
 public:
  one_transfer(faulty_world& world, const transfer_case& what)
      : what_(what),
        memory_(what.on_device, what.asked.length + 2 * guard_bytes),
        file_(what.is_write ? must_open(world, written_file(), for_writing(what.direct_writes)) : must_open(world, read_file())) {
    if (what.how == manner::stream) stream_ = *device::owned_stream::make(bare_device::shared().session());
  }
  one_transfer(const one_transfer&) = delete;
  one_transfer& operator=(const one_transfer&) = delete;

  void prepare() override {
    memory_.fill(poison);
    if (!what_.is_write) {
      read_file().make(what_.temperature, what_.asked.offset, std::min(what_.asked.length, file_bytes - what_.asked.offset));
      // Anew where a fault has ended it.
      if (what_.is_pinned && pinned_.size() == 0) pinned_ = *file_.pin(what_.asked.offset, what_.asked.length);
      return;
    }
    memory_.put({new_bytes().data(), what_.asked.length}, guard_bytes);
    written_file().restore();  // which leaves it hot
    if (what_.temperature != heat::hot) written_file().make(what_.temperature, 0, file_bytes);
  }

  void act() override {
    switch (what_.how) {
      case manner::blocking:
        outcome_ = blocking();
        break;
      case manner::async:
        outcome_ = start({}).wait();
        break;
      case manner::callback:
        outcome_ = with_callback();
        break;
      case manner::stream:
        on_stream();
        break;
    }
  }

  findings judge() override {
    findings found;
    found.wrong = wrong_;
    if (what_.how != manner::stream) found.file = file_.path();
    const auto memory = memory_.get();
    if (failed_quietly_) found.failed = true;
    if (what_.is_write) {
      const auto content = written_file().read_back();
      if (!failed_quietly_) judge_write(found, outcome_, what_.asked, content, new_bytes().data());
      judge_outside(found, content, what_.asked);
    } else if (!failed_quietly_) {
      judge_read(found, outcome_, what_.asked, memory.data() + guard_bytes);
    }
    if (!all_are(memory.data(), guard_bytes, poison) || !all_are(memory.data() + guard_bytes + what_.asked.length, guard_bytes, poison)) {
      found.wrong += "memory outside the request changed; ";
    }
    return found;
  }

 private:
  std::byte* target() { return memory_.data() + guard_bytes; }

  io_result blocking() {
    const auto offset = static_cast<std::int64_t>(what_.asked.offset);
    return what_.is_write ? file_.write(target(), what_.asked.length, offset, what_.options)
                          : file_.read(target(), what_.asked.length, offset, what_.options);
  }

  operation start(io_callback callback) {
    const auto offset = static_cast<std::int64_t>(what_.asked.offset);
    return what_.is_write ? file_.write_async(target(), what_.asked.length, offset, what_.options, std::move(callback))
                          : file_.read_async(target(), what_.asked.length, offset, what_.options, std::move(callback));
  }

  io_result with_callback() {
    struct told {
      std::atomic<int> calls{0};
      std::promise<io_result> outcome;
    };
    const auto seen = std::make_shared<told>();
    auto arrived = seen->outcome.get_future();
    auto op = start([seen](const io_result& outcome) {
      if (seen->calls.fetch_add(1) == 0) seen->outcome.set_value(outcome);
    });
    auto by_callback = arrived.get();
    const auto by_wait = op.wait();
    if (by_callback.bytes_done != by_wait.bytes_done || by_callback.error.code() != by_wait.error.code()) {
      wrong_ += "callback and wait disagree; ";
    }
    return by_wait;
  }

  // The stream goes on only when the request has ended: a call queued behind it sees *bytes_done.
  void on_stream() {
    constexpr std::int64_t untouched = -77;
    struct look {
      std::int64_t* now;
      std::int64_t seen;
    };
    auto& session = bare_device::shared().session();
    std::int64_t done = untouched;
    look behind{&done, 0};
    const std::int64_t offset = static_cast<std::int64_t>(what_.asked.offset);
    const stream_request request{stream_.get(), target(), &what_.asked.length, &offset, nullptr, &done};
    const auto queued = what_.is_write ? file_.write_on_stream(request) : file_.read_on_stream(request);
    (void)session.call(
        stream_.get(), [](void* at) { static_cast<look*>(at)->seen = *static_cast<look*>(at)->now; }, &behind);
    (void)session.synchronize(stream_.get());
    if (queued.ok() == (behind.seen == untouched)) wrong_ += "the stream went on before the request had ended; ";
    outcome_ = {done > 0 ? static_cast<std::uint64_t>(done) : 0, queued};
    failed_quietly_ = done == -1;
  }

  const transfer_case what_;
  buffer memory_;
  file file_;
  pinned_range pinned_;
  device::owned_stream stream_;
  io_result outcome_;
  std::string wrong_;
  bool failed_quietly_ = false;
};

// --- many small ranges, hot and cold: reads and writes as a batch, or as requests that come together; or reads in a row

class many_ranges final : public scenario {
 public:
  enum class kind { batch, one_by_one, row };
  many_ranges(faulty_world& world, bool on_device, kind what)
      : engine_(world.engine()),
        what_(what),
        memory_(on_device, slot_bytes * slots),
        source_(must_open(world, read_file())),
        target_(must_open(world, written_file(), for_writing(true))) {
    for (std::size_t i = 0; i < slots; ++i) add(i);
  }

  void prepare() override {
    memory_.fill(poison);
    for (const auto& each : requests_) {
      if (each.is_write) memory_.put({new_bytes().data() + each.offset, each.length}, place_of(each));
    }
    written_file().restore();
    read_file().make(heat::half, 0, slots * apart);
  }

  void act() override { outcomes_ = what_ == kind::one_by_one ? one_by_one() : engine_.submit(requests_).wait(); }

  findings judge() override {
    findings found;
    found.file = source_.path().substr(0, source_.path().rfind('/'));
    const auto memory = memory_.get();
    const auto content = written_file().read_back();
    if (outcomes_.size() != requests_.size()) found.wrong += "not one result for each request; ";
    for (std::size_t i = 0; i < outcomes_.size(); ++i) judge_one(found, i, memory, content);
    judge_between(found, content);
    return found;
  }

 private:
  static constexpr std::size_t slots = 200;
  static constexpr std::size_t apart = 40 * kib;  // in the file
  static constexpr std::size_t slot_bytes = 48 * kib;

  void add(std::size_t i) {
    io_request request;
    const bool in_row = what_ == kind::row;
    request.is_write = i % 5 == 2 && !in_row;
    request.target = request.is_write ? &target_ : &source_;
    request.length = i % 7 == 3 ? 4 * kib : 300 + 97 * i % (12 * kib);
    if (in_row && i % 10 == 1) request.length = 40 * kib;
    request.offset = static_cast<std::int64_t>(in_row ? next_ : i * apart + (i % 3 == 0 ? 0 : 13 * i));
    next_ += request.length + (i % 4 == 0 ? 100 : 0);
    request.memory = memory_.data() + i * slot_bytes;
    requests_.push_back(request);
  }

  std::vector<io_result> one_by_one() {
    std::vector<operation> under_way;
    for (const auto& each : requests_) {
      under_way.push_back(each.is_write ? each.target->write_async(each.memory, each.length, each.offset)
                                        : each.target->read_async(each.memory, each.length, each.offset));
    }
    std::vector<io_result> outcomes;
    for (auto& each : under_way) outcomes.push_back(each.wait());
    return outcomes;
  }

  [[nodiscard]] std::size_t place_of(const io_request& request) {
    return static_cast<std::size_t>(static_cast<std::byte*>(request.memory) - memory_.data());
  }

  void judge_one(findings& found, std::size_t i, const std::vector<std::byte>& memory, const std::vector<std::byte>& content) {
    const auto& request = requests_[i];
    const part asked{static_cast<std::size_t>(request.offset), request.length};
    const auto which = fmt::format("request {}: ", i);
    const std::size_t at = place_of(request);
    if (request.is_write) {
      judge_write(found, outcomes_[i], asked, content, new_bytes().data() + request.offset, which);
    } else {
      judge_read(found, outcomes_[i], asked, memory.data() + at, which);
      if (!all_are(memory.data() + at + request.length, slot_bytes - request.length, poison)) {
        found.wrong += which + "memory behind the request changed; ";
      }
    }
  }

  void judge_between(findings& found, const std::vector<std::byte>& content) {
    const auto& before = written_file().content();
    std::size_t from = 0;
    for (const auto& request : requests_) {
      if (!request.is_write) continue;
      const auto offset = static_cast<std::size_t>(request.offset);
      if (!same(content.data() + from, before.data() + from, offset - from)) found.wrong += "bytes between the writes changed; ";
      from = offset + request.length;
    }
    if (content.size() != before.size() || !same(content.data() + from, before.data() + from, before.size() - from)) {
      found.wrong += "bytes behind the writes changed; ";
    }
  }

  engine& engine_;
  const kind what_;
  std::size_t next_ = 5;
  buffer memory_;
  file source_;
  file target_;
  std::vector<io_request> requests_;
  std::vector<io_result> outcomes_;
};

// --- the others: an action, and what must hold when it says ok

class simple final : public scenario {
 public:
  struct steps {
    std::function<void()> prepare;
    std::function<status()> act;
    std::function<std::string()> judge;  // when act was ok
    std::string file;
  };
  explicit simple(steps what) : what_(std::move(what)) {}
  void prepare() override {
    if (what_.prepare) what_.prepare();
  }
  void act() override { outcome_ = what_.act(); }
  findings judge() override {
    findings found;
    found.file = what_.file;
    note_error(found, outcome_);
    if (outcome_.ok() && what_.judge) found.wrong = what_.judge();
    return found;
  }

 private:
  const steps what_;
  status outcome_;
};

std::string read_right(file& from) {
  std::vector<std::byte> bytes(1000);
  const auto outcome = from.read(bytes.data(), bytes.size(), 5);
  if (!outcome.ok()) return std::string(outcome.error.message());
  return outcome.bytes_done == 1000 && same(bytes.data(), read_file().content().data() + 5, 1000) ? "" : "the open file reads wrong; ";
}

std::unique_ptr<scenario> opening(faulty_world& world) {
  const auto made = std::make_shared<std::optional<file>>();
  return std::make_unique<simple>(simple::steps{
      [made] { made->reset(); },
      [&world, made] {
        auto opened = world.engine().open(read_file().path());
        if (opened) made->emplace(std::move(*opened));
        return opened.error();
      },
      [made] { return read_right(**made); },
      read_file().path(),
  });
}

std::unique_ptr<scenario> adopting(faulty_world& world) {
  struct lent {
    int fd = ::open(read_file().path().c_str(), O_RDONLY | O_CLOEXEC);
    std::optional<file> made;
    ~lent() {
      made.reset();
      ::close(fd);
    }
  };
  const auto state = std::make_shared<lent>();
  return std::make_unique<simple>(simple::steps{
      [state] { state->made.reset(); },
      [&world, state] {
        auto adopted = world.engine().adopt(state->fd);
        if (adopted) state->made.emplace(std::move(*adopted));
        return adopted.error();
      },
      [state] { return read_right(*state->made); },
      fmt::format("descriptor {}", state->fd),
  });
}

std::unique_ptr<scenario> closing(faulty_world& world) {
  const auto made = std::make_shared<std::optional<file>>();
  return std::make_unique<simple>(simple::steps{
      [&world, made] {
        made->emplace(must_open(world, read_file()));
        (void)read_right(**made);
      },
      [made] { return (*made)->close(); },
      {},
      read_file().path(),
  });
}

std::unique_ptr<scenario> syncing(faulty_world& world) {
  const auto made = std::make_shared<file>(must_open(world, written_file(), for_writing(false)));
  return std::make_unique<simple>(simple::steps{{}, [made] { return made->sync(); }, {}, written_file().path()});
}

std::unique_ptr<scenario> sizing(faulty_world& world) {
  const auto made = std::make_shared<file>(must_open(world, read_file()));
  const auto size = std::make_shared<std::uint64_t>();
  return std::make_unique<simple>(simple::steps{
      {},
      [made, size] {
        auto asked = made->size();
        *size = asked.value_or(0);
        return asked.error();
      },
      [size] { return *size == file_bytes ? "" : "the size is wrong; "; },
      read_file().path(),
  });
}

std::unique_ptr<scenario> explaining(faulty_world& world, std::string_view device, bool is_write) {
  const auto made = std::make_shared<file>(must_open(world, written_file(), for_writing(true)));
  const auto told = std::make_shared<std::optional<plan>>();
  return std::make_unique<simple>(simple::steps{
      [] { written_file().make(heat::half, 0, 9 * mib); },
      [&world, made, told, device, is_write] {
        auto asked = world.engine().explain(*made, device, 9 * mib, 100, is_write);
        if (asked) told->emplace(std::move(*asked));
        return asked.error();
      },
      [told] {
        std::uint64_t at = 100;
        for (const auto& each : (*told)->parts) {
          if (each.offset != at || each.length == 0) return "the parts do not cover the range once; ";
          at += each.length;
        }
        return at == 100 + 9 * mib ? "" : "the parts end too soon; ";
      },
      written_file().path(),
  });
}

std::unique_ptr<scenario> allocating(faulty_world& world) {
  const auto made = std::make_shared<std::optional<device_buffer>>();
  return std::make_unique<simple>(simple::steps{
      [made] { made->reset(); },
      [&world, made] {
        auto allocated = world.engine().allocate("host:0", 5000);
        if (allocated) made->emplace(std::move(*allocated));
        return allocated.error();
      },
      [made] { return (*made)->data() != nullptr && (*made)->size() == 5000 ? "" : "the buffer is empty; "; },
      {},
  });
}

std::unique_ptr<scenario> registering(faulty_world& world) {
  const auto made = std::make_shared<std::optional<registration>>();
  return std::make_unique<simple>(simple::steps{
      [made] { made->reset(); },
      [&world, made] {
        auto registered = world.engine().register_memory(bare_device::shared().memory(), mib);
        if (registered) made->emplace(std::move(*registered));
        return registered.error();
      },
      {},
      {},
  });
}

std::unique_ptr<scenario> pinning(faulty_world& world) {
  const auto from = std::make_shared<file>(must_open(world, read_file()));
  const auto made = std::make_shared<pinned_range>();
  return std::make_unique<simple>(simple::steps{
      [made] { *made = pinned_range(); },
      [from, made] {
        auto pinned = from->pin(5, 9 * mib);
        if (pinned) *made = *std::move(pinned);
        return pinned.error();
      },
      [made] { return made->size() == 9 * mib ? "" : "it is not all pinned; "; },
      read_file().path(),
  });
}

std::unique_ptr<scenario> copying(faulty_world& world, bool to_device) {
  const auto memory = std::make_shared<buffer>(true, mib);
  const auto host = std::make_shared<std::vector<std::byte>>(mib);
  return std::make_unique<simple>(simple::steps{
      [=] {
        memory->put({new_bytes().data() + (to_device ? mib : 0), mib});
        std::copy_n(new_bytes().data() + (to_device ? 0 : mib), mib, host->data());
      },
      [=, &world] {
        return to_device ? world.engine().copy(memory->data(), host->data(), mib) : world.engine().copy(host->data(), memory->data(), mib);
      },
      [=] {
        return same(memory->get().data(), new_bytes().data(), mib) && same(host->data(), new_bytes().data(), mib) ? "" : "wrong bytes; ";
      },
      {},
  });
}

// --- the list

engine_options plain_options() {
  engine_options options;
  options.pinned_budget_bytes = 40 * mib;
  options.use_cuda = false;
  return options;
}

class listing {
 public:
  listing() {
    simple_ones();
    reads();
    writes();
    batches();
  }
  std::vector<scenario_entry> entries;

 private:
  void add(const std::string& name, std::function<std::unique_ptr<scenario>(faulty_world&)> make) {
    entries.push_back({name, plain_options(), std::move(make)});
  }
  void add(const std::string& name, const transfer_case& what) {
    add(name, [what](faulty_world& world) { return std::make_unique<one_transfer>(world, what); });
  }

  void simple_ones() {
    add("open", opening);
    add("adopt", adopting);
    add("close", closing);
    add("sync", syncing);
    add("size", sizing);
    add("explain_read", [](faulty_world& world) { return explaining(world, "host:0", false); });
    add("explain_write", [](faulty_world& world) { return explaining(world, "host:0", true); });
    add("explain_host", [](faulty_world& world) { return explaining(world, "", false); });
    add("allocate", allocating);
    add("register_memory", registering);
    add("pin", pinning);
    add("copy_to_device", [](faulty_world& world) { return copying(world, true); });
    add("copy_from_device", [](faulty_world& world) { return copying(world, false); });
  }

  struct size {
    const char* name;
    part asked;
  };
  static constexpr size sizes[] = {{"4k", {8 * kib, 4 * kib}}, {"1m", {mib + 100, mib}}, {"9m", {300 * kib, 9 * mib}}};
  static constexpr std::pair<const char*, heat> heats[] = {{"hot", heat::hot}, {"cold", heat::cold}, {"half", heat::half}};

  void reads() {
    for (const bool on_device : {true, false}) {
      const std::string where = on_device ? "device" : "host";
      for (const auto& [size_name, asked] : sizes) {
        for (const auto& [heat_name, temperature] : heats) {
          add(fmt::format("read_{}_{}_{}", size_name, heat_name, where),
              {.on_device = on_device, .asked = asked, .temperature = temperature, .options = {.cache = cache_use::bypass}});
        }
      }
      add("read_past_end_" + where, {.on_device = on_device,
                                     .asked = {file_bytes - mib, 2 * mib},
                                     .temperature = heat::cold,
                                     .options = {.cache = cache_use::bypass}});
      add("read_async_" + where, {.how = manner::async,
                                  .on_device = on_device,
                                  .asked = {4 * kib, 5 * mib},
                                  .temperature = heat::half,
                                  .options = {.cache = cache_use::bypass}});
    }
    add("read_callback",
        {.how = manner::callback, .asked = {1000, mib}, .temperature = heat::cold, .options = {.cache = cache_use::bypass}});
    add("read_cold_auto", {.asked = {300 * kib, 9 * mib}, .temperature = heat::cold});
    add("read_cold_kept", {.asked = {300 * kib, 9 * mib}, .temperature = heat::cold, .options = {.cache = cache_use::fill}});
    add("read_pinned", {.asked = {300 * kib, 9 * mib}, .is_pinned = true});
    add("read_pinned_async", {.how = manner::async, .asked = {1 * mib, 9 * mib}, .is_pinned = true});
    add("read_half_kept",
        {.how = manner::async, .asked = {300 * kib, 9 * mib}, .temperature = heat::half, .options = {.cache = cache_use::fill}});
    add("read_stream_4k", {.how = manner::stream, .asked = {8 * kib, 4 * kib}});
    add("read_stream_5m", {.how = manner::stream, .asked = {8 * kib, 5 * mib}, .temperature = heat::half});
    add("read_mapped_forced", {.asked = {1000, 9 * mib}, .options = {.path = path_kind::mapped}});
    add("read_mapped_cpu", {.asked = {1000, 9 * mib}, .options = {.prefer = preference::cpu}});
    add("read_staged_forced", {.asked = {mib + 100, mib}, .options = {.path = path_kind::staged}});
    add("read_posix_forced", {.on_device = false, .asked = {mib + 100, 5 * mib}, .options = {.path = path_kind::posix}});
  }

  void writes() {
    for (const bool direct : {false, true}) {
      for (const bool on_device : {true, false}) {
        const auto how = fmt::format("{}_{}", direct ? "direct" : "buffered", on_device ? "device" : "host");
        for (const auto& [size_name, asked] : sizes) {
          add(fmt::format("write_{}_{}", size_name, how),
              {.is_write = true, .on_device = on_device, .asked = asked, .direct_writes = direct});
        }
        add("write_async_" + how,
            {.is_write = true, .how = manner::async, .on_device = on_device, .asked = {5000, 3 * mib}, .direct_writes = direct});
      }
    }
    add("write_cold_device", {.is_write = true, .asked = {5000, 3 * mib}, .temperature = heat::cold});
    add("write_callback", {.is_write = true, .how = manner::callback, .asked = {1000, mib}});
    add("write_stream", {.is_write = true, .how = manner::stream, .asked = {8 * kib, 3 * mib}, .direct_writes = true});
  }

  void batches() {
    for (const bool on_device : {true, false}) {
      const auto* const where = on_device ? "device" : "host";
      add(fmt::format("batch_{}", where),
          [=](faulty_world& world) { return std::make_unique<many_ranges>(world, on_device, many_ranges::kind::batch); });
      add(fmt::format("small_async_{}", where),
          [=](faulty_world& world) { return std::make_unique<many_ranges>(world, on_device, many_ranges::kind::one_by_one); });
    }
    add("row", [](faulty_world& world) { return std::make_unique<many_ranges>(world, true, many_ranges::kind::row); });
  }
};

}  // namespace

const std::vector<scenario_entry>& all_scenarios() {
  static const listing list;
  return list.entries;
}

}  // namespace penstock::testing
