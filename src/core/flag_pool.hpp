// Words of pinned memory that hold a device stream until the host stores into them. Thread-safe.
#pragma once

#include <cstdint>
#include <deque>
#include <mutex>
#include <vector>

#include "staging/slab_pool.hpp"

namespace penstock::core {

class flag_pool {
 public:
  struct flag {
    std::uint32_t* word = nullptr;
    std::uint32_t raised = 0;  // the value that lets the stream go on; compared as cyclic, so a word can serve again at once
    std::size_t index = 0;     // the pool's
  };

  // Takes a word, in a slab of the pool, for the streams of a session. Waits for a slab where all are in use. queued() or unused(), and
  // raise(), are to be called once each after, in any order. Errors: out_of_memory, and what the driver says.
  result<flag> take(staging::slab_pool& pool, device::session& session);
  // A wait for the word has been queued onto the stream, which may get there long after the word was raised: its memory stays until then.
  void queued(const flag& used, device::stream on);
  // None has been, and none will be.
  void unused(const flag& used);
  // Lets the stream go on.
  void raise(const flag& used);
  // Gives the slabs back. Blocks until the streams have passed their words; no flag may be out.
  void clear();

 private:
  struct word_state {
    staging::slab_pool* pool = nullptr;
    device::session* session = nullptr;
    std::uint32_t* word = nullptr;
    std::uint32_t last = 0;
    device::event passed = nullptr;  // recorded behind the latest wait; null until the word is first taken
    unsigned calls_missing = 0;      // of queued() or unused(), and raise()
  };
  struct taken_slab {
    staging::slab_pool* pool;
    staging::slab memory;
    bool lost;  // a stream that cannot be followed may still read it
  };

  result<flag> take_free(const staging::slab_pool& pool, device::session& session);
  void settle(const flag& used);
  void lose(const std::uint32_t* word);

  std::mutex lock_;               // guards what follows; a word that is out belongs to whoever took it
  std::deque<word_state> words_;  // never shrinks, so that references last
  std::deque<std::size_t> free_;  // indexes, the longest free first
  std::vector<taken_slab> slabs_;
};

}  // namespace penstock::core
