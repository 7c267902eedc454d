// Random calls of a store, compared with a map: each key has the value that was put last, or none if it may have been evicted. Prints its
// seed. PENSTOCK_MODEL_SEED repeats a run, PENSTOCK_MODEL_SECONDS sets how long new seeds are tried.
#include <chrono>
#include <cstdlib>
#include <iostream>
#include <map>
#include <random>

#include "kv/kv_fixture.hpp"

namespace penstock::kv {
namespace {

constexpr std::uint64_t key_count = 24;

class model_run {
 public:
  explicit model_run(std::uint64_t seed)
      : random_(seed),
        folder_(directory_.file("store")),
        capacity_(block_bytes * pick(16, 256)),
        keeps_all_(capacity_ >= key_count * 2 * most_value_bytes) {
    open();
  }

  void steps(int count) {
    for (int i = 0; i < count && !::testing::Test::HasFailure(); ++i) {
      SCOPED_TRACE("step " + std::to_string(i));
      step();
    }
  }

 private:
  static constexpr std::uint64_t most_value_bytes = 40'000;

  std::uint64_t pick(std::uint64_t least, std::uint64_t most) { return std::uniform_int_distribution<std::uint64_t>(least, most)(random_); }

  void open() {
    store_options options;
    options.capacity_bytes = capacity_;
    options.checksums = pick(0, 2) > 0;
    options.direct_writes = pick(0, 2) == 0;
    options.most_put_bytes_under_way = pick(1, 40) * block_bytes;
    store_.emplace(made_store(engine_, folder_, options));
  }

  void step() {
    const auto what = pick(0, 99);
    if (what < 45) {
      put();
    } else if (what < 85) {
      get();
    } else if (what < 92) {
      drop();
    } else if (what < 97) {
      EXPECT_TRUE(store_->sync().ok());
    } else {
      if (pick(0, 1) == 0) {
        EXPECT_TRUE(store_->close().ok());
      }
      store_.reset();
      open();
    }
  }

  // Memory of so many bytes, of the host or of a device, cut anywhere.
  struct memory {
    bytes host;
    device_buffer device;
    std::vector<memory_piece> pieces;
  };
  memory some_memory(const bytes& content) {
    memory made{content, {}, {}};
    auto* base = made.host.data();
    if (pick(0, 1) == 0) {
      auto allocated = engine_.allocate("host:0", content.size());
      EXPECT_TRUE(allocated.ok());
      made.device = *std::move(allocated);
      base = static_cast<std::byte*>(made.device.data());
      EXPECT_TRUE(engine_.copy(base, content.data(), content.size()).ok());
    }
    for (std::size_t at = 0; at < content.size();) {
      const auto length = std::min<std::size_t>(content.size() - at, pick(0, 3) == 0 ? pick(0, 100) : pick(1, 20'000));
      made.pieces.push_back({base + at, length});
      at += length;
    }
    return made;
  }
  bytes content_of(memory& of) {
    if (of.device.size() > 0) {
      EXPECT_TRUE(engine_.copy(of.host.data(), of.device.data(), of.host.size()).ok());
    }
    return of.host;
  }

  std::vector<std::uint64_t> some_keys() {
    std::vector<std::uint64_t> keys;
    for (auto count = pick(1, 8); count > 0; --count) {
      const auto key = pick(0, key_count - 1);
      if (std::find(keys.begin(), keys.end(), key) == keys.end()) keys.push_back(key);
    }
    return keys;
  }

  std::vector<key_result> run(std::span<const item> items, bool is_put) {
    if (pick(0, 1) == 0) return is_put ? store_->put(items) : store_->get(items);
    return (is_put ? store_->put_async(items) : store_->get_async(items)).wait();
  }

  void put() {
    const auto keys = some_keys();
    std::vector<std::string> names;
    std::vector<bytes> values;
    std::vector<memory> memories;
    std::vector<item> items;
    for (const auto key : keys) {
      names.push_back(key_of(key));
      values.push_back(value_of(key, ++version_));
      memories.push_back(some_memory(values.back()));
    }
    for (std::size_t i = 0; i < keys.size(); ++i) items.push_back({names[i], memories[i].pieces});
    const auto results = run(items, true);
    for (std::size_t i = 0; i < keys.size(); ++i) {
      ASSERT_EQ(results[i].ended, outcome::done) << told(results[i].error);
      known_[keys[i]] = values[i];
    }
  }

  void get() {
    const auto keys = some_keys();
    std::vector<std::string> names;
    for (const auto key : keys) names.push_back(key_of(key));
    const std::vector<std::string_view> views(names.begin(), names.end());
    const auto sizes = store_->sizes(views);
    std::vector<memory> memories;
    std::vector<item> items;
    for (const auto& each : sizes) memories.push_back(some_memory(bytes(each.ended == outcome::done ? each.bytes : 10)));
    for (std::size_t i = 0; i < keys.size(); ++i) items.push_back({names[i], memories[i].pieces});
    const auto results = run(items, false);
    for (std::size_t i = 0; i < keys.size(); ++i) {
      ASSERT_EQ(results[i].ended, sizes[i].ended) << told(results[i].error);
      const auto known = known_.find(keys[i]);
      if (results[i].ended == outcome::done) {
        ASSERT_TRUE(known != known_.end()) << "key " << keys[i] << " was never put, or dropped";
        EXPECT_EQ(content_of(memories[i]), known->second) << "key " << keys[i];
      } else if (keeps_all_) {
        EXPECT_TRUE(known == known_.end()) << "key " << keys[i] << " is gone, though there is room";
      }
    }
  }

  void drop() {
    const auto key = pick(0, key_count - 1);
    const auto gone = drop_one(*store_, key_of(key));
    EXPECT_NE(gone.ended, outcome::failed) << told(gone.error);
    if (gone.ended == outcome::done) {
      EXPECT_EQ(gone.bytes, known_[key].size());
    }
    known_.erase(key);
  }

  std::mt19937_64 random_;
  engine engine_ = testing::made_engine(quiet_engine());
  testing::temp_dir directory_;
  std::string folder_;
  std::uint64_t capacity_;
  bool keeps_all_;
  std::optional<store> store_;
  std::map<std::uint64_t, bytes> known_;
  std::uint64_t version_ = 0;
};

TEST(kv_model, random_calls_agree_with_a_map) {
  const char* const given = std::getenv("PENSTOCK_MODEL_SEED");
  const char* const seconds = std::getenv("PENSTOCK_MODEL_SECONDS");
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(seconds != nullptr ? std::atoi(seconds) : 2);
  auto seed = given != nullptr ? std::strtoull(given, nullptr, 10) : std::random_device()();
  do {
    SCOPED_TRACE("seed " + std::to_string(seed));
    model_run(seed).steps(300);
    if (::testing::Test::HasFailure()) {
      std::cout << "PENSTOCK_MODEL_SEED=" << seed << '\n';
      return;
    }
    ++seed;
  } while (given == nullptr && std::chrono::steady_clock::now() < until);
}

}  // namespace
}  // namespace penstock::kv
