#include "cli/common/transfer.hpp"

#include <chrono>

#include "bench/meter.hpp"
#include "cli/common/interrupt.hpp"

namespace penstock::cli {

io_result finish(operation work, const engine& owner, progress_bar& bar, std::uint64_t first_byte) {
  constexpr std::chrono::milliseconds tick{50};
  const std::uint64_t start = bench::carried_bytes(owner.stats());
  bar.update(first_byte);
  while (!work.wait_for(tick)) {
    if (interrupted()) {
      work.cancel();
      break;
    }
    bar.update(first_byte + bench::carried_bytes(owner.stats()) - start);
  }
  return work.wait();
}

}  // namespace penstock::cli
