#include <fcntl.h>
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <deque>
#include <exception>
#include <list>
#include <span>
#include <thread>
#include <utility>

#include "device/device_fixture.hpp"
#include "memory/failing_allocations.hpp"
#include "storm/storm_world.hpp"
#include "support/byte_model.hpp"
#include "support/pattern.hpp"

namespace penstock::testing {
namespace {

using namespace std::chrono_literals;

constexpr std::uint64_t kib = 1024;
constexpr std::uint64_t mib = 1024 * kib;
constexpr std::size_t most_under_way = 10;

struct part {
  std::uint64_t offset = 0;  // in the file
  std::uint64_t length = 0;
  std::uint64_t at = 0;  // in memory
  bool is_write = false;
};

// What the callbacks of a task write; lives as long as they.
struct endings {
  explicit endings(std::size_t items) : outcomes(items) {}
  std::atomic<int> calls{0};
  std::atomic<int> item_calls{0};
  io_result total;
  std::vector<io_result> outcomes;
};

enum class asked_as { call, operation, batch, stream };

// A request under way, or a batch of them, with the memory that it moves.
struct task {
  std::shared_ptr<storm_engine> on;
  std::size_t file = 0;
  std::size_t handle = 0;
  asked_as way = asked_as::operation;
  std::vector<part> parts;
  bool on_device = false;
  bool may_be_cancelled = false;
  bool may_be_late = false;
  bool calls_back = false;
  bool dropped = false;
  std::vector<std::byte> host;  // what is written, or what is read into when that is on the host
  device_buffer device;
  registration registered;
  operation single;
  batch several;
  std::shared_ptr<endings> ends;
  std::shared_ptr<scoped_stream> stream;
  std::size_t stream_length = 0;
  std::int64_t stream_offset = 0;
  std::vector<io_result> outcomes;  // of calls
  [[nodiscard]] std::byte* memory() { return on_device ? static_cast<std::byte*>(device.data()) : host.data(); }
};

// Reads that start each other from their callbacks, in the part of a file that nobody writes.
struct chain : std::enable_shared_from_this<chain> {
  std::shared_ptr<storm_engine> on;
  std::size_t handle = 0;
  std::uint64_t offset = 0;
  std::uint64_t length = 0;
  std::vector<std::byte> memory;
  std::atomic<int> left{0};
  std::atomic<bool> over{false};
  std::atomic<const char*> wrong{nullptr};

