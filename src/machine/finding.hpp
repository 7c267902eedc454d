// Findings about a machine: entries of a fixed catalogue with the facts filled in. Plain values; not thread-safe.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace penstock::machine {

enum class verdict : std::uint8_t {
  ok = 0,
  slow,     // works, but could be faster
  broken,   // present but does not work, or blocks something else
  unknown,  // cannot be determined
};
std::string_view to_string(verdict of) noexcept;

enum class group : std::uint8_t { platform = 0, libraries, file_systems };
std::string_view to_string(group of) noexcept;

// An entry of the catalogue. {name} in its texts is replaced by a fact.
struct known_finding {
  std::string_view id;  // "iommu.on": its meaning never changes
  group where = group::platform;
  machine::verdict verdict = machine::verdict::ok;
  std::string_view reason;
  std::string_view remedy{};  // a command, a setting or a step; empty: nothing needs to be done
};
// Returns the catalogue in output order.
std::span<const known_finding> all_findings() noexcept;

struct finding {
  std::string id;
  group where = group::platform;
  machine::verdict verdict = machine::verdict::ok;
  std::string subject;  // a PCI address, a drive, a mount point; empty: the whole machine
  std::string reason, remedy;
};

using facts = std::initializer_list<std::pair<std::string_view, std::string>>;

class findings {
 public:
  // id: an entry of the catalogue.
  void add(std::string_view id, std::string subject = {}, facts known = {});
  [[nodiscard]] const std::vector<finding>& all() const noexcept { return all_; }
  [[nodiscard]] std::size_t count(verdict of) const;
  void append(const findings& more) { all_.insert(all_.end(), more.all_.begin(), more.all_.end()); }

 private:
  std::vector<finding> all_;
};

}  // namespace penstock::machine
