#include "remote/cache/node_cache.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include "base/no_memory.hpp"
#include "remote/credentials/signature.hpp"

namespace penstock::source::remote {

namespace {

using namespace std::chrono_literals;

constexpr auto most_wait_for_lock = 1000ms;
constexpr auto pause_between_looks = 2ms;
constexpr auto no_room_for = 1000ms;
constexpr std::uint64_t most_room_at_once = std::uint64_t{256} << 20;  // the most room to reserve before the folder is read again
constexpr std::uint64_t parts_of_room = 128;                           // or this fraction of the limit
constexpr std::size_t most_objects = 50'000;                           // if there are more, the least recently used object is evicted
constexpr std::size_t identity_letters = 40;                           // characters in a file name
constexpr std::size_t version_letters = 16;
constexpr std::string_view map_end = ".map";
constexpr std::string_view data_end = ".data";
constexpr sys::byte_range head_range{0, cache_head_bytes};

std::string with_end(std::string_view name, std::string_view end) { return fmt::format("{}{}", name, end); }

// Returns the object's name from the name of one of this cache's files; empty for other files.
std::string_view object_of(std::string_view file) {
  for (const auto end : {map_end, data_end}) {
    if (!file.ends_with(end)) continue;
    file.remove_suffix(end.size());
    constexpr std::string_view letters = "0123456789abcdef";
    const bool fits = file.size() == identity_letters + 1 + version_letters && file[identity_letters] == '-' &&
                      file.substr(0, identity_letters).find_first_not_of(letters) == std::string_view::npos &&
                      file.substr(identity_letters + 1).find_first_not_of(letters) == std::string_view::npos;
    return fits ? file : std::string_view();
  }
  return {};
}

result<std::string> name_of_files(const cache_map_head& wanted) {
  const auto version = payload_hash(fmt::format("{}\n{}", wanted.size, wanted.version));
  if (!version) return version.error();
  return fmt::format("{}-{}", wanted.identity.substr(0, identity_letters), version->substr(0, version_letters));
}

}  // namespace

result<std::shared_ptr<node_cache>> node_cache::open(const std::shared_ptr<sys::kernel>& kernel, const node_cache_settings& how) {
  auto folder = sys::cache_folder::open(how.folder);
  if (!folder) return folder.error();
  std::shared_ptr<node_cache> made(new node_cache(kernel, how, folder->name()));
  if (auto problem = made->threads_.ready(); !problem.ok()) return problem;
  return made;
}

node_cache::node_cache(std::shared_ptr<sys::kernel> kernel, const node_cache_settings& how, std::string folder)
    : kernel_(std::move(kernel)), most_bytes_(how.bytes), folder_(std::move(folder)), boot_(sys::boot_id()) {}

// --- opening entries

result<std::shared_ptr<cache_entry>> node_cache::enter(cache_map_head wanted) {
  const auto name = name_of_files(wanted);
  if (!name) return name.error();
  wanted.boot = boot_;
  const auto in = sys::cache_folder::open(folder_);
  if (!in) return in.error();
  for (auto waited = 0ms; waited < most_wait_for_lock; waited += pause_between_looks) {
    auto found = try_enter(*in, *name, wanted);
    if (!found) return found.error();
    if (!*found) {
      std::this_thread::sleep_for(pause_between_looks);
      continue;
    }
    auto& there = **found;
    sys::touch(there.map.get());
    const auto forget = [from = folder_, name = *name] {
      (void)or_no_memory([&]() -> status {
        const auto place = sys::cache_folder::open(from);
        if (place) remove(*place, name);
        return place.error();
      });
    };
    const cache_entry::surroundings around{*kernel_, threads_, forget};
    return std::make_shared<cache_entry>(around, std::move(there.head), std::move(there.map), std::move(there.data));
  }
  return status(errc::would_block, fmt::format("another process holds a lock on {}/{}", folder(), *name));
}

result<std::optional<node_cache::opened>> node_cache::try_enter(const sys::cache_folder& in, const std::string& name,
                                                                const cache_map_head& wanted) {
  auto map = in.open_file(with_end(name, map_end), sys::cache_folder::opening::or_make);
  if (!map) return map.error();
  const auto other = sys::try_claim(map->get(), head_range);
  if (!other) return other.error();
  if (*other) return std::optional<opened>();
  const sys::not_inherited alone(map->get());
  const sys::claimed_range head(map->get(), head_range);
  const auto facts = sys::cache_file_facts_of(map->get());
  if (!facts) return facts.error();
  if (!facts->has_name) return std::optional<opened>();
  if (facts->size == 0) return begin(in, name, wanted, *map);
  auto found = look_at(in, name, wanted, *map);
  if (found && *found) return found;
  if (!found && found.error().code() == errc::would_block) return std::optional<opened>();
  remove(in, name);  // and start over
  return std::optional<opened>();
}

// Returns would_block if the object is being evicted.
result<std::optional<node_cache::opened>> node_cache::look_at(const sys::cache_folder& in, const std::string& name,
                                                              const cache_map_head& wanted, sys::owned_descriptor& map) {
  const auto facts = sys::cache_file_facts_of(map.get());
  if (!facts) return facts.error();
  if (facts->size != cache_map_bytes_of(wanted.size)) return std::optional<opened>();
  cache_head_text text{};
  if (auto read = sys::read_exactly(map.get(), text, 0); !read.ok()) return read;
  auto head = decode_cache_head(text);
  if (!head || !head->names_same(wanted) || (!head->is_sealed && (boot_.empty() || head->boot != boot_))) return std::optional<opened>();
  auto data = in.open_file(with_end(name, data_end), sys::cache_folder::opening::to_write);
  if (!data) return data.error();
  const auto about = sys::cache_file_facts_of(data->get());
  if (!about) return about.error();
  if (about->size != head->size || about->inode != head->data_inode) return std::optional<opened>();
  if (head->data_changed_ns != 0 && about->changed_ns != head->data_changed_ns) return std::optional<opened>();
  if (!sys::try_share(data->get())) return status(errc::would_block, "the object is being evicted");
  const auto now = sys::cache_file_facts_of(data->get());
  if (!now || !now->has_name) return status(errc::would_block, "the object was evicted");
  // Check this last: data that was found by name belongs to this map if the map still has its name. An equal inode number alone does not
  // prove it, because the number may have been reused.
  const auto map_now = sys::cache_file_facts_of(map.get());
  if (!map_now || !map_now->has_name) return status(errc::would_block, "the object was evicted");
  return std::optional(opened{std::move(map), *std::move(data), *std::move(head)});
}

// Meanwhile, other processes wait for the lock on the map's head. A process that is killed here leaves invalid files.
result<std::optional<node_cache::opened>> node_cache::begin(const sys::cache_folder& in, const std::string& name,
                                                            const cache_map_head& wanted, sys::owned_descriptor& map) {
  const auto alone = in.whole_lock(most_wait_for_lock);
  if (!alone) return alone.error();
  // A process that held the folder's lock earlier may have evicted this map, and another may have created a new one, which the data then
  // belongs to.
  const auto facts = sys::cache_file_facts_of(map.get());
  if (!facts) return facts.error();
  if (!facts->has_name) return std::optional<opened>();
  remove_other_versions(in, name);
  in.remove(with_end(name, data_end));
  auto data = in.open_file(with_end(name, data_end), sys::cache_folder::opening::or_make);
  if (!data) return data.error();
  const auto about = kernel_->describe(data->get());
  if (!about) return about.error();
  if (about->from_server) {
    remove(in, name);
    return status(errc::unsupported, fmt::format("{} is on a network file system, where a cache has no benefit", folder()));
  }
  auto head = wanted;
  head.data_inode = about->inode;
  const auto text = encode(head);
  auto made = sys::set_length(data->get(), head.size);
  if (made.ok()) made = sys::set_length(map.get(), cache_map_bytes_of(head.size));
  if (made.ok()) made = sys::write_exactly(map.get(), text, 0);
  if (made.ok() && !sys::try_share(data->get())) made = status(errc::would_block, "the object is being evicted");
  if (!made.ok()) {
    remove(in, name);
    return made.with_context(fmt::format("create {}/{}", folder(), name));
  }
  return std::optional(opened{std::move(map), *std::move(data), std::move(head)});
}

result<sys::owned_descriptor> node_cache::open_data(const cache_entry& of) {
  const auto name = name_of_files(of.head());
  if (!name) return name.error();
  const auto in = sys::cache_folder::open(folder_);
  if (!in) return in.error();
  auto data = in->open_file(with_end(*name, data_end), sys::cache_folder::opening::to_read);
  if (!data) return data.error();
  const auto about = sys::cache_file_facts_of(data->get());
  if (!about) return about.error();
  if (about->size != of.head().size || about->inode != of.head().data_inode || !sys::try_share(data->get()))
    return status(errc::would_block, fmt::format("{}/{} has been replaced", folder(), *name));
  return data;
}

// Removes the data first: a map without data is invalid.
void node_cache::remove(const sys::cache_folder& in, const std::string& name) noexcept {
  (void)or_no_memory([&]() -> status {
    in.remove(with_end(name, data_end));
    in.remove(with_end(name, map_end));
    return {};
  });
}

void node_cache::remove_other_versions(const sys::cache_folder& in, const std::string& name) {
  const auto files = in.list();
  if (!files) return;
  for (const auto& each : *files) {
    const auto other = object_of(each);
    if (!other.empty() && other != name && other.substr(0, identity_letters) == std::string_view(name).substr(0, identity_letters))
      in.remove(each);
  }
}

// --- room

result<std::vector<node_cache::kept>> node_cache::all_kept(const sys::cache_folder& in) {
  const auto files = in.list();
  if (!files) return files.error();
  std::map<std::string, kept, std::less<>> found;
  for (const auto& each : *files) {
    const auto name = object_of(each);
    if (name.empty()) continue;
    const auto facts = in.facts_of(each);
    if (!facts) continue;
    auto& of = found[std::string(name)];
    of.name = name;
    of.bytes += facts->allocated;
    of.used_ns = std::max(of.used_ns, each.ends_with(map_end) ? facts->modified_ns : std::int64_t{0});
  }
  std::vector<kept> all;
  all.reserve(found.size());
  for (auto& [name, each] : found) all.push_back(std::move(each));
  std::ranges::sort(all, {}, &kept::used_ns);
  return all;
}

// Requires the folder's lock, so that no entry is created concurrently. Returns false if the object is open.
bool node_cache::evict(const sys::cache_folder& in, const kept& gone) {
  const auto data = in.open_file(with_end(gone.name, data_end), sys::cache_folder::opening::to_read);
  if (data && !sys::try_own(data->get())) return false;
  remove(in, gone.name);
  return true;
}

// Returns the room in bytes, which is at least `bytes`, or 0. unlisted: bytes that may not be in the folder yet. Waits for other processes.
result<std::uint64_t> node_cache::make_room(std::uint64_t bytes, std::uint64_t unlisted) {
  const auto in = sys::cache_folder::open(folder_);
  if (!in) return in.error();
  const auto alone = in->whole_lock(most_wait_for_lock / 10);
  if (!alone) return alone.error();
  const auto all = all_kept(*in);
  if (!all) return all.error();
  std::uint64_t used = unlisted;
  for (const auto& each : *all) used += each.bytes;
  auto most = most_bytes_;
  if (most == 0) {
    const auto room = in->room();
    if (!room) return room.error();
    most = used + room->free - std::min(used + room->free, room->all / 10);
  }
  const auto wanted = std::max(bytes, std::min(most / parts_of_room, most_room_at_once));
  auto count = all->size();
  for (const auto& each : *all) {
    if (used + wanted <= most && count <= most_objects) break;
    if (!evict(*in, each)) continue;
    used -= std::min(used, each.bytes);
    --count;
  }
  const auto left = most - std::min(most, used);
  return left < bytes ? 0 : std::min(left, wanted);
}

bool node_cache::take_room(std::uint64_t bytes) noexcept {
  if (const auto known = take_known_room(bytes)) return *known;
  const std::lock_guard one_reads_the_folder(reading_);
  if (const auto known = take_known_room(bytes)) return *known;
  std::uint64_t unlisted = 0;
  {
    const std::lock_guard guard(lock_);
    free_bytes_ = 0;  // nothing is reserved until this is set again, so unlisted remains an upper bound
    unlisted = being_written_;
  }
  const auto room = or_no_memory([&] { return make_room(bytes, unlisted); });
  const std::lock_guard guard(lock_);
  free_bytes_ = room.value_or(0);
  if (free_bytes_ < bytes) no_room_until_ = clock::now() + no_room_for;
  return take_free(bytes);
}

// Returns nullopt if the folder must be read to decide.
std::optional<bool> node_cache::take_known_room(std::uint64_t bytes) noexcept {
  const std::lock_guard guard(lock_);
  if (take_free(bytes)) return true;
  return clock::now() < no_room_until_ ? std::optional(false) : std::nullopt;
}

// Requires lock_.
bool node_cache::take_free(std::uint64_t bytes) noexcept {
  if (free_bytes_ < bytes) return false;
  free_bytes_ -= bytes;
  being_written_ += bytes;
  return true;
}

void node_cache::wrote(std::uint64_t bytes) noexcept {
  const std::lock_guard guard(lock_);
  being_written_ -= std::min(being_written_, bytes);
}

}  // namespace penstock::source::remote
