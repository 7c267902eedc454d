// Memory runs out in the middle of calls of a key-value store: the first allocation fails, then the second, and so on, on the calling
// thread or the threads of engine and store. Whatever fails, a key has its old or its new value, the failed call returns an error, and
// everything works afterwards, also after the store is opened again.
#include <gtest/gtest.h>

#include <atomic>
#include <new>
#include <string>
#include <utility>

#include "kv/kv_fixture.hpp"
#include "memory/failing_allocations.hpp"

namespace penstock::kv {
namespace {

using testing::allocations_of;

class memory_trial {
 public:
  memory_trial(allocations_of whose, std::uint64_t nth, bool lasting) : whose_(whose), nth_(nth), lasting_(lasting) {
    store_.emplace(made_store(engine_, directory_.file("store"), {.capacity_bytes = 64 * block_bytes}));
    EXPECT_EQ(put_one(*store_, "a", old_).ended, outcome::done);
    EXPECT_EQ(put_one(*store_, "b", old_).ended, outcome::done);
    EXPECT_TRUE(store_->sync().ok());
    const auto fill = drop_one(*store_, "b");
    EXPECT_EQ(fill.ended, outcome::done);
  }

  // Runs a put of "a" and a get of it, of which one allocation fails. False: none did.
  bool run(bool waits) {
    const auto before = testing::failed_allocations();
    const memory_piece source{new_.data(), new_.size()};
    const memory_piece target{back_.data(), back_.size()};
    const item put{"a", std::span(&source, 1)};
    const item get{"a", std::span(&target, 1)};
    try {
      const testing::failing_allocations armed(whose_, nth_, lasting_);
      if (waits) {
        saw(store_->put(std::span(&put, 1)), true);
        saw(store_->get(std::span(&get, 1)), false);
      } else {
        saw(store_->put_async(std::span(&put, 1), [this](auto) { ++called_; }).wait(), true);
        ++expected_calls_;
        saw(store_->get_async(std::span(&get, 1)).wait(), false);
      }
    } catch (const std::bad_alloc&) {
      threw_ = true;  // there was no memory for results
    }
    return testing::failed_allocations() > before;
  }

  void check() {
    if (!threw_) {
      EXPECT_EQ(called_, expected_calls_);
    }
    const auto seen = fetched(*store_, "a");
    ASSERT_TRUE(seen);
    EXPECT_TRUE(*seen == new_ || (!put_is_done_ && *seen == old_));
    ASSERT_EQ(put_one(*store_, "c", old_).ended, outcome::done);
    ASSERT_TRUE(store_->sync().ok());
    ASSERT_TRUE(store_->close().ok());
    const auto again = made_store(engine_, directory_.file("store"), {});
    EXPECT_EQ(fetched(again, "a"), seen);
    EXPECT_EQ(fetched(again, "c"), old_);
  }

 private:
  void saw(const std::vector<key_result>& results, bool is_put) {
    ASSERT_EQ(results.size(), 1U);
    if (is_put) put_is_done_ = results[0].ended == outcome::done;
    if (results[0].ended == outcome::failed && results[0].error.code() != errc::out_of_memory &&
        results[0].error.code() != errc::invalid_argument) {  // of another length, since the put has failed
      ADD_FAILURE() << told(results[0].error);
    }
  }

  const allocations_of whose_;
  const std::uint64_t nth_;
  const bool lasting_;
  engine engine_ = testing::made_engine(quiet_engine());
  testing::temp_dir directory_;
  bytes old_ = value_of(1, 1);
  bytes new_ = value_of(1, 2);
  bytes back_ = bytes(new_.size());
  std::optional<store> store_;
  std::atomic<int> called_{0};
  int expected_calls_ = 0;
  bool put_is_done_ = false;
  bool threw_ = false;
};

class kv_memory : public ::testing::TestWithParam<allocations_of> {};

TEST_P(kv_memory, an_allocation_that_fails_costs_the_call_at_most) {
  for (const bool lasting : {false, true}) {
    for (const bool waits : {true, false}) {
      for (std::uint64_t nth = 1; nth < 400; ++nth) {
        SCOPED_TRACE("allocation " + std::to_string(nth) + (lasting ? " and those after it" : "") + (waits ? ", blocking" : ""));
        memory_trial one(GetParam(), nth, lasting);
        const bool failed = one.run(waits);
        one.check();
        if (!failed || ::testing::Test::HasFailure()) break;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(of, kv_memory, ::testing::Values(allocations_of::the_caller, allocations_of::the_workers),
                         [](const auto& info) { return info.param == allocations_of::the_caller ? "the_caller" : "the_workers"; });

}  // namespace
}  // namespace penstock::kv
