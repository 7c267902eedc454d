// Loads a model (a folder or a safetensors file) into the memory of the first device: a GPU, or the host device, which imitates one, if
// there is none. Without an argument, creates a small model and loads that.
#include <penstock/penstock.hpp>

#include <algorithm>
#include <fstream>
#include <iostream>
#include <string>
#include <vector>

namespace {

// Writes a model with two tensors of zeros.
std::string made_model() {
  std::vector<penstock::tensor_facts> tensors = {{"embed.weight", penstock::tensor_type::f32, {1000, 64}},
                                                 {"norm.weight", penstock::tensor_type::bf16, {64}}};
  const auto beginning = penstock::make_safetensors(tensors);
  if (!beginning) return {};
  const std::string zeros(tensors.back().offset + tensors.back().bytes - beginning->size(), '\0');
  std::ofstream("small.safetensors", std::ios::binary) << *beginning << zeros;
  return "small.safetensors";
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
  auto layout = penstock::lay_out(*model);  // or only some names, or one rank's part: see layout_options
  if (!layout) return fail(layout.error());

  const std::string device = engine->devices().front().name;
  auto memory = engine->allocate(device, std::max<std::uint64_t>(layout->bytes, 1));
  if (!memory) return fail(memory.error());
  void* const there = memory->data();
  if (const auto error = penstock::load_model(*engine, *layout, {&there, 1}); !error.ok()) return fail(error);

  for (const auto& [tensor, part, place] : layout->tensors) {
    const void* const address = static_cast<const char*>(there) + place;
    std::cout << tensor.facts->name << ": " << to_string(tensor.facts->type) << ", " << part.bytes() << " bytes at " << address << " of "
              << device << '\n';
  }
  return 0;
}