  void next() {
    io_callback callback;
    {
      const reliable_allocations reliable;
      callback = [self = shared_from_this()](const io_result& outcome) { self->ended(outcome); };
    }
    try {
      (void)on->handles()[handle].read_async(memory.data(), length, static_cast<std::int64_t>(offset), {}, std::move(callback));
    } catch (const std::exception&) {
      wrong = "an exception escaped from read_async() in a callback";
      over = true;
    }
  }
  void ended(const io_result& outcome) {
    const bool right = outcome.ok() && outcome.bytes_done == length && !pattern::first_difference(memory, storm_seed_of_files, offset);
    if (outcome.ok() && !right) wrong = "a read from a callback brought other bytes";
    if (!right || left.fetch_sub(1) <= 1) {
      over = true;
    } else {
      next();
    }
  }
};

}  // namespace

class storm_thread::impl {
 public:
  impl(const storm_settings& settings, const storm_files& files, std::vector<std::shared_ptr<storm_engine>> engines, unsigned index,
       storm_activity& activity)
      : settings_(settings),
        files_(files),
        engines_(std::move(engines)),
        region_at_(index * storm_region_bytes),
        activity_(activity),
        random_(settings.seed * 1000 + index),
        models_(files.paths().size()) {
    for (auto& each : models_) each.write(0, pattern::make(storm_region_bytes, storm_seed_of_files, region_at_));
    for (const auto& path : files.paths()) descriptors_.push_back(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  }
  ~impl() {
    for (const int each : descriptors_) ::close(each);
  }

  void run(const std::atomic<bool>& over) {
    while (!over && !::testing::Test::HasFailure()) {
      step();
      ++activity_.steps;
      activity_.under_way = under_way_.size();
    }
    doing("ending");
    while (!under_way_.empty()) reap(under_way_.begin());
    for (const auto& each : chains_) finish(each);
    if (::testing::Test::HasFailure()) return;
    doing("comparing the files");
    for (std::size_t file = 0; file < models_.size(); ++file) make_sure(file, 0, storm_region_bytes);
  }

 private:
  std::uint64_t pick(std::uint64_t least, std::uint64_t most) { return std::uniform_int_distribution<std::uint64_t>(least, most)(random_); }
  bool chance(unsigned one_in) { return pick(1, one_in) == 1; }

  void doing(const char* what, std::size_t file = 0, std::uint64_t offset = 0, std::uint64_t length = 0) {
    activity_.doing = what;
    activity_.file = file;
    activity_.offset = offset;
    activity_.length = length;
  }

  // A call of the library's, whose allocations may fail.
  template <class Call>
  bool call(Call it) {
    try {
      const exposed_allocations exposed;
      it();
      return true;
    } catch (const std::exception& wrong) {
      ADD_FAILURE() << wrong.what() << " escaped while " << activity_.doing.load();
      return false;
    }
  }

  // What has no other way to say that there is no memory.
  template <class Question>
  static void value(Question ask) {
    try {
      ask();
    } catch (const std::bad_alloc&) {
    }
  }

  void step() {
    switch (pick(0, 15)) {
      case 0:
      case 1:
        start(asked_as::call);
        break;
      case 2:
      case 3:
      case 4:
      case 5:
        start(asked_as::operation);
        break;
      case 6:
      case 7:
        start(asked_as::batch);
        break;
      case 8:
        start(asked_as::stream);
        break;
      case 9:
      case 10:
      case 11:
        if (!under_way_.empty()) reap(std::next(under_way_.begin(), static_cast<long>(pick(0, under_way_.size() - 1))));
        break;
      case 12:
        ask_something();
        break;
      case 13:
        open_and_close();
        break;
      case 14:
        start_chain();
        break;
      default:
        rarely();
        break;
    }
  }

  void rarely() {
    if (chance(4)) copy_around();
    if (chance(10)) forget_cache();
    if (chance(20)) replace_own_engine();
    if (settings_.forks && chance(20)) fork_off();
  }

  // --- choosing

  const std::shared_ptr<storm_engine>& any_engine() {
    if (own_engine_ != nullptr && chance(4)) return own_engine_;
    return engines_[pick(0, engines_.size() - 1)];
  }

  std::uint64_t random_length() {
    const std::uint64_t length = std::uint64_t{1} << pick(0, chance(6) ? 21 : 17);
    return chance(2) ? length : std::min(length + pick(0, 2 * 4096) - std::min<std::uint64_t>(length - 1, 4096), 2 * mib);
  }

  [[nodiscard]] bool is_free(std::size_t file, std::uint64_t offset, std::uint64_t length) const {
    for (const auto& each : under_way_) {
      if (each->file != file) continue;
      for (const auto& taken : each->parts) {
        if (offset < taken.offset + taken.length && taken.offset < offset + length) return false;
      }
    }
    return true;
  }

  // Of this thread's region, where nothing is under way. Empty: none was found.
  std::optional<part> free_part(std::size_t file, const std::vector<part>& besides, std::uint64_t most) {
    for (int attempt = 0; attempt < 5; ++attempt) {
      const auto length = std::min(random_length(), most);
      auto offset = pick(0, storm_region_bytes - length);
      if (chance(2)) offset = offset / 4096 * 4096;
      if (!is_free(file, region_at_ + offset, length)) continue;
      const bool apart = std::ranges::none_of(besides, [&](const part& taken) {
        return region_at_ + offset < taken.offset + taken.length && taken.offset < region_at_ + offset + length;
      });
      if (apart) return part{region_at_ + offset, length, 0, chance(2)};
    }
    return std::nullopt;
  }

  // --- starting

  void start(asked_as way) {
    if (under_way_.size() >= most_under_way) reap(under_way_.begin());
    auto made = std::make_unique<task>();
    made->on = any_engine();
    made->way = way;
    made->file = pick(0, files_.paths().size() - 1);
    made->handle = made->file + (chance(3) ? files_.paths().size() : 0);
    made->on_device = way == asked_as::stream || chance(2);
    if (!choose_parts(*made) || !make_memory(*made)) return;
    made->ends = std::make_shared<endings>(made->parts.size());
    made->calls_back = way == asked_as::stream || (way != asked_as::call && chance(2));
    doing(way == asked_as::batch    ? "starting a batch"
          : way == asked_as::stream ? "starting on a stream"
                                    : "starting",
          made->file, made->parts.front().offset, made->parts.front().length);
    under_way_.push_back(std::move(made));
    const auto place = std::prev(under_way_.end());
    if (!send(**place)) {
      under_way_.erase(place);
      return;
    }
    disturb(**place);
    if (way == asked_as::call || chance(4)) reap(place);
  }

  bool choose_parts(task& made) {
    const auto count = made.way == asked_as::batch ? pick(1, 24) : 1;
    std::uint64_t total = 0;
    for (std::uint64_t i = 0; i < count; ++i) {
      auto found = free_part(made.file, made.parts, count > 8 ? 64 * kib : 2 * mib);
      if (!found) break;
      found->at = total;
      total += found->length;
      made.parts.push_back(*found);
    }
    // Of a byte the model knows two values at most: a write that may be cut short begins where it knows one.
    for (const auto& each : made.parts) {
      if (each.is_write) make_sure(made.file, each.offset - region_at_, each.length);
    }
    return !made.parts.empty();
  }

  bool make_memory(task& made) {
    const auto total = made.parts.back().at + made.parts.back().length;
    made.host.resize(total);
    for (const auto& each : made.parts) {
      if (each.is_write) pattern::fill(std::span(made.host).subspan(each.at, each.length), random_(), 0);
    }
    if (!made.on_device) {
      if (chance(20)) {
        doing("registering memory");
        call([&] {
          auto registered = made.on->engine().register_memory(made.host.data(), made.host.size());
          if (registered) made.registered = *std::move(registered);
        });
      }
      return true;
    }
    doing("allocating");
    std::optional<result<device_buffer>> memory;
    call([&] { memory.emplace(made.on->engine().allocate("host:0", total)); });
    if (!memory || !memory->ok()) {
      if (memory) expect_code(made, memory->error(), "allocate");
      return false;
    }
    made.device = *std::move(*memory);
    return copy_all(made, made.device.data(), made.host.data(), total);
  }

  // Tried again: memory is not exhausted for ever.
  bool copy_all(task& made, void* target, const void* source, std::uint64_t bytes) {
    status outcome;
    for (int attempt = 0; attempt < 20; ++attempt) {
      outcome = made.on->engine().copy(target, source, bytes);
      if (outcome.code() != errc::out_of_memory) break;
    }
    EXPECT_TRUE(outcome.ok()) << outcome.message();
    return outcome.ok();
  }

  // False: nothing was queued.
  bool send(task& made) {
    const auto& target = made.on->handles()[made.handle];
    const auto& first = made.parts.front();
    const auto at = static_cast<std::int64_t>(first.offset);
    io_options options;
    if (chance(6)) {
      options.deadline = deadline_clock::now() + std::chrono::microseconds(pick(0, 3000));
      made.may_be_late = true;
    }
    if (chance(4)) options.path = !made.on_device ? path_kind::posix : path_kind::staged;
    auto callback = made.calls_back ? callback_of(made) : io_callback();
    switch (made.way) {
      case asked_as::call: {
        io_result outcome{0, {errc::internal, "it threw"}};
        call([&] {
          outcome = first.is_write ? target.write(made.memory(), first.length, at, options)
                                   : target.read(made.memory(), first.length, at, options);
        });
        made.outcomes.push_back(outcome);
        return true;
      }
      case asked_as::operation:
        return call([&] {
          made.single = first.is_write ? target.write_async(made.memory(), first.length, at, options, std::move(callback))
                                       : target.read_async(made.memory(), first.length, at, options, std::move(callback));
        });
      case asked_as::batch:
        return send_batch(made, target, options, std::move(callback));
      default:
        return send_on_stream(made, target, std::move(callback));
    }
  }

  static io_callback callback_of(task& made) {
    return [ends = made.ends](const io_result& outcome) {
      ends->total = outcome;
      ends->calls.fetch_add(1, std::memory_order_release);
    };
  }

  bool send_batch(task& made, const file& target, const io_options& options, io_callback callback) {
    std::vector<io_request> all;
    for (const auto& each : made.parts) {
      all.push_back({&target, made.memory() + each.at, each.length, static_cast<std::int64_t>(each.offset), each.is_write});
    }
    item_callback each = [ends = made.ends](std::size_t index, const io_result& outcome) {
      ends->outcomes[index] = outcome;
      ends->item_calls.fetch_add(1, std::memory_order_release);
    };
    return call([&] { made.several = made.on->engine().submit(all, options, std::move(callback), std::move(each)); });
  }

  bool send_on_stream(task& made, const file& target, io_callback callback) {
    made.may_be_late = false;
    made.stream = stream_of(made.on);
    made.stream_length = made.parts.front().length;
    made.stream_offset = static_cast<std::int64_t>(made.parts.front().offset);
    stream_request asked{.stream = *made.stream, .memory = made.memory(), .length = &made.stream_length, .offset = &made.stream_offset};
    asked.ended = std::move(callback);
    status queued;
    if (!call([&] { queued = made.parts.front().is_write ? target.write_on_stream(asked) : target.read_on_stream(asked); })) return false;
    if (!queued.ok()) expect_code(made, queued, "queueing");
    return queued.ok();
  }

  // One for each engine, made when first needed; those of an engine that is gone go too.
  std::shared_ptr<scoped_stream> stream_of(const std::shared_ptr<storm_engine>& on) {
    for (const auto& [engine, stream] : streams_) {
      if (engine == on) return stream;
    }
    streams_.emplace_back(on, std::make_shared<scoped_stream>(on->session()));
    return streams_.back().second;
  }

  void disturb(task& made) {
    if (made.way != asked_as::operation && made.way != asked_as::batch) return;
    const bool is_batch = made.way == asked_as::batch;
    if (chance(6)) {
      doing("cancelling");
      made.may_be_cancelled = true;
      call([&] { is_batch ? made.several.cancel() : made.single.cancel(); });
    }
    if (chance(6)) {
      doing("waiting for a moment");
      const auto time = std::chrono::microseconds(pick(0, 300));
      call([&] { (void)(is_batch ? made.several.wait_for(time) : made.single.wait_for(time)); });
    }
    if (made.calls_back && chance(4)) {
      doing("dropping a handle");
      call([&] {
        (void)operation(std::move(made.single));
        (void)batch(std::move(made.several));
      });
      made.dropped = true;
    }
  }

  // --- ending

  using place_of_task = std::list<std::unique_ptr<task>>::iterator;

  void reap(place_of_task place) {
    auto& ended = **place;
    await(ended);
    judge(ended);
    under_way_.erase(place);
  }

  void await(task& made) {
    const auto& first = made.parts.front();
    doing(made.way == asked_as::stream  ? "waiting for a stream"
          : made.dropped                ? "waiting for the callback of what was dropped"
          : made.way == asked_as::batch ? "waiting for a batch"
                                        : "waiting for an operation",
          made.file, first.offset, first.length);
    if (made.way == asked_as::call) return;
    if (made.dropped || made.way == asked_as::stream) {
      while (made.ends->calls.load(std::memory_order_acquire) == 0) std::this_thread::sleep_for(50us);
    } else if (made.way == asked_as::batch) {
      made.outcomes = made.several.wait();
    } else {
      made.outcomes = {made.single.wait()};
    }
    EXPECT_EQ(made.ends->calls.load(), made.calls_back ? 1 : 0) << "calls of the callback";
    if (made.way == asked_as::batch) {
      EXPECT_EQ(made.ends->item_calls.load(), static_cast<int>(made.parts.size())) << "calls for the requests of a batch";
      if (made.dropped) made.outcomes = made.ends->outcomes;
    } else if (made.dropped || made.way == asked_as::stream) {
      made.outcomes = {made.ends->total};
    }
  }

  void expect_code(const task& made, const status& seen, const char* what) {
    const auto code = seen.code();
    const bool allowed = code == errc::ok || (code == errc::cancelled && made.may_be_cancelled) ||
                         (code == errc::timed_out && made.may_be_late) ||
                         (code == errc::out_of_memory && (settings_.allocations || made.on->faulty())) ||
                         (made.on->faulty() && (code == errc::io || code == errc::no_space || code == errc::unsupported));
    EXPECT_TRUE(allowed) << what << ": " << to_string(code) << " " << seen.message();
  }

  void judge(task& made) {
    EXPECT_EQ(made.outcomes.size(), made.parts.size());
    if (made.outcomes.size() != made.parts.size()) return;
    made.registered = registration();
    std::vector<std::byte> seen;
    const bool has_reads = std::ranges::any_of(made.parts, [](const part& each) { return !each.is_write; });
    if (made.on_device && has_reads) {
      doing("copying back");
      seen.resize(made.host.size());
      if (!copy_all(made, seen.data(), made.device.data(), seen.size())) return;
    }
    const std::span<const std::byte> memory = made.on_device && has_reads ? seen : made.host;
    for (std::size_t i = 0; i < made.parts.size(); ++i) judge_part(made, made.parts[i], made.outcomes[i], memory);
  }

  void judge_part(const task& made, const part& which, const io_result& outcome, std::span<const std::byte> memory) {
    expect_code(made, outcome.error, which.is_write ? "write" : "read");
    EXPECT_TRUE(outcome.ok() ? outcome.bytes_done == which.length : outcome.bytes_done <= which.length)
        << outcome.bytes_done << " of " << which.length;
    auto& model = models_[made.file];
    const auto done = std::min(outcome.bytes_done, which.length);
    const auto at = which.offset - region_at_;
    if (which.is_write) {
      model.write_partly(at, std::span(made.host).subspan(which.at, which.length), done, storm_region_bytes);
    } else if (const auto wrong = model.look(at, memory.subspan(which.at, done))) {
      ADD_FAILURE() << fmt::format("file {}: the byte at {} was read wrong, in {} at {}", made.file, region_at_ + *wrong, which.length,
                                   which.offset);
    }
  }

  // Looks at the bytes themselves, so that of each one value is known.
  void make_sure(std::size_t file, std::uint64_t at, std::uint64_t length) {
    if (models_[file].is_sure(at, length) && length < storm_region_bytes) return;
    doing("reading by hand", file, region_at_ + at, length);
    std::vector<std::byte> seen(length);
    for (std::uint64_t done = 0; done < length;) {
      const auto got = ::pread(descriptors_[file], seen.data() + done, length - done, static_cast<off_t>(region_at_ + at + done));
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) {
        ADD_FAILURE() << "pread: " << (got < 0 ? std::strerror(errno) : "end of file");
        return;
      }
      done += static_cast<std::uint64_t>(got);
    }
    if (const auto wrong = models_[file].look(at, seen)) {
      ADD_FAILURE() << fmt::format("file {}: the byte at {} is wrong", file, region_at_ + *wrong);
    }
  }

