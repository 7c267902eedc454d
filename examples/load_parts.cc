// Loads a part of each tensor of a model by index, and reads only the bytes of these parts. Creates a small model first.
#include <penstock/penstock.hpp>

#include <fstream>
#include <iostream>
#include <string>
#include <vector>

int main() {
  const auto fail = [](const penstock::status& error) {
    std::cerr << error.message() << '\n';
    return 1;
  };

  // Eight experts of 16 x 64 elements, and a vector.
  std::vector<penstock::tensor_facts> tensors = {{"experts", penstock::tensor_type::f32, {8, 16, 64}},
                                                 {"norm", penstock::tensor_type::f32, {64}}};
  const auto beginning = penstock::make_safetensors(tensors);
  if (!beginning) return fail(beginning.error());
  const std::string zeros(tensors.back().offset + tensors.back().bytes - beginning->size(), '\0');
  std::ofstream("experts.safetensors", std::ios::binary) << *beginning << zeros;

  auto engine = penstock::engine::create();
  if (!engine) return fail(engine.error());
  auto model = penstock::model::open(*engine, {"experts.safetensors"});
  if (!model) return fail(model.error());

  // Like experts[3, ::2, :32] in Python: every other row of the fourth expert, and the first half of each row, as rank 0 of 2 needs it.
  const auto part_of = [](const penstock::tensor_facts& tensor) -> penstock::tensor_selection {
    if (tensor.name != "experts") return {};  // the whole tensor
    return {3, penstock::index_range{.step = 2}, penstock::model_rank{0, 2}};
  };
  auto layout = penstock::lay_out(*model, {.selection = part_of});
  if (!layout) return fail(layout.error());

  auto memory = engine->allocate(engine->devices().front().name, layout->bytes);
  if (!memory) return fail(memory.error());
  void* const there = memory->data();
  if (const auto error = penstock::load_model(*engine, *layout, {&there, 1}); !error.ok()) return fail(error);
  for (const auto& [tensor, part, place] : layout->tensors)
    std::cout << tensor.facts->name << ": " << part.bytes() << " of " << tensor.facts->bytes << " bytes at " << place << '\n';
  return 0;
}
