// Indexes: JSON files that tell which file each tensor of a model is in, as model.safetensors.index.json does. Free functions; safe from
// any thread; block where the file does.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "penstock/penstock.hpp"

namespace penstock::cli {

struct shard_index {
  std::vector<std::string> shards;                       // without folders, each once, sorted
  std::map<std::string, std::set<std::string>> tensors;  // of each
};

// Whether the name is one of an index.
bool is_index(const std::string& path);
// Errors: invalid_argument naming the index (no JSON, no weight_map, a file that is not beside it), and those of reading.
result<shard_index> read_index(const engine& owner, const std::string& path);
// Whether a file, which holds these tensors, holds exactly those that the index says. Errors: invalid_argument naming file and tensor.
status compare_with_index(const std::string& path, const std::set<std::string>& there, const std::set<std::string>& expected,
                          const std::string& index);

}  // namespace penstock::cli
