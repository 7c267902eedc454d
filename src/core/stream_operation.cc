#include "core/stream_operation.hpp"

#include <fmt/format.h>

#include "core/engine_core.hpp"

namespace penstock::core {

status stream_operation::queue(const std::shared_ptr<engine_core>& engine, const std::shared_ptr<file_core>& file,
                               const stream_request& what, bool is_write) {
  if (what.memory == nullptr) return {errc::bad_memory, "null pointer"};
  if (what.length == nullptr || what.offset == nullptr) return {errc::invalid_argument, "length and offset pointers must not be null"};
  if (engine->forked()) return {errc::forked, "the engine belongs to the parent process"};
  const auto place = engine->place_of(what.memory, 1);
  if (!place) return place.error();
  if (!place->on_device()) return {errc::unsupported, "a stream-ordered request needs memory of the stream's device"};
  if (auto problem = engine->lanes().ready(); !problem.ok()) return problem;
  if (auto problem = file->begin(is_write); !problem.ok()) return problem;

  auto& session = *place->session;
  auto flag = engine->flags_.take(*place->pool, session);
  if (!flag) {
    file->end();
    return flag.error();
  }
  auto* made = new stream_operation(engine, file, what, is_write);
  made->flag_ = *flag;
  if (auto problem = session.call(what.stream, &stream_operation::reached, made); !problem.ok()) {
    engine->flags_.unused(*flag);
    engine->flags_.raise(*flag);
    file->end();
    delete made;
    return problem.with_context("stream-ordered request");
  }
  made->hold(session);
  made->release();
  return {};
}

// Holds the work that comes later on the stream until the request has ended.
void stream_operation::hold(device::session& session) {
  if (session.wait_value(what_.stream, flag_.word, flag_.raised).ok()) {
    engine_->flags_.queued(flag_, what_.stream);
    return;
  }
  engine_->flags_.unused(flag_);
  holders_.fetch_add(1);
  if (session.call(what_.stream, &stream_operation::wait_until_ended, this).ok()) return;
  // Nor that way: then the host waits, as the last means to keep the order.
  wait_until_ended(this);
}

void stream_operation::reached(void* self) {
  const staging::worker_scope borrowed;  // the driver's thread, on which no engine may end
  auto& op = *static_cast<stream_operation*>(self);
  const auto engine = op.engine_;  // the request may end before push_urgent() returns
  engine->lanes().push_urgent(op.list_, op);
}

bool stream_operation::run() {
  start();
  return true;
}

void stream_operation::start() {
  const std::int64_t skip = what_.memory_offset != nullptr ? *what_.memory_offset : 0;
  const std::int64_t offset = *what_.offset;
  const transfer what{static_cast<std::byte*>(what_.memory) + skip, *what_.length, static_cast<std::uint64_t>(offset), is_write_};
  const io_options options;
  status problem = skip < 0 ? status(errc::invalid_argument, "negative memory offset") : engine_->check(what, options);
  const auto place =
      problem.ok() && what.length > 0 ? engine_->place_of(what.memory, what.length) : result<path::memory_view>(path::memory_view{});
  if (problem.ok()) problem = place.error();
  const auto engine = engine_;
  auto* op = engine->make_request(*file_, file_, what, place.value_or({}), options);
  op->set_on_end([this](const io_result& outcome) { ended(outcome); });
  auto pieces = problem.ok() && what.length > 0 ? engine->plan_request(*file_, what, *place, options, engine->lanes().count())
                                                : result<std::vector<planned_piece>>(std::vector<planned_piece>());
  if (problem.ok()) problem = pieces.error();
  if (problem.ok()) {
    op->start(*pieces, false);
  } else {
    op->fail(std::move(problem));
  }
}

void stream_operation::ended(const io_result& outcome) {
  if (what_.bytes_done != nullptr) *what_.bytes_done = outcome.ok() ? static_cast<std::int64_t>(outcome.bytes_done) : -1;
  if (what_.ended) what_.ended(outcome);
  engine_->flags_.raise(flag_);
  done_.release();
  release();
}

void stream_operation::wait_until_ended(void* self) {
  const staging::worker_scope borrowed;
  auto* op = static_cast<stream_operation*>(self);
  op->done_.acquire();
  op->release();
}

void stream_operation::release() {
  if (holders_.fetch_sub(1, std::memory_order_acq_rel) == 1) delete this;
}

}  // namespace penstock::core
