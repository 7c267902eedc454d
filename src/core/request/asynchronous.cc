#include "core/request/asynchronous.hpp"

#include <utility>

#include "base/no_memory.hpp"
#include "core/mount.hpp"
#include "core/request/collector.hpp"
#include "core/request/request.hpp"

namespace penstock::core {

namespace {

sys::nvtx_range shown_range(const runtime& with, const file_core& file, const transfer& what) {
  return with.shown_range(what.is_write ? "write" : "read", what.length, file.name());
}

operation* begin_small(runtime& with, const std::shared_ptr<file_core>& file, const transfer& what, const io_options& options,
                       io_callback& callback) {
  auto& on = file->mount();
  admission admitted;
  auto problem = or_no_memory([&]() -> status {
    if (auto refused = admitted.enter(with, *file, what, file); !refused.ok()) return refused;
    if (auto refused = admitted.check(options); !refused.ok()) return refused;
    admitted.decide(options, asker::goes_on);
    return on.lanes(options.priority).ready();
  });
  auto* op = new small_request(with.shared_from_this(), std::move(admitted), on.collector(options.priority));
  op->set_deadline(options.deadline);
  op->show_as(shown_range(with, *file, what));
  op->set_callback(std::move(callback));  // from here on, the outcome is reported through the callback
  op->retain();
  if (problem.ok()) problem = op->watch_deadline();
  if (problem.ok() && what.length > 0) {
    on.collector(options.priority).add(*op);
  } else {
    op->end({0, std::move(problem)});
  }
  return op;
}

operation* begin_large(runtime& with, const std::shared_ptr<file_core>& file, const transfer& what, const io_options& options,
                       io_callback& callback) {
  admission admitted;
  auto problem = or_no_memory([&]() -> status {
    if (auto refused = admitted.admit(with, *file, what, options, asker::goes_on, file); !refused.ok()) return refused;
    return file->mount().lanes(options.priority).ready();
  });
  auto* op = new request(with.shared_from_this(), std::move(admitted), options);
  op->set_callback(std::move(callback));  // as above
  op->show_as(shown_range(with, *file, what));
  op->retain();
  if (problem.ok()) {
    op->begin();
  } else {
    op->fail(std::move(problem));
  }
  return op;
}

}  // namespace

operation* begin(runtime& with, const std::shared_ptr<file_core>& file, const transfer& what, const io_options& options,
                 io_callback& callback) {
  return starts_at_once(*file, what.length, options) ? begin_small(with, file, what, options, callback)
                                                     : begin_large(with, file, what, options, callback);
}

}  // namespace penstock::core
