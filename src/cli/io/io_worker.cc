#include "cli/io/io_worker.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <latch>

#include "cli/common/interrupt.hpp"

namespace penstock::cli {
namespace {

using clock = std::chrono::steady_clock;

constexpr std::uint64_t checked_at_once = std::uint64_t{1} << 20;
constexpr std::byte wiped{0xEE};  // differs from the pattern and from unwritten zeros

status moved_all(const io_result& done, const io_piece& piece) {
  if (!done.ok()) return done.error;
  if (done.bytes_done == piece.length) return {};
  return {errc::io, fmt::format("{} ends at {}, before the end of a request of {} bytes at {}", piece.target->path(),
                                piece.offset + done.bytes_done, piece.length, piece.offset)};
}

std::int64_t at(const io_piece& piece) { return static_cast<std::int64_t>(piece.offset); }

}  // namespace

// --- requests

io_cursor::io_cursor(const io_region& region, std::uint64_t io_size, std::uint64_t alignment, bool random, std::uint64_t seed)
    : region_(region),
      io_size_(io_size),
      alignment_(alignment == 0 ? io_size : alignment),
      requests_((region.length + io_size - 1) / io_size),
      random_(random),
      seed_(seed),
      random_source_(seed) {}

void io_cursor::restart() {
  done_ = 0;
  random_source_ = bench::random_bytes(seed_);
}

io_request_place io_cursor::next() {
  const std::uint64_t index = done_++;
  const std::uint64_t length = std::min(io_size_, region_.length);
  if (random_) return {region_.first + random_source_.next() % ((region_.length - length) / alignment_ + 1) * alignment_, length};
  const std::uint64_t offset = index * io_size_;
  return {region_.first + offset, std::min(io_size_, region_.length - offset)};
}

unsigned io_worker::depth_of(const io_plan& plan, std::size_t cursors) {
  if (is_batch(plan.transfer)) return plan.depth > 0 ? plan.depth : static_cast<unsigned>(cursors);
  if (plan.transfer == transfer_type::cpu_async_gpu) return plan.depth > 0 ? plan.depth : 2;
  if (plan.transfer == transfer_type::gpu_direct_async) return plan.depth > 0 ? plan.depth : 1;
  return 1;
}

result<io_worker> io_worker::make(const io_shared& shared, std::vector<io_cursor> cursors) {
  io_worker made(shared, std::move(cursors));
  made.depth_ = depth_of(shared.plan, made.cursors_.size());
  const std::uint64_t bytes = shared.io_size * made.depth_;
  const bool registered = shared.plan.register_memory;
  const bool only_host = shared.plan.transfer == transfer_type::cpu_only;
  auto memory = io_memory::make(shared.owner, only_host ? buffer_type::plain : shared.job.memory, shared.device, bytes, registered);
  if (!memory) return memory.error();
  made.memory_ = *std::move(memory);
  if (is_by_host(shared.plan.transfer) && !only_host) {
    auto host = io_memory::make(shared.owner, buffer_type::pinned, shared.device, bytes, true);
    if (!host) return host.error();
    made.host_ = *std::move(host);
  }
  if (is_by_stream(shared.plan.transfer)) {
    auto stream = bench::caller_stream::make(shared.device);
    if (!stream) return stream.error();
    made.stream_ = *std::move(stream);
  }
  return made;
}

// Collects as many requests as may be in flight at once. Returns false at the end of the data.
bool io_worker::take_round(bool over_again) {
  round_.clear();
  for (std::size_t tried = 0; tried < cursors_.size() && round_.size() < depth_;) {
    io_cursor& cursor = cursors_[next_cursor_++ % cursors_.size()];
    if (cursor.at_end() && over_again) cursor.go_on();
    if (cursor.at_end()) {
      ++tried;
      continue;
    }
    tried = 0;
    const io_request_place place = cursor.next();
    const std::size_t slot = round_.size() * shared_->io_size;
    const bool own_memory = shared_->source == nullptr || shared_->plan.refill;
    std::byte* const memory = own_memory ? memory_->data() + slot : shared_->source->data() + place.offset % pattern_period;
    round_.push_back({&cursor.target(), memory, host_ ? host_->data() + slot : memory, place.length, place.offset});
  }
  return !round_.empty();
}

status io_worker::refill() {
  for (const io_piece& piece : round_) {
    const status error = shared_->owner.copy(piece.memory, shared_->source->data() + piece.offset % pattern_period, piece.length);
    if (!error.ok()) return error;
  }
  return {};
}

// --- timed transfers

void io_worker::note(clock::time_point since, std::uint64_t requests) { latencies_.add(clock::now() - since, requests); }

status io_worker::run(clock::time_point until, std::atomic<std::uint64_t>& done_bytes) {
  const bool timed = shared_->plan.seconds > 0;
  if (shared_->source == nullptr) {
    if (status error = wipe(); !error.ok()) return error;
  }
  while (take_round(timed)) {
    if (shared_->source != nullptr && shared_->plan.refill) {
      if (status error = refill(); !error.ok()) return error;
    }
    if (status error = move(); !error.ok()) return error;
    std::uint64_t moved = 0;
    for (const io_piece& piece : round_) moved += piece.length;
    bytes_ += moved;
    done_bytes.fetch_add(moved, std::memory_order_relaxed);
    if (interrupted()) return {errc::cancelled, "interrupted"};
    if (timed && clock::now() >= until) break;
  }
  return {};
}

status io_worker::move() {
  switch (shared_->plan.transfer) {
    case transfer_type::gpu_direct:
    case transfer_type::cpu_only:
      return move_blocking();
    case transfer_type::cpu_gpu:
    case transfer_type::cpu_cached_gpu:
      return move_by_host();
    case transfer_type::cpu_async_gpu:
      return move_overlapped();
    case transfer_type::gpu_batch:
      return move_as_batch();
    case transfer_type::gpu_direct_async:
    case transfer_type::gpu_batch_stream:
      return move_on_stream();
  }
  return {errc::internal, "unknown transfer type"};
}

status io_worker::move_blocking() {
  for (const io_piece& piece : round_) {
    const auto start = clock::now();
    const file& handle = piece.target->handle();
    const bool write = is_write(shared_->plan.io);
    const io_result done = write ? handle.write(piece.memory, piece.length, at(piece)) : handle.read(piece.memory, piece.length, at(piece));
    if (status error = moved_all(done, piece); !error.ok()) return error;
    note(start);
  }
  return {};
}

status io_worker::move_by_host() {
  for (const io_piece& piece : round_) {
    const auto start = clock::now();
    const file& handle = piece.target->handle();
    if (is_write(shared_->plan.io)) {
      if (status error = shared_->owner.copy(piece.host, piece.memory, piece.length); !error.ok()) return error;
      if (status error = moved_all(handle.write(piece.host, piece.length, at(piece)), piece); !error.ok()) return error;
    } else {
      if (status error = moved_all(handle.read(piece.host, piece.length, at(piece)), piece); !error.ok()) return error;
      if (status error = shared_->owner.copy(piece.memory, piece.host, piece.length); !error.ok()) return error;
    }
    note(start);
  }
  return {};
}

// Copies one piece while requests for the other pieces are in flight. On return, all of them have completed.
status io_worker::move_overlapped() {
  const bool write = is_write(shared_->plan.io);
  const auto start = clock::now();
  status first;
  std::vector<operation> under_way;
  for (const io_piece& piece : round_) {
    if (write && first.ok()) first = shared_->owner.copy(piece.host, piece.memory, piece.length);
    if (!first.ok()) break;
    const file& handle = piece.target->handle();
    under_way.push_back(write ? handle.write_async(piece.host, piece.length, at(piece))
                              : handle.read_async(piece.host, piece.length, at(piece)));
  }
  for (std::size_t i = 0; i < under_way.size(); ++i) {
    status error = moved_all(under_way[i].wait(), round_[i]);
    if (error.ok() && !write && first.ok()) error = shared_->owner.copy(round_[i].memory, round_[i].host, round_[i].length);
    if (first.ok()) first = error;
    note(start);
  }
  return first;
}

status io_worker::move_as_batch() {
  std::vector<io_request> requests;
  for (const io_piece& piece : round_)
    requests.push_back({&piece.target->handle(), piece.memory, piece.length, at(piece), is_write(shared_->plan.io)});
  const auto start = clock::now();
  const auto results = shared_->owner.submit(requests).wait();
  for (std::size_t i = 0; i < results.size(); ++i) {
    if (status error = moved_all(results[i], round_[i]); !error.ok()) return error;
  }
  note(start, round_.size());
  return {};
}

// On return, everything that was queued has completed, even if a later request could not be queued.
status io_worker::move_on_stream() {
  struct queued {
    std::size_t length = 0;
    std::int64_t offset = 0, done = 0;
    io_result ended;
  };
  std::vector<queued> all(round_.size());
  std::latch left(static_cast<std::ptrdiff_t>(round_.size()));
  const auto start = clock::now();
  status first;
  for (std::size_t i = 0; i < round_.size(); ++i) {
    const io_piece& piece = round_[i];
    queued& one = all[i];
    one.length = piece.length;
    one.offset = at(piece);
    stream_request request{stream_->get(), piece.memory, &one.length, &one.offset, nullptr, &one.done, {}};
    request.ended = [&one, &left](const io_result& ended) {
      one.ended = ended;
      left.count_down();
    };
    const file& handle = piece.target->handle();
    if (first.ok()) first = is_write(shared_->plan.io) ? handle.write_on_stream(request) : handle.read_on_stream(request);
    if (!first.ok()) {
      left.count_down(static_cast<std::ptrdiff_t>(round_.size() - i));
      break;
    }
  }
  left.wait();
  for (std::size_t i = 0; i < all.size() && first.ok(); ++i) first = moved_all(all[i].ended, round_[i]);
  if (first.ok()) note(start, round_.size());
  return first;
}

// --- comparison

status io_worker::wipe() {
  const std::uint64_t bytes = shared_->io_size * depth_;
  const std::vector<std::byte> mark(std::min(bytes, checked_at_once), wiped);
  for (std::uint64_t done = 0; done < bytes; done += mark.size()) {
    const std::uint64_t count = std::min<std::uint64_t>(mark.size(), bytes - done);
    if (status error = shared_->owner.copy(memory_->data() + done, mark.data(), count); !error.ok()) return error;
  }
  return {};
}

status io_worker::check_bytes(const io_target& target, std::span<const std::byte> bytes, std::uint64_t offset) {
  if (!is_write(shared_->plan.io) && !target.before().generation) {
    std::vector<std::byte> expected(bytes.size());
    if (status error = read_plainly(target.plain_fd(), target.path(), offset, expected); !error.ok()) return error;
    if (!std::equal(bytes.begin(), bytes.end(), expected.begin()))
      return {errc::internal, fmt::format("WRONG BYTES at {} of {}: the bytes that were read differ from the file", offset, target.path())};
    compared_plainly_ += bytes.size();
    return {};
  }
  if (!checker_) {
    const auto only = is_write(shared_->plan.io) ? std::optional(shared_->generation) : std::nullopt;
    checker_.emplace(checked_at_once, only, [this](std::uint64_t from, std::span<std::byte> to) {
      return read_plainly(checked_->plain_fd(), checked_->path(), from, to);
    });
  }
  if (checked_ != &target) checker_->begin_file(target.before().generation);
  checked_ = &target;
  return checker_->check(bytes, offset).with_context(target.path());
}

status io_worker::check_round() {
  std::vector<std::byte> buffer(std::min(shared_->io_size, checked_at_once));
  for (const io_piece& piece : round_) {
    for (std::uint64_t done = 0; done < piece.length; done += buffer.size()) {
      const std::span<std::byte> part(buffer.data(), std::min<std::uint64_t>(buffer.size(), piece.length - done));
      const status error = is_write(shared_->plan.io)
                               ? read_plainly(piece.target->plain_fd(), piece.target->path(), piece.offset + done, part)
                               : shared_->owner.copy(part.data(), piece.memory + done, part.size());
      if (!error.ok()) return error;
      if (status wrong = check_bytes(*piece.target, part, piece.offset + done); !wrong.ok()) return wrong;
    }
  }
  return {};
}

status io_worker::check_latest() { return is_write(shared_->plan.io) ? status() : check_round(); }

status io_worker::check_again(std::uint64_t most_bytes) {
  const bool write = is_write(shared_->plan.io);
  const latency_counts timed = latencies_;  // the requests of this check are not timed
  const std::uint64_t made = requests();
  for (io_cursor& each : cursors_) each.restart();
  next_cursor_ = 0;
  std::uint64_t again = 0;
  for (std::uint64_t bytes = 0; bytes < most_bytes && again < made && take_round(write);) {
    again += round_.size();
    for (const io_piece& piece : round_) bytes += piece.length;
    status error = write ? status() : wipe();
    if (error.ok() && !write) error = move();
    if (error.ok()) error = check_round();
    if (error.ok() && interrupted()) error = {errc::cancelled, "interrupted"};
    if (!error.ok()) return error;
  }
  latencies_ = timed;
  return {};
}

}  // namespace penstock::cli
