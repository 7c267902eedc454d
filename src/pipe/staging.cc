#include "pipe/staging.hpp"

#include <algorithm>
#include <memory>

namespace penstock::pipes {

using namespace std::chrono_literals;

pipe_staging::pipe_staging(core::runtime& with)
    : sending_(with.kernel(), pullers_),
      receiving_(with.kernel(), pullers_),
      pullers_(std::clamp(with.cores() / 2, 1U, 8U), 0us, nullptr, "penstock-pl") {}

pipe_staging& pipe_staging::of(core::runtime& with) {
  return static_cast<pipe_staging&>(
      with.beside([](core::runtime& by) -> std::unique_ptr<core::beside_files> { return std::make_unique<pipe_staging>(by); }));
}

core::beside_files::pinned pipe_staging::pinned_now() const {
  const auto landed = sending_.pinned_bytes() + receiving_.pinned_bytes();  // never less than before
  return {inboxes_.used_bytes.load() + landed, inboxes_.peak_bytes.load() + landed};
}

std::chrono::microseconds pipe_spin(const core::runtime& with) noexcept { return !with.few_cores() ? 200us : 50us; }

}  // namespace penstock::pipes
