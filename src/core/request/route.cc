#include "core/request/route.hpp"

#include <algorithm>
#include <cassert>

#include "sys/page_size.hpp"

namespace penstock::core {

namespace {

// Returns true if a caller may transfer such a request GPU-direct. Called before the path is queried. Cached bytes are excluded because a
// copy from the page cache completes before the drive would answer. Unaligned requests are excluded because they would read whole blocks
// through a buffer, or change them.
bool suits_gpu_direct(runtime& with, const file_core& file, path_kind kind, const path::question& asked, const io_options& options,
                      cache_use cache, bool is_forced, const std::byte* address) {
  if (!options.gpu_direct || !file.not_direct().empty() || asked.memory->emulated() || with.path(kind).serves_nothing()) return false;
  // No page of the page cache may contain both an edge of another write and blocks that bypass the cache.
  const auto unit = asked.is_write ? std::max<std::uint64_t>(path::direct_alignment, sys::page_size()) : path::direct_alignment;
  if ((asked.offset | asked.length) % unit != 0 || reinterpret_cast<std::uintptr_t>(address) % path::direct_alignment != 0) return false;
  if (asked.is_write || is_forced) return true;
  // If no path can accept it, skip the page cache lookup.
  if (cache == cache_use::fill || asked.file->descriptors().direct < 0) return false;
  return file.source().resident_bytes(asked.offset, asked.length).value_or(0) < asked.length;
}

// Returns the path on which a caller transfers such a request itself, or automatic if there is none: the first path by rank that declares
// that it can transfer it and does not refuse. The path that accepts every request is not queried.
path_kind path_of_caller(runtime& with, const file_core& file, const path::question& asked, const io_options& options, cache_use cache,
                         const std::byte* address) {
  const bool on_device = asked.memory->on_device();
  const auto base = with.paths().base(on_device);
  const auto forced = with.forced_path(options, on_device);
  for (const auto kind : with.paths().of_callers(on_device)) {
    if (forced != path_kind::automatic && kind != forced) continue;
    const auto& declared = with.paths().of(kind);
    if (asked.length > declared.most_carried_now) continue;
    if (declared.gpu_direct && !suits_gpu_direct(with, file, kind, asked, options, cache, kind == forced, address)) continue;
    if (kind == base || !with.path(kind).refuses(asked)) return kind;
  }
  return path_kind::automatic;
}

// Returns true if a read comes from a file system that answers slowly, or may. Lanes then request all parts concurrently, where a single
// thread would wait for each in turn.
bool comes_late(const file_core& file, std::uint64_t offset, std::uint64_t length, const staging::place* memory, asker who) {
  if (file.answers() == staging::answer_times::verdict::prompt) return false;
  if (who == asker::batch) return memory != nullptr && !memory->on_device();
  return who == asker::waits && length > small_request_bytes && file.source().resident_bytes(offset, length).value_or(0) < length;
}

}  // namespace

bool comes_from_far(const file_core& file, bool is_write, const io_options& options) noexcept {
  return !is_write && file.turns(options) != nullptr;
}

// Requests to a remote source are not gathered, because all of them are in flight at once. Requests held back by a limit wait piece by
// piece.
bool starts_at_once(const file_core& file, std::uint64_t length, const io_options& options) noexcept {
  return length <= small_request_bytes && file.turns(options) == nullptr && !file.answers_late() && !file.is_limited() &&
         !file.runtime().forced(options) && !options.cufile.after_default_stream;
}

bool spares_cache(const file_core& file, bool is_write, std::uint64_t length, cache_use asked) noexcept {
  return length > small_request_bytes && (is_write ? file.source().facts().direct_writes : asked == cache_use::bypass);
}

cache_use cache_of(cache_use asked, bool is_write, std::uint64_t length, const staging::place* memory) noexcept {
  if (is_write || length <= small_request_bytes || asked != cache_use::automatic || memory == nullptr) return asked;
  return memory->shares_host_memory() ? cache_use::bypass : asked;
}

route find_route(runtime& with, const file_core& file, bool is_write, std::uint64_t offset, std::uint64_t length,
                 const staging::place* memory, const io_options& options, asker who, const std::byte* address) {
  assert(with.paths().count() <= 16);
  route found{carrier::lanes, cache_of(file.asked_cache(options), is_write, length, memory)};
  if (file.turns() != nullptr || who == asker::stream || comes_from_far(file, is_write, options)) return found;
  if (!is_write && comes_late(file, offset, length, memory, who)) return found;
  if (who == asker::waits) {
    // A caller that transfers it directly would overtake the others.
    if (options.priority == request_priority::background) return found;
    found.path = path_of_caller(with, file, {&file.source(), memory, is_write, offset, length}, options, found.cache, address);
    if (found.path != path_kind::automatic) found.by = carrier::caller;
  } else if (who == asker::batch ? length <= small_request_bytes && !with.forced(options) : starts_at_once(file, length, options)) {
    found.by = carrier::collector;
  }
  return found;
}

}  // namespace penstock::core
