#include "cli/common/hash_source.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

namespace penstock::cli {
namespace {

status hash_object(bench::hasher& into, const file& source, std::uint64_t offset, std::uint64_t length, const bench::stop_function& stop) {
  std::vector<std::byte> buffer(std::min<std::uint64_t>(length, bench::piece_bytes));
  while (length > 0) {
    if (stop()) return {errc::cancelled, "check: interrupted"};
    const std::uint64_t count = std::min<std::uint64_t>(length, buffer.size());
    const io_result done = source.read(buffer.data(), count, static_cast<std::int64_t>(offset));
    if (!done.ok()) return done.error.with_context("check");
    if (done.bytes_done < count)
      return {errc::io, fmt::format("check: {} is shorter than the range to compare", shown_name(source.path()))};
    into.update(buffer.data(), count);
    offset += count;
    length -= count;
  }
  return {};
}

}  // namespace

status hash_source(bench::hasher& into, const file& source, std::uint64_t offset, std::uint64_t length, const bench::stop_function& stop) {
  if (is_url(source.path())) return hash_object(into, source, offset, length, stop);
  return bench::hash_file(into, source.path(), offset, length, stop);
}

}  // namespace penstock::cli
