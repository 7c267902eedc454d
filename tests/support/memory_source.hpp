// Files in memory: sources without descriptor, kernel or page cache. Code that works on them works on any source. Behind a far_network they
// are far sources, which answer as the network decides.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/engine_core.hpp"
#include "source/source.hpp"
#include "support/far_network.hpp"

namespace penstock::testing {

// The bytes of one file, which may be opened many times. Thread-safe.
struct memory_bytes {
  mutable std::shared_mutex lock;  // guards all members below
  std::vector<std::byte> content;
  std::uint64_t cold_from = 0;  // the bytes between these two are not in the cache, if there is one
  std::uint64_t cold_to = 0;
};

// Called before each read and write; a returned error becomes the outcome.
using memory_hook = std::function<status(bool is_write, std::uint64_t offset)>;

class memory_source final : public source::source {
 public:
  // cached: the source has a cache, which it can bypass and whose content it reports. through: null if the source answers at once.
  memory_source(std::string name, const open_options& options, bool cached, std::shared_ptr<memory_bytes> bytes, memory_hook hook,
                std::shared_ptr<far_network> through = nullptr)
      : source(std::move(name)), bytes_(std::move(bytes)), hook_(std::move(hook)), cached_(cached), through_(std::move(through)) {
    facts_ = {.in_memory = true, .readable = options.read, .writable = options.write, .direct_writes = options.direct_writes};
    if (through_ != nullptr) facts_.fills_at_once = through_->fills_at_once();
    if (!cached) direct_problem_ = {errc::unsupported, "the data is in memory"};
  }

  result<std::uint64_t> size() override {
    const std::shared_lock guard(bytes_->lock);
    return bytes_->content.size();
  }
  status sync() override { return {}; }
  result<std::uint64_t> resident_bytes(std::uint64_t offset, std::uint64_t length) override {
    const std::shared_lock guard(bytes_->lock);
    const std::uint64_t end = std::min<std::uint64_t>(offset + length, bytes_->content.size());
    if (end <= offset) return std::uint64_t{0};
    const std::uint64_t cold_from = std::max(offset, bytes_->cold_from);
    const std::uint64_t cold_to = std::min(end, bytes_->cold_to);
    return end - offset - (cold_to > cold_from ? cold_to - cold_from : 0);
  }
  result<bool> ends_at(std::uint64_t offset) override {
    const std::shared_lock guard(bytes_->lock);
    return offset >= bytes_->content.size();
  }

  io_result fill(std::byte* target, std::uint64_t length, std::uint64_t offset, ::penstock::source::caching by) override {
    if (by == ::penstock::source::caching::direct && !cached_) return {0, direct_problem()};
    return through_ != nullptr ? source::fill(target, length, offset, by) : read(target, length, offset);
  }
  void begin_fill(::penstock::source::far_fill& what) noexcept override {
    through_->begin(what, *this,
                    [this](::penstock::source::far_fill& asked) { return read(asked.target(), asked.length(), asked.offset()); });
  }
  void cancel(::penstock::source::far_fill& what) noexcept override { through_->cancel(what); }
  status close() override {
    if (through_ != nullptr) through_->close(*this);
    return {};
  }
  io_result drain(const std::byte* memory, std::uint64_t length, std::uint64_t offset,
                  const ::penstock::source::drain_manner& how) override {
    if (how.by == ::penstock::source::caching::direct && (!cached_ || !::penstock::source::aligned(memory, length, offset))) {
      return {0, {errc::invalid_argument, "not aligned, or not to go past a cache"}};
    }
    if (auto refused = ask(true, offset); !refused.ok()) return {0, std::move(refused)};
    const std::lock_guard guard(bytes_->lock);
    auto& content = bytes_->content;
    if (content.size() < offset + length) content.resize(offset + length);
    std::memcpy(content.data() + offset, memory, length);
    return {length, {}};
  }

 private:
  io_result read(std::byte* target, std::uint64_t length, std::uint64_t offset) const {
    if (auto refused = ask(false, offset); !refused.ok()) return {0, std::move(refused)};
    const std::shared_lock guard(bytes_->lock);
    const auto& content = bytes_->content;
    const std::uint64_t there = offset < content.size() ? std::min<std::uint64_t>(length, content.size() - offset) : 0;
    if (there > 0) std::memcpy(target, content.data() + offset, there);
    return {there, {}};
  }
  [[nodiscard]] status ask(bool is_write, std::uint64_t offset) const { return hook_ ? hook_(is_write, offset) : status(); }

  const std::shared_ptr<memory_bytes> bytes_;
  const memory_hook hook_;
  const bool cached_;
  const std::shared_ptr<far_network> through_;
};

// Files in memory by name, like a folder. Thread-safe.
class memory_files {
 public:
  explicit memory_files(bool cached, memory_hook hook = {}, std::shared_ptr<far_network> through = nullptr)
      : cached_(cached), hook_(std::move(hook)), through_(std::move(through)) {}

  result<file> open(const engine& with, const std::string& name, const open_options& options) {
    const auto bytes = find(name, options.create);
    if (bytes == nullptr) return status(errc::not_found, name);
    if (options.truncate) resize(name, 0);
    return core::open_source(with, std::make_unique<memory_source>(name, options, cached_, bytes, hook_, through_));
  }
  void put(const std::string& name, std::span<const std::byte> content) {
    const auto bytes = find(name, true);
    const std::lock_guard guard(bytes->lock);
    bytes->content.assign(content.begin(), content.end());
    bytes->cold_from = bytes->cold_to = 0;
  }
  // Also puts the file into the cache.
  std::vector<std::byte> get(const std::string& name) {
    const auto bytes = find(name, true);
    const std::lock_guard guard(bytes->lock);
    bytes->cold_from = bytes->cold_to = 0;
    return bytes->content;
  }
  void resize(const std::string& name, std::uint64_t size) {
    const auto bytes = find(name, true);
    const std::lock_guard guard(bytes->lock);
    bytes->content.resize(size);
  }
  // length 0: up to the end. Only one range per file can be cold at a time.
  void drop_cache(const std::string& name, std::uint64_t offset, std::uint64_t length) {
    const auto bytes = find(name, true);
    const std::lock_guard guard(bytes->lock);
    if (!cached_) return;
    bytes->cold_from = offset;
    bytes->cold_to = length == 0 ? ~std::uint64_t{0} : offset + length;
  }
  void remove(const std::string& name) {
    const std::lock_guard guard(lock_);
    files_.erase(name);
  }

 private:
  std::shared_ptr<memory_bytes> find(const std::string& name, bool create) {
    const std::lock_guard guard(lock_);
    auto found = files_.find(name);
    if (found == files_.end() && create) found = files_.emplace(name, std::make_shared<memory_bytes>()).first;
    return found == files_.end() ? nullptr : found->second;
  }

  const bool cached_;
  const memory_hook hook_;
  const std::shared_ptr<far_network> through_;
  std::mutex lock_;  // guards files_
  std::map<std::string, std::shared_ptr<memory_bytes>> files_;
};

}  // namespace penstock::testing
