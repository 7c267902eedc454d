#include "path/direct_read.hpp"

#include <algorithm>

#include <fmt/format.h>

namespace penstock::path {

namespace {

// Returns the piece size. There must be enough pieces to keep a drive busy, but they should be large, because each one wakes a thread. On a
// slow file system, it is the size of one response.
std::uint64_t ring_piece_bytes(std::uint64_t extent_bytes, const std::byte* memory, const staging::answer_times* times) {
  const auto usual = std::clamp(round_up(extent_bytes / 4), std::uint64_t{128} << 10, std::uint64_t{2} << 20);
  if (times == nullptr || !times->late()) return usual;
  const bool is_aligned = reinterpret_cast<std::uintptr_t>(memory) % direct_alignment == 0;
  return is_aligned ? std::max(usual, times->piece_bytes()) : late_piece_into_any_memory(times->piece_bytes());
}

}  // namespace

bool ends_at(source::source& file, std::uint64_t offset) {
  const auto end = file.ends_at(offset);
  return end && *end;
}

tally contiguous(const std::vector<staging::ring_piece>& pieces) {
  tally total;
  for (const auto& piece : pieces) {
    total.bytes += piece.moved;
    if (piece.error != 0) total.error = piece.error;
    if (piece.moved < piece.length) break;
  }
  return total;
}

void add_ring_pieces(staging::ring_task& ring, source::source& file, std::byte* memory, std::uint64_t offset, std::uint64_t bytes) {
  const std::uint64_t piece = ring_piece_bytes(bytes, memory, ring.times);
  for (std::uint64_t at = 0; at < bytes; at += piece) {
    ring.pieces.push_back({.fd = file.descriptors().direct,
                           .memory = memory + at,
                           .length = static_cast<std::uint32_t>(std::min(piece, bytes - at)),
                           .file_offset = offset + at});
  }
}

io_result ring_read_outcome(const job& item, const staging::ring_task& ring) {
  const auto total = contiguous(ring.pieces);
  if (total.error != 0) {
    return {0, status::from_errno(total.error, fmt::format("direct read {} at {} of {}", item.length, item.offset, item.file->name()))};
  }
  const std::uint64_t skip = item.offset % direct_alignment;
  const std::uint64_t bytes = std::min(item.length, total.bytes > skip ? total.bytes - skip : 0);
  if (bytes == item.length || ends_at(*item.file, item.offset + bytes)) return {bytes, {}};
  return {0, status(errc::io, fmt::format("direct read {} at {} of {}: only {} bytes were read, although the file does not end there",
                                          item.length, item.offset, item.file->name(), bytes))};
}

}  // namespace penstock::path
