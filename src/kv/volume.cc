#include "kv/volume.hpp"

#include <fmt/format.h>
#include <sys/file.h>

#include <algorithm>
#include <unordered_set>
#include <utility>

#include "base/checked.hpp"
#include "base/no_memory.hpp"

namespace penstock::kv {

namespace {

constexpr const char* data_name = "data";
constexpr const char* log_name = "index";
// Shorter logs are not rewritten.
constexpr std::uint64_t least_long_log_bytes = std::uint64_t{1} << 20;
constexpr std::uint64_t most_log_to_need = 4;
// The fraction of the capacity to free per index sync, if extents are held back until the sync.
constexpr std::uint64_t kept_back_share = 64;

status refuse_capacity(const std::string& path, std::uint64_t capacity) {
  if (capacity == 0)
    return {errc::invalid_argument, fmt::format("{} is a new store and requires a capacity of at least {} bytes", path, block_bytes)};
  return {errc::invalid_argument, fmt::format("{}: invalid capacity of {} bytes", path, capacity)};
}

}  // namespace

// --- opening

result<std::unique_ptr<volume>> volume::open(const engine& with, const std::string& path, const store_options& options) {
  auto in = folder::open(path, !options.read_only);
  if (!in) return in.error();
  std::unique_ptr<volume> made(new volume(*std::move(in), options));
  const status error = options.read_only ? made->open_for_reading(with) : made->open_for_writing(with);
  if (!error.ok()) return error;
  return made;
}

// Writes nothing until it is certain that the folder is a store or may become one.
status volume::open_for_writing(const engine& with) {
  const status ours = folder_.has(log_name) ? index_log::open(folder_, false).error() : folder_.check_may_hold_new_store();
  if (!ours.ok()) return ours;
  auto locked = folder_.lock();
  if (!locked) return locked.error();
  lock_file_ = *std::move(locked);
  lock_alone_.emplace(lock_file_.number());
  const std::uint64_t wanted = options_.capacity_bytes / block_bytes * block_bytes;
  if (options_.capacity_bytes != 0 && (wanted == 0 || wanted > max_file_offset)) return refuse_capacity(path(), options_.capacity_bytes);
  if (!folder_.has(log_name)) {
    if (status error = make_files(wanted); !error.ok()) return error;
  }
  if (status error = read_index(true); !error.ok()) return error;
  if (status error = open_data(with, true); !error.ok()) return error;
  return take_over();
}

status volume::open_for_reading(const engine& with) {
  if (status error = read_index(false); !error.ok()) return error;
  return open_data(with, false);
}

status volume::make_files(std::uint64_t capacity) {
  if (capacity == 0) return refuse_capacity(path(), 0);
  const bool is_new = !folder_.has(data_name);
  auto data = folder_.make_file(data_name);
  if (!data) return data.error();
  status error = preallocate(*data, capacity, folder_.path_of(data_name));
  const auto header = new_header(capacity);
  if (error.ok()) error = index_log::create(folder_, header, records_of(catalogue(capacity), header.id)).error();
  if (!error.ok() && is_new) folder_.remove(data_name);
  return error;
}

status volume::read_index(bool write) {
  auto log = index_log::open(folder_, write);
  if (!log) return log.error();
  log_.emplace(*std::move(log));
  catalogue_ = std::make_unique<catalogue>(log_->header().capacity_bytes);
  auto whole = log_->read_new([&](const record& each) { return catalogue_->apply(each); });
  if (!whole) return whole.error();
  if (catalogue_->has_lost()) return no_memory();
  return write && !*whole ? log_->cut() : status();
}

status volume::open_data(const engine& with, bool write) {
  auto data = folder_.open_file(data_name, write);
  if (!data) return data.error();
  const std::string name = folder_.path_of(data_name);
  auto size = size_of(*data, name);
  if (!size) return size.error();
  if (*size < catalogue_->capacity_bytes())
    return {errc::io, fmt::format("{} is {} bytes long, but its index expects {}", name, *size, catalogue_->capacity_bytes())};
  auto adopted = with.adopt(data->number(), {.direct_writes = options_.direct_writes, .name = name});
  if (!adopted) return adopted.error();
  data_file_ = *std::move(data);
  data_ = *std::move(adopted);
  return {};
}

// Takes over the data from the previous writing process.
status volume::take_over() {
  const std::uint64_t has = catalogue_->capacity_bytes();
  const std::uint64_t wanted = options_.capacity_bytes / block_bytes * block_bytes;
  if (wanted != 0 && wanted < has)
    return {errc::invalid_argument, fmt::format("{} has a capacity of {} bytes and cannot shrink to {}", path(), has, wanted)};
  if (wanted > has) {
    if (status error = preallocate(data_file_, wanted, folder_.path_of(data_name)); !error.ok()) return error;
    catalogue_->grow(wanted);
  }
  // After a reboot, unsynced values may be incomplete.
  const std::string boot = this_boot();
  const bool restarted = boot.empty() || boot != catalogue_->boot();
  if (restarted) catalogue_->drop_unsynced();
  catalogue_->set_boot(boot);
  // After this, the extents of dropped values are reused.
  status error = restarted || wanted > has ? write_anew() : log_->sync();
  if (error.ok()) catalogue_->begin_writing();
  return error;
}

// --- reading

status volume::follow() {
  if (!read_only_) return {};
  const std::lock_guard writing(writing_);
  auto replaced = log_->was_replaced(folder_);
  if (!replaced) return replaced.error();
  // Held while the index is read (into memory): other threads must not see a half-built catalogue.
  const std::lock_guard guard(lock_);
  if (*replaced || catalogue_->has_lost()) {
    if (status error = reopen_index(); !error.ok()) return error;
  }
  // An incomplete record is still being written.
  return log_->read_new([&](const record& each) { return catalogue_->apply(each); }).error();
}

// Call with both locks held. The new index starts with an empty catalogue.
status volume::reopen_index() {
  auto log = index_log::open(folder_, false);
  if (!log) return log.error();
  const std::string name = folder_.path_of(data_name);
  const auto open = inode_of(data_file_, name);
  const auto now = folder_.inode_of(data_name);
  if (!open || !now || *open != *now) return {errc::closed, fmt::format("{} was replaced by another process: open the store again", name)};
  log_.emplace(*std::move(log));
  catalogue_->clear();
  if (log_->header().capacity_bytes > catalogue_->capacity_bytes()) catalogue_->grow(log_->header().capacity_bytes);
  return {};
}

volume::found_value volume::begin_read(std::string_view key, const stream_order& on) {
  const std::lock_guard guard(lock_);
  auto* const coming = on ? coming_.last_on(key, *on) : nullptr;
  auto* const found = coming != nullptr ? catalogue::begin_read(coming->value) : catalogue_->begin_read(key);
  ++(found != nullptr ? hits_ : misses_);
  return {found, found != nullptr ? found->facts() : value_facts()};
}

void volume::end_read(catalogue::entry* read) {
  const std::lock_guard guard(lock_);
  catalogue_->end_read(read);
}

std::optional<value_facts> volume::find(std::string_view key) const {
  const std::lock_guard guard(lock_);
  const auto* const found = catalogue_->find(key);
  return found == nullptr ? std::nullopt : std::optional(found->facts());
}

std::optional<value_facts> volume::use(std::string_view key) {
  const std::lock_guard guard(lock_);
  const auto* const found = catalogue_->use(key);
  return found == nullptr ? std::nullopt : std::optional(found->facts());
}

std::uint64_t volume::capacity_bytes() const {
  const std::lock_guard guard(lock_);
  return catalogue_->capacity_bytes();
}

void volume::drop_damaged(std::string_view key, std::uint64_t sequence) {
  const std::lock_guard writing(writing_);
  const auto* const found = [&] {
    const std::lock_guard guard(lock_);
    ++damaged_;
    return catalogue_->find(key);
  }();
  if (!read_only_ && found != nullptr && found->facts().sequence == sequence) (void)drop_listed(std::span(&found, 1));
}

// --- writing

result<std::optional<extent>> volume::room_for(std::uint64_t length) {
  const std::lock_guard writing(writing_);
  while (true) {
    std::vector<const catalogue::entry*> victims;
    {
      const std::lock_guard guard(lock_);
      if (auto place = catalogue_->reserve(length)) return place;
      if (catalogue_->kept_back() == 0) {
        victims = catalogue_->least_used(length);
        if (victims.empty()) return std::optional<extent>();
        if (victims.front()->facts().sequence <= catalogue_->synced_sequence())
          victims = catalogue_->least_used(std::max(length, catalogue_->capacity_bytes() / kept_back_share));
      }
    }
    const status error = victims.empty() ? free_kept_back() : evict(victims);
    if (!error.ok()) return error;
  }
}

status volume::evict(std::span<const catalogue::entry* const> victims) {
  auto gone = drop_listed(victims);
  const std::lock_guard guard(lock_);
  evicted_ += gone.count;
  return std::move(gone.error);
}

// Call with writing_ held, so that no other thread drops the victims at the same time.
volume::dropped volume::drop_listed(std::span<const catalogue::entry* const> victims) {
  if (!broken_.ok()) return {0, broken_};
  new_records records(log_->header().id);
  for (const auto* each : victims) {
    value_facts gone;
    gone.sequence = each->facts().sequence;
    records.add({record_kind::dropped, each->key(), gone});
  }
  auto written = log_->append_records(records);
  const std::lock_guard guard(lock_);
  for (const auto* each : victims.first(written.count)) {
    (void)catalogue_->drop(each->key(), each->facts().sequence);
  }
  return {written.count, std::move(written.error)};
}

status volume::free_kept_back() {
  const auto kept = [&] {
    const std::lock_guard guard(lock_);
    return catalogue_->kept_back();
  }();
  if (status error = log_->sync(); !error.ok()) return error;
  const std::lock_guard guard(lock_);
  catalogue_->free(kept);
  return {};
}

void volume::give_back(const extent& reserved) {
  const std::lock_guard guard(lock_);
  catalogue_->give_back(reserved);
}

void volume::announce(coming_value& value, std::string_view key, const value_facts& facts) {
  const std::lock_guard guard(lock_);
  value.value = catalogue_->prepare(key);
  catalogue::set_facts(value.value, facts);
  coming_.add(value);
}

void volume::show(coming_value& value) {
  const std::lock_guard guard(lock_);
  value.is_queued = true;
}

void volume::withdraw(coming_value& value) noexcept {
  const std::lock_guard guard(lock_);
  coming_.remove(value);
  catalogue_->abandon(std::move(value.value));
}

// Writes the values' records and returns how many were written. made: prepared catalogue memory, one per value.
std::size_t volume::write_records(std::span<new_value> values, std::vector<catalogue::prepared>& made, status& error) {
  if (error.ok()) error = broken_;
  if (!error.ok()) return 0;
  new_records records(log_->header().id);
  {
    const std::lock_guard guard(lock_);
    std::uint64_t sequence = catalogue_->last_sequence();
    for (new_value& each : values) {
      each.facts.sequence = ++sequence;
      records.add({record_kind::value, each.key, each.facts});
      if (each.coming != nullptr) catalogue_->make_room(made.size());
      made.push_back(each.coming == nullptr ? catalogue_->prepare(each.key, made.size()) : catalogue::prepared());
    }
  }
  auto written = log_->append_records(records);
  error = written.error;
  return written.count;
}

void volume::commit(std::span<new_value> values) {
  if (values.empty()) return;
  status error = options_.durable ? data_.sync() : status();
  const std::lock_guard writing(writing_);
  std::vector<catalogue::prepared> made;
  const std::size_t count = or_without_memory([&] { return write_records(values, made, error); },
                                              [&] {
                                                error = no_memory();
                                                return std::size_t{0};
                                              });
  {
    const std::lock_guard guard(lock_);
    for (std::size_t i = 0; i < values.size(); ++i) {
      auto& each = values[i];
      if (each.coming != nullptr) coming_.remove(*each.coming);
      if (i < count) {
        coming_.supersede(each.key, each.number);
        catalogue_->put(each.coming != nullptr ? std::move(each.coming->value) : std::move(made[i]), each.facts);
      } else {
        each.coming != nullptr ? catalogue_->abandon(std::move(each.coming->value)) : catalogue_->give_back(each.facts.place());
        each.error = error;
      }
    }
  }
  if (options_.durable && count > 0) {
    const status marked = or_no_memory([&] { return mark_synced(values[count - 1].facts.sequence); });
    for (std::size_t i = 0; i < count; ++i) values[i].error = marked;
  }
  or_without_memory([&] { write_anew_if_long(); }, [] {});  // the next commit may retry
}

void volume::drop(std::span<const std::string_view> keys, std::span<key_result> results) {
  const std::lock_guard writing(writing_);
  std::vector<const catalogue::entry*> found;
  std::vector<std::size_t> of;  // each victim's key
  std::unordered_set<const catalogue::entry*> seen;
  {
    const std::lock_guard guard(lock_);
    for (std::size_t i = 0; i < keys.size(); ++i) {
      const auto* const entry = catalogue_->find(keys[i]);
      results[i].ended = outcome::absent;
      if (entry == nullptr || !seen.insert(entry).second) continue;
      results[i] = {outcome::done, entry->facts().length, {}};
      found.push_back(entry);
      of.push_back(i);
    }
  }
  const auto gone = drop_listed(found);
  for (std::size_t i = gone.count; i < of.size(); ++i) results[of[i]] = {outcome::failed, 0, gone.error};
  write_anew_if_long();
}

status volume::sync() {
  const std::uint64_t sequence = [&] {
    const std::lock_guard guard(lock_);
    return catalogue_->last_sequence();
  }();
  // Values up to this sequence are in the file, because their records have been written.
  if (status error = data_.sync(); !error.ok()) return error;
  const std::lock_guard writing(writing_);
  return mark_synced(sequence);
}

// Call with writing_ held. Records that the values up to this sequence are on disk.
status volume::mark_synced(std::uint64_t sequence) {
  if (!broken_.ok()) return broken_;
  const std::uint64_t synced = [&] {
    const std::lock_guard guard(lock_);
    return catalogue_->synced_sequence();
  }();
  if (sequence > synced) {
    new_records records(log_->header().id);
    value_facts covered;
    covered.sequence = sequence;
    records.add({record_kind::synced, {}, covered});
    if (auto written = log_->append_records(records); !written.error.ok()) return written.error;
    const std::lock_guard guard(lock_);
    catalogue_->synced(sequence);
  }
  return free_kept_back();
}

// Call with writing_ held.
status volume::write_anew() {
  if (!broken_.ok()) return broken_;
  std::size_t kept = 0;
  const auto header = new_header(capacity_bytes());
  const auto records = [&] {
    const std::lock_guard guard(lock_);
    kept = catalogue_->kept_back();
    return records_of(*catalogue_, header.id);
  }();
  auto made = index_log::create(folder_, header, records);
  if (made) {
    log_.emplace(*std::move(made));
    const std::lock_guard guard(lock_);
    catalogue_->free(kept);
    return {};
  }
  // The new log has been renamed into place, but a power failure may undo the rename: writes to either log could be lost.
  const auto replaced = log_->was_replaced(folder_);
  if (!replaced || *replaced) broken_ = made.error();
  return made.error();
}

void volume::write_anew_if_long() {
  const std::uint64_t needed = [&] {
    const std::lock_guard guard(lock_);
    return catalogue_->record_bytes();
  }();
  if (log_->end() <= std::max({least_long_log_bytes, most_log_to_need * needed, longest_log_bytes_})) return;
  // If this fails, for example on a full disk, the long log stays in use.
  longest_log_bytes_ = write_anew().ok() ? 0 : 2 * log_->end();
}

void volume::add_to(store_stats& told) const {
  const std::lock_guard guard(lock_);
  told.keys = catalogue_->keys();
  told.bytes = catalogue_->bytes();
  told.capacity_bytes = catalogue_->capacity_bytes();
  told.wasted_bytes = catalogue_->wasted_bytes();
  told.hits = hits_;
  told.misses = misses_;
  told.evicted = evicted_;
  told.damaged = damaged_;
}

status volume::close() {
  const status closed = data_.close();
  if (lock_alone_) (void)::flock(lock_file_.number(), LOCK_UN);  // a child being forked may briefly hold a copy
  let_go_of_lock();
  return closed;
}

}  // namespace penstock::kv
