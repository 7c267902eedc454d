#include "path/slab_io.hpp"

#include "path/file_io.hpp"

namespace penstock::path {

namespace {

template <class Move>
io_result by_route(const file_view& file, bool past_cache, const told_of_fallback& told, Move move) {
  auto moved = move(past_cache);
  if (moved.ok() || !past_cache || told == nullptr || file.cached_fd < 0) return moved;
  told(moved.error);
  return move(false);
}

}  // namespace

io_result fill_slab(sys::kernel& kernel, const file_view& file, std::byte* target, std::uint64_t length, std::uint64_t offset,
                    slab_route how, const told_of_fallback& told) {
  return by_route(file, how.past_cache, told, [&](bool past_cache) {
    if (past_cache) return read_blocks_around(kernel, file, target - offset % direct_alignment, length, offset);
    return how.sent_at_once ? read_streaming(kernel, file, target, length, offset) : read_fully(kernel, file, target, length, offset);
  });
}

io_result drain_slab(sys::kernel& kernel, const file_view& file, const std::byte* source, std::uint64_t length, std::uint64_t offset,
                     slab_route how, const told_of_fallback& told) {
  return by_route(file, how.past_cache, told, [&](bool past_cache) {
    return past_cache ? write_direct(kernel, file, source, length, offset) : write_fully(kernel, file, source, length, offset);
  });
}

bool is_cold(sys::kernel& kernel, const file_view& file, std::uint64_t offset, std::uint64_t length) {
  if (file.direct_fd < 0) return false;
  return file.cached_fd < 0 || kernel.resident_bytes(file.cached_fd, offset, length).value_or(length) == 0;
}

}  // namespace penstock::path
