// The metadata of GGUF files, for people and as JSON. Pure functions. Long arrays, such as a vocabulary, are told by how many there are.
#pragma once

#include <string>

#include "cli/common/json.hpp"
#include "penstock/gguf.hpp"

namespace penstock::cli {

// "llama", "[1, 2]", "151936 strings"; of a long text the beginning, and how long it is.
std::string in_words(const gguf_value& value);
// An array of more than 100 items is {"type": "string", "count": 151936}.
nlohmann::json as_json(const gguf_value& value);

}  // namespace penstock::cli