  // --- beside

  void ask_something() {
    const auto on = any_engine();
    const auto& engine = on->engine();
    const auto& target = on->handles()[pick(0, on->handles().size() - 1)];
    doing("asking something");
    call([&] {
      switch (pick_of_seven()) {
        case 0:
          (void)engine.explain(target, "host:0", 3 * mib, 5);
          break;
        case 1:
          value([&] { (void)engine.stats(); });
          break;
        case 2:
          value([&] { (void)engine.summary(); });
          break;
        case 3:
          (void)engine.describe(&engine);
          break;
        case 4:
          value([&] { (void)engine.devices(); });
          break;
        case 5:
          (void)target.size();
          break;
        default:
          (void)target.sync();
          break;
      }
    });
  }
  std::uint64_t pick_of_seven() { return random_() % 7; }

  void open_and_close() {
    const auto on = any_engine();
    const auto file_index = pick(0, files_.paths().size() - 1);
    doing("opening", file_index);
    std::optional<result<file>> opened;
    const bool adopt = chance(2);
    call([&] { opened.emplace(adopt ? on->engine().adopt(descriptors_[file_index]) : on->engine().open(files_.paths()[file_index])); });
    task blame;
    blame.on = on;
    if (!opened || !opened->ok()) {
      if (opened) expect_code(blame, opened->error(), "open");
      return;
    }
    file from = *std::move(*opened);
    // Something under way when it closes.
    std::vector<std::byte> memory(chance(4) ? mib : 4 * kib);
    operation reading;
    doing("reading what will be closed", file_index);
    call([&] { reading = from.read_async(memory.data(), memory.size(), static_cast<std::int64_t>(files_.constant_at())); });
    doing("closing", file_index);
    status closed;
    call([&] { closed = from.close(); });
    expect_code(blame, closed, "close");
    const auto outcome = reading.wait();  // close() has waited for it
    expect_code(blame, outcome.error, "read before close");
    EXPECT_EQ(pattern::first_difference(std::span(memory).first(std::min<std::uint64_t>(outcome.bytes_done, memory.size())),
                                        storm_seed_of_files, files_.constant_at()),
              std::nullopt);
  }

