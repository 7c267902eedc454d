// The metadata of GGUF files as text and as JSON. Pure functions. Long arrays, such as a vocabulary, are shown only by their length.
#pragma once

#include <string>

#include "cli/common/json.hpp"
#include "penstock/gguf.hpp"

namespace penstock::cli {

// Returns "llama", "[1, 2]" or "151936 strings"; for a long text, its beginning and its length.
std::string in_words(const gguf_value& value);
// An array of more than 100 items becomes {"type": "string", "count": 151936}.
nlohmann::json as_json(const gguf_value& value);

}  // namespace penstock::cli
