#include "core/flag_pool.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>

namespace penstock::core {

namespace {
// One word for each cache line, so that streams polling one do not disturb the others.
constexpr std::size_t words_apart = 64 / sizeof(std::uint32_t);
constexpr std::size_t words_per_slab = 256;
constexpr unsigned most_waits_for_a_slab = 1000;
}  // namespace

result<flag_pool::flag> flag_pool::take(staging::slab_pool& pool, device::session& session) {
  for (unsigned waits = 0; waits < most_waits_for_a_slab; ++waits) {
    auto found = take_free(pool, session);
    if (!found || found->word != nullptr) return found;
    auto memory = pool.try_take(staging::small_slab_bytes, session, staging::slab_user::keeper);
    if (!memory) return memory.error();
    if (!*memory) {
      pool.wait_for_return(std::chrono::milliseconds(1));
      continue;
    }
    const std::lock_guard guard(lock_);
    slabs_.push_back({&pool, *memory, false});
    for (std::size_t i = 0; i < words_per_slab; ++i) {
      auto* word = reinterpret_cast<std::uint32_t*>(memory->data) + i * words_apart;
      *word = 0;
      free_.push_front(words_.size());
      words_.push_back({&pool, &session, word});
    }
  }
  return status(errc::out_of_memory, "no pinned memory is free for another stream-ordered request");
}

// An empty flag when there is none.
result<flag_pool::flag> flag_pool::take_free(const staging::slab_pool& pool, device::session& session) {
  const std::lock_guard guard(lock_);
  const auto found = std::find_if(free_.begin(), free_.end(),
                                  [&](std::size_t index) { return words_[index].pool == &pool && words_[index].session == &session; });
  if (found == free_.end()) return flag{};
  auto& word = words_[*found];
  if (word.passed == nullptr) {
    auto made = session.make_event();
    if (!made) return made.error();
    word.passed = *made;
  } else if (const auto passed = session.reached(word.passed); passed && !*passed) {
    return flag{};  // one event follows one stream; an error is of work that the stream has left behind
  }
  word.calls_missing = 2;
  const flag taken{word.word, ++word.last, *found};
  free_.erase(found);
  return taken;
}

void flag_pool::queued(const flag& used, device::stream on) {
  word_state* word = nullptr;
  {
    const std::lock_guard guard(lock_);
    word = &words_[used.index];
  }
  if (!word->session->record(word->passed, on).ok() && !word->session->record(word->passed, on).ok()) lose(used.word);
  settle(used);
}

void flag_pool::unused(const flag& used) { settle(used); }

void flag_pool::raise(const flag& used) {
  std::atomic_ref<std::uint32_t>(*used.word).store(used.raised, std::memory_order_release);
  settle(used);
}

void flag_pool::settle(const flag& used) {
  const std::lock_guard guard(lock_);
  if (--words_[used.index].calls_missing == 0) free_.push_back(used.index);
}

void flag_pool::lose(const std::uint32_t* word) {
  const std::lock_guard guard(lock_);
  const auto* at = reinterpret_cast<const std::byte*>(word);
  for (auto& each : slabs_) each.lost |= at >= each.memory.data && at < each.memory.data + each.memory.size;
}

void flag_pool::clear() {
  for (auto& word : words_) {
    if (word.passed == nullptr) continue;
    // A failure is of work that the stream has left behind, or of a context that is no more; the second try is for one of the call itself.
    if (!word.session->wait(word.passed).ok()) (void)word.session->wait(word.passed);
    (void)word.session->destroy_event(word.passed);
  }
  for (const auto& taken : slabs_) taken.lost ? taken.pool->abandon(taken.memory) : taken.pool->give_back(taken.memory);
  slabs_.clear();
  words_.clear();
  free_.clear();
}

}  // namespace penstock::core
