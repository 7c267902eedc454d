// A request that runs in the order of a device stream. Two things are queued onto the stream: a call that tells the engine that the
// stream has come this far, and a wait for a word of pinned memory that the engine stores to when the request has ended. The host is never
// blocked, and the copies run on streams of the engine's own. Counted by reference.
#pragma once

#include <atomic>
#include <memory>
#include <semaphore>

#include "core/file_core.hpp"
#include "core/flag_pool.hpp"
#include "penstock/engine.hpp"
#include "staging/work.hpp"

namespace penstock::core {

class stream_operation final : public staging::work {
 public:
  // Ok: queued; the operation will end, and say how in *bytes_done. An error: nothing of it will run.
  static status queue(const std::shared_ptr<engine_core>& engine, const std::shared_ptr<file_core>& file, const stream_request& what,
                      bool is_write);

  // The stream has come this far: reads the sizes and starts. On a lane.
  bool run() override;

 private:
  stream_operation(std::shared_ptr<engine_core> engine, std::shared_ptr<file_core> file, const stream_request& what, bool is_write)
      : engine_(std::move(engine)), file_(std::move(file)), what_(what), is_write_(is_write) {}

  static void reached(void* self);           // called by the stream
  static void wait_until_ended(void* self);  // likewise, where the device cannot wait for memory
  void hold(device::session& session);
  void start();
  void ended(const io_result& outcome);
  void release();

  std::shared_ptr<engine_core> engine_;
  std::shared_ptr<file_core> file_;
  const stream_request what_;
  const bool is_write_;
  flag_pool::flag flag_;
  std::atomic<int> holders_{2};  // the call that queues it, and its run; a third where the stream waits with a call
  std::binary_semaphore done_{0};
  staging::work_list list_;
};

}  // namespace penstock::core
