#include "remote/s3/upload.hpp"

#include <algorithm>
#include <cassert>
#include <cerrno>
#include <cstring>
#include <functional>
#include <new>
#include <utility>

#include <fmt/format.h>

#include "base/no_memory.hpp"
#include "base/printable.hpp"
#include "penstock/version.hpp"
#include "remote/net/answers.hpp"
#include "remote/net/s3_error.hpp"
#include "remote/s3/s3_upload.hpp"

namespace penstock::source::remote {

namespace {

using namespace std::chrono_literals;

constexpr auto for_ever = std::chrono::milliseconds::max();
constexpr auto most_completing = 600'000ms;  // including all retries: S3 may take minutes to assemble the parts
constexpr auto most_aborting = 10'000ms;
constexpr auto most_aborting_at_stop = 2'000ms;  // after the program was asked to stop
constexpr auto most_creating = 500ms;            // once the upload is no longer wanted; without its ID it could not be aborted
constexpr auto stop_interval = 50ms;
constexpr unsigned least_parts_held = 4;
constexpr unsigned most_moves_of_regions = 2;
constexpr std::size_t most_spare_parts = 16;
constexpr std::uint64_t devices_of_uploads = std::uint64_t{1} << 20;
constexpr const char* mark_header = "x-amz-meta-penstock-upload";

verdict refused_for(status why) { return {.then = verdict::kind::refused, .error = std::move(why)}; }
verdict taken() { return {.then = verdict::kind::body}; }

std::string shown_range(std::uint64_t first, std::uint64_t end) { return fmt::format("bytes {}-{}", first, end - 1); }

}  // namespace

// A request concerning the object, and its outcome.
struct upload::request : fetch {
  enum class kind : std::uint8_t { part, whole, create, complete, abort, look };
  request(kind what, std::string_view how, std::string asked) : about(what), method(how), query(std::move(asked)) {}
  const kind about;
  const std::string_view method;
  std::string query;
  std::vector<header> headers{};  // in addition to those common to all requests
  std::string hash{};             // the body's hash, if it is not sent over TLS
  std::string md5{};              // the body's MD5, if the server requires it
  bool conditional = false;       // succeed only if there is no such object
  // --- outcome
  unsigned times_asked = 0;
  std::string told{};   // depends on the kind: an ETag, an upload ID, or an existing object's mark
  int status_code = 0;  // status of the last response; 0: there was none
  bool is_over = false;
  status outcome{};
};

struct upload::part : request {
  explicit part(const part_range& where) : request(kind::part, "PUT", {}), range(where) {}
  part_range range;
  std::unique_ptr<std::byte[]> memory;
  come_ranges come;
  unsigned writers = 0;
  bool is_sent = false;  // sent, or about to be: its bytes must not change
};

upload::upload(std::shared_ptr<network> by, upload_facts facts, part_plan plan)
    : network_(std::move(by)),
      name_(std::move(facts.name)),
      mark_(std::move(facts.mark)),
      in_region_(std::move(facts.in_region)),
      how_(facts.how.kept()),
      headers_(std::move(facts.headers)),
      signs_payload_(facts.signs_payload),
      sends_md5_(facts.sends_md5),
      most_held_bytes_(facts.most_held_bytes),
      to_(std::move(facts.to)),
      origin_(network_->origin_of(to_.address)),
      plan_(plan) {}

upload::~upload() { abort(); }

std::uint64_t upload::device() const {
  const std::lock_guard guard(lock_);
  return far_device - 1 - std::hash<std::string>()(origin_->address()) % devices_of_uploads;
}

std::string upload::told() const {
  const std::lock_guard guard(lock_);
  return fmt::format(
      "an upload to {} in parts of at least {} MiB, up to {} at once, each sent when all of its bytes have been written; it buffers up to "
      "{} "
      "MiB; the object appears when the complete upload is published",
      origin_->host(), usual_part_bytes >> 20, origin_->connections_wanted(), room_bytes() >> 20);
}

std::uint64_t upload::size() const {
  const std::lock_guard guard(lock_);
  return size_.value_or(written_end_);
}

// --- writing

status upload::set_size(std::uint64_t bytes) {
  auto plan = part_plan::of_size(bytes);
  if (!plan) return plan.error();
  const std::lock_guard guard(lock_);
  if (size_ == bytes) return {};
  if (bytes < written_end_)
    return {errc::invalid_argument, fmt::format("the object's size cannot be {} bytes, because {} have been written", bytes, written_end_)};
  if (size_ && written_end_ > 0)
    return {errc::invalid_argument, fmt::format("the object's size is already set to {} bytes, and some have been written", *size_)};
  if (written_end_ == 0) plan_ = *plan;  // otherwise keep the part sizes chosen at first
  size_ = bytes;
  return {};
}

status upload::check_range(std::uint64_t length, std::uint64_t offset) {
  const std::lock_guard guard(lock_);
  if (was_to_end_) return {errc::invalid_argument, "the server was already asked to complete the object, so nothing more can be written"};
  const auto most = size_.value_or(most_object_bytes);
  if (offset > most || length > most - offset) {
    return {errc::invalid_argument, fmt::format("{} are past the end of the object, whose size is {}", shown_range(offset, offset + length),
                                                size_ ? fmt::format("{} bytes", most) : "at most 5 TiB")};
  }
  written_end_ = std::max(written_end_, offset + length);
  return {};
}

io_result upload::write(const std::byte* memory, std::uint64_t length, std::uint64_t offset, const stop_question& stopped) {
  if (length == 0) return {};
  if (auto wrong = check_range(length, offset); !wrong.ok()) return {0, std::move(wrong)};
  std::uint64_t done = 0;
  while (done < length) {
    if (done > 0 && stopped) {
      if (auto why = stopped(); !why.ok()) return {done, std::move(why)};
    }
    part_range where;
    {
      const std::lock_guard guard(lock_);
      where = plan_.part_at(offset + done);
    }
    const auto count = std::min(length - done, where.offset + where.length - offset - done);
    auto problem = or_no_memory([&] { return write_part(memory + done, count, offset + done, stopped); });
    if (!problem.ok()) return {done, std::move(problem)};
    done += count;
  }
  return {done, {}};
}

status upload::write_part(const std::byte* memory, std::uint64_t length, std::uint64_t offset, const stop_question& stopped) {
  lock guard(lock_);
  const auto found = part_for(guard, offset, stopped);
  if (!found) return found.error();
  part& one = **found;
  const auto first = offset - one.range.offset;
  ++one.writers;
  ++copying_;
  guard.unlock();
  std::memcpy(one.memory.get() + first, memory, length);
  guard.lock();
  --one.writers;
  --copying_;
  auto problem = or_no_memory([&] { return copied(guard, one, first, first + length, stopped); });
  if (!problem.ok()) fail(problem);  // unknown which bytes were copied
  changed_.notify_all();
  return problem;
}

result<upload::part*> upload::part_for(lock& guard, std::uint64_t offset, const stop_question& stopped) {
  for (;;) {
    if (!problem_.ok()) return problem_;
    const auto where = plan_.part_at(offset);
    auto& one = parts_[where.number];
    if (one == nullptr) one = std::make_unique<part>(where);
    if (one->is_sent)
      return status(errc::invalid_argument, fmt::format("byte {} is already being sent to the server and cannot be written again", offset));
    if (one->memory != nullptr) return one.get();
    const auto made = give_memory(*one);
    if (made && !made->ok()) return *made;
    if (made) return one.get();
    if (!ready_.empty() && !creating_ && !(stopped && !stopped().ok())) {  // the thread that was creating the upload has been stopped
      send_ready(guard, stopped);
      continue;
    }
    if (!stopped) {
      changed_.wait(guard);
    } else if (changed_.wait_for(guard, stop_interval) == std::cv_status::timeout) {
      if (auto why = stopped(); !why.ok()) return why;
    }
  }
}

std::uint64_t upload::room_bytes() const noexcept {
  const auto wanted = std::clamp(2 * origin_->connections_wanted() * usual_part_bytes, least_held_bytes, most_held_bytes);
  return std::max(std::min(wanted, most_held_bytes_), least_parts_held * largest_part_);
}

std::optional<status> upload::give_memory(part& to) {
  const auto length = to.range.length;
  largest_part_ = std::max(largest_part_, length);  // set first, so that there is always room for several parts of this size
  const bool fits = held_bytes_ + length <= room_bytes();
  if (!fits && sending_ > 0) return std::nullopt;
  if (!fits && held_bytes_ + length > 2 * room_bytes()) {
    if (copying_ > 0) return std::nullopt;
    return status(errc::out_of_memory, fmt::format("{} MiB are buffered in incomplete parts, so no part can be sent; an upload must be "
                                                   "written approximately in order",
                                                   held_bytes_ >> 20));
  }
  if (length == usual_part_bytes && !spare_.empty()) {
    to.memory = std::move(spare_.back());
    spare_.pop_back();
  } else {
    to.memory.reset(new (std::nothrow) std::byte[length]);
    if (to.memory == nullptr) return no_memory();
  }
  held_bytes_ += length;
  return status();
}

status upload::copied(lock& guard, part& one, std::uint64_t first, std::uint64_t end, const stop_question& stopped) {
  if (!one.come.add(first, end))
    return {errc::invalid_argument, fmt::format("a part was written in more than {} pieces with gaps between them", come_ranges::most)};
  const bool is_all = one.writers == 0 && one.come.is_whole(one.range.length);
  if (is_all && !one.is_sent && !plan_.is_single()) send(guard, one, stopped);
  return problem_;
}

// --- sending

void upload::send(lock& guard, part& one, const stop_question& stopped) {
  ready_.push_back(&one);
  one.is_sent = true;
  ++sending_;
  send_ready(guard, stopped);
}

// The first caller creates the upload, while other threads gather parts.
void upload::send_ready(lock& guard, const stop_question& stopped) {
  if (creating_) return;
  if (upload_id_.empty() && problem_.ok()) {
    creating_ = true;
    guard.unlock();
    auto made = or_no_memory([&] { return create(stopped); });
    guard.lock();
    creating_ = false;
    changed_.notify_all();
    if (!made.ok() && problem_.ok() && stopped && !stopped().ok()) return;
    if (!made.ok()) fail(made);
  }
  const auto now = std::exchange(ready_, {});
  if (!problem_.ok()) {
    sending_ -= static_cast<unsigned>(now.size());
    return;
  }
  const auto prepared = or_no_memory([&]() -> status {
    for (auto* const each : now) {
      address(*each);
      each->query = upload_query(upload_id_, each->range.number);
      each->sends = each->memory.get();
      each->sends_bytes = each->range.length;
      each->length = each->range.length;
    }
    return {};
  });
  if (!prepared.ok()) {
    sending_ -= static_cast<unsigned>(now.size());
    return fail(prepared);
  }
  under_way_ += static_cast<unsigned>(now.size());
  guard.unlock();
  for (auto* const each : now) launch(*each);
  guard.lock();
}

// TLS protects the bytes; over plain http, or if a profile requests it, they are signed. Hashing a part takes a core 4 to 20 ms, which is
// too long for a reactor thread.
void upload::launch(part& one) noexcept {
  if (!signs_payload(one.at->place()) && !sends_md5_.load()) return network_->begin(one);
  const bool begun = or_without_memory([&] { return network_->aside([this, &one] { hash_and_begin(one); }); }, [] { return false; });
  if (!begun) hash_and_begin(one);
}

void upload::hash_and_begin(part& one) noexcept {
  auto made = or_no_memory([&] { return hash(one); });
  {
    const std::lock_guard guard(lock_);
    if (made.ok()) made = problem_;
  }
  made.ok() ? network_->begin(one) : ended(one, std::move(made));
}

status upload::hash(request& one) const {
  const std::string_view bytes(reinterpret_cast<const char*>(one.sends), static_cast<std::size_t>(one.sends_bytes));
  if (signs_payload(one.at->place())) {
    auto made = payload_hash(bytes);
    if (!made) return made.error();
    one.hash = *std::move(made);
  }
  return sends_md5_.load() ? add_md5(one) : status();
}

status upload::add_md5(request& one) {
  const bool has_content = one.about == request::kind::part || one.about == request::kind::whole;
  if (!has_content || !one.md5.empty()) return {};
  auto made = content_md5({reinterpret_cast<const char*>(one.sends), static_cast<std::size_t>(one.sends_bytes)});
  if (!made) return made.error();
  one.md5 = *std::move(made);
  one.headers.push_back({"content-md5", one.md5});
  return {};
}

// Buckets with Object Lock require a checksum. All servers support MD5, but it takes a core about 20 ms per part, so it is computed only
// for servers that require it.
std::optional<verdict> upload::judge_checksum(const response_head& head, std::string_view body, request& one) {
  if (head.status != 400 || !one.md5.empty()) return std::nullopt;
  const auto error = parse_s3_error(body);
  const auto says = [&](std::string_view word) {
    return error.code.find(word) != std::string::npos || error.message.find(word) != std::string::npos;
  };
  if (!says("MD5") && !says("md5") && !says("checksum") && !says("Checksum") && error.code != "InvalidRequest") return std::nullopt;
  auto made = or_no_memory([&] { return add_md5(one); });
  if (one.md5.empty()) return made.ok() ? std::nullopt : std::optional(refused_for(std::move(made)));
  sends_md5_.store(true);
  return verdict{.then = verdict::kind::renewed};
}

void upload::fail(const status& why) noexcept {
  if (problem_.ok()) problem_ = why;
  changed_.notify_all();
}

// Frees a part's memory, or keeps it for another part.
void upload::release(part& one) noexcept {
  if (one.memory == nullptr) return;
  held_bytes_ -= one.range.length;
  one.sends = nullptr;
  const bool kept = one.range.length == usual_part_bytes && spare_.size() < most_spare_parts && !is_over_ &&
                    or_without_memory([&] { return spare_.push_back(std::move(one.memory)), true; }, [] { return false; });
  if (!kept) one.memory.reset();
}

// --- requests

// Requires lock_.
void upload::address(request& one) noexcept {
  one.owner = this;
  one.at = origin_;
  one.home = origin_;
  one.how = &how_;
  one.gathers = true;
}

status upload::perform(request& one, std::chrono::milliseconds within, const stop_question& stopped) {
  {
    const std::lock_guard guard(lock_);
    address(one);
    one.is_over = false;
    one.cancelled.store(false);
    one.tries = one.moves = one.renewals = one.times_asked = 0;
    ++under_way_;
  }
  if (auto made = one.sends_bytes > 0 || sends_md5_.load() ? hash(one) : status(); !made.ok()) {
    ended(one, made);
    return made;
  }
  one.despite_stop = one.about == request::kind::abort || one.about == request::kind::create;
  network_->begin(one);
  const auto begun = network::clock::now();
  auto unwanted_since = network::clock::time_point::max();
  const auto may_leave = [&] {
    const auto now = network::clock::now();
    unwanted_since = std::min(unwanted_since, now);
    return one.about != request::kind::create || now - unwanted_since >= most_creating;
  };
  lock guard(lock_);
  while (!one.is_over) {
    const bool ends = is_over_ || network_->stopped();
    if (ends && one.about != request::kind::abort && may_leave()) return given_up(guard, one, unwanted());
    if (within != for_ever && network::clock::now() - begun >= within)
      return given_up(guard, one, {errc::timed_out, "the server did not respond in time"});
    if (stopped) {
      if (auto why = stopped(); !why.ok() && may_leave()) return given_up(guard, one, std::move(why));
    }
    changed_.wait_for(guard, stop_interval);
  }
  return one.outcome;
}

// Cancels a request. If it completed first, its own outcome counts.
status upload::given_up(lock& guard, request& one, status why) {
  if (network_->cancel(one)) {
    --under_way_;
    return why;
  }
  changed_.wait(guard, [&] { return one.is_over; });
  return one.outcome.code() == errc::cancelled ? why : one.outcome;
}

result<std::string> upload::request_of(fetch& what) {
  auto& one = static_cast<request&>(what);
  upload_target to;
  {
    const std::lock_guard guard(lock_);
    to = to_;
  }
  ++one.times_asked;
  one.status_code = 0;
  to.address.query = url_query(one.query);
  const auto hash = one.sends_bytes == 0 ? empty_payload_hash : signs_payload(to.address) ? std::string_view(one.hash) : unsigned_payload;
  auto added = to.account->sign_now({.method = one.method, .address = to.address, .headers = one.headers, .payload_hash = hash});
  if (!added) return added.error();
  auto text = fmt::format("{} {} HTTP/1.1\r\nHost: {}\r\nAccept-Encoding: identity\r\nUser-Agent: penstock/{}\r\n", one.method,
                          to.address.unredacted_target(), one.at->host(), penstock::version());
  if (one.method == "PUT" || one.method == "POST") text += fmt::format("Content-Length: {}\r\n", one.sends_bytes);
  for (const auto* const all : {&one.headers, &*added}) {
    for (const auto& each : *all) text += fmt::format("{}: {}\r\n", each.name, each.value);
  }
  return text + "\r\n";
}

std::shared_ptr<s3_account> upload::account() const {
  const std::lock_guard guard(lock_);
  return to_.account;
}

verdict upload::judge(const response_head& head, std::string_view body, fetch& what) {
  auto& one = static_cast<request&>(what);
  one.status_code = head.status;
  if (head.status >= 200 && head.status < 300) return judge_success(head, body, one);
  if (auto moved = judge_region(head, one)) return *std::move(moved);
  if (auto again = judge_checksum(head, body, one)) return *std::move(again);
  const bool is_an_answer = head.status < 500 && head.status != 408 && head.status != 429;
  if (one.about == request::kind::look && is_an_answer) return taken();
  if (one.conditional && (head.status == 409 || head.status == 412))
    return refused_for(status::from_errno(
        EEXIST, head.status == 409 ? "a different write to the same key is in progress" : "the object already exists and was kept"));
  auto known = judged_by_s3(*account(), head, body, what);
  return as_wanted_by_user(known ? *std::move(known) : judged_by_status(head), head, how_);
}

verdict upload::judge_success(const response_head& head, std::string_view body, request& one) {
  switch (one.about) {
    case request::kind::part:
      if (!fits_completion(head.etag)) return refused_for({errc::io, "the server accepted the bytes but returned no ETag"});
      one.told = head.etag;
      break;
    case request::kind::create:
      if (auto id = upload_id_of(body)) {
        one.told = *std::move(id);
        break;
      }
      return refused_for({errc::io, "the server started an upload but returned no upload ID"});
    case request::kind::complete: {
      if (says_completed(body)) break;
      // An error may follow a status that was sent before the server started the work ("CompleteMultipartUpload", Amazon S3 API reference).
      if (parse_s3_error(body).code.empty())
        return {.then = verdict::kind::again, .error = {errc::io, "the server's response does not say whether the object is complete"}};
      auto said = judged_by_s3(*account(), head, body, one);
      return said ? *std::move(said) : refused_for({errc::io, "the server could not complete the object"});
    }
    case request::kind::look:
      one.told = head.upload_mark;
      break;
    case request::kind::whole:
    case request::kind::abort:
      break;
  }
  return taken();
}

std::optional<verdict> upload::judge_region(const response_head& head, request& one) {
  if (one.about != request::kind::create && one.about != request::kind::whole) return std::nullopt;
  const auto& region = head.bucket_region;
  const std::lock_guard guard(lock_);
  if (!is_region(region) || region == to_.account->region() || ++one.moves > most_moves_of_regions) return std::nullopt;
  auto there = in_region_(region);
  if (!there) return refused_for(there.error());
  to_ = *std::move(there);
  origin_ = network_->origin_of(to_.address);
  one.home = origin_;
  return verdict{.then = verdict::kind::renewed};
}

void upload::ended(fetch& what, status how) noexcept {
  auto& one = static_cast<request&>(what);
  const std::lock_guard guard(lock_);
  if (one.about == request::kind::part) {
    auto& sent = static_cast<part&>(one);
    --sending_;
    if (how.ok()) {
      release(sent);
    } else {
      fail(or_no_memory([&] {
        return how.with_context(
            fmt::format("part {}, {}", sent.range.number, shown_range(sent.range.offset, sent.range.offset + sent.range.length)));
      }));
    }
  }
  one.outcome = std::move(how);
  one.is_over = true;
  --under_way_;
  changed_.notify_all();  // under the lock: the waiting thread may destroy the request afterwards
}

// --- creating and completing

status upload::create(const stop_question& stopped) {
  request one(request::kind::create, "POST", "uploads");
  one.headers = headers_;
  one.headers.push_back({mark_header, mark_});
  if (auto made = perform(one, for_ever, stopped); !made.ok()) return made.with_context("start an upload");
  const std::lock_guard guard(lock_);
  upload_id_ = std::move(one.told);
  return {};
}

status upload::check_holes(std::uint64_t total) const {
  for (std::uint64_t at = 0; at < total;) {
    const auto where = plan_.part_at(at);
    const auto length = std::min(where.length, total - where.offset);
    const auto found = parts_.find(where.number);
    const auto gap = found == parts_.end()     ? std::optional(std::pair<std::uint64_t, std::uint64_t>(0, length))
                     : !found->second->is_sent ? found->second->come.first_gap(length)
                                               : std::nullopt;
    if (gap) {
      return {errc::invalid_argument, fmt::format("{} of {} were never written, but an object cannot have holes",
                                                  shown_range(where.offset + gap->first, where.offset + gap->second), total)};
    }
    at = where.offset + length;
  }
  return {};
}

status upload::complete(bool replace) {
  return or_no_memory([&]() -> status {
    lock guard(lock_);
    if (is_over_) return {errc::closed, "the upload has already been completed or aborted"};
    if (!problem_.ok()) return problem_;
    const auto total = size_.value_or(written_end_);
    if (auto hole = check_holes(total); !hole.ok()) return hole;
    const bool is_whole = total == 0 || (parts_.size() == 1 && !parts_.begin()->second->is_sent);
    if (is_whole) {
      if (auto put = put_whole(guard, total, replace); !put.ok()) return put;
    } else {
      auto& last = *parts_.rbegin()->second;
      if (!last.is_sent) {
        last.range.length = total - last.range.offset;
        size_ = total;  // later bytes would end up at different offsets
        send(guard, last, {});
      } else if (!ready_.empty() && !creating_) {
        send_ready(guard, {});
      }
      changed_.wait(guard, [this] { return !problem_.ok() || (sending_ == 0 && !creating_); });
      if (!problem_.ok()) return problem_;
      guard.unlock();
      if (auto completed = complete_parts(replace); !completed.ok()) return completed;
      guard.lock();
    }
    is_over_ = true;
    for (const auto& each : parts_) release(*each.second);
    spare_.clear();
    return {};
  });
}

status upload::put_whole(lock& guard, std::uint64_t total, bool replace) {
  request one(request::kind::whole, "PUT", {});
  if (total > 0) one.sends = parts_.begin()->second->memory.get();
  one.sends_bytes = total;
  one.length = total;
  one.headers = headers_;
  one.headers.push_back({mark_header, mark_});
  guard.unlock();
  status how;
  if (!replace) {
    how = check_free();
    one.conditional = true;
    one.headers.push_back({"if-none-match", "*"});
  }
  if (how.ok()) how = ask_for_object(one, for_ever);
  guard.lock();
  return how;
}

status upload::complete_parts(bool replace) {
  std::vector<std::string_view> etags;
  for (const auto& each : parts_) etags.push_back(each.second->told);
  const auto body = completion_of(etags);
  request one(request::kind::complete, "POST", upload_query(upload_id_, 0));
  one.sends = reinterpret_cast<const std::byte*>(body.data());
  one.sends_bytes = body.size();
  one.works_within = most_completing;
  if (!replace) {
    if (auto taken_already = check_free(); !taken_already.ok()) return taken_already;
    one.conditional = true;
    one.headers = {{"if-none-match", "*"}};
  }
  auto how = ask_for_object(one, most_completing);
  return how.ok() ? how : how.with_context("complete the upload");
}

status upload::ask_for_object(request& one, std::chrono::milliseconds within) {
  bool was_asked_before = true;
  {
    const std::lock_guard guard(lock_);
    std::swap(was_asked_before, was_to_end_);
  }
  auto how = perform(one, within);
  return how.ok() ? how : settled(one, was_asked_before, std::move(how));
}

// The response may have been lost after the server did the work. A retry then reports that the upload does not exist, or that an object
// exists. So check whether the existing object has this upload's mark. Without a response the server may still be working, so the object
// may appear later.
status upload::settled(const request& asked, bool was_asked_before, status how) {
  const bool is_unanswered = how.code() == errc::io || how.code() == errc::timed_out;
  if (!was_asked_before && (asked.times_asked == 0 || (asked.times_asked == 1 && !is_unanswered))) return how;
  const auto there = is_there();
  if (there == true) return {};
  const bool was_refused = asked.status_code >= 400 && asked.status_code < 500;
  return there == false && (was_refused || !is_unanswered) ? how : how.with_context("it is not known whether the object exists");
}

std::optional<bool> upload::is_there() {
  request one(request::kind::look, "HEAD", {});
  one.bodiless = true;
  if (!perform(one, for_ever).ok()) return std::nullopt;
  if (one.status_code == 404) return false;
  return one.status_code == 200 ? std::optional(one.told == mark_) : std::nullopt;
}

// Some servers ignore the condition, so also check in advance.
status upload::check_free() {
  request one(request::kind::look, "HEAD", {});
  one.bodiless = true;
  if (!perform(one, for_ever).ok() || one.status_code != 200 || one.told == mark_) return {};
  return status::from_errno(EEXIST, "the object already exists and was kept");
}

void upload::stop_parts(lock& guard) noexcept {
  sending_ -= static_cast<unsigned>(ready_.size());
  ready_.clear();
  for (const auto& each : parts_) {
    auto& one = *each.second;
    if (!one.is_sent || one.is_over || one.owner == nullptr || !network_->cancel(one)) continue;
    one.is_over = true;
    --sending_;
    --under_way_;
  }
  changed_.wait(guard, [this] { return under_way_ == 0 && !creating_ && copying_ == 0; });
}

// Parts that are being sent while an upload is aborted may remain ("AbortMultipartUpload", Amazon S3 API reference), so stop them first. A
// forked child has no threads.
void upload::abort() noexcept {
  if (network_->forked()) return;
  lock guard(lock_);
  if (is_over_) return;
  is_over_ = true;
  if (problem_.ok()) problem_ = unwanted();
  changed_.notify_all();
  stop_parts(guard);
  for (const auto& each : parts_) release(*each.second);
  spare_.clear();
  if (upload_id_.empty()) return;
  guard.unlock();
  (void)or_no_memory([&] {
    request one(request::kind::abort, "DELETE", upload_query(upload_id_, 0));
    return perform(one, network_->stopped() ? most_aborting_at_stop : most_aborting);
  });
}

// --- a source that writes to an upload

namespace {

class upload_source final : public source {
 public:
  explicit upload_source(std::shared_ptr<upload> to) : source(to->name()), to_(std::move(to)) {
    facts_.device = to_->device();
    facts_.readable = false;
    direct_problem_ = {errc::unsupported, "the target is an upload to a server"};
  }
  result<std::uint64_t> size() override { return to_->size(); }
  status sync() override { return {}; }  // completing the upload reports errors
  status truncate(std::uint64_t bytes) override { return to_->set_size(bytes); }
  result<bool> ends_at(std::uint64_t offset) override { return offset >= to_->size(); }
  io_result fill(std::byte* /*target*/, std::uint64_t /*length*/, std::uint64_t /*offset*/, caching /*by*/) override {
    return {0, {errc::unsupported, "an upload in progress cannot be read"}};
  }
  io_result drain(const std::byte* memory, std::uint64_t length, std::uint64_t offset, const drain_manner& how) override {
    return how.stopped != nullptr ? to_->write(memory, length, offset, *how.stopped) : to_->write(memory, length, offset);
  }
  [[nodiscard]] std::string told() const override { return to_->told(); }

 private:
  const std::shared_ptr<upload> to_;
};

}  // namespace

std::unique_ptr<source> make_upload_source(std::shared_ptr<upload> to) { return std::make_unique<upload_source>(std::move(to)); }

}  // namespace penstock::source::remote
