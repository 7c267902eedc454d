// An object on a server that is read through the node's cache. A far source, like the underlying object. A fill reads present blocks from
// the cache file, fetches and stores missing blocks, and waits for blocks that another process is fetching. If the cache fails, the bytes
// are read from the server. Thread-safe, except close().
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include "remote/cache/cache_entry.hpp"
#include "remote/cache/node_cache.hpp"
#include "source/source.hpp"

namespace penstock::source::remote {

class cached_object final : public source {
 public:
  // behind: the underlying object, in the entry's version.
  cached_object(std::unique_ptr<source> behind, std::shared_ptr<node_cache> by, std::shared_ptr<cache_entry> of);
  ~cached_object() override;

  result<std::uint64_t> size() override { return behind_->size(); }
  status sync() override { return {}; }
  result<bool> ends_at(std::uint64_t offset) override { return behind_->ends_at(offset); }
  io_result drain(const std::byte* memory, std::uint64_t length, std::uint64_t offset, const drain_manner& how) override {
    return behind_->drain(memory, length, offset, how);
  }
  void begin_fill(far_fill& what) noexcept override;
  void cancel(far_fill& what) noexcept override;
  std::shared_ptr<turnstile> turns(staging::lanes& by, turnstile::share& of) override { return behind_->turns(by, of); }
  [[nodiscard]] std::string told() const override;
  status close() override;

 private:
  class part;
  struct filling;
  void stop(const far_fill* what) noexcept;
  void release(filling& what) noexcept;

  const std::unique_ptr<source> behind_;
  const std::shared_ptr<node_cache> cache_;
  const std::shared_ptr<cache_entry> entry_;
  std::mutex lock_;           // guards the members below
  filling* first_ = nullptr;  // list of fillings in progress
  unsigned under_way_ = 0;    // includes fillings whose completion is being reported
  std::condition_variable quiet_;
};

}  // namespace penstock::source::remote
