#include <new>
#include <utility>

#include "base/no_memory.hpp"
#include "core/gate.hpp"
#include "kv/store_core.hpp"
#include "penstock/kv.hpp"

namespace penstock::kv {

namespace {

const status& moved_away() {
  static const status error(errc::closed, "the store has been moved from");
  return error;
}

status refusal_of(const std::shared_ptr<store_core>& core, bool writes) { return core == nullptr ? moved_away() : core->refusal(writes); }

std::string_view key_of(const item& of) { return of.key; }
std::string_view key_of(std::string_view key) { return key; }

template <class Keys>
std::vector<key_result> all_failed(const Keys& keys, const status& why) {
  std::vector<key_result> results;
  results.reserve(keys.size());
  for (const auto& each : keys) results.push_back(failed_with(why, key_of(each)));
  return results;
}

// A call that cannot start: reports the reason at once.
call refused_call(std::span<const item> items, const status& why, const callback& done) {
  auto results = std::make_shared<const std::vector<key_result>>(all_failed(items, why));
  if (done) done(*results);
  return {operation(core::refused(why)), std::move(results)};
}

}  // namespace

std::vector<key_result> call::wait() {
  (void)running_.wait();
  return results_ == nullptr ? std::vector<key_result>() : *results_;
}

store::store(std::shared_ptr<store_core> made) noexcept : core_(std::move(made)) {}
store::store(store&&) noexcept = default;

store& store::operator=(store&& other) noexcept {
  std::swap(core_, other.core_);
  return *this;
}

// A forked child cannot stop its parent's threads or release its locks, so everything stays allocated in the child.
store::~store() {
  if (core_ == nullptr) return;
  if (core_->forked()) {
    core_->content().let_go_of_lock();
    (void)new (std::nothrow) std::shared_ptr<store_core>(std::move(core_));
    return;
  }
  (void)core_->close();
}

result<store> store::open(const engine& with, const std::string& folder, const store_options& options) {
  const core::calling call;
  return or_no_memory([&]() -> result<store> {
    auto made = store_core::open(with, folder, options);
    if (!made) return made.error();
    return store(*std::move(made));
  });
}

std::vector<key_result> store::put(std::span<const item> items) const { return put_async(items).wait(); }

call store::put_async(std::span<const item> items, callback done) const {
  const core::calling call;
  if (const status refused = refusal_of(core_, true); !refused.ok()) return refused_call(items, refused, done);
  return or_without_memory([&] { return core_->put(items, done); }, [&] { return refused_call(items, no_memory(), done); });
}

call store::put_on_stream(void* stream, std::span<const item> items, callback done) const {
  const core::calling call;
  if (const status refused = refusal_of(core_, true); !refused.ok()) return refused_call(items, refused, done);
  return or_without_memory([&] { return core_->put(items, done, stream); }, [&] { return refused_call(items, no_memory(), done); });
}

call store::get_on_stream(void* stream, std::span<const item> items, callback done) const {
  const core::calling call;
  if (const status refused = refusal_of(core_, false); !refused.ok()) return refused_call(items, refused, done);
  return or_without_memory([&] { return core_->get(items, done, stream); }, [&] { return refused_call(items, no_memory(), done); });
}

std::vector<key_result> store::get(std::span<const item> items) const {
  const core::calling call;
  if (const status refused = refusal_of(core_, false); !refused.ok()) return all_failed(items, refused);
  return or_without_memory([&] { return core_->get_and_wait(items); }, [&] { return all_failed(items, no_memory()); });
}

call store::get_async(std::span<const item> items, callback done) const {
  const core::calling call;
  if (const status refused = refusal_of(core_, false); !refused.ok()) return refused_call(items, refused, done);
  return or_without_memory([&] { return core_->get(items, done); }, [&] { return refused_call(items, no_memory(), done); });
}

std::vector<key_result> store::sizes(std::span<const std::string_view> keys) const {
  const core::calling call;
  if (const status refused = refusal_of(core_, false); !refused.ok()) return all_failed(keys, refused);
  return or_without_memory([&] { return core_->sizes(keys); }, [&] { return all_failed(keys, no_memory()); });
}

result<std::vector<bool>> store::exists(std::span<const std::string_view> keys) const {
  return or_no_memory([&]() -> result<std::vector<bool>> {
    std::vector<bool> found;
    for (const key_result& each : sizes(keys)) {
      if (each.ended == outcome::failed) return each.error;
      found.push_back(each.ended == outcome::done);
    }
    return found;
  });
}

std::vector<key_result> store::drop(std::span<const std::string_view> keys) const {
  const core::calling call;
  if (const status refused = refusal_of(core_, true); !refused.ok()) return all_failed(keys, refused);
  return or_without_memory([&] { return core_->drop(keys); }, [&] { return all_failed(keys, no_memory()); });
}

status store::sync() const {
  const core::calling call;
  if (status refused = refusal_of(core_, true); !refused.ok()) return refused;
  return or_no_memory([&] { return core_->content().sync(); });
}

store_stats store::stats() const { return core_ == nullptr ? store_stats() : core_->stats(); }

const std::string& store::folder() const noexcept {
  static const std::string none;
  return core_ == nullptr ? none : core_->content().path();
}

status store::close() {
  const core::calling call;
  if (core_ == nullptr) return moved_away();
  return or_no_memory([&] { return core_->close(); });
}

}  // namespace penstock::kv
