#include "sys/nvtx.hpp"

#include <fmt/format.h>

#include "base/no_memory.hpp"
#include "penstock/status.hpp"

#ifdef PENSTOCK_HAVE_NVTX
#include <nvtx3/nvToolsExt.h>
#endif

namespace penstock::sys {

#ifdef PENSTOCK_HAVE_NVTX

namespace {

// Null if no tool is loaded. NVTX creates one domain per name. It exists until the process exits.
nvtxDomainHandle_t domain() noexcept {
  static nvtxDomainHandle_t const made = nvtxDomainCreateA("penstock");
  return made;
}

}  // namespace

bool has_nvtx() noexcept { return true; }

nvtx_range::nvtx_range(std::string_view what, std::uint64_t amount, std::string_view file) noexcept {
  if (domain() == nullptr) return;
  (void)or_no_memory([&]() -> status {
    const auto text = file.empty() ? fmt::format("{} of {}", what, amount) : fmt::format("{} {} of {}", what, amount, file);
    nvtxEventAttributes_t about{};
    about.version = NVTX_VERSION;
    about.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
    about.payloadType = NVTX_PAYLOAD_TYPE_UNSIGNED_INT64;
    about.payload.ullValue = amount;
    about.messageType = NVTX_MESSAGE_TYPE_ASCII;
    about.message.ascii = text.c_str();
    id_ = nvtxDomainRangeStartEx(domain(), &about);
    return {};
  });
}

void nvtx_range::end_it() noexcept { nvtxDomainRangeEnd(domain(), std::exchange(id_, 0)); }

#else

bool has_nvtx() noexcept { return false; }
nvtx_range::nvtx_range(std::string_view /*what*/, std::uint64_t /*amount*/, std::string_view /*file*/) noexcept {}
void nvtx_range::end_it() noexcept {}

#endif

}  // namespace penstock::sys
