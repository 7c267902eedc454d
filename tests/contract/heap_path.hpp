// A path of the tests' own, which proves the seam: one file of code, and one line where an engine is given its further paths. It carries
// whole requests through a buffer on the heap, piece by piece on the thread that runs the job.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "path/data_path.hpp"

namespace penstock::testing {

// What tests tell it, and what it tells them.
struct heap_path_controls {
  std::atomic<std::uint64_t> fails_after{~std::uint64_t{0}};  // bytes of a job
  std::atomic<bool> serves_nothing{false};
  std::atomic<int> asked{0};        // whether it refuses
  std::atomic<int> remembered{0};   // ranges of memory that are registered
  std::atomic<int> forgotten{0};    // files
  std::atomic<int> carried_now{0};  // small requests, by their callers
};
inline heap_path_controls heap_path_told;

class heap_path final : public path::data_path {
 public:
  [[nodiscard]] const path::declaration& declared() const override;

  [[nodiscard]] bool serves_nothing() const noexcept override { return heap_path_told.serves_nothing; }

  [[nodiscard]] std::optional<std::string> refuses(const path::question& asked) override {
    ++heap_path_told.asked;
    if (heap_path_told.serves_nothing) return "the test wants it to serve nothing";
    if (!asked.memory->on_device()) return "the memory is not on a device";
    return std::nullopt;
  }

  bool run(path::job& item) override {
    item.moved = 0;
    for (;;) {
      const std::uint64_t wanted = std::min(buffer_bytes, item.length - item.moved);
      auto stop = item.owner->stopped();
      if (!stop.ok() || wanted == 0) {
        item.owner->finished(item, item.moved, stop.with_context("heap"));
        return true;
      }
      auto moved = item.moved < heap_path_told.fails_after
                       ? carry({item.file, item.place.via, item.memory + item.moved, item.offset + item.moved, item.is_write}, wanted)
                       : io_result{0, {errc::io, "the test wants it to fail"}};
      item.moved += moved.bytes_done;
      if (!moved.ok()) {
        item.owner->hand_over(item, moved.error.with_context("heap"));
        return true;
      }
      if (moved.bytes_done < wanted) {
        item.owner->finished(item, item.moved, {});
        return true;
      }
    }
  }

  io_result carry_now(const path::small_transfer& what) override {
    ++heap_path_told.carried_now;
    return carry({what.file, what.place->via, what.memory, what.offset, what.is_write}, what.length);
  }

  void forget(const source::source& /*closing*/) override { ++heap_path_told.forgotten; }
  status remember_memory(const staging::place& /*place*/, std::byte* /*base*/, std::uint64_t /*bytes*/) override {
    ++heap_path_told.remembered;
    return {};
  }
  void forget_memory(std::byte* /*base*/) override { --heap_path_told.remembered; }

 private:
  static constexpr std::uint64_t buffer_bytes = std::uint64_t{128} << 10;

  struct extent {
    source::source* file;
    staging::link* via;
    std::byte* memory;
    std::uint64_t offset;
    bool is_write;
  };
  static io_result carry(const extent& item, std::uint64_t bytes) {
    const auto buffer = std::make_unique<std::byte[]>(bytes);
    auto& session = item.via->session();
    const auto stream = item.via->small_stream();
    if (!stream) return {0, stream.error()};
    if (item.is_write) {
      if (auto copied = session.copy_small(buffer.get(), item.memory, bytes, *stream); !copied.ok()) return {0, std::move(copied)};
      return item.file->drain(buffer.get(), bytes, item.offset);
    }
    auto got = item.file->fill(buffer.get(), bytes, item.offset);
    if (got.bytes_done == 0) return got;
    auto copied = session.copy_small(item.memory, buffer.get(), got.bytes_done, *stream);
    return copied.ok() ? got : io_result{0, std::move(copied)};
  }
};

inline constexpr path::declaration declared_heap{
    .name = "heap",
    .rank = 5,
    .successor = "staged",
    .carries = path::portion::whole_requests,
    .most_carried_now = 8192,
    .reason = "the tests brought it",
    .make = [](const path::services& /*with*/) -> std::unique_ptr<path::data_path> { return std::make_unique<heap_path>(); },
};

inline const path::declaration& heap_path::declared() const { return declared_heap; }

}  // namespace penstock::testing
