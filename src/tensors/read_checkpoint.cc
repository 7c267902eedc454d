#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/no_memory.hpp"
#include "base/printable.hpp"
#include "penstock/engine.hpp"
#include "penstock/torch_checkpoint.hpp"
#include "tensors/checkpoint_contents.hpp"
#include "tensors/checks.hpp"
#include "tensors/pickle_reader.hpp"

namespace penstock {

namespace {

status no_checkpoint(std::string message) { return {errc::invalid_argument, std::move(message)}; }

result<std::string> text_of_member(const file& from, const zip_member& member, std::uint64_t most) {
  const auto called = tensors::quoted(member.name);
  if (!member.stored || member.bytes != member.packed_bytes) return status(errc::unsupported, fmt::format("{} is compressed", called));
  if (member.bytes > most) return no_checkpoint(fmt::format("{} is {} bytes long, but the limit is {}", called, member.bytes, most));
  std::string text(member.bytes, '\0');
  const io_result done = from.read(text.data(), text.size(), static_cast<std::int64_t>(member.offset));
  if (!done.ok()) return done.error;
  if (done.bytes_done < text.size())
    return no_checkpoint(fmt::format("{} is incomplete: the file was truncated while it was being read", called));
  return text;
}

// Files written by PyTorch before 2.0 lack this member and are little-endian.
status check_byte_order(const file& from, const std::vector<zip_member>& members, const std::string& folder) {
  const auto found = std::ranges::find(members, folder + "byteorder", &zip_member::name);
  if (found == members.end()) return {};
  const auto order = text_of_member(from, *found, 16);
  if (!order) return order.error();
  if (*order == "little") return {};
  return {errc::unsupported, fmt::format("its byte order is {}, but only \"little\" is supported", tensors::quoted(*order))};
}

result<torch_checkpoint> read_checkpoint(const file& from) {
  const auto members = read_zip_directory(from);
  if (!members) return members.error();
  const auto named = [&](const status& error) {
    const bool is_named = error.message().find(from.path()) != std::string_view::npos;
    return is_named ? error : error.with_context(from.path());
  };
  const auto folder = tensors::checkpoint_folder(*members);
  if (!folder) return named(folder.error());
  if (status error = check_byte_order(from, *members, *folder); !error.ok()) return named(error);
  const auto pickle = text_of_member(from, *std::ranges::find(*members, *folder + std::string(tensors::pickle_name), &zip_member::name),
                                     most_checkpoint_pickle_bytes);
  if (!pickle) return named(pickle.error());
  auto made = tensors::contents_of(*pickle, *members, *folder);
  if (!made) return named(made.error());
  return made;
}

// Returns nothing for an unknown type.
std::optional<std::uint64_t> bytes_of(const tensors::pickled_storage& storage) {
  if (storage.type == tensors::untyped_storage) return storage.count;
  const auto type = tensors::type_of_name(storage.type);
  if (!type) return std::nullopt;
  std::uint64_t bytes = 0;
  return __builtin_mul_overflow(storage.count, bits_of(*type) / 8, &bytes) ? UINT64_MAX : bytes;
}

status check_all_storages(const file& from, std::span<const zip_member> members, const std::string& folder) {
  const auto pickle = text_of_member(from, *std::ranges::find(members, folder + std::string(tensors::pickle_name), &zip_member::name),
                                     most_checkpoint_pickle_bytes);
  if (!pickle) return pickle.error().code() == errc::unsupported ? status() : pickle.error();
  const auto content = tensors::read_pickle(*pickle);
  if (!content) return {};
  std::unordered_map<std::string_view, std::uint64_t> there;
  for (const zip_member& each : members) there.emplace(each.name, each.bytes);
  std::vector<std::string> missing;
  for (const tensors::pickled_storage& each : content->storages) {
    std::string name = fmt::format("{}data/{}", folder, each.key);
    const auto found = there.find(name);
    if (found == there.end()) {
      missing.push_back(std::move(name));
    } else if (const auto needed = bytes_of(each); needed && found->second < *needed) {
      return no_checkpoint(
          fmt::format("its storage {} has {} bytes, but the pickle expects {}", tensors::quoted(name), found->second, *needed));
    }
  }
  if (missing.empty()) return {};
  const std::vector<std::string_view> names(missing.begin(), missing.end());
  return no_checkpoint(fmt::format("storages referenced by the pickle are missing from the archive: {}", tensors::listed(names)));
}

}  // namespace

status tensors::check_storages(const file& from, std::span<const zip_member> members, const std::string& folder) {
  return check_all_storages(from, members, folder);
}

std::string checkpoint_tensor::name() const { return fmt::format("{}", fmt::join(keys, ".")); }

result<torch_checkpoint> read_torch_checkpoint(const file& from) {
  return or_no_memory([&] { return read_checkpoint(from); });
}

}  // namespace penstock
