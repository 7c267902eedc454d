// Streams a model (a folder or a safetensors file) through 64 MiB of the first device's memory, one tensor at a time, for example to
// convert or hash it. Without an argument, creates a small model. The device is a GPU, or the host device, which imitates one.
#include <penstock/penstock.hpp>

#include <algorithm>
#include <fstream>
#include <iostream>
#include <string>
#include <vector>

namespace {

// Writes a model with 100 tensors of 2 MiB of zeros.
std::string made_model() {
  std::vector<penstock::tensor_facts> tensors;
  for (int i = 0; i < 100; ++i) tensors.push_back({"layer." + std::to_string(i), penstock::tensor_type::u8, {2 << 20}});
  const auto beginning = penstock::make_safetensors(tensors);
  if (!beginning) return {};
  std::ofstream("large.safetensors", std::ios::binary) << *beginning << std::string(200 << 20, '\0');
  return "large.safetensors";
}

}  // namespace

int main(int argc, char** argv) {
  const auto fail = [](const penstock::status& error) {
    std::cerr << error.message() << '\n';
    return 1;
  };

  auto engine = penstock::engine::create();
  if (!engine) return fail(engine.error());
  auto model = penstock::model::open(*engine, {argc > 1 ? argv[1] : made_model()});
  if (!model) return fail(model.error());
  auto layout = penstock::lay_out(*model, {.window_bytes = 64 << 20});
  if (!layout) return fail(layout.error());

  const std::string device = engine->devices().front().name;
  auto memory = engine->allocate(device, std::max<std::uint64_t>(layout->bytes, 1));
  if (!memory) return fail(memory.error());
  void* const there = memory->data();

  penstock::model_flow flow(*engine);
  if (const auto error = flow.add(*layout, {&there, 1}); !error.ok()) return fail(error);
  for (std::size_t i = 0; i < layout->tensors.size(); ++i) {
    if (const auto error = flow.take(i); !error.ok()) return fail(error);
    const auto& [tensor, part, place] = layout->tensors[i];
    std::cout << tensor.facts->name << ": " << part.bytes() << " bytes at " << place << " of " << layout->bytes << " on " << device << '\n';
    flow.drop(i);  // a later tensor may now use its memory
  }
  return 0;
}
