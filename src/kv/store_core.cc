#include "kv/store_core.hpp"

#include <fmt/format.h>

#include <system_error>
#include <utility>

#include "base/no_memory.hpp"
#include "core/engine_core.hpp"
#include "core/gate.hpp"

namespace penstock::kv {

namespace {

// Moves from done only when nothing can fail any more.
io_callback told_of(const std::shared_ptr<std::vector<key_result>>& results, callback& done) {
  const auto kept = std::make_shared<callback>();
  io_callback made = [results, kept](const io_result&) { (*kept)(*results); };
  *kept = std::move(done);
  return made;
}

// Returns the call for an operation that begin() starts. If it does not start, completes it here with the reason for all keys.
template <class Operation, class Begin>
call begun(Operation* op, callback& done, std::span<const item> items, Begin&& begin) {
  call made(operation(op), op->results());
  if (done) op->set_callback(told_of(op->results(), done));
  op->retain();
  status error;
  try {
    error = or_no_memory([&]() -> status {
      begin();
      return {};
    });
  } catch (const std::system_error& none) {
    error = status::from_errno(none.code().value(), "start a store thread");
  }
  if (error.ok()) return made;
  for (std::size_t i = 0; i < items.size(); ++i) (*op->results())[i] = failed_with(error, items[i].key);
  op->end();
  return made;
}

}  // namespace

result<std::shared_ptr<store_core>> store_core::open(const engine& with, const std::string& folder, const store_options& options) {
  if (with.core() == nullptr) return status(errc::closed, "the engine has been moved from");
  if (with.core()->forked()) return status(errc::forked, "the engine belongs to the parent process");
  auto opened = volume::open(with, folder, options);
  if (!opened) return opened.error().with_context(fmt::format("store {}", folder));
  std::shared_ptr<store_core> made(new store_core(with, options, *std::move(opened)));
  core::gate::add(made);
  return made;
}

status store_core::refusal(bool writes) const {
  if (forked()) return {errc::forked, fmt::format("the store {} belongs to the parent process", volume_->path())};
  if (closed_.load()) return {errc::closed, fmt::format("the store {} is closed", volume_->path())};
  if (writes && volume_->read_only()) return {errc::permission_denied, fmt::format("the store {} is open read-only", volume_->path())};
  return {};
}

call store_core::put(std::span<const item> items, callback& done, const stream_order& on) {
  auto* const op = new put_operation(engine_.core(), under_way_, items);
  return begun(op, done, items, [&] { items.empty() ? op->end() : on ? puts_.add_on_stream(*op, *on) : puts_.add(*op); });
}

call store_core::get(std::span<const item> items, callback& done, const stream_order& on) {
  auto* const op = new get_operation(engine_.core(), under_way_, items.size(), on);
  return begun(op, done, items, [&] { gets_.add(*op, items); });
}

// Runs on the caller's thread, because the caller waits for the result.
std::vector<key_result> store_core::get_and_wait(std::span<const item> items) {
  const counted_call counted(under_way_);
  std::vector<key_result> results(items.size());
  fetch one(engine_, *volume_, items, options_.checksums, results);
  while (one.begin()) {
    one.finish(engine_.submit(one.requests(), {}, {}, [&one](std::size_t index, const io_result&) { one.request_ended(index); }).wait());
  }
  return results;
}

std::vector<key_result> store_core::sizes(std::span<const std::string_view> keys) {
  std::vector<key_result> results(keys.size());
  const status followed = volume_->follow();
  for (std::size_t i = keys.size(); i-- > 0;) {  // so that the first key becomes the most recently used
    const auto found = volume_->use(keys[i]);
    results[i] = !followed.ok() ? failed_with(followed, keys[i])
                 : found        ? key_result{outcome::done, found->length, {}}
                                : key_result{outcome::absent, 0, {}};
  }
  return results;
}

std::vector<key_result> store_core::drop(std::span<const std::string_view> keys) {
  std::vector<key_result> results(keys.size());
  volume_->drop(keys, results);
  return results;
}

store_stats store_core::stats() const {
  store_stats told;
  if (forked()) return told;
  volume_->add_to(told);
  puts_.add_to(told);
  return told;
}

status store_core::rest(deadline_clock::time_point /*until*/) {
  if (!refusal(false).ok()) return {};  // closed, or the parent's
  puts_.stop();
  gets_.stop();
  return (volume_->read_only() ? status() : volume_->sync()).with_context(fmt::format("store {}", volume_->path()));
}

status store_core::close() {
  if (status refused = refusal(false); !refused.ok()) return refused;
  closed_.store(true);
  under_way_.wait_for_none();
  puts_.stop();
  gets_.stop();
  const status synced = volume_->read_only() ? status() : volume_->sync();
  const status closed = volume_->close();
  return synced.ok() ? closed : synced;
}

}  // namespace penstock::kv
