// Permission to write into the receiver's memory: a word in memory that both ends have mapped. The receiver grants it, and the sender takes
// it before it writes. If the sender takes it while the receiver revokes it, the atomic word decides who wins, so no reply is needed.
// Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>

namespace penstock::channel {

class permit {
 public:
  static constexpr std::uint32_t count = 64;  // words per end
  static constexpr std::uint32_t turns = 1U << 30;

  // turn: below turns. Values from an earlier turn are ignored.
  permit(std::atomic<std::uint32_t>& word, std::uint32_t turn) noexcept : word_(&word), turn_(turn) {}

  // For the receiver.
  void give() noexcept { word_->store(value(given)); }
  // Returns false if the sender has taken it; the sender may then write until used() returns true.
  [[nodiscard]] bool take_back() noexcept { return move(given, gone); }
  // Returns true if no more writes will happen under this permit.
  [[nodiscard]] bool used() const noexcept { return word_->load() == value(gone) || written(); }
  // Returns true if all bytes have been written.
  [[nodiscard]] bool written() const noexcept { return word_->load() == value(done); }

  // For the sender. take() returns false if the permit was revoked.
  [[nodiscard]] bool take() noexcept { return move(given, taken); }
  void use_up() noexcept { (void)move(taken, gone); }
  // Returns the value that a device stores in the word after its writes; written() checks for it.
  [[nodiscard]] std::uint32_t* word() const noexcept { return reinterpret_cast<std::uint32_t*>(word_); }
  [[nodiscard]] std::uint32_t value_of_written() const noexcept { return value(done); }

 private:
  enum state : std::uint32_t { gone, given, taken, done };
  [[nodiscard]] std::uint32_t value(state is) const noexcept { return turn_ << 2 | is; }
  bool move(state from, state to) noexcept {
    auto expected = value(from);
    return word_->compare_exchange_strong(expected, value(to));
  }

  std::atomic<std::uint32_t>* word_;
  std::uint32_t turn_;
};

}  // namespace penstock::channel
