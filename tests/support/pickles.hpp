// Hand-written pickles of checkpoints, for tests of the reader: like those of torch.save, but without a memo.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "support/zip_files.hpp"

namespace penstock::test_files {

inline std::string pickled_text(std::string_view text) { return "X" + little_endian(text.size(), 4) + std::string(text); }
inline std::string pickled_number(std::uint64_t number) { return "\x8a\x08" + little_endian(number, 8); }
inline std::string pickled_name(std::string_view name) { return "c" + std::string(name) + "\n"; }
inline std::string pickled_tuple(const std::vector<std::uint64_t>& values) {
  std::string made = "(";
  for (const std::uint64_t each : values) made += pickled_number(each);
  return made + "t";
}
inline std::string pickled_dict(const std::vector<std::pair<std::string, std::string>>& items) {
  std::string made = "}(";
  for (const auto& [key, value] : items) made += pickled_text(key) + value;
  return made + "u";
}
inline std::string pickle_of(const std::string& value) { return "\x80\x02" + value + "."; }

// A tensor that views part of a storage.
struct pickled_view {
  std::string key;
  std::uint64_t count = 0;  // elements of the storage
  std::vector<std::uint64_t> shape, strides;
  std::uint64_t offset = 0;
  std::string type = "torch\nFloatStorage";
  std::string behind = "";  // further arguments
};
inline std::string pickled_tensor_of(const pickled_view& view) {
  const std::string storage = "(" + pickled_text("storage") + pickled_name(view.type) + pickled_text(view.key) + pickled_text("cpu") +
                              pickled_number(view.count) + "tQ";
  return pickled_name("torch._utils\n_rebuild_tensor_v2") + "(" + storage + pickled_number(view.offset) + pickled_tuple(view.shape) +
         pickled_tuple(view.strides) + "\x89" + pickled_name("collections\nOrderedDict") + ")R" + view.behind + "tR";
}

// Returns a checkpoint with these storages, named "0", "1", ...
inline std::string checkpoint_of(const std::string& pickle, const std::vector<std::string>& storages) {
  std::vector<std::pair<std::string, std::string>> members{{"m/data.pkl", pickle}};
  for (std::size_t i = 0; i < storages.size(); ++i) members.emplace_back("m/data/" + std::to_string(i), storages[i]);
  members.emplace_back("m/version", "3\n");
  return zip_of(members, false);
}

}  // namespace penstock::test_files
