#include "core/gather.hpp"

namespace penstock::core {

std::uint64_t room_of(std::uint64_t offset, std::uint64_t length) {
  const std::uint64_t blocks = (offset % path::direct_alignment + length + path::direct_alignment - 1) / path::direct_alignment;
  return blocks * path::direct_alignment + sizeof(device::segment);
}

void prepare_gather(path::job& made, path::job_owner& owner, path::job_queues& queues, runtime& with, const staging::place& place,
                    bool is_write) {
  made.owner = &owner;
  made.queues = &queues;
  made.path = &with.path(with.paths().base(place.on_device()));
  made.place = place;
  made.is_write = is_write;
  made.path->prepare({&made, 1});
}

io_result outcomes::of(path::gather_range& range, const status& error, admission& admitted) {
  io_result outcome{range.moved, std::move(range.error)};
  if (!error.ok()) outcome = {0, error};
  if (outcome.ok()) {
    ++requests_;
    bytes_ += outcome.bytes_done;
  } else {
    admitted.count(outcome);
  }
  return outcome;
}

void run_again(path::job& refused, const status& why, runtime& with) {
  with.stats().count_fallback(refused.path->kind(), why.message());
  for (auto& range : refused.ranges) {
    range.moved = 0;
    range.error = {};
  }
  auto& queues = *refused.queues;
  if (!queues.lanes->push(queues.cpu_works, refused).ok()) (void)refused.run();
}

}  // namespace penstock::core
