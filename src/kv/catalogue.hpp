// Which values there are, where, in the order of their use, and which of them are being read. Takes and frees their extents. Says nothing
// to the disk. One thread at a time.
//
// The extent of a value that is dropped is free once nobody reads it. Of a value that was said to be on the disk it is kept back until the
// index says on the disk, too, that it was dropped: else a power cut could leave the old record with the bytes of another value.
#pragma once

#include <algorithm>
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
  // From now on this process decides what is taken: the index has been read, and is on the disk. Before, and where another process writes,
  // an extent is free as soon as its value is dropped, whoever reads it.
  void begin_writing() noexcept { writes_ = true; }

  class entry {
   public:
    [[nodiscard]] const std::string& key() const noexcept { return key_; }
    [[nodiscard]] const value_facts& facts() const noexcept { return facts_; }

   private:
    friend class catalogue;
    std::string key_;
    value_facts facts_;
    unsigned readers_ = 0;
    bool dropped_ = false;
  };

  // All that the value of a key needs, so that nothing can fail once its record is written.
  class prepared {
   private:
    friend class catalogue;
    std::list<entry> made_;
    std::unordered_map<std::string_view, std::list<entry>::iterator>::node_type node_;
  };
  // Throws bad_alloc. more: how many others are prepared besides it.
  [[nodiscard]] prepared prepare(std::string_view key, std::size_t more = 0);

  // --- looking
  [[nodiscard]] const entry* find(std::string_view key) const;
  // The same, and it becomes the one used last.
  const entry* use(std::string_view key);
  [[nodiscard]] std::size_t keys() const noexcept { return by_key_.size(); }
  [[nodiscard]] std::uint64_t bytes() const noexcept { return bytes_; }
  [[nodiscard]] std::uint64_t wasted_bytes() const noexcept { return wasted_; }
  [[nodiscard]] std::uint64_t record_bytes() const noexcept { return record_bytes_; }  // that the index needs for them
  [[nodiscard]] std::uint64_t last_sequence() const noexcept { return last_sequence_; }
  [[nodiscard]] std::uint64_t synced_sequence() const noexcept { return synced_; }
  [[nodiscard]] std::uint64_t capacity_bytes() const noexcept { return extents_.capacity_bytes(); }
  [[nodiscard]] const std::string& boot() const noexcept { return boot_; }
  // From the least recently used on.
  [[nodiscard]] const std::list<entry>& in_order_of_use() const noexcept { return used_; }
  // The least recently used ones that nobody reads, of so many bytes together, or all of them.
  [[nodiscard]] std::vector<const entry*> least_used(std::uint64_t bytes) const;

  // --- reading: the entry stays valid, and its extent taken, until end_read().
  entry* begin_read(std::string_view key);  // null: absent. It becomes the one used last.
  void end_read(entry* read) noexcept;

  // --- changing
  // A free extent for a value of that length.
  [[nodiscard]] std::optional<extent> reserve(std::uint64_t length) { return extents_.take(whole_blocks(length)); }
  void give_back(const extent& reserved) noexcept { extents_.give(reserved); }
  // A value whose extent was reserved. In place of the one that the key had.
  void put(prepared made, const value_facts& facts) noexcept;
  // False: there is no such value.
  bool drop(std::string_view key, std::uint64_t sequence) noexcept;
  void grow(std::uint64_t capacity_bytes) { extents_.grow(capacity_bytes); }
  void synced(std::uint64_t sequence) noexcept { synced_ = std::max(synced_, sequence); }
  void set_boot(std::string boot) { boot_ = std::move(boot); }
  // Those of a put after the last sync.
  void drop_unsynced();
  // Drops all, and forgets what was synced.
  void clear();
  // How many values are gone whose extents are kept back; and frees the first so many of these, once the index is on the disk.
  [[nodiscard]] std::size_t kept_back() const noexcept { return kept_back_.size(); }
  void free(std::size_t kept_back) noexcept;
  // There was no memory to remember all that is free: what the index says next may be taken for wrong.
  [[nodiscard]] bool has_lost() const noexcept { return extents_.has_lost(); }

  // Does what a record says. False: it cannot be, since it claims what is taken.
  [[nodiscard]] bool apply(const record& told);

 private:
  using place = std::list<entry>::iterator;
  void remove(place at) noexcept;
  void release(std::list<entry>& from, place at) noexcept;

  extents extents_;
  bool writes_ = false;
  std::list<entry> used_;     // from the least recently used on
  std::list<entry> leaving_;  // dropped, and still being read
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
