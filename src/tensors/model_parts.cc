#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/no_memory.hpp"
#include "penstock/model.hpp"
#include "tensors/checks.hpp"

namespace penstock {

namespace {

status no_part(const tensor_facts& tensor, std::string_view why) {
  if (tensor.name.empty()) return {errc::invalid_argument, std::string(why)};  // an array that the caller describes
  return {errc::invalid_argument,
          fmt::format("{} of shape [{}]: {}", tensors::tensor_called(tensor.name), fmt::join(tensor.shape, ", "), why)};
}

// The tensor's facts may come from an untrusted source.
status check_facts(const tensor_facts& tensor) {
  const auto bytes = tensor_bytes(tensor.type, tensor.shape);
  if (!bytes) return bytes.error().with_context(tensors::tensor_called(tensor.name));
  return *bytes == tensor.bytes ? status() : no_part(tensor, fmt::format("the size is {} bytes, not {}", *bytes, tensor.bytes));
}

// --- elements of one dimension

// Every step-th element from start on.
struct elements {
  std::uint64_t start = 0;
  std::uint64_t count = 0;
  std::uint64_t step = 1;
};

struct one_dimension {
  const tensor_facts& tensor;
  std::size_t number;
  [[nodiscard]] std::uint64_t length() const noexcept { return tensor.shape[number]; }
  [[nodiscard]] status error(std::string_view why) const { return no_part(tensor, why); }
};

// Returns a position within [0, length] for one that may be negative or too large.
std::uint64_t position(std::int64_t index, std::uint64_t length) noexcept {
  if (index >= 0) return std::min(static_cast<std::uint64_t>(index), length);
  return length - std::min(0 - static_cast<std::uint64_t>(index), length);
}

result<elements> elements_of(all_elements /*all*/, one_dimension from) { return elements{0, from.length()}; }

result<elements> elements_of(const index_range& range, one_dimension from) {
  if (range.step < 1) return from.error(fmt::format("the step {} in dimension {} is not positive", range.step, from.number));
  const std::uint64_t start = position(range.first, from.length());
  const std::uint64_t end = range.end ? position(*range.end, from.length()) : from.length();
  const auto step = static_cast<std::uint64_t>(range.step);
  return elements{start, start < end ? (end - start - 1) / step + 1 : 0, step};
}

result<elements> elements_of(std::int64_t index, one_dimension from) {
  const std::uint64_t least_length = index < 0 ? 0 - static_cast<std::uint64_t>(index) : static_cast<std::uint64_t>(index) + 1;
  if (from.length() < least_length) return from.error(fmt::format("there is no index {} in dimension {}", index, from.number));
  return elements{position(index, from.length()), 1};
}

result<elements> elements_of(model_rank rank, one_dimension from) {
  if (rank.number >= rank.count) return from.error(fmt::format("rank {} of {} does not exist", rank.number, rank.count));
  if (from.length() % rank.count != 0)
    return from.error(fmt::format("{} rows of dimension {} cannot be divided evenly among {}", from.length(), from.number, rank.count));
  const std::uint64_t count = from.length() / rank.count;
  return elements{count * rank.number, count};
}

// --- runs

// Sets first, run_bytes and grid. No count is 0, so no product exceeds the tensor's size, which was checked.
status set_runs(const tensor_facts& tensor, std::span<const elements> wanted, tensor_part& part) {
  std::uint64_t first = 0, stride = bits_of(tensor.type), run = stride;  // in bits
  std::uint64_t bits = 0;                                                // those that are set in any start or length
  for (std::size_t i = wanted.size(); i-- > 0; stride *= tensor.shape[i]) {
    const auto [start, count, step] = wanted[i];
    first += start * stride;
    if (count == 1) continue;
    if (part.grid.empty() && step * stride == run) {
      run *= count;
    } else if (!part.grid.empty() && step * stride == part.grid.back().count * part.grid.back().step) {
      part.grid.back().count *= count;
    } else {
      part.grid.push_back({count, step * stride});
      bits |= step * stride;
    }
  }
  if ((bits | first | run) % 8 != 0)
    return no_part(tensor, fmt::format("its parts of type {} would not start at byte boundaries", to_string(tensor.type)));
  part.first = first / 8;
  part.run_bytes = run / 8;
  for (tensor_part::axis& each : part.grid) each.step /= 8;
  std::ranges::reverse(part.grid);
  if (const std::uint64_t runs = part.runs(); runs > most_part_runs)
    return no_part(tensor, fmt::format("the part has {} runs of {} bytes in the file, but the limit is {} runs: select longer runs, or "
                                       "read the gaps too and select the part in memory",
                                       runs, part.run_bytes, most_part_runs));
  return {};
}

// --- gaps

// In host memory, a run costs as much as copying a few KiB. Rows are read if they are small, or not much larger than the runs.
constexpr std::uint64_t near_run_bytes = std::uint64_t{16} << 10;
constexpr std::uint64_t few_bytes = std::uint64_t{256} << 10;
constexpr std::uint64_t most_times_run = 4;

struct rows_of_runs {
  std::uint64_t run;  // in bytes
  std::uint64_t row;
  std::uint64_t count;
};

bool reads_rows(rows_of_runs rows, const gap_options& gaps) noexcept {
  if (rows.run < gaps.short_run_bytes && rows.count > gaps.many_runs) return true;
  const auto is_near = [&] { return rows.row * rows.count <= few_bytes || rows.row <= most_times_run * rows.run; };
  return gaps.to_host && rows.count > 1 && rows.run < near_run_bytes && is_near();
}

// Adds gaps to the elements that are read. Returns what is left to cut in each dimension.
tensor_selection add_gaps(const tensor_facts& tensor, const tensor_selection& selection, std::span<elements> read,
                          const gap_options& gaps) {
  tensor_selection cut(read.size());
  const auto is_index = [&](std::size_t i) { return i < selection.size() && std::holds_alternative<std::int64_t>(selection[i]); };
  for (std::size_t i = 0; i < cut.size(); ++i) {
    if (is_index(i)) cut[i] = std::int64_t{0};
  }
  bool are_added = false;
  std::uint64_t inner = bits_of(tensor.type);
  for (std::size_t i = read.size(); i-- > 0; inner *= tensor.shape[i]) {
    const elements wanted = read[i];
    const auto first = static_cast<std::int64_t>(wanted.start), step = static_cast<std::int64_t>(wanted.step);
    const std::uint64_t end = wanted.start + (wanted.count - 1) * wanted.step + 1;
    if (wanted.count > 1 && wanted.step > 1) {
      if (inner / 8 >= gaps.short_row_bytes) break;
      read[i] = {wanted.start, end - wanted.start};
      cut[i] = index_range{.step = step};
      are_added = true;
    }
    if (read[i].count == tensor.shape[i]) continue;
    std::uint64_t rows = 1;
    for (const elements& outer : read.first(i)) rows *= outer.count;
    if (!reads_rows({read[i].count * inner / 8, tensor.shape[i] * inner / 8, rows}, gaps)) break;
    read[i] = {0, tensor.shape[i]};
    cut[i] = is_index(i) ? dimension_selection(first) : index_range{first, static_cast<std::int64_t>(end), step};
    are_added = true;
  }
  return are_added ? std::move(cut) : tensor_selection();
}

result<tensor_part> cut(const tensor_facts& tensor, const tensor_selection& selection, const gap_options* gaps) {
  if (status error = check_facts(tensor); !error.ok()) return error;
  const std::size_t dimensions = tensor.shape.size();
  if (selection.size() > dimensions) return no_part(tensor, fmt::format("there is no dimension {}", selection.size() - 1));
  tensor_part part;
  std::vector<elements> wanted(dimensions);
  bool is_empty = false;
  for (std::size_t i = 0; i < dimensions; ++i) {
    const dimension_selection each = i < selection.size() ? selection[i] : all_elements();
    auto found = std::visit([&](const auto& which) { return elements_of(which, {tensor, i}); }, each);
    if (!found) return found.error();
    wanted[i] = *found;
    is_empty = is_empty || found->count == 0;
    if (!std::holds_alternative<std::int64_t>(each)) part.shape.push_back(found->count);
  }
  if (is_empty) return part;
  if (gaps != nullptr) part.cut = add_gaps(tensor, selection, wanted, *gaps);
  if (!part.cut.empty()) {
    part.shape.clear();
    for (const elements& each : wanted) part.shape.push_back(each.count);
  }
  if (status error = set_runs(tensor, wanted, part); !error.ok()) return error;
  return part;
}

}  // namespace

std::uint64_t tensor_part::runs() const noexcept {
  std::uint64_t product = 1;
  for (const axis& each : grid) product *= each.count;
  return product;
}

std::uint64_t tensor_part::start_of(std::uint64_t run) const noexcept {
  std::uint64_t start = first;
  for (auto each = grid.rbegin(); each != grid.rend(); ++each) {
    start += run % each->count * each->step;
    run /= each->count;
  }
  return start;
}

result<tensor_part> part_of(const tensor_facts& tensor, const tensor_selection& selection) {
  return or_no_memory([&] { return cut(tensor, selection, nullptr); });
}

result<tensor_part> part_of(const tensor_facts& tensor, const tensor_selection& selection, const gap_options& gaps) {
  return or_no_memory([&] { return cut(tensor, selection, &gaps); });
}

result<tensor_part> part_of(const tensor_facts& tensor, int dimension, model_rank rank) {
  return or_no_memory([&]() -> result<tensor_part> {
    const auto dimensions = static_cast<std::int64_t>(tensor.shape.size());
    if (dimension < -dimensions || dimension >= dimensions) return no_part(tensor, fmt::format("there is no dimension {}", dimension));
    tensor_selection selection(static_cast<std::size_t>(dimension < 0 ? dimension + dimensions : dimension));
    selection.emplace_back(rank);
    return part_of(tensor, selection);
  });
}

}  // namespace penstock
