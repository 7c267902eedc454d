#include "source/remote/object.hpp"

#include <algorithm>
#include <new>
#include <utility>

#include <fmt/format.h>

#include "base/no_memory.hpp"
#include "base/printable.hpp"
#include "penstock/version.hpp"
#include "source/remote/answers.hpp"
#include "source/remote/redirect.hpp"

namespace penstock::source::remote {

namespace {

const status made_when_loaded(errc::cancelled, "nobody waits for it any more");
constexpr unsigned most_moves = 5;  // to other addresses, of one piece

verdict for_good(status why) { return {.then = verdict::kind::refused, .error = std::move(why)}; }

}  // namespace

const status& unwanted() noexcept { return made_when_loaded; }

url protocol::address_of(const url& object, std::uint64_t /*offset*/, std::uint64_t /*length*/) const { return object; }

// One fill under way.
struct object::piece : fetch {
  explicit piece(far_fill& what) noexcept : fill(what) {}
  far_fill& fill;
  piece* after = nullptr;
  piece* before = nullptr;
};

object::object(std::shared_ptr<network> by, std::shared_ptr<protocol> speaks, object_facts facts, patience how)
    : source(facts.name),
      network_(std::move(by)),
      protocol_(std::move(speaks)),
      about_(std::move(facts)),
      how_(std::move(how)),
      origin_(network_->origin_of(about_.address)),
      version_(about_.of) {
  facts_.device = far_device;
  facts_.writable = false;
  facts_.fills_at_once = origin_->fills_wanted();
  note_version();
  direct_problem_ = {errc::unsupported, "it lies on a server"};
}

object::~object() { (void)close(); }

io_result object::drain(const std::byte* /*memory*/, std::uint64_t /*length*/, std::uint64_t /*offset*/) {
  return {0, {errc::unsupported, "objects on servers are not written in place"}};
}

std::shared_ptr<turnstile> object::turns(staging::lanes& by, turnstile::share& of) { return origin_->turns(by, of, origin_); }

std::string object::told() const {
  const auto seen = seen_version();
  const auto kept =
      seen.has_strong_etag()        ? fmt::format("of the version with ETag {}", printable_text(seen.etag.substr(0, 80)))
      : !seen.last_modified.empty() ? "of the version that was last changed at " + printable_text(seen.last_modified.substr(0, 40)) +
                                          " (the server sends no strong ETag: a change within that second goes unnoticed)"
      : seen.known() ? fmt::format("of the version with the weak ETag {}", printable_text(seen.etag.substr(0, 80)))
                     : std::string("of whatever version the server has: it names none, so only a change of the size is noticed");
  const auto counts = network_->counts();
  return fmt::format("{} serves it, over up to {} connections at once, {}; of all requests to servers, {} of {} were repeated{}{}",
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
  auto* const made = new (std::nothrow) piece(what);
  if (made == nullptr) return what.tell({0, no_memory()});
  made->owner = this;
  made->at = origin_;
  made->home = origin_;
  made->how = &how_;
  made->may_hedge = true;
  made->memory = what.target();
  made->offset = what.offset();
  made->length = std::min(what.length(), size - what.offset());
  {
    const std::lock_guard guard(lock_);
    made->after = first_;
    if (first_ != nullptr) first_->before = made;
    first_ = made;
    ++under_way_;
  }
  network_->begin(*made);
}

void object::cancel(far_fill& what) noexcept {
  piece* stopped = nullptr;
  {
    const std::lock_guard guard(lock_);
    for (auto* each = first_; each != nullptr && stopped == nullptr; each = each->after) {
      if (&each->fill == &what) stopped = each;
    }
    if (stopped == nullptr || !network_->cancel(*stopped)) return;
  }
  ended(*stopped, unwanted());
}

void object::ended(fetch& what, status how) noexcept {
  auto& gone = static_cast<piece&>(what);
  {
    const std::lock_guard guard(lock_);
    (gone.before == nullptr ? first_ : gone.before->after) = gone.after;
    if (gone.after != nullptr) gone.after->before = gone.before;
  }
  gone.fill.tell({gone.done, std::move(how)});
  delete &gone;
  const std::lock_guard guard(lock_);
  if (--under_way_ == 0) quiet_.notify_all();
}

// A forked child has none of the threads.
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
  quiet_.wait(guard, [this] { return under_way_ == 0; });
  return {};
}

result<std::string> object::request_of(fetch& what) {
  const auto first = what.offset + what.done;
  const auto last = what.offset + what.length - 1;
  const auto range = protocol_->by_range_header() ? fmt::format("bytes={}-{}", first, last) : std::string();
  const bool moved = !what.target.empty();
  const auto address = protocol_->address_of(about_.address, first, what.missing());
  auto text = fmt::format("GET {} HTTP/1.1\r\nHost: {}\r\nAccept-Encoding: identity\r\nUser-Agent: penstock/{}\r\n",
                          moved ? what.target : address.unredacted_target(), what.at->host(), penstock::version());
  if (!range.empty()) text += fmt::format("Range: {}\r\n", range);
  if (const auto wanted = seen_version(); wanted.has_strong_etag()) text += fmt::format("If-Match: {}\r\n", wanted.etag);
  if (!moved || what.at == origin_) {
    auto more = protocol_->headers(address, range);
    if (!more) return more.error();
    text += *more;
  }
  return text + "\r\n";
}

// Once its version is known, or it is clear that there is none. Before anybody else has it, or with the lock.
void object::note_version() noexcept {
  if (!version_.known() || std::exchange(version_noted_, true) || version_.has_strong_etag()) return;
  network_->tell_of(network_listener::event::unversioned);
}

status object::changed(const response_head& head) {
  const std::lock_guard guard(lock_);
  if (!version_.known()) version_ = {head.etag, head.last_modified};
  note_version();
  const bool other_etag = !head.etag.empty() && !version_.etag.empty() && head.etag != version_.etag;
  const bool other_time = !version_.has_strong_etag() && !head.last_modified.empty() && !version_.last_modified.empty() &&
                          head.last_modified != version_.last_modified;
  if (!other_etag && !other_time) return {};
  return {errc::io, "the object was replaced by another while it was read; open it anew"};
}

verdict object::judge(const response_head& head, std::string_view body, fetch& what) {
  if (head.status == 200 || head.status == 206) return judge_bytes(head, what);
  return as_wanted_by_user(judge_error(head, body, what), head, how_);
}

verdict object::judge_error(const response_head& head, std::string_view body, fetch& what) {
  if (auto known = protocol_->judge(head, body, what)) return *std::move(known);
  if (head.status >= 300 && head.status < 400 && head.status != 304) return judge_redirect(head, what);
  if (head.status == 412) return for_good({errc::io, "the object was replaced by another while it was read; open it anew"});
  if (head.status == 416) {
    const auto now = parse_unsatisfied_range(head.range);
    return for_good(
        {errc::io, now ? fmt::format("the object has become shorter while it was read: {} bytes instead of {}", *now, about_.size)
                       : std::string("the server says that the range lies behind the end of the object; open it anew")});
  }
  return judged_by_status(head);
}

verdict object::judge_bytes(const response_head& head, fetch& what) {
  const auto first = what.offset + what.done;
  const auto missing = what.missing();
  if (!head.encoding.empty() && head.encoding != "identity")
    return for_good({errc::unsupported, fmt::format("the server sends the object as {}, of which no range can be read",
                                                    printable_text(head.encoding.substr(0, 40)))});
  if (auto problem = changed(head); !problem.ok()) return for_good(std::move(problem));
  if (!protocol_->by_range_header()) {
    const auto length = head.length.value_or(missing);
    if (length == 0) return for_good({errc::io, "the object has become shorter while it was read; open it anew"});
    if (length > missing) return for_good({errc::io, fmt::format("the server sends {} bytes, of {} that were asked for", length, missing)});
    return {.then = verdict::kind::body, .body_bytes = length};
  }
  const auto range = parse_content_range(head.range);
  if (!range) {
    const bool whole = head.status == 200 && head.range.empty() && first == 0 && missing == about_.size;
    if (whole) return {.then = verdict::kind::body, .body_bytes = missing};
    return for_good({errc::unsupported,
                     head.status == 200 ? std::string("the server serves no ranges: it sends the whole object")
                                        : fmt::format("the server's Content-Range is \"{}\"", printable_text(head.range.substr(0, 60)))});
  }
  if (range->total && *range->total != about_.size)
    return for_good(
        {errc::io, fmt::format("the object has {} bytes now, {} when it was opened; open it anew", *range->total, about_.size)});
  if (range->first != first || range->last >= first + missing)
    return for_good({errc::io, fmt::format("the server sends bytes {}-{}, not the {}-{} that were asked for", range->first, range->last,
                                           first, first + missing - 1)});
  return {.then = verdict::kind::body, .body_bytes = range->last - range->first + 1};
}

verdict object::judge_redirect(const response_head& head, fetch& what) {
  const auto refuse = [&](std::string_view why) {
    return for_good({errc::io, fmt::format("the server sends status {} and another address: {}", head.status, why)});
  };
  if (!protocol_->follows()) return refuse("it is not followed, since requests are signed for this one");
  if (++what.moves > most_moves) return refuse("and so did those before; there are too many");
  const auto to = redirect_target(what.at->place(), head.location);
  if (!to) return refuse(to.error().message());
  what.at = network_->origin_of(*to);
  what.target = to->unredacted_target();
  return {.then = verdict::kind::elsewhere};
}

}  // namespace penstock::source::remote
