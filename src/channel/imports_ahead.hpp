// Maps memory that the peer has posted before a message uses it, so that the message need not wait. The mapping runs on a thread that
// transfers no data. Thread-safe. The object is kept alive while its work is queued or running, because the pipe may close during that
// time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "channel/imports.hpp"
#include "channel/wire.hpp"
#include "staging/lanes.hpp"
#include "staging/work.hpp"

namespace penstock::channel {

class imports_ahead final : public std::enable_shared_from_this<imports_ahead>, private staging::work {
 public:
  static constexpr std::size_t most_queued = pipe_imports::most_ahead;
  using targets = std::vector<tensor_facts>;

  // by: owned by the engine; must outlive the queued work.
  imports_ahead(staging::lanes& by, std::shared_ptr<pipe_imports> into) noexcept : lanes_(by), into_(std::move(into)) {}

  // Queues memory that is not mapped yet, for a device that will write there; if everything is mapped, no thread is woken. Targets that no
  // longer exist by then are skipped. Examines at most most_queued parts, even if the peer has posted more. Does not block. If the queue is
  // full or there is no thread, the message maps its targets itself.
  void add(device::session& from, const std::shared_ptr<const targets>& to, std::int64_t process);

 private:
  struct posted {
    device::session* from;
    std::string handle;
    std::uint64_t generation;
    std::int64_t process;
    std::weak_ptr<const targets> of;
  };
  bool run() override;
  // --- with the lock held
  void queue(device::session& from, const std::shared_ptr<const targets>& to, std::int64_t process);
  void begin();

  staging::lanes& lanes_;
  const std::shared_ptr<pipe_imports> into_;
  staging::work_list list_;
  std::mutex lock_;  // guards the members below
  std::deque<posted> queue_;
  std::shared_ptr<imports_ahead> kept_;  // while its work is queued or running
};

}  // namespace penstock::channel
