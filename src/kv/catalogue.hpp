// The in-memory list of a store's values: their places, the order in which they were used, and the reads in progress. Allocates and frees
// their extents. Does no I/O. Not thread-safe.
//
// The extent of a dropped value becomes free when its last read completes. If the value was recorded as being on disk, its extent is held
// back until the drop is also recorded on disk. Otherwise a power failure could leave the old record pointing to another value's bytes.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <list>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "kv/extents.hpp"
#include "kv/record.hpp"

namespace penstock::kv {

class catalogue {
 public:
  explicit catalogue(std::uint64_t capacity_bytes) : extents_(capacity_bytes) {}
  // After this call, this process allocates the extents: the index has been read and is on disk. Before it, or if another process writes,
  // an extent becomes free as soon as its value is dropped, even while it is being read.
  void begin_writing() noexcept { writes_ = true; }

  class entry {
   public:
    [[nodiscard]] const std::string& key() const noexcept { return key_; }
    [[nodiscard]] const value_facts& facts() const noexcept { return facts_; }
    // For a value that is being written in stream order: its bytes are not in the file. Any thread.
    void set_failed() noexcept { failed_.store(true); }
    [[nodiscard]] bool failed() const noexcept { return failed_.load(); }

   private:
    friend class catalogue;
    std::string key_;
    value_facts facts_;
    std::atomic<bool> failed_{false};
    unsigned readers_ = 0;
    bool dropped_ = false;
  };

  // All the memory that a new value needs, allocated in advance so that nothing can fail once its record is written.
  class prepared {
   public:
    [[nodiscard]] entry& value() noexcept { return made_.front(); }

   private:
    friend class catalogue;
    std::list<entry> made_;
    std::unordered_map<std::string_view, std::list<entry>::iterator>::node_type node_;
  };
  // Throws bad_alloc. more: the number of other values prepared at the same time.
  [[nodiscard]] prepared prepare(std::string_view key, std::size_t more = 0);
  // For a value that was prepared earlier. Throws bad_alloc.
  void make_room(std::size_t more);

  // --- lookup
  [[nodiscard]] const entry* find(std::string_view key) const;
  // Like find(), but also marks the value as the most recently used.
  const entry* use(std::string_view key);
  [[nodiscard]] std::size_t keys() const noexcept { return by_key_.size(); }
  [[nodiscard]] std::uint64_t bytes() const noexcept { return bytes_; }
  [[nodiscard]] std::uint64_t wasted_bytes() const noexcept { return wasted_; }
  [[nodiscard]] std::uint64_t record_bytes() const noexcept { return record_bytes_; }  // total size of the values' records in the index
  [[nodiscard]] std::uint64_t last_sequence() const noexcept { return last_sequence_; }
  [[nodiscard]] std::uint64_t synced_sequence() const noexcept { return synced_; }
  [[nodiscard]] std::uint64_t capacity_bytes() const noexcept { return extents_.capacity_bytes(); }
  [[nodiscard]] const std::string& boot() const noexcept { return boot_; }
  // In order of use, least recently used first.
  [[nodiscard]] const std::list<entry>& in_order_of_use() const noexcept { return used_; }
  // Returns the least recently used values that are not being read, with at least this many bytes in total, or all such values.
  [[nodiscard]] std::vector<const entry*> least_used(std::uint64_t bytes) const;

  // --- reading: the entry stays valid and its extent stays allocated until end_read()
  entry* begin_read(std::string_view key);  // null: absent. Marks the value as the most recently used.
  void end_read(entry* read) noexcept;
  // The same for a value that is being written in stream order.
  static entry* begin_read(prepared& from) noexcept;

  // --- changes
  // Allocates an extent for a value of this length.
  [[nodiscard]] std::optional<extent> reserve(std::uint64_t length) { return extents_.take(whole_blocks(length)); }
  void give_back(const extent& reserved) noexcept { extents_.give(reserved); }
  // Gives a value its reserved extent, for reads before it is added.
  static void set_facts(prepared& at, const value_facts& facts) noexcept { at.value().facts_ = facts; }
  // Gives up such a value. Its extent becomes free when its last read completes.
  void abandon(prepared given_up) noexcept;
  // Adds a value with a reserved extent, replacing the key's old value.
  void put(prepared made, const value_facts& facts) noexcept;
  // Returns false if the value does not exist.
  bool drop(std::string_view key, std::uint64_t sequence) noexcept;
  void grow(std::uint64_t capacity_bytes) { extents_.grow(capacity_bytes); }
  void synced(std::uint64_t sequence) noexcept { synced_ = std::max(synced_, sequence); }
  void set_boot(std::string boot) { boot_ = std::move(boot); }
  // Drops the values put after the last sync.
  void drop_unsynced();
  // Drops all values and resets the synced sequence.
  void clear();
  // kept_back() returns the number of dropped values whose extents are held back. free() frees the first of them once the index is on disk.
  [[nodiscard]] std::size_t kept_back() const noexcept { return kept_back_.size(); }
  void free(std::size_t kept_back) noexcept;
  // Returns true if there was no memory to record a free extent. Later index records may then appear invalid.
  [[nodiscard]] bool has_lost() const noexcept { return extents_.has_lost(); }

  // Applies a record. Returns false if the record is invalid because its extent is already in use.
  [[nodiscard]] bool apply(const record& told);

 private:
  using place = std::list<entry>::iterator;
  void remove(place at) noexcept;
  void release(std::list<entry>& from, place at) noexcept;

  extents extents_;
  bool writes_ = false;
  std::list<entry> used_;     // least recently used first
  std::list<entry> leaving_;  // dropped, but still being read
  std::unordered_map<std::string_view, place> by_key_;
  std::list<entry> kept_back_;
  std::uint64_t bytes_ = 0;
  std::uint64_t wasted_ = 0;
  std::uint64_t record_bytes_ = 0;
  std::uint64_t last_sequence_ = 0;
  std::uint64_t synced_ = 0;
  std::string boot_;
};

}  // namespace penstock::kv
