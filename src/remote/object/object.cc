#include "remote/object/object.hpp"

#include <algorithm>
#include <array>
#include <new>
#include <utility>

#include <fmt/format.h>

#include "base/no_memory.hpp"
#include "base/printable.hpp"
#include "penstock/version.hpp"
#include "remote/net/answers.hpp"
#include "remote/net/redirect.hpp"
#include "remote/object/stream_store.hpp"

namespace penstock::source::remote {

namespace {

const status made_when_loaded(errc::cancelled, "the request is no longer needed");
constexpr std::chrono::milliseconds look_for_stop{50};
constexpr unsigned most_moves = 5;     // redirects per piece
constexpr unsigned most_renewals = 2;  // retries per piece at the address before the redirects

// Returns true if the bytes are compressed. Other encodings, such as aws-chunked and UTF-8, do not alter the bytes.
bool is_encoded(const response_head& head) noexcept {
  constexpr std::array<std::string_view, 8> compressions{"gzip", "x-gzip", "deflate", "compress", "x-compress", "br", "zstd", "lz4"};
  const auto same = [](char one, char other) { return (one | 0x20) == (other | 0x20); };
  return std::ranges::any_of(compressions, [&](std::string_view each) {
    const auto found = std::ranges::search(head.encoding, each, same);
    return !found.empty();
  });
}

status encoded(const response_head& head) {
  return {errc::unsupported, fmt::format("the server sent the object encoded as {}, not as the stored bytes whose length it reported",
                                         printable_text(head.encoding.substr(0, 40)))};
}

verdict for_good(status why) { return {.then = verdict::kind::refused, .error = std::move(why)}; }

}  // namespace

const status& unwanted() noexcept { return made_when_loaded; }

url protocol::address_of(const url& object, std::uint64_t /*offset*/, std::uint64_t /*length*/) const { return object; }

// A fill in progress.
struct object::piece : fetch {
  explicit piece(far_fill& what) noexcept : fill(what) {}
  far_fill& fill;
  piece* after = nullptr;
  piece* before = nullptr;
  bool needs_stream = false;
};

// A read of the whole object, and the fills that wait for its bytes. The object's lock guards all members after store.
struct object::stream final : fetch, body_sink {
  stream(object& of, const std::string& folder) : reader(of), store(folder) {}
  status take(std::span<const std::byte> bytes, std::uint64_t at) override {
    if (auto problem = store.put(bytes, at); !problem.ok()) return problem;
    reader.serve_stream();
    return {};
  }
  object& reader;
  stream_store store;
  enum class state : std::uint8_t { idle, running, whole, failed } now = state::idle;
  status outcome{};

  void add(far_fill& what) noexcept {
    what.next_of_source = waiting_;
    what.previous_of_source = nullptr;
    if (waiting_ != nullptr) waiting_->previous_of_source = &what;
    waiting_ = &what;
  }
  // Returns false if the fill is not waiting here.
  bool forget(far_fill& what) noexcept {
    auto* each = waiting_;
    while (each != nullptr && each != &what) each = each->next_of_source;
    if (each != nullptr) remove(what);
    return each != nullptr;
  }
  // Removes and returns a fill whose bytes have arrived, or any fill if ended. size: the object's size. The last bytes are ready only at
  // the end, once it is certain that nothing follows them.
  far_fill* take_ready(std::uint64_t size, bool ended) noexcept {
    auto* each = waiting_;
    while (each != nullptr && !ended && each->offset() + each->length() > std::min(store.size(), size - 1)) each = each->next_of_source;
    if (each != nullptr) remove(*each);
    return each;
  }

