#include "channel/fabrics.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "staging/worker.hpp"
#include "sys/rdma.hpp"

namespace penstock::channel {

std::optional<std::string> fabrics::refuses(bool local) {
  if (!named_) {
    if (local) return "both ends are on this host";
    if (auto none = sys::no_rdma(sysfs_); !none.empty()) return none;
  }
  if (auto problem = door_->usable(); !problem.ok()) return std::string(problem.message());
  if (auto host = of_host(); !host) return std::string(host.error().message());
  return std::nullopt;
}

status fabrics::rest(deadline_clock::time_point /*until*/) {
  std::map<std::string, opened> ended;
  {
    const std::lock_guard guard(lock_);
    ended.swap(opened_);
  }
  std::vector<std::weak_ptr<sys::fabric>> used;
  for (const auto& [cards, each] : ended) {
    if (each) used.push_back(*each);
  }
  ended.clear();
  if (std::ranges::all_of(used, [](const auto& each) { return each.expired(); })) return {};
  return {errc::unsupported, "a closed pipe still uses UCX, which cannot be frozen: release the pipe object first"};
}

// If fabrics are selected by name, tensors on the host device may use them, and each GPU is checked separately.
std::optional<std::string> fabrics::refuses_gpus() {
  if (named_) return std::nullopt;
  if (sys::rdma_door_to_gpus(sysfs_).empty()) {
    return "the network card cannot access GPU memory: neither nvidia_peermem nor the open kernel modules of NVIDIA's driver "
           "(dma-buf)";
  }
  if (auto host = of_host(); host && !(*host)->knows_cuda()) return "this UCX build does not support CUDA memory";
  return std::nullopt;
}

fabrics::opened fabrics::open(const std::string& devices, std::size_t rails, device::session* session) {
  if (const auto found = opened_.find(devices); found != opened_.end()) return found->second;
  const auto begin = [session] {
    staging::become_worker("penstock-ucx");
    if (session != nullptr) (void)session->make_current();  // UCX needs a context to copy GPU memory
  };
  auto made = door_->open({devices.empty() && named_ && only_loopback_ ? "lo" : devices, !named_, begin, rails});
  if (!made && made.error().code() == errc::out_of_memory) return made;
  opened_.emplace(devices, made);
  return made;
}

fabrics::opened fabrics::of_host() {
  const std::lock_guard guard(lock_);
  return open({}, 0, nullptr);
}

fabrics::opened fabrics::of_gpu(device::session& session, const std::string& pci_bus_id) {
  const std::lock_guard guard(lock_);
  auto card = cards_.find(pci_bus_id);
  if (card == cards_.end()) {
    const auto chosen = sys::choose_nic(pci_bus_id, sysfs_);
    if (chosen.device.empty()) return status(errc::unsupported, chosen.reason);
    card = cards_.emplace(pci_bus_id, chosen.rails).first;
  }
  auto made = open(fmt::format("{}", fmt::join(card->second, ",")), card->second.size(), &session);
  if (made && !(*made)->knows_cuda()) return status(errc::unsupported, "this UCX build does not support CUDA memory");
  return made;
}

}  // namespace penstock::channel