  void start_chain() {
    if (chains_.size() >= 3) {
      finish(chains_.front());
      chains_.pop_front();
    }
    doing("starting a chain of callbacks");
    auto made = std::make_shared<chain>();
    made->on = any_engine();
    made->handle = pick(0, files_.paths().size() - 1);
    made->length = pick(1, chance(4) ? 300 * kib : 8 * kib);
    made->offset = files_.constant_at() + pick(0, storm_constant_bytes - made->length);
    made->memory.resize(made->length);
    made->left = static_cast<int>(pick(1, 20));
    chains_.push_back(made);
    call([&] { made->next(); });
  }
  // Until its last callback has been destroyed too: one of them could be the last that holds the engine.
  void finish(const std::shared_ptr<chain>& of) {
    doing("waiting for a chain of callbacks");
    while (!of->over || of.use_count() > 1) std::this_thread::sleep_for(50us);
    EXPECT_EQ(of->wrong.load(), nullptr) << of->wrong.load();
  }

  void copy_around() {
    const auto on = any_engine();
    doing("copying");
    const auto content = pattern::make(pick(1, 300000), random_());
    std::vector<std::byte> back(content.size());
    std::optional<result<device_buffer>> memory;
    call([&] { memory.emplace(on->engine().allocate("host:0", content.size())); });
    if (!memory || !memory->ok()) return;
    status there;
    status and_back;
    call([&] {
      there = on->engine().copy((**memory).data(), content.data(), content.size());
      and_back = on->engine().copy(back.data(), (**memory).data(), back.size());
    });
    const bool moved = there.ok() && and_back.ok();
    EXPECT_TRUE(!moved || content == back) << "copied there and back";
  }

