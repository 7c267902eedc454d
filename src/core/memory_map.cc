#include "core/memory_map.hpp"

#include <algorithm>
#include <cstring>
#include <string>

#include <fmt/format.h>

#include "base/no_memory.hpp"
#include "device/owned.hpp"

namespace penstock::core {

std::string device_name(std::string_view kind, int ordinal) { return fmt::format("{}:{}", kind, ordinal); }

std::string name_of(const staging::place& place) {
  if (!place.on_device()) return "host";
  return device_name(place.emulated() ? "host" : "cuda", place.via->session().ordinal());
}

status memory_map::usable() const { return fork_.forked() ? status(errc::forked, "the engine belongs to the parent process") : status(); }

result<std::pair<device::driver*, device::memory_info>> memory_map::classify(const void* memory) {
  for (auto* driver : {cuda_.get(), host_.get()}) {
    if (driver == nullptr) continue;
    auto info = driver->classify(memory);
    if (!info) return info.error();
    if (info->base != nullptr) return std::pair(driver, *info);
  }
  return std::pair<device::driver*, device::memory_info>(nullptr, {});
}

result<device::memory_info> memory_map::allocation_of(const void* memory) {
  const auto found = classify(memory);
  if (!found) return found.error();
  return found->second;
}

result<staging::place> memory_map::place_of(const void* memory, std::uint64_t length, seen_allocation* seen) {
  if (seen != nullptr && seen->holds(memory, length)) return seen->place;
  if (registered_count_.load(std::memory_order_acquire) > 0) {
    const auto* at = static_cast<const std::byte*>(memory);
    const std::lock_guard guard(registered_lock_);
    // Finds the nearest base at or below. Misses a longer range that starts earlier and also contains this one; that only costs a
    // classification.
    const auto after = registered_.upper_bound(at);
    if (after != registered_.begin()) {
      auto& [base, range] = *std::prev(after);
      if (length <= range.length && static_cast<std::uint64_t>(at - base) <= range.length - length) {
        ++range.served;
        return range.place;
      }
    }
  }
  auto found = classify(memory);
  if (!found) return found.error();
  auto& [driver, info] = *found;
  staging::place place;
  const auto remember = [&, &info = info] {
    if (seen != nullptr) *seen = {info.base, info.size, place};
  };
  if (driver == nullptr || info.type != device::memory_type::device) {
    remember();
    return place;
  }
  // A range may consist of several mappings (cuMemCreate, PyTorch's expandable segments), so classify each one.
  const auto* const end = static_cast<const std::byte*>(memory) + length;
  for (const std::byte* reach = info.base + info.size; reach < end;) {
    const auto next = driver->is_mapped(reach - 1) ? driver->classify(reach) : result<device::memory_info>(device::memory_info{});
    if (!next || next->type != device::memory_type::device || next->ordinal != info.ordinal || !driver->is_mapped(reach)) {
      return status(errc::bad_memory, fmt::format("{} bytes at {} extend {} bytes past the end of their {}-byte allocation", length, memory,
                                                  end - reach, info.size));
    }
    reach = next->base + next->size;
  }
  const bool first_gpu = driver == cuda_.get() && gpu_link_in_use() == nullptr;
  const auto link = link_to(*driver, info.ordinal, info.context);
  if (!link) return link.error();
  // Memory that cannot be pinned is still usable; its copies are slower.
  if (first_gpu && registered_count_.load() > 0) (void)pin_registered((*link)->session());
  place = {device::memory_type::device, *link};
  remember();
  return place;
}

int memory_map::node_of(device::driver& driver, int ordinal) {
  const auto facts = driver.describe(ordinal);
  return facts && !facts->pci_bus_id.empty() ? kernel_.describe_pci(facts->pci_bus_id).numa_node : -1;
}

result<staging::link*> memory_map::link_to(device::driver& driver, int ordinal, void* context) {
  const auto find = [&]() -> staging::link* {
    for (std::size_t i = 0, n = context_count_.load(std::memory_order_acquire); i < n; ++i) {
      auto& known = contexts_[i];
      if (known.driver == &driver && known.ordinal == ordinal && known.context == context) return &*known.link;
    }
    return nullptr;
  };
  if (auto* known = find()) return known;
  const auto session = driver.open(ordinal, context);
  if (!session) return session.error();
  const auto feeder = feeders_.of(**session);
  if (!feeder) return feeder.error();
  const int node = kernel_.current_node() < 0 ? -1 : node_of(driver, ordinal);
  const std::lock_guard guard(contexts_lock_);
  if (auto* known = find()) return known;
  auto& added = contexts_[context_count_.load()];
  added.driver = &driver;
  added.ordinal = ordinal;
  added.context = context;
  const bool emulated = &driver == host_.get();
  added.link.emplace(**session, **feeder, emulated ? host_pool_ : cuda_pool_, emulated);
  added.link->set_numa_node(node);
  context_count_.fetch_add(1, std::memory_order_release);
  return &*added.link;
}

std::optional<device::driver::current_context> memory_map::current_context() {
  if (cuda_ == nullptr || !usable().ok()) return {};
  return cuda_->current();
}

result<staging::link*> memory_map::link_to_context(const device::driver::current_context& of) {
  return link_to(*cuda_, of.ordinal, of.context);
}

std::uint32_t memory_map::find_neighbours(staging::link& of, std::size_t wanted) {
  const std::lock_guard guard(neighbours_lock_);
  known_context* mine = nullptr;
  for (std::size_t i = 0, n = context_count_.load(std::memory_order_acquire); i < n; ++i) {
    if (&*contexts_[i].link == &of) mine = &contexts_[i];
  }
  const int devices = mine == nullptr ? 0 : std::min(mine->driver->count().value_or(0), 64);
  for (int ordinal = 0; ordinal < devices && (wanted == 0 || of.neighbour_count() < wanted); ++ordinal) {
    const auto bit = std::uint64_t{1} << ordinal;
    if (ordinal == mine->ordinal || (mine->asked_neighbours & bit) != 0) continue;
    auto* other = link_in_use(*mine->driver, ordinal);
    if (other == nullptr && wanted > 0) other = link_to(*mine->driver, ordinal, nullptr).value_or(nullptr);
    if (other == nullptr) continue;
    mine->asked_neighbours |= bit;
    if (other->session().allow_copies_from(of.session())) of.add_neighbour(*other);
  }
  const auto count = of.neighbour_count();
  return static_cast<std::uint32_t>(wanted == 0 ? count : std::min(count, wanted));
}

staging::link* memory_map::link_in_use(const device::driver& driver, int ordinal) {
  for (std::size_t i = 0, n = context_count_.load(std::memory_order_acquire); i < n; ++i) {
    auto& known = contexts_[i];
    if (known.driver == &driver && (ordinal < 0 || known.ordinal == ordinal)) return &*known.link;
  }
  return nullptr;
}

std::array<staging::link*, 2> memory_map::links_in_use() {
  return {gpu_link_in_use(), host_ == nullptr ? nullptr : link_in_use(*host_, -1)};
}

staging::link* memory_map::only_link_in_use(bool emulated) noexcept {
  const auto* const driver = emulated ? host_.get() : cuda_.get();
  staging::link* only = nullptr;
  for (std::size_t i = 0, n = context_count_.load(std::memory_order_acquire); i < n; ++i) {
    if (contexts_[i].driver != driver) continue;
    if (only != nullptr) return nullptr;
    only = &*contexts_[i].link;
  }
  return only;
}

result<staging::place> memory_map::place_on(std::string_view device) {
  if (device.empty() || device == "host" || device == "cpu") return staging::place{};
  const auto named = device_named(device);
  if (!named) return named.error();
  const auto [driver, ordinal] = *named;
  auto* via = link_in_use(*driver, ordinal);
  if (via == nullptr && driver == host_.get()) {
    const auto made = link_to(*driver, ordinal, nullptr);
    if (!made) return made.error();
    via = *made;
  }
  return staging::place{device::memory_type::device, via};
}

// "host (also cpu), host:0, cuda:0 (also cuda, 0)"
std::string memory_map::names_of_devices() {
  std::string names = "host (also cpu)";
  for (auto* driver : {host_.get(), cuda_.get()}) {
    const int count = driver == nullptr ? 0 : driver->count().value_or(0);
    for (int i = 0; i < count; ++i) {
      names += ", " + device_name(driver->kind(), i);
      if (driver == cuda_.get()) names += i == 0 ? " (also cuda, 0)" : fmt::format(" (also {})", i);
    }
  }
  return names;
}

result<std::pair<device::driver*, int>> memory_map::device_named(std::string_view device) {
  const bool is_number = !device.empty() && device.find_first_not_of("0123456789") == std::string_view::npos;
  const auto colon = device.find(':');
  const auto kind = is_number ? "cuda" : device == "cpu" ? "host" : device.substr(0, colon);
  const auto number = is_number ? device : colon == std::string_view::npos ? std::string_view("0") : device.substr(colon + 1);
  const bool is_name = (kind == "cuda" || kind == "host") && !number.empty() && number.size() < 4 &&
                       number.find_first_not_of("0123456789") == std::string_view::npos;
  auto* const driver = !is_name ? nullptr : kind == "cuda" ? cuda_.get() : host_.get();
  // The command line and the Python package use the same words.
  const auto missing = [&](const status& why, std::string_view detail) {
    const auto cuda = is_name && kind == "cuda" ? cuda_status() : status();
    const auto reason = !cuda.ok() ? fmt::format(" (no GPU: {})", cuda.message()) : detail.empty() ? "" : fmt::format(" ({})", detail);
    return status(why.code(), fmt::format("there is no device \"{}\"{}; available devices: {}", device, reason, names_of_devices()),
                  why.domain(), why.native());
  };
  if (driver != nullptr) {
    const auto count = driver->count();
    if (!count) return missing(count.error(), count.error().message());
    if (const int ordinal = std::stoi(std::string(number)); ordinal < *count) return std::pair(driver, ordinal);
  }
  return missing({is_name ? errc::not_found : errc::invalid_argument, {}}, {});
}

result<staging::link*> memory_map::link_named(std::string_view device) {
  if (auto problem = usable(); !problem.ok()) return problem;
  const auto named = device_named(device);
  return named ? link_to(*named->first, named->second, nullptr) : named.error();
}

result<device::session*> memory_map::session_named(std::string_view device) {
  const auto named = device_named(device);
  return named ? named->first->open(named->second, nullptr) : named.error();
}

result<void*> memory_map::allocate(std::string_view device, std::size_t bytes) {
  if (auto problem = usable(); !problem.ok()) return problem;
  if (bytes == 0) return status(errc::invalid_argument, "allocate: zero bytes");
  const auto session = session_named(device);
  if (!session) return session.error();
  auto memory = (*session)->allocate(bytes);
  if (!memory) return memory.error().with_context(fmt::format("allocating {} bytes on {}", bytes, device));
  return *memory;
}

void memory_map::release(std::string_view device, void* memory) {
  if (!usable().ok()) return;
  (void)or_no_memory([&]() -> status {
    const auto session = session_named(device);
    return session ? (*session)->release(memory) : session.error();
  });
}

result<detail::shared_allocation> memory_map::share(const void* memory) {
  if (auto problem = usable(); !problem.ok()) return problem;
  const auto place = place_of(memory, 1);
  if (!place) return place.error();
  if (!place->on_device()) return status(errc::unsupported, "only device memory can be shared with another process");
  auto& session = place->via->session();
  auto shared = session.share(memory);
  if (!shared) return shared.error();
  detail::shared_allocation made{std::move(shared->handle), shared->offset, shared->length};
  if (!shared->by_descriptor) return made;
  const auto exported = session.export_shared(memory);
  if (!exported) return exported.error();
  const auto descriptor = kernel_.duplicate(exported->get());
  if (!descriptor) return descriptor.error();
  made.descriptor = *descriptor;
  return made;
}

result<void*> memory_map::open_shared(std::string_view device, const detail::shared_allocation& what, std::size_t bytes,
                                      std::int64_t process) {
  if (auto problem = usable(); !problem.ok()) return problem;
  const auto link = link_named(device);
  if (!link) return link.error();
  auto base = (*link)->session().open_shared(what.handle, process, what.descriptor);
  if (!base) return base.error();
  opened_shared_.fetch_add(1);
  const auto found = allocation_of(*base);
  if (!found || found->size < what.offset || found->size - what.offset < bytes) {
    close_shared(device, *base);
    return status(errc::bad_memory, fmt::format("process {} shares fewer than {} bytes at offset {}", process, bytes, what.offset));
  }
  return base;
}

void memory_map::close_shared(std::string_view device, void* base) {
  if (!usable().ok()) return;
  opened_shared_.fetch_sub(1);
  (void)or_no_memory([&]() -> status {
    const auto session = session_named(device);
    return session ? (*session)->close_shared(base) : session.error();
  });
}

status memory_map::copy(void* target, const void* source, std::size_t bytes) {
  if (auto problem = usable(); !problem.ok()) return problem;
  if (bytes == 0) return {};
  if (target == nullptr || source == nullptr) return {errc::bad_memory, "copy: null pointer"};
  const auto to = place_of(target, bytes);
  if (!to) return to.error();
  const auto from = place_of(source, bytes);
  if (!from) return from.error();
  if (to->on_device() && from->on_device() && to->emulated() != from->emulated()) return copy_over_host(target, source, bytes);
  auto* const link = to->on_device() ? to->via : from->via;
  if (link == nullptr) {
    std::memmove(target, source, bytes);
    return {};
  }
  auto& session = link->session();
  auto stream = device::owned_stream::make(session);
  if (!stream) return stream.error();
  auto outcome = session.copy(target, source, bytes, stream->get());
  if (auto ended = session.synchronize(stream->get()); outcome.ok()) outcome = std::move(ended);
  if (auto gone = stream->close(); outcome.ok()) outcome = std::move(gone);
  return outcome;
}

status memory_map::add_to_digest(std::span<const detail::digest_part> parts, std::uint64_t* sums, void* stream) {
  if (auto problem = usable(); !problem.ok()) return problem;
  const auto place = place_of(sums, sizeof(detail::digest_sums));
  if (!place) return place.error();
  if (!place->on_device() || reinterpret_cast<std::uintptr_t>(sums) % sizeof(*sums) != 0) {
    return {errc::bad_memory, "the sums of a digest must be in device memory, aligned to 8 bytes"};
  }
  return place->via->session().add_to_digest(parts, sums, stream);
}

// Copies through host memory, because a GPU and the host device cannot access each other.
status memory_map::copy_over_host(void* target, const void* source, std::size_t bytes) {
  constexpr std::size_t most_at_once = std::size_t{4} << 20;
  std::vector<std::byte> between(std::min(bytes, most_at_once));
  for (std::size_t at = 0; at < bytes; at += between.size()) {
    const std::size_t length = std::min(between.size(), bytes - at);
    if (auto problem = copy(between.data(), static_cast<const std::byte*>(source) + at, length); !problem.ok()) return problem;
    if (auto problem = copy(static_cast<std::byte*>(target) + at, between.data(), length); !problem.ok()) return problem;
  }
  return {};
}

result<staging::place> memory_map::register_range(void* memory, std::size_t bytes) {
  if (auto problem = usable(); !problem.ok()) return problem;
  if (memory == nullptr || bytes == 0) return status(errc::invalid_argument, "register_memory: empty range");
  const auto place = place_of(memory, bytes);
  if (!place) return place.error();
  const std::lock_guard guard(registered_lock_);
  const auto added = registered_.emplace(static_cast<const std::byte*>(memory), registered_range{bytes, *place});
  if (!place->on_device()) {
    // If no GPU is in use yet, the first GPU used pins the memory, because a registration must not create a context.
    if (auto* link = gpu_link_in_use(); link != nullptr) {
      if (auto pinned = or_no_memory([&] { return link->session().pin(memory, bytes, false); }); !pinned.ok()) {
        registered_.erase(added);
        return pinned.with_context("register_memory");
      }
      added->second.pinned_by = &link->session();
    }
  }
  registered_count_.fetch_add(1, std::memory_order_release);
  return *place;
}

// Pins the host memory that was registered before any GPU was in use.
status memory_map::pin_registered(device::session& session) {
  const std::lock_guard guard(registered_lock_);
  status outcome;
  for (auto& [base, range] : registered_) {
    if (range.place.on_device() || range.pinned_by != nullptr) continue;
    auto pinned = session.pin(const_cast<std::byte*>(base), range.length, false);
    if (pinned.ok()) range.pinned_by = &session;
    if (outcome.ok()) outcome = std::move(pinned);
  }
  return outcome;
}

void memory_map::rest() noexcept {
  {
    const std::lock_guard guard(registered_lock_);
    for (auto& [base, range] : registered_) {
      auto* const by = std::exchange(range.pinned_by, nullptr);
      if (by != nullptr) (void)or_no_memory([&] { return by->unpin(const_cast<std::byte*>(base)); });
    }
  }
  for (std::size_t i = 0, n = context_count_.load(std::memory_order_acquire); i < n; ++i) {
    (void)or_no_memory([&]() -> status {
      contexts_[i].link->session().rest();
      return {};
    });
  }
}

// Memory that cannot be pinned again is still usable; its copies are slower.
void memory_map::wake() noexcept {
  if (auto* const link = gpu_link_in_use(); link != nullptr && registered_count_.load() > 0)
    (void)or_no_memory([&] { return pin_registered(link->session()); });
}

void memory_map::note_cost(const void* memory, std::int64_t nanoseconds) {
  const std::lock_guard guard(registered_lock_);
  if (const auto found = registered_.find(static_cast<const std::byte*>(memory)); found != registered_.end())
    found->second.cost_ns = nanoseconds;
}

std::optional<memory_map::registration_facts> memory_map::unregister_range(void* memory) {
  if (!usable().ok()) return std::nullopt;
  device::session* pinned_by = nullptr;
  registration_facts facts;
  {
    const std::lock_guard guard(registered_lock_);
    const auto found = registered_.find(static_cast<const std::byte*>(memory));
    if (found == registered_.end()) return std::nullopt;
    pinned_by = found->second.pinned_by;
    facts = {found->second.served, found->second.cost_ns};
    registered_.erase(found);
    registered_count_.fetch_sub(1, std::memory_order_release);
  }
  if (pinned_by != nullptr) (void)or_no_memory([&] { return pinned_by->unpin(memory); });
  return facts;
}

result<memory_facts> memory_map::describe(const void* memory) {
  if (auto problem = usable(); !problem.ok()) return problem;
  const auto found = classify(memory);
  if (!found) return found.error();
  const auto& [driver, info] = *found;
  if (driver == nullptr) return memory_facts{};
  constexpr std::array kinds = {memory_kind::host, memory_kind::pinned, memory_kind::device};
  return memory_facts{kinds[static_cast<std::size_t>(info.type)],
                      info.ordinal < 0 ? std::string() : device_name(driver->kind(), info.ordinal), info.base, info.size};
}

result<void*> memory_map::cpu_address(const void* memory, std::size_t bytes) {
  if (auto problem = usable(); !problem.ok()) return problem;
  const auto found = classify(memory);
  if (!found) return found.error();
  const auto& [driver, info] = *found;
  if (driver == nullptr || info.type != device::memory_type::device) return const_cast<void*>(memory);
  const auto seen = driver->cpu_address(memory, bytes);
  if (!seen) return seen.error();
  return *seen;
}

std::vector<device_info> memory_map::devices() {
  std::vector<device_info> found;
  if (!usable().ok()) return found;
  for (auto* driver : {cuda_.get(), host_.get()}) {
    const int count = driver == nullptr ? 0 : driver->count().value_or(0);
    for (int i = 0; i < count; ++i) {
      auto& added = found.emplace_back();
      added.name = device_name(driver->kind(), i);
      const auto facts = driver->describe(i);
      if (!facts) {
        added.description = facts.error().message();
        continue;
      }
      const auto pci = facts->pci_bus_id.empty() ? pci_device{} : kernel_.describe_pci(facts->pci_bus_id);
      added = {std::move(added.name), facts->description, facts->pci_bus_id, facts->memory_bytes,
               pci.numa_node,         facts->uuid,        pci.window_bytes,  facts->shares_host_memory};
    }
  }
  return found;
}

status memory_map::cuda_status() {
  if (auto problem = usable(); !problem.ok()) return problem;
  if (cuda_ == nullptr) return {errc::not_found, "CUDA was switched off for this engine"};
  const auto count = cuda_->count();
  if (!count) return count.error();
  return *count > 0 ? status() : status(errc::not_found, "the CUDA driver reports no devices");
}

}  // namespace penstock::core
