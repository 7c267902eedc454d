// Stores a cache block under a key, and fetches it. docs/guides/kv-cache.md shows this program.
#include <penstock/penstock.hpp>

#include <iostream>
#include <vector>

static int fail(const penstock::status& error) {
  std::cerr << error.message() << '\n';
  return 1;
}

int main() {
  auto engine = penstock::engine::shared();
  if (!engine) return fail(engine.error());
  namespace kv = penstock::kv;
  auto store = kv::store::open(*engine, "kv-cache", {.capacity_bytes = 1 << 24});
  if (!store) return fail(store.error());
  // Host memory here; pass GPU memory, however allocated, in the same way.
  std::vector<float> keys(131072, 1.0F), values(131072, 2.0F);
  const kv::memory_piece block[] = {{keys.data(), 524288}, {values.data(), 524288}};
  const auto stored = store->put({{"block-17", block}});  // many keys at once
  if (stored[0].ended != kv::outcome::done) return fail(stored[0].error);
  auto running = store->get_async({{"block-17", block}});
  const auto fetched = running.wait();
  if (fetched[0].ended != kv::outcome::done) return fail(fetched[0].error);
  std::cout << fetched[0].bytes << " bytes\n";
  const auto closed = store->close();
  return closed.ok() ? 0 : fail(closed);
}
