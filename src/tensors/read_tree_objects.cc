#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string_view>
#include <utility>

#include "base/crew.hpp"
#include "base/key_path.hpp"
#include "base/no_memory.hpp"
#include "penstock/tree.hpp"
#include "tensors/tree_blocks.hpp"

namespace penstock {

namespace {

constexpr std::chrono::milliseconds tick{50};

class object_tree_reader {
 public:
  object_tree_reader(const engine& by, std::string folder, const remote_options& how, const tree_options& options)
      : by_(by), folder_(std::move(folder)), how_(how), options_(options) {}

  result<std::vector<tree_file>> read() {
    how_.stop_requested = options_.stop_requested;
    auto listed = by_.list_remote(folder_, how_, false, options_.max_files);
    if (!listed) return listed.error();
    if (listed->empty()) return status(errc::not_found, fmt::format("there are no objects below {}", shown_name(folder_)));
    objects_ = *std::move(listed);
    if (status error = place_all(); !error.ok()) return error;
    how_.stop_requested = {};  // may run only on the calling thread
    run_in_crew(options_.max_threads == 0 ? most_crew_threads() : options_.max_threads, [this](bool is_caller) { return step(is_caller); });
    if (!error_.ok()) return std::move(error_);
    return std::move(files_);
  }

 private:
  // Sorts the objects by path and chooses memory for each. The sizes are those in the listing.
  status place_all() {
    std::vector<std::pair<std::string, remote_object>> found;
    std::uint64_t total = 0;
    for (remote_object& each : objects_) {
      auto at = path_of_key(key_below(folder_, each.url));
      if (!at) return at.error().with_context(fmt::format("read {}", shown_name(each.url)));
      const std::uint64_t bytes = each.size.value_or(0);
      if (at->is_folder && bytes == 0) continue;
      if (at->is_folder)
        return {errc::invalid_argument, fmt::format("{} cannot be read as a file: its key ends with a slash", shown_name(each.url))};
      if (bytes > options_.max_bytes - total)
        return {errc::invalid_argument,
                fmt::format("the files in {} have more than {} bytes (max_bytes)", shown_name(folder_), options_.max_bytes)};
      total += bytes;
      found.emplace_back(std::move(at->path), std::move(each));
    }
    std::ranges::sort(found, {}, &std::pair<std::string, remote_object>::first);
    objects_.clear();
    block_in_use into;
    for (auto& [path, object] : found) {
      if (!files_.empty() && files_.back().path == path)
        return {errc::invalid_argument,
                fmt::format("{} and {} have the same path", shown_name(objects_.back().url), shown_name(object.url))};
      files_.push_back({std::move(path), nullptr, 0, static_cast<std::size_t>(object.size.value_or(0))});
      objects_.push_back(std::move(object));
      if (status error = find_room(files_.back(), into); !error.ok()) return error;
    }
    return {};
  }

  bool step(bool is_caller) {
    const std::size_t i = next_++;
    if (i >= files_.size() || has_failed_) {
      if (is_caller) wait_for_others();
      return false;
    }
    if (status error = or_no_memory([&] { return read_one(objects_[i], files_[i], is_caller); }); !error.ok()) fail(std::move(error));
    const std::lock_guard guard(lock_);
    if (++steps_done_ == files_.size()) last_step_.notify_one();
    return true;
  }

  // Only the calling thread notices that reading has to stop, so it stays until the others have finished.
  void wait_for_others() {
    std::unique_lock guard(lock_);
    while (!has_failed_ && !last_step_.wait_for(guard, tick, [this] { return steps_done_ == files_.size(); })) {
      guard.unlock();
      stop_if_asked();
      guard.lock();
    }
  }

  void fail(status error) {
    const std::lock_guard guard(lock_);
    if (!has_failed_.exchange(true)) error_ = std::move(error);
  }

  status read_one(const remote_object& object, const tree_file& into, bool is_caller) {
    if (is_caller) stop_if_asked();
    if (into.bytes == 0) return {};
    remote_options known = how_;
    known.size = object.size;
    const auto source = by_.open_remote(object.url, known);
    if (!source) return source.error();
    operation reading = source->read_async(into.block->memory.get() + into.offset, into.bytes, 0);
    while (!reading.wait_for(tick)) {
      if (is_caller) stop_if_asked();
      if (has_failed_) reading.cancel();
    }
    const io_result done = reading.wait();
    if (!done.ok()) return done.error;
    if (done.bytes_done < into.bytes) return {errc::io, fmt::format("{} changed while it was read", shown_name(object.url))};
    return {};
  }

  void stop_if_asked() {
    if (options_.stop_requested && options_.stop_requested())
      fail({errc::cancelled, fmt::format("reading {} was stopped", shown_name(folder_))});
  }

  const engine& by_;
  const std::string folder_;
  remote_options how_;
  const tree_options& options_;
  std::vector<remote_object> objects_;
  std::vector<tree_file> files_;  // of the objects, in the same order
  std::atomic<std::size_t> next_{0};
  std::atomic<bool> has_failed_{false};
  std::mutex lock_;  // guards the members below
  status error_;
  std::size_t steps_done_ = 0;
  std::condition_variable last_step_;
};

}  // namespace

result<std::vector<tree_file>> read_tree(const engine& by, const std::string& folder, const remote_options& how,
                                         const tree_options& options) {
  return or_no_memory([&]() -> result<std::vector<tree_file>> {
    if (!is_url(folder)) return read_tree(file_path(folder), options);
    return object_tree_reader(by, url_of_folder(folder), how, options).read();
  });
}

}  // namespace penstock
