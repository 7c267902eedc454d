#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <unordered_set>

#include "base/checked.hpp"
#include "base/no_memory.hpp"
#include "penstock/model.hpp"
#include "tensors/checks.hpp"

namespace penstock {

namespace {

status no_layout(std::string message) { return {errc::invalid_argument, std::move(message)}; }

// --- layout

class layout_maker {
 public:
  explicit layout_maker(const layout_options& options) : options_(options) {}

  result<model_layout> make(const model& from) {
    if (!std::has_single_bit(options_.alignment)) return no_layout("the alignment must be a power of two");
    if (options_.selection && options_.dimension) return no_layout("selection and dimension exclude each other: set only one of them");
    if (options_.rank.number >= options_.rank.count)
      return no_layout(fmt::format("rank {} of {} does not exist", options_.rank.number, options_.rank.count));
    if (options_.names) {
      wanted_.insert(options_.names->begin(), options_.names->end());
      if (status error = check_names(from); !error.ok()) return error;
    }
    for (const model_file& file : from.files()) {
      for (const tensor_facts& each : file.header.tensors()) {
        if (options_.names && !wanted_.contains(each.name)) continue;
        if (status error = add({&file, &each}); !error.ok()) return error;
      }
    }
    return std::move(made_);
  }

 private:
  [[nodiscard]] status check_names(const model& from) const {
    std::vector<std::string_view> missing;
    for (const std::string& each : *options_.names) {
      if (!from.find(each)) missing.emplace_back(each);
    }
    if (missing.empty()) return {};
    return {errc::not_found, fmt::format("no file of the model contains {}", tensors::listed(missing))};
  }
  status add(model_tensor tensor) {
    auto part = part_for(*tensor.facts);
    if (!part) return part.error();
    // Memory for larger offsets could not be allocated.
    const auto end = range_end(next_, part->bytes());
    if (!end || *end > max_file_offset - std::min(options_.alignment, max_file_offset))
      return no_layout("the tensors are larger than the address space");
    const std::uint64_t length = (part->bytes() + options_.alignment - 1) & ~(options_.alignment - 1);
    if (options_.window_bytes != 0 && next_ + length > options_.window_bytes) next_ = 0;
    made_.tensors.push_back({tensor, *std::move(part), next_});
    next_ += length;
    made_.bytes = std::max(made_.bytes, next_);
    return {};
  }
  [[nodiscard]] result<tensor_part> part_for(const tensor_facts& tensor) const {
    const auto dimension = options_.dimension && options_.rank.count > 1 ? options_.dimension(tensor) : std::nullopt;
    if (dimension) return part_of(tensor, *dimension, options_.rank);
    return part_of(tensor, options_.selection ? options_.selection(tensor) : tensor_selection());
  }

  const layout_options& options_;
  std::unordered_set<std::string_view> wanted_;
  std::uint64_t next_ = 0;  // the first free place
  model_layout made_;
};

// --- reading

std::vector<model_range> cut_ranges(const model_layout& layout, std::uint64_t most_bytes) {
  std::vector<model_range> ranges;
  for (const placed_tensor& each : layout.tensors) {
    for (std::uint64_t run = 0; run < each.part.runs(); ++run) {
      const std::uint64_t offset = each.tensor.facts->offset + each.part.start_of(run);
      const std::uint64_t place = each.place + run * each.part.run_bytes;
      for (std::uint64_t done = 0; done < each.part.run_bytes; done += most_bytes) {
        ranges.push_back({each.tensor, offset + done, std::min(most_bytes, each.part.run_bytes - done), place + done});
      }
    }
  }
  return ranges;
}

result<std::vector<io_request>> make_requests(std::span<const model_range> ranges, std::span<void* const> memory) {
  constexpr std::uint64_t most = std::uint64_t{1} << 32;
  if (!ranges.empty() && memory.size() > most / ranges.size()) return no_layout("too many requests for one batch");
  std::vector<io_request> requests;
  requests.reserve(ranges.size() * memory.size());
  for (void* const each : memory) {
    for (const model_range& range : ranges) {
      io_request request;
      request.target = &range.tensor.file->source;
      request.memory = static_cast<std::byte*>(each) + range.place;
      request.length = range.length;
      request.offset = static_cast<std::int64_t>(range.offset);
      if (requests.size() >= ranges.size()) request.copy_of = static_cast<std::uint32_t>(requests.size() - ranges.size());
      requests.push_back(request);
    }
  }
  return requests;
}

status find_failure(std::span<const model_range> ranges, std::span<const io_result> results) {
  if (results.size() != ranges.size())
    return no_layout(fmt::format("{} results were given for {} requests", results.size(), ranges.size()));
  for (std::size_t i = 0; i < ranges.size(); ++i) {
    const auto [file, facts] = ranges[i].tensor;
    const auto named = [&](const status& error) {
      return error.with_context(fmt::format("{}: {}", file->path, tensors::tensor_called(facts->name)));
    };
    if (!results[i].ok()) return named(results[i].error);
    if (results[i].bytes_done < ranges[i].length) return named({errc::io, "the file was truncated after it was opened"});
  }
  return {};
}

}  // namespace

result<model_layout> lay_out(const model& from, const layout_options& options) {
  return or_no_memory([&] { return layout_maker(options).make(from); });
}

result<std::vector<model_range>> ranges_of(const model_layout& layout, std::uint64_t most_bytes) {
  return or_no_memory([&]() -> result<std::vector<model_range>> {
    if (most_bytes == 0) return no_layout("most_bytes must not be 0");
    return cut_ranges(layout, most_bytes);
  });
}

result<std::vector<io_request>> requests_of(std::span<const model_range> ranges, std::span<void* const> memory) {
  return or_no_memory([&] { return make_requests(ranges, memory); });
}

status outcome_of(std::span<const model_range> ranges, std::span<const io_result> results) {
  return or_no_memory([&] { return find_failure(ranges, results); });
}

}  // namespace penstock
