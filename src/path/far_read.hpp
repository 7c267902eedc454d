// An extent that a far source brings into memory of the engine's, from where its path goes on. It never goes straight into the user's
// memory: a request that is cancelled, or whose deadline has passed, ends while the source may still write. Its reads are then left behind,
// each with its memory, until the source has told them.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "path/begun_reads.hpp"
#include "path/data_path.hpp"
#include "penstock/status.hpp"
#include "source/source.hpp"
#include "source/turnstile.hpp"
#include "staging/lent_slab.hpp"
#include "staging/work.hpp"

namespace penstock::path {

// As a work, it goes on with its job once it has been told.
class far_read final : public begun_read, public source::far_fill, public staging::work {
 public:
  // A slab, or memory of the host.
  struct memory {
    staging::lent_slab slab;
    std::unique_ptr<std::byte[]> block{};
    [[nodiscard]] std::byte* data() const noexcept { return slab ? slab.data() : block.get(); }
  };
  // What the path does with what has come, as source::fill() would return it. On a lane; must not block.
  using arrival = void (*)(job& item, memory into, io_result got);

  // Begins to read the extent of a job that has passed its turnstile; into has room for it. The job may be gone on return. Throws bad_alloc
  // before anything has happened.
  static void begin(job& item, memory into, arrival goes_on);
  bool run() override;
  void leave() noexcept override;

 private:
  enum class fate : std::uint8_t { open, arrived, left };

  far_read(job& item, memory into, arrival goes_on);
  ~far_read() override = default;
  void ended(io_result outcome) noexcept override;

  job* const item_;  // gone with one that was left
  memory memory_;
  const arrival goes_on_;
  const std::shared_ptr<source::turnstile> turns_;
  io_result got_;
  std::atomic<fate> fate_{fate::open};  // decided by what comes first: that it was told, or that its request was stopped
};

}  // namespace penstock::path
