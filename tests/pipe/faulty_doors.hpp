// Doors whose driver of the device in use can be made to fail: of the first GPU, else of the host device.
#pragma once

#include <memory>

#include "core/engine_core.hpp"
#include "support/faulty_device.hpp"

namespace penstock::testing {

struct faulty_doors {
  core::seams seams = core::real_seams({});
  std::shared_ptr<faulty_driver> driver;
  explicit faulty_doors(bool with_gpu = true) {
    if (!with_gpu) seams.cuda = nullptr;
    const bool on_gpu = seams.cuda != nullptr && seams.cuda->count().value_or(0) > 0;
    auto& used = on_gpu ? seams.cuda : seams.host;
    driver = std::make_shared<faulty_driver>(used);
    used = driver;
  }
};

}  // namespace penstock::testing
