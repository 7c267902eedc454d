// Reads an extent from a remote source into memory of the engine. The path continues from there. The source never writes into the user's
// memory, because a cancelled request, or one past its deadline, ends while the source may still be writing. Such reads are abandoned, each
// with its memory, until the source reports their completion.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "path/begun_reads.hpp"
#include "path/data_path.hpp"
#include "path/host_blocks.hpp"
#include "penstock/status.hpp"
#include "source/source.hpp"
#include "source/turnstile.hpp"
#include "staging/lent_slab.hpp"
#include "staging/work.hpp"

namespace penstock::path {

// As a work item, it continues its job after the source has reported completion.
class far_read final : public begun_read, public source::far_fill, public staging::work {
 public:
  // A slab, or host memory.
  struct memory {
    staging::lent_slab slab;
    host_blocks::block block{};
    [[nodiscard]] std::byte* data() const noexcept { return slab ? slab.data() : block.get(); }
  };
  // Continues the path with the result, in the form in which source::fill() would return it. Runs on a lane; must not block.
  using arrival = void (*)(job& item, memory into, io_result got);

  // Starts to read the extent of a job that has passed its turnstile. into must be large enough for it. The job may be destroyed on return.
  // Throws bad_alloc before it changes anything.
  static void begin(job& item, memory into, arrival goes_on);
  bool run() override;
  void leave() noexcept override;

 private:
  enum class fate : std::uint8_t { open, arrived, left };

  far_read(job& item, memory into, arrival goes_on);
  ~far_read() override = default;
  void ended(io_result outcome) noexcept override;

  job* const item_;  // destroyed if the read was abandoned
  memory memory_;
  const arrival goes_on_;
  const std::shared_ptr<source::turnstile> turns_;
  io_result got_;
  std::atomic<fate> fate_{fate::open};  // decided by the first event: the source reports completion, or the request is stopped
};

}  // namespace penstock::path