 private:
  void remove(far_fill& what) noexcept {
    (what.previous_of_source != nullptr ? what.previous_of_source->next_of_source : waiting_) = what.next_of_source;
    if (what.next_of_source != nullptr) what.next_of_source->previous_of_source = what.previous_of_source;
  }
  far_fill* waiting_ = nullptr;
};

object::object(std::shared_ptr<network> by, std::shared_ptr<protocol> speaks, object_facts facts, const patience& how, whole_reading whole)
    : source(facts.name),
      network_(std::move(by)),
      protocol_(std::move(speaks)),
      about_(std::move(facts)),
      how_(how.kept()),
      whole_(std::move(whole)),
      home_(network_->origin_of(about_.address)),
      origin_(about_.found ? network_->origin_of(*about_.found) : home_),
      place_(origin_),
      target_(about_.found ? about_.found->unredacted_target() : std::string()),
      version_(about_.of) {
  facts_.device = far_device;
  facts_.writable = false;
  facts_.fills_at_once = origin_->fills_wanted();
  note_version();
  direct_problem_ = {errc::unsupported, "the object is on a server"};
}

object::~object() { (void)close(); }

io_result object::drain(const std::byte* /*memory*/, std::uint64_t /*length*/, std::uint64_t /*offset*/, const drain_manner& /*how*/) {
  return {0, {errc::unsupported, "remote objects cannot be modified in place"}};
}

std::shared_ptr<turnstile> object::turns(staging::lanes& by, turnstile::share& of) { return origin_->turns(by, of, origin_); }

std::string object::told() const {
  const auto seen = seen_version();
  const auto kept = seen.has_strong_etag() ? fmt::format("the version with ETag {}", printable_text(seen.etag.substr(0, 80)))
                    : !seen.last_modified.empty()
                        ? "the version last modified at " + printable_text(seen.last_modified.substr(0, 40)) +
                              " (the server sends no strong ETag, so a change within the same second is not detected)"
                    : seen.known() ? fmt::format("the version with the weak ETag {}", printable_text(seen.etag.substr(0, 80)))
                                   : std::string("an unknown version: the server reports none, so only a change of size is detected");
  const auto counts = network_->counts();
  {
    const std::lock_guard guard(lock_);
    if (stream_ != nullptr || !about_.has_ranges)
      return fmt::format(
          "{} does not support ranges: the object is read once, in order, over one connection, and kept {}, which is slow; {}{}{}",
          origin_->host(), stream_ == nullptr ? "in memory or in a temporary file" : stream_->store.told(), kept, note_.empty() ? "" : "; ",
          note_);
  }
  return fmt::format("read from {} over up to {} concurrent connections, {}; {} of {} requests to servers were retries{}{}",
                     origin_->host(), origin_->connections_wanted(), kept, counts.retries, counts.requests, note_.empty() ? "" : "; ",
                     note_);
}

version object::seen_version() const {
  const std::lock_guard guard(lock_);
  return version_;
}

void object::begin_fill(far_fill& what) noexcept {
  const auto size = about_.size;
  if (what.offset() >= size || what.length() == 0) return what.tell({});
  if (reads_whole()) return add_to_stream(what);
  auto* const made = prepare_to_throw() ? new (std::nothrow) piece(what) : nullptr;
  if (made == nullptr) return what.tell({0, no_memory()});
  made->owner = this;
  made->home = home_;
  made->how = &how_;
  made->may_hedge = true;
  made->memory = what.target();
  made->offset = what.offset();
  made->length = std::min(what.length(), size - what.offset());
  const auto placed = or_no_memory([&]() -> status {
    const std::lock_guard guard(lock_);
    made->target = target_;
    made->at = place_;
    made->after = first_;
    if (first_ != nullptr) first_->before = made;
    first_ = made;
    ++under_way_;
    return {};
  });
  if (!placed.ok()) {
    delete made;
    return what.tell({0, placed});
  }
  network_->begin(*made);
}

void object::cancel(far_fill& what) noexcept {
  piece* stopped = nullptr;
  bool waited = false;
  {
    const std::lock_guard guard(lock_);
    for (auto* each = first_; each != nullptr && stopped == nullptr; each = each->after) {
      if (&each->fill == &what) stopped = each;
    }
    if (stopped == nullptr) {
      waited = stream_ != nullptr && stream_->forget(what);
      if (!waited) return;
    } else if (!network_->cancel(*stopped)) {
      return;
    }
  }
  if (!waited) return ended(*stopped, unwanted());
  what.tell({0, unwanted()});
  leave();
}

void object::ended(fetch& what, status how) noexcept {
  if (what.sink != nullptr) return stream_ended(std::move(how));
  auto& gone = static_cast<piece&>(what);
  auto& fill = gone.fill;
  auto then = waits::no_memory;
  bool streams = false;
  {
    const std::lock_guard guard(lock_);
    (gone.before == nullptr ? first_ : gone.before->after) = gone.after;
    if (gone.after != nullptr) gone.after->before = gone.before;
    streams = gone.needs_stream && !gone.cancelled.load() && how.code() == errc::unsupported;
    if (streams) then = wait_for_stream(fill);
  }
  if (!streams || then == waits::no_memory) fill.tell({gone.done, streams ? no_memory() : std::move(how)});
  delete &gone;
  if (!streams || then == waits::no_memory) return leave();
  if (then == waits::first) begin_stream();
  serve_stream();
}

void object::leave() noexcept {
  const std::lock_guard guard(lock_);
  if (--under_way_ == 0) quiet_.notify_all();
}

// A forked child has no threads.
status object::close() {
  if (network_->forked()) return {};
  std::unique_lock guard(lock_);
  for (;;) {
    auto* left = first_;
    while (left != nullptr && !network_->cancel(*left)) left = left->after;
    if (left == nullptr) break;
    guard.unlock();
    ended(*left, unwanted());
    guard.lock();
  }
  if (stream_ != nullptr && stream_->now == stream::state::running && network_->cancel(*stream_)) {
    guard.unlock();
    stream_ended(unwanted());
    guard.lock();
  }
  quiet_.wait(guard, [this] { return under_way_ == 0; });
  return {};
}

// --- servers without ranges

bool object::reads_whole() const noexcept {
  const std::lock_guard guard(lock_);
  return stream_ != nullptr || (!about_.has_ranges && whole_.allowed);
}

// Requires lock_. The caller has already counted the fill in under_way_.
object::waits object::wait_for_stream(far_fill& what) noexcept {
  if (stream_ == nullptr) {
    stream_ = or_without_memory([&] { return std::make_unique<stream>(*this, whole_.folder); }, [] { return std::unique_ptr<stream>(); });
    if (stream_ == nullptr) return waits::no_memory;
    network_->tell_of(network_listener::event::without_ranges);
  }
  stream_->add(what);
  if (stream_->now == stream::state::running || stream_->now == stream::state::whole) return waits::beside_others;
  stream_->now = stream::state::running;
  ++under_way_;
  return waits::first;
}

void object::add_to_stream(far_fill& what) noexcept {
  auto then = waits::no_memory;
  {
    const std::lock_guard guard(lock_);
    ++under_way_;
    then = wait_for_stream(what);
  }
  if (then == waits::no_memory) {
    what.tell({0, no_memory()});
    return leave();
  }
  if (then == waits::first) begin_stream();
  serve_stream();
}

// Bytes from an earlier attempt are kept and compared with the new ones.
void object::begin_stream() noexcept {
  auto& all = *stream_;
  const auto placed = or_no_memory([&]() -> status {
    const std::lock_guard guard(lock_);
    all.target = target_;
    all.at = place_;
    return {};
  });
  if (!placed.ok()) return stream_ended(placed);
  all.owner = this;
  all.home = home_;
  all.how = &how_;
  all.sink = &all;
  all.tries = all.moves = all.renewals = 0;
  all.cancelled.store(false);
  network_->begin(all);
}

// Completes all fills whose bytes have arrived or will never arrive.
void object::serve_stream() noexcept {
  for (;;) {
    far_fill* next = nullptr;
    status failed;
    {
      const std::lock_guard guard(lock_);
      const bool ended = stream_->now == stream::state::whole || stream_->now == stream::state::failed;
      next = stream_->take_ready(about_.size, ended);
      if (next == nullptr) return;
      if (stream_->now == stream::state::failed) failed = stream_->outcome;
    }
    const auto length = std::min(next->length(), about_.size - next->offset());
    const auto end = next->offset() + length;
    const bool is_there = failed.ok() || (end < about_.size && end <= stream_->store.size());
    const auto how = is_there ? stream_->store.read(next->target(), length, next->offset()) : failed;
    next->tell({how.ok() ? length : 0, how});
    leave();
  }
}

void object::stream_ended(status how) noexcept {
  {
    const std::lock_guard guard(lock_);
    stream_->now = how.ok() ? stream::state::whole : stream::state::failed;
    stream_->outcome = std::move(how);
  }
  serve_stream();
  leave();
}

status object::find_size(const std::function<bool()>& stopped) {
  {
    const std::lock_guard guard(lock_);
    stream_ = std::make_unique<stream>(*this, whole_.folder);
    stream_->now = stream::state::running;
    ++under_way_;
  }
  network_->tell_of(network_listener::event::without_ranges);
  begin_stream();
  std::unique_lock guard(lock_);
  const auto has_ended = [this] { return under_way_ == 0; };
  while (!quiet_.wait_for(guard, look_for_stop, has_ended)) {
    if (!stopped || stream_->now != stream::state::running) continue;
    guard.unlock();  // the callback may block
    const bool ends = stopped();
    guard.lock();
    if (!ends || stream_->now != stream::state::running || !network_->cancel(*stream_)) {
      if (!ends) continue;
      quiet_.wait(guard, has_ended);
      break;
    }
    guard.unlock();
    stream_ended(unwanted());
    guard.lock();
  }
  about_.size = stream_->store.size();
  if (stream_->outcome.code() == errc::cancelled) return {errc::cancelled, "stopped while reading the whole object to find its size"};
  return stream_->outcome;
}

// --- requests and responses

result<std::string> object::request_of(fetch& what) {
  const bool all = what.sink != nullptr;
  if (all) {  // starts over from the beginning
    what.done = 0;
    what.length = about_.size;
  }
  const auto first = what.offset + what.done;
  const auto last = what.offset + what.length - 1;
  const auto range = protocol_->by_range_header() && !all ? fmt::format("bytes={}-{}", first, last) : std::string();
  const bool moved = !what.target.empty();
  const auto address = protocol_->address_of(about_.address, first, what.missing());
  auto text = fmt::format("GET {} HTTP/1.1\r\nHost: {}\r\nAccept-Encoding: identity\r\nUser-Agent: penstock/{}\r\n",
                          moved ? what.target : address.unredacted_target(), what.at->host(), penstock::version());
  if (!range.empty()) text += fmt::format("Range: {}\r\n", range);
  if (const auto wanted = seen_version(); wanted.has_strong_etag()) text += fmt::format("If-Match: {}\r\n", wanted.etag);
  if (!moved || what.at == home_) {
    auto more = protocol_->headers(address, range);
    if (!more) return more.error();
    text += *more;
  }
  return text + "\r\n";
}

// Call once the version is known, or known to be missing. Call it before the object is shared, or under lock_.
void object::note_version() noexcept {
  if (!version_.known() || std::exchange(version_noted_, true) || version_.has_strong_etag()) return;
  network_->tell_of(network_listener::event::unversioned);
}

// The first response with bytes may add version fields that the response with the size lacked. It may also lack the modification time,
// which a range response need not repeat (RFC 9110, section 15.3.7). After that, a field that differs, appears or disappears means that
// the object was replaced. With a strong ETag, the modification time is ignored.
status object::changed(const response_head& head) {
  const std::lock_guard guard(lock_);
  const version seen{head.etag, head.last_modified};
  if (!std::exchange(version_settled_, true)) {
    if (version_.etag.empty()) version_.etag = seen.etag;
    if (version_.last_modified.empty() || seen.last_modified.empty()) version_.last_modified = seen.last_modified;
  }
  note_version();
  const bool same = version_.has_strong_etag() ? seen.etag == version_.etag : seen == version_;
  if (same) return {};
  return {errc::io, "the object was replaced while it was being read; open it again"};
}

verdict object::judge(const response_head& head, std::string_view body, fetch& what) {
  if (head.status == 200 || head.status == 206) return what.sink != nullptr ? judge_whole(head, what) : judge_bytes(head, what);
  return as_wanted_by_user(judge_error(head, body, what), head, how_);
}

verdict object::judge_error(const response_head& head, std::string_view body, fetch& what) {
  if (follow_afresh(head, what)) return {.then = verdict::kind::renewed, .error = judged_by_status(head).error};
  if (auto known = protocol_->judge(head, body, what)) return *std::move(known);
  if (head.status >= 300 && head.status < 400 && head.status != 304) return judge_redirect(head, what);
  if (head.status == 412) return for_good({errc::io, "the object was replaced while it was being read; open it again"});
  if (head.status == 416) {
    const auto now = parse_unsatisfied_range(head.range);
    return for_good(
        {errc::io, now ? fmt::format("the object was truncated while it was being read: {} bytes instead of {}", *now, about_.size)
                       : std::string("the server reported that the range is past the end of the object; open it again")});
  }
  return judged_by_status(head);
}

status object::other_size(std::uint64_t now) const {
  return {errc::io, fmt::format("the object now has {} bytes, but had {} when it was opened; open it again. If the server always reports a "
                                "wrong size on opening, set the option size",
                                now, about_.size)};
}

verdict object::judge_whole(const response_head& head, fetch& what) {
  const bool has_size = about_.size != unknown_bytes;
  if (head.status != 200 || !head.range.empty() || head.length == 0U)
    return for_good({errc::io, "the server sent only a part of the object"});
  if (is_encoded(head) && (!has_size || head.length != about_.size)) return for_good(encoded(head));
  if (auto problem = changed(head); !problem.ok()) return for_good(std::move(problem));
  if (has_size && head.length && *head.length != about_.size) return for_good(other_size(*head.length));
  if (!has_size && head.length) what.length = *head.length;
  return {
      .then = verdict::kind::body, .body_bytes = has_size ? about_.size : head.length.value_or(unknown_bytes), .ends_with_body = has_size};
}

verdict object::judge_bytes(const response_head& head, fetch& what) {
  const auto first = what.offset + what.done;
  const auto missing = what.missing();
  if (auto problem = changed(head); !problem.ok()) return for_good(std::move(problem));
  if (!protocol_->by_range_header()) {
    if (is_encoded(head)) return for_good(encoded(head));
    const auto length = head.length.value_or(missing);
    if (length == 0) return for_good({errc::io, "the object was truncated while it was being read; open it again"});
    if (length > missing) return for_good({errc::io, fmt::format("the server sent {} bytes; {} were requested", length, missing)});
    return {.then = verdict::kind::body, .body_bytes = length};
  }
  const auto range = parse_content_range(head.range);
  if (!range) {
    if (head.status != 200 || !head.range.empty())
      return for_good(
          {errc::unsupported, fmt::format("the server sent an invalid Content-Range: \"{}\"", printable_text(head.range.substr(0, 60)))});
    if (is_encoded(head) && head.length != about_.size) return for_good(encoded(head));
    if (head.length && *head.length != about_.size) return for_good(other_size(*head.length));
    if (first == 0 && missing == about_.size) return {.then = verdict::kind::body, .body_bytes = missing, .ends_with_body = true};
    const status why(errc::unsupported, "the server does not support ranges: it sent the whole object");
    if (has_served_ranges_.load(std::memory_order_relaxed)) return {.then = verdict::kind::again, .error = why};
    static_cast<piece&>(what).needs_stream = whole_.allowed;
    return for_good(why);
  }
  if (range->total && *range->total != about_.size) return for_good(other_size(*range->total));
  if (range->first != first || range->last >= first + missing)
    return for_good({errc::io, fmt::format("the server sent bytes {}-{} instead of the requested {}-{}", range->first, range->last, first,
                                           first + missing - 1)});
  has_served_ranges_.store(true, std::memory_order_relaxed);
  const auto bytes = range->last - range->first + 1;
  if (is_encoded(head) && head.length && *head.length != bytes) return for_good(encoded(head));
  return {.then = verdict::kind::body, .body_bytes = bytes};
}

// Redirect targets may be signed only for one method and for a few minutes.
bool object::follow_afresh(const response_head& head, fetch& what) {
  const bool is_refused = head.status >= 400 && head.status < 500 && !is_for_now(head.status) && head.status != 412 && head.status != 416;
  if (!is_refused || what.target.empty() || ++what.renewals > most_renewals) return false;
  const std::lock_guard guard(lock_);
  if (target_ == what.target) {
    target_.clear();
    place_ = home_;
  }
  return true;
}

url object::asked_address(const fetch& what) const {
  auto made = protocol_->address_of(about_.address, what.offset + what.done, what.missing());
  if (what.target.empty()) return made;
  made = what.at->place();
  const auto question = std::min(what.target.find('?'), what.target.size());
  made.path = what.target.substr(0, question);
  made.query = url_query(what.target.substr(std::min(question + 1, what.target.size())));
  return made;
}

verdict object::judge_redirect(const response_head& head, fetch& what) {
  const auto refuse = [&](std::string_view why) {
    return for_good({errc::io, fmt::format("the server sent a redirect (status {}) that cannot be followed: {}", head.status, why)});
  };
  if (!protocol_->follows()) return refuse("requests are signed for this address");
  if (++what.moves > most_moves) return refuse("there were too many redirects");
  const auto to = redirect_target(asked_address(what), head.location);
  if (!to) return refuse(to.error().message());
  what.at = network_->origin_of(*to);
  what.target = to->unredacted_target();
  if (protocol_->by_range_header()) {  // otherwise each range has its own address
    const std::lock_guard guard(lock_);
    place_ = what.at;
    target_ = what.target;
  }
  return {.then = verdict::kind::elsewhere};
}

}  // namespace penstock::source::remote