  void forget_cache() {
    for (const int each : descriptors_)
      (void)::posix_fadvise(each, static_cast<off_t>(region_at_), storm_region_bytes, POSIX_FADV_DONTNEED);
  }

  // An engine of this thread's own, with what is under way on it, makes room for another one.
  void replace_own_engine() {
    doing("ending an engine of its own");
    std::erase_if(streams_, [&](const auto& each) { return each.first == own_engine_; });
    own_engine_.reset();
    doing("making an engine");
    engine_options options;
    options.use_cuda = false;
    options.lanes = static_cast<unsigned>(pick(0, 4));
    options.use_io_uring = !chance(4);
    options.pinned_budget_bytes = 36 * mib;
    if (chance(3)) options.prefer = chance(2) ? preference::cpu : preference::speed;
    if (chance(2)) options.cache = chance(2) ? cache_use::fill : cache_use::bypass;
    own_engine_ = storm_engine::make(files_, options, settings_.faults && chance(2), random_());
  }

  // The child is told that the engine is the parent's, at once, whatever other threads were doing.
  void fork_off() {
    doing("forking");
    const auto on = any_engine();
    const auto& from = on->handles().front();
    const pid_t child = fork();
    if (child == 0) {
      alarm(50);
      const reliable_allocations reliable;
      std::byte bytes[100];
      if (from.read(bytes, sizeof bytes, 0).error.code() != errc::forked) _exit(1);
      if (from.read_async(bytes, sizeof bytes, 0).wait().error.code() != errc::forked) _exit(2);
      const io_request asked[] = {{&from, bytes, sizeof bytes, 0, false}};
      if (on->engine().submit(asked).wait().front().error.code() != errc::forked) _exit(3);
      if (on->engine().open("/dev/null").error().code() != errc::forked) _exit(4);
      _exit(0);
    }
    EXPECT_GT(child, 0);
    if (child < 0) return;
    doing("waiting for a child");
    int outcome = 0;
    while (waitpid(child, &outcome, 0) < 0 && errno == EINTR) {
    }
    EXPECT_TRUE(WIFEXITED(outcome) && WEXITSTATUS(outcome) == 0) << "the child ended with " << outcome;
  }

  const storm_settings& settings_;
  const storm_files& files_;
  const std::vector<std::shared_ptr<storm_engine>> engines_;
  const std::uint64_t region_at_;
  storm_activity& activity_;
  std::mt19937_64 random_;
  std::vector<byte_model> models_;  // of this thread's region of each file
  std::vector<int> descriptors_;    // of the test's own
  std::shared_ptr<storm_engine> own_engine_;
  std::vector<std::pair<std::shared_ptr<storm_engine>, std::shared_ptr<scoped_stream>>> streams_;
  std::deque<std::shared_ptr<chain>> chains_;
  std::list<std::unique_ptr<task>> under_way_;
};

storm_thread::storm_thread(const storm_settings& settings, const storm_files& files, std::vector<std::shared_ptr<storm_engine>> engines,
                           unsigned index, storm_activity& activity)
    : impl_(std::make_unique<impl>(settings, files, std::move(engines), index, activity)) {}
storm_thread::~storm_thread() = default;
void storm_thread::run(const std::atomic<bool>& over) { impl_->run(over); }

}  // namespace penstock::testing
