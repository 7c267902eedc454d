// Small asynchronous requests. Those that have come when a lane gets to them travel together, like those of a batch: one slab and one copy
// for many, where a copy of its own would cost each 4 us of the feeder's time on a GPU. None waits for company: a lane is called with the
// first.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "base/spin_lock.hpp"
#include "core/file_core.hpp"
#include "core/pending.hpp"
#include "core/request.hpp"
#include "staging/work.hpp"

namespace penstock::core {

class small_request final : public pending {
 public:
  small_request(std::shared_ptr<engine_core> engine, std::shared_ptr<file_core> file, const transfer& what);

  // The use of the file. After an error, end() is to be called.
  status begin();
  // Ends one that does not travel. It may be gone on return.
  void end(io_result outcome);

 private:
  friend class small_requests;
  ~small_request() override = default;

  const std::shared_ptr<file_core> file_;
  const transfer what_;
  bool begun_ = false;
  small_request* next_ = nullptr;  // in the queue's lists
};

// The queue of an engine. Thread-safe. Never holds a request when the engine goes, since each keeps it.
class small_requests final : public staging::work {
 public:
  // most_under_way: groups that travel at once. More requests wait until one has arrived, and so travel in larger groups.
  small_requests(engine_core& engine, std::size_t most_under_way) : engine_(engine), most_under_way_(most_under_way) {}

  // Takes over the running request's reference. Threads of the lanes must have been started.
  void add(small_request& added);
  // On a lane: carries what has come.
  bool run() override;

 private:
  class group;

  small_request* take();
  std::vector<group*> sort(small_request* taken);
  void group_ended();
  [[nodiscard]] bool must_call();
  void call();

  engine_core& engine_;
  const std::size_t most_under_way_;
  staging::work_list list_;
  spin_lock lock_;  // guards what follows
  small_request* inbox_head_ = nullptr;
  small_request* inbox_tail_ = nullptr;
  std::size_t waiting_ = 0;        // in the inbox and in the list below
  std::size_t under_way_ = 0;      // groups
  bool called_ = false;            // a lane has been called, and has not taken its share yet: only one at a time takes
  small_request* head_ = nullptr;  // that lane's: what has left the inbox
};

}  // namespace penstock::core
