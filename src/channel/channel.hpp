// A way for the bytes of tensors between memory of two processes. A channel is one file, and one line in the registry; the two ends of a
// pipe take, of those that both have, the first in the registry that the receiving end does not refuse. Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "penstock/status.hpp"
#include "sys/peer.hpp"

namespace penstock::channel {

// What a process tells of itself.
struct identity {
  std::string boot_id;              // of its host; empty: not known
  std::uint64_t process_token = 0;  // drawn when the process began to use pipes; another in a forked child
  std::int64_t pid = 0;
  std::uint64_t probe_address = 0;  // where its token lies in its memory
  // The kernel says that this pid, as this process sees it, is at the other end. Not sent.
  bool vouched = false;
};

class channel {
 public:
  virtual ~channel() = default;
  [[nodiscard]] virtual std::string_view name() const noexcept = 0;
  // The receiver reads the sender's memory; else the sender sends it over the pipe's connection, and pull() is never called.
  [[nodiscard]] virtual bool pulls() const noexcept = 0;
  // Why it cannot bring bytes of that process to this one; nothing when it can. May try.
  [[nodiscard]] virtual std::optional<std::string> refuses(const identity& from, const identity& here, sys::peer& door) const = 0;
  // Blocks until the bytes are there.
  virtual status pull(const identity& from, sys::peer& door, std::uint64_t address, std::byte* target, std::size_t bytes) const = 0;
};

// All that there are, best first.
std::span<const channel* const> all_channels();
// Null: there is none of that name.
const channel* find_channel(std::string_view name);

// This process.
const identity& own_identity();

}  // namespace penstock::channel
