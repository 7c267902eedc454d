#include "remote/net/line.hpp"

#include <algorithm>
#include <cassert>
#include <cstring>
#include <utility>

#include <fmt/format.h>

#include "base/no_memory.hpp"
namespace penstock::source::remote {

namespace {

constexpr std::size_t head_room = 4096;            // bytes per receive; any body bytes among them must be copied
constexpr std::size_t most_refusal_bytes = 16384;  // limit on the size of an error body
constexpr std::size_t chunk_room = 65536;
constexpr std::size_t passing_room = 262144;
// A server may split ranges into shorter ones. A fetch accepts only this many responses below this size; the number of larger ones is
// limited by their size.
constexpr std::uint64_t short_answer_bytes = std::uint64_t{64} << 10;
constexpr unsigned most_short_answers = 64;
// Bytes per send. Over TLS the number is small, because OpenSSL requires the same bytes again until they are accepted.
constexpr std::uint64_t most_sent_plainly = std::uint64_t{1} << 20;
constexpr std::uint64_t most_sent_over_tls = std::uint64_t{64} << 10;
constexpr std::uint64_t most_sent_in_turn = std::uint64_t{4} << 20;  // then the thread's other connections are served

// The part of a chunked error body that was received.
struct dechunked {
  std::string text;
  bool is_over = false;  // complete, or truncated where the chunks are malformed
};

dechunked without_chunks(std::string_view text) {
  chunked_body chunks;
  dechunked made;
  for (;;) {
    const auto next = chunks.next(text);
    made.is_over = !next || chunks.ended();
    if (!next || next->body == 0) return made;
    text.remove_prefix(next->skip);
    made.text += text.substr(0, next->body);
    chunks.took(next->body);
    text.remove_prefix(next->body);
  }
}

verdict again(status why) { return {.then = verdict::kind::again, .error = std::move(why)}; }

}  // namespace

bool line::begin() noexcept {
  if (what_ != nullptr) return true;
  auto* const next = owner_.next_for(*this);
  if (next != nullptr) return start(*next);
  now_ = phase::idle;
  since_ = clock::now();
  return true;
}

bool line::start(fetch& what) noexcept {
  what_ = &what;
  now_ = phase::head;
  what.asked = since_ = clock::now();
  text_.clear();
  heard_ = false;
  sent_bytes_ = what.sends_bytes;  // no body bytes are sent before the head
  since_bytes_ = 0;
  refuses_rest_ = false;
  if (owner_.is_unwanted(what)) return end(again({}), true) != step::line_ends;  // the network reports the reason
  auto asked = or_no_memory([&] {
    head_ = {};
    return what.owner->request_of(what);
  });
  if (!asked) {  // would_block: the credentials for signing are still being looked up
    const auto then = asked.error().code() == errc::would_block ? verdict::kind::later : verdict::kind::refused;
    return end({.then = then, .error = asked.error()}, true) != step::line_ends;
  }
  out_ = *std::move(asked);
  if (over_->is_forwarded()) out_.insert(out_.find(' ') + 1, to_->address());
  sent_bytes_ = 0;
  owner_.sent();
  const auto sent = send_rest();
  return sent.ok() || broken(sent) != step::line_ends;
}

status line::send_rest() noexcept {
  while (!out_.empty()) {
    const auto sent = or_no_memory([&] { return over_->send(out_); });
    if (!sent) return sent.error().code() == errc::would_block ? status() : sent.error();
    out_.erase(0, *sent);
  }
  // A server that rejects a request may close the connection while the body is being sent: read its response anyway.
  if (sends_body() && !send_body().ok()) refuses_rest_ = true;
  return {};
}

status line::send_body() noexcept {
  const auto most = to_->place().tls ? most_sent_over_tls : most_sent_plainly;
  for (std::uint64_t in_turn = 0; sends_body() && in_turn < most_sent_in_turn;) {
    const auto length = static_cast<std::size_t>(std::min(most, what_->sends_bytes - sent_bytes_));
    const auto* const from = reinterpret_cast<const char*>(what_->sends + sent_bytes_);
    const auto sent = or_no_memory([&] { return over_->send({from, length}); });
    if (!sent) return sent.error().code() == errc::would_block ? status() : sent.error();
    sent_bytes_ += *sent;
    since_bytes_ += *sent;
    in_turn += *sent;
  }
  if (!sends_body()) since_ = clock::now();  // the server's time to respond starts now
  return {};
}

bool line::ready() noexcept {
  if (wants_to_write()) {
    if (const auto sent = send_rest(); !sent.ok()) return broken(sent) != step::line_ends;
  }
  for (;;) {
    const auto made = or_without_memory(
        [&] {
          switch (now_) {
            case phase::idle:
              return take_idle();
            case phase::head:
              return take_head();
            case phase::body:
              return framed_ == framing::chunks ? take_chunks() : take_body();
            case phase::error_body:
              break;
          }
          return take_error_body();
        },
        [&] { return broken(no_memory()); });
    if (made == step::waits || made == step::line_ends) {
      if (to_->is_look_due(clock::now())) owner_.look_at(to_);
      return made == step::waits;
    }
  }
}

bool line::look(clock::time_point now) noexcept {
  if (what_ == nullptr) return !unwanted.load() && now - since_ <= owner_.settings().keep_idle;
  if (owner_.is_unwanted(*what_)) return end(again({}), false) != step::line_ends;
  if (what_->may_hedge && what_->missing() > 0 && now - what_->asked > owner_.settings().hedge_after &&
      owner_.is_late(*this, *what_, now - what_->asked))
    return end({.then = verdict::kind::renewed, .silent = !heard_ && used_}, false) != step::line_ends;
  const auto& times = owner_.patience_with(*what_);
  if (now_ == phase::head && !sends_body()) {
    const auto within = std::max(times.answer_within, what_->works_within);
    if (now - since_ <= within) return true;
    const auto why =
        or_no_memory([&] { return status(errc::timed_out, fmt::format("{} has not responded for {} ms", to_->host(), within.count())); });
    return end({.then = verdict::kind::again, .error = why, .silent = !heard_ && used_}, false) != step::line_ends;
  }
  if (!has_stalled(now)) return true;
  const auto why = or_no_memory([&] {
    return status(errc::timed_out, fmt::format("{} {} {} bytes in {} ms", to_->host(), sends_body() ? "accepted" : "sent", since_bytes_,
                                               times.stall_after.count()));
  });
  return broken(why) != step::line_ends;
}

// A server that takes a long time to respond may send a space now and then.
bool line::has_stalled(clock::time_point now) noexcept {
  const auto& times = owner_.patience_with(*what_);
  const bool is_patient = what_->works_within > times.stall_after && !sends_body();
  if (now - since_ <= (is_patient ? what_->works_within : times.stall_after)) return false;
  if (since_bytes_ < (is_patient ? 1 : owner_.settings().stall_bytes)) return true;
  since_ = now;
  since_bytes_ = 0;
  return false;
}

void line::lost(const status& why) noexcept {
  if (what_ != nullptr) (void)broken(why);
}

line::step line::broken(const status& why) noexcept {
  if (what_ == nullptr) return step::line_ends;
  if (now_ == phase::body && what_->missing() == 0)
    return end({.then = verdict::kind::body}, false);  // only the end of the framing is missing
  // The server may close an idle connection at the moment when the next request is sent.
  if (used_ && !heard_) return end({.then = verdict::kind::renewed, .error = why, .unsent = true}, false);
  auto how = again(why);
  how.crowded = !used_ && !heard_ && why.code() != errc::timed_out;
  return end(how, false);
}

// Sends the next request before reporting the end of the previous one, so that the server is never idle.
line::step line::end(const verdict& how, bool line_goes_on) noexcept {
  // After an incomplete request, the server would read the next one as the rest of it.
  line_goes_on = line_goes_on && out_.empty() && sent_bytes_ == what_->sends_bytes;
  auto& ended = *std::exchange(what_, nullptr);
  auto becomes = how;
  now_ = phase::idle;
  since_ = clock::now();
  used_ = true;
  out_.clear();
  if (untold_bytes_ > 0) owner_.received(*this, std::exchange(untold_bytes_, 0));
  auto* const next = owner_.ended(*this, ended, becomes, line_goes_on);
  if (next != nullptr) line_goes_on = start(*next);
  if (becomes.then == verdict::kind::body || becomes.then == verdict::kind::refused) line_owner::tell(ended, becomes);
  return line_goes_on ? step::more : step::line_ends;
}

result<std::size_t> line::receive(std::byte* target, std::size_t room) {
  auto got = over_->receive(target, room);
  if (got && *got > 0) heard_ = true;
  return got;
}

std::span<std::byte> line::room() {
  if (what_->sink == nullptr) return {what_->memory + what_->done, body_left_};
  passing_.resize(passing_room);
  return std::span(passing_).first(std::min<std::uint64_t>(body_left_, passing_room));
}

line::step line::keep(std::string_view bytes) {
  if (what_->sink == nullptr) {
    if (!bytes.empty()) std::memcpy(what_->memory + what_->done, bytes.data(), bytes.size());
    return came(bytes.size());
  }
  for (auto rest = bytes; !rest.empty(); rest.remove_prefix(std::min(rest.size(), passing_room))) {
    const auto part = rest.substr(0, passing_room);
    passing_.resize(passing_room);
    std::memcpy(passing_.data(), part.data(), part.size());
    if (const auto then = came(part.size()); then != step::more) return then;
  }
  return step::more;
}

line::step line::came(std::size_t bytes) {
  if (bytes == 0) return step::more;  // no progress
  if (what_->sink != nullptr) {
    const auto taken = or_no_memory([&] { return what_->sink->take(std::span(passing_).first(bytes), what_->done); });
    if (!taken.ok()) return end({.then = verdict::kind::refused, .error = taken}, false);
  }
  what_->done += bytes;
  if (what_->done > what_->most_done) {
    what_->most_done = what_->done;
    what_->tries = 0;
    what_->refused_since = {};
    what_->moves = 0;
  }
  body_left_ -= bytes;
  since_bytes_ += bytes;
  untold_bytes_ += bytes;
  to_->arrived(bytes);
  return step::more;
}

line::step line::take_idle() {
  std::byte unexpected{};
  const auto got = receive(&unexpected, 1);
  return !got && got.error().code() == errc::would_block ? step::waits : step::line_ends;
}

line::step line::take_head() {
  std::array<std::byte, head_room> room;
  const auto got = receive(room.data(), room.size());
  if (!got) return got.error().code() == errc::would_block ? step::waits : broken(got.error());
  if (*got == 0) return broken({errc::io, fmt::format("{} closed the connection before responding", to_->host())});
  text_.append(reinterpret_cast<const char*>(room.data()), *got);
  for (;;) {
    head_ = {};
    const auto length = parse_head(text_, head_);
    if (!length) return broken(length.error());
    if (*length == 0) return step::more;
    text_.erase(0, *length);
    if (head_.status >= 200 || head_.status == 101) return head_is_there();
    if (++informational_ > most_informational)
      return broken({errc::io, fmt::format("{} sent too many informational responses", to_->host())});
  }
}

line::step line::head_is_there() {
  informational_ = 0;
  since_ = clock::now();
  if (what_->sends_bytes == 0) to_->responded(since_ - what_->asked);
  since_bytes_ = 0;
  body_left_ = head_.length.value_or(~std::uint64_t{0});
  if ((head_.status != 200 && head_.status != 206) || what_->gathers) {
    now_ = phase::error_body;
    if (head_.status == 204 || head_.status == 304 || what_->bodiless) body_left_ = 0;
    return has_whole_error() ? error_is_there() : step::more;
  }
  const auto then = what_->owner->judge(head_, {}, *what_);
  if (then.then != verdict::kind::body) return end(then, false);  // the rest of the response is not needed
  assert(then.body_bytes > 0 && (then.body_bytes == unknown_bytes || then.body_bytes <= what_->missing()));
  framed_ = head_.chunked ? framing::chunks : head_.length ? framing::length : framing::until_closed;
  if (head_.length && then.body_bytes != unknown_bytes && *head_.length != then.body_bytes) {
    return broken({errc::io, fmt::format("{} sent {} bytes for a range of {}", to_->host(), *head_.length, then.body_bytes)});
  }
  body_left_ = body_bytes_ = then.body_bytes;
  ends_with_body_ = then.ends_with_body;
  now_ = phase::body;
  chunks_ = {};
  if (framed_ == framing::chunks) return take_chunks_from_text();
  const auto here = static_cast<std::size_t>(std::min<std::uint64_t>(text_.size(), body_left_));
  if (const auto kept = keep(std::string_view(text_).substr(0, here)); kept != step::more) return kept;
  text_.erase(0, here);
  return body_left_ == 0 ? take_end() : step::more;
}

line::step line::take_body() {
  if (body_left_ == 0) return take_end();
  const auto to = room();
  const auto got = receive(to.data(), to.size());
  if (!got) return got.error().code() == errc::would_block ? step::waits : broken(got.error());
  if (*got == 0) return body_breaks_off();
  if (const auto kept = came(*got); kept != step::more) return kept;
  return body_left_ == 0 ? take_end() : step::more;
}

// Handles a closed connection: the end of a response without a length, otherwise an error.
line::step line::body_breaks_off() {
  if (body_bytes_ == unknown_bytes && framed_ == framing::until_closed) {
    what_->length = what_->done;
    return body_is_there();
  }
  const auto left = body_bytes_ == unknown_bytes ? std::string("some") : fmt::to_string(body_left_);
  return broken({errc::io, fmt::format("{} closed the connection {} bytes before the end", to_->host(), left)});
}

// A body that is ended by closing the connection may be longer than expected.
line::step line::take_end() {
  if (framed_ != framing::until_closed || !ends_with_body_) return body_is_there();
  std::byte more{};
  const auto got = text_.empty() ? receive(&more, 1) : std::size_t{1};
  if (!got && got.error().code() == errc::would_block) return step::waits;
  return got.value_or(0) == 0 ? body_is_there() : body_is_too_long();
}

line::step line::body_is_too_long() {
  const status why(errc::io, fmt::format("{} sent more than the expected {} bytes", to_->host(), body_bytes_));
  if (!ends_with_body_) return end(again(why), false);
  what_->done = 0;  // none of these bytes are the requested ones
  return end({.then = verdict::kind::refused, .error = why}, false);
}

line::step line::take_chunks() {
  const auto before = text_.size();
  text_.resize(before + chunk_room);
  const auto got = receive(reinterpret_cast<std::byte*>(text_.data()) + before, chunk_room);
  text_.resize(before + got.value_or(0));
  if (!got) return got.error().code() == errc::would_block ? step::waits : broken(got.error());
  if (*got == 0) return body_breaks_off();
  return take_chunks_from_text();
}

line::step line::take_chunks_from_text() {
  for (std::string_view rest = text_;;) {
    const auto next = chunks_.next(rest);
    if (!next) return broken(next.error());
    rest.remove_prefix(next->skip);
    if (chunks_.ended()) {
      text_ = std::string(rest);
      if (body_bytes_ == unknown_bytes) {
        what_->length = what_->done;
        body_left_ = 0;
      }
      if (body_left_ > 0) return broken({errc::io, fmt::format("{} ended its response {} bytes early", to_->host(), body_left_)});
      return body_is_there();
    }
    if (next->body == 0) {
      text_ = std::string(rest);
      return step::more;
    }
    if (next->body > body_left_) return body_is_too_long();
    if (const auto kept = keep(rest.substr(0, next->body)); kept != step::more) return kept;
    chunks_.took(next->body);
    rest.remove_prefix(next->body);
  }
}

line::step line::body_is_there() {
  const bool goes_on = !head_.closes && framed_ != framing::until_closed && text_.empty();
  if (what_->missing() == 0) return end({.then = verdict::kind::body}, goes_on);
  if (body_bytes_ < short_answer_bytes && ++what_->short_answers > most_short_answers)
    return end({.then = verdict::kind::refused,
                .error = {errc::io, fmt::format("{} sends only a few bytes of each range: {} of its responses were smaller than {} KiB",
                                                to_->host(), what_->short_answers, short_answer_bytes >> 10)}},
               goes_on);
  return end({.then = verdict::kind::renewed}, goes_on);
}

line::step line::take_error_body() {
  const auto before = text_.size();
  text_.resize(before + head_room);
  const auto got = receive(reinterpret_cast<std::byte*>(text_.data()) + before, head_room);
  text_.resize(before + got.value_or(0));
  if (!got && got.error().code() == errc::would_block) return step::waits;
  since_bytes_ += got.value_or(0);
  const bool ended = got.value_or(0) == 0;  // closed or failed: no more of the error text will arrive
  return ended || has_whole_error() ? error_is_there() : step::more;
}

bool line::has_whole_error() const {
  if (text_.size() >= std::min<std::uint64_t>(body_left_, most_refusal_bytes)) return true;
  return head_.chunked && without_chunks(text_).is_over;
}

line::step line::error_is_there() {
  const bool is_success = head_.status >= 200 && head_.status < 300;
  if (is_success && sent_bytes_ < what_->sends_bytes)
    return broken(
        {errc::io, fmt::format("{} accepted a request after only {} of its {} bytes", to_->host(), sent_bytes_, what_->sends_bytes)});
  // A server that rejects a request may not have read the whole body, and would then read the next request as the rest of it.
  const bool has_read_all = is_success || what_->sends_bytes == 0;
  const bool goes_on = has_read_all && !head_.closes && head_.length && text_.size() == body_left_;
  const auto then = what_->owner->judge(head_, head_.chunked ? without_chunks(text_).text : text_, *what_);
  return end(then, goes_on);
}

}  // namespace penstock::source::remote
