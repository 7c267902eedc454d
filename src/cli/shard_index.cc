#include "cli/shard_index.hpp"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

namespace penstock::cli {
namespace {

result<std::string> text_of(const engine& owner, const std::string& path) {
  constexpr std::uint64_t most = std::uint64_t{1} << 30;
  const auto from = owner.open(path);
  if (!from) return from.error();
  const auto size = from->size();
  if (!size) return size.error();
  if (*size > most) return status(errc::invalid_argument, fmt::format("{}: an index of {} bytes is none", path, *size));
  std::string text(*size, '\0');
  const io_result done = from->read(text.data(), text.size(), 0);
  if (!done.ok()) return done.error;
  text.resize(done.bytes_done);
  return text;
}

}  // namespace

bool is_index(const std::string& path) { return path.ends_with(".json"); }

result<shard_index> read_index(const engine& owner, const std::string& path) {
  const auto text = text_of(owner, path);
  if (!text) return text.error();
  const auto document = nlohmann::json::parse(*text, nullptr, false);
  const auto wrong = [&](const std::string& what) { return status(errc::invalid_argument, fmt::format("{}: {}", path, what)); };
  if (document.is_discarded()) return wrong("no JSON");
  if (!document.is_object() || !document.contains("weight_map") || !document["weight_map"].is_object())
    return wrong("no index of tensors: it has no weight_map");
  shard_index index;
  for (const auto& [tensor, shard] : document["weight_map"].items()) {
    if (!shard.is_string()) return wrong(fmt::format("the file of {} is no name", tensor));
    const auto name = shard.get<std::string>();
    if (name.empty() || name == "." || name == ".." || name.find('/') != std::string::npos)
      return wrong(fmt::format("the file of {} is {}, which is no name of a file beside it", tensor, name));
    index.tensors[name].insert(tensor);
  }
  for (const auto& [name, tensors] : index.tensors) index.shards.push_back(name);
  return index;
}

status compare_with_index(const std::string& path, const std::set<std::string>& there, const std::set<std::string>& expected,
                          const std::string& index) {
  const auto differ = [&](const std::string& name, const char* how) {
    return status(errc::invalid_argument, fmt::format("{}: tensor \"{}\" {} {}", path, name, how, index));
  };
  for (const std::string& name : expected) {
    if (!there.contains(name)) return differ(name, "is missing, which it holds by");
  }
  for (const std::string& name : there) {
    if (!expected.contains(name)) return differ(name, "is not mentioned by");
  }
  return {};
}

}  // namespace penstock::cli
