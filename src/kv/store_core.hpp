// An open store: its volume and its put and get queues.
#pragma once

#include <atomic>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "core/resident.hpp"
#include "kv/get_queue.hpp"
#include "kv/operations.hpp"
#include "kv/put_queue.hpp"
#include "kv/volume.hpp"
#include "penstock/engine.hpp"
#include "penstock/kv.hpp"
#include "sys/fork_guard.hpp"

namespace penstock::kv {

class store_core final : public core::resident {
 public:
  static result<std::shared_ptr<store_core>> open(const engine& with, const std::string& folder, const store_options& options);
  store_core(const store_core&) = delete;
  store_core& operator=(const store_core&) = delete;
  ~store_core() override = default;

  [[nodiscard]] bool forked() const noexcept { return fork_guard_.forked(); }
  // Returns why a call cannot start now; ok if it can. writes: the call changes the store.
  [[nodiscard]] status refusal(bool writes) const;

  // Move from done, unless they throw. Throw bad_alloc; in that case nothing has started.
  call put(std::span<const item> items, callback& done, const stream_order& on = {});
  call get(std::span<const item> items, callback& done, const stream_order& on = {});
  std::vector<key_result> get_and_wait(std::span<const item> items);
  std::vector<key_result> sizes(std::span<const std::string_view> keys);
  std::vector<key_result> drop(std::span<const std::string_view> keys);
  [[nodiscard]] volume& content() noexcept { return *volume_; }
  [[nodiscard]] store_stats stats() const;
  status close();
  // Ends the threads and makes everything durable. The next put or get starts them again.
  status rest(deadline_clock::time_point until) override;

 private:
  store_core(const engine& with, const store_options& options, std::unique_ptr<volume> opened)
      : engine_(with.core()),
        options_(options),
        volume_(std::move(opened)),
        puts_(engine_, *volume_, options_),
        gets_(engine_, *volume_, options_) {}

  const engine engine_;
  const store_options options_;
  const sys::fork_guard fork_guard_;
  const std::unique_ptr<volume> volume_;
  under_way under_way_;
  put_queue puts_;
  get_queue gets_;
  std::atomic<bool> closed_{false};
};

}  // namespace penstock::kv
