#include "remote/object/webhdfs.hpp"

#include <utility>

#include <fmt/format.h>

#include "base/json_reader.hpp"
#include "remote/object/http.hpp"

namespace penstock::source::remote {

namespace {

class webhdfs_protocol final : public protocol {
 public:
  result<std::string> headers(const url& /*address*/, std::string_view /*range*/) override { return std::string(); }
  [[nodiscard]] url address_of(const url& object, std::uint64_t offset, std::uint64_t length) const override {
    auto made = object;
    made.query.add(fmt::format("op=OPEN&offset={}&length={}", offset, length));
    return made;
  }
  [[nodiscard]] bool by_range_header() const noexcept override { return false; }
  [[nodiscard]] bool follows() const noexcept override { return true; }
};

}  // namespace

namespace {

// {"FileStatus": {"length": 5, "type": "FILE", ...}}
struct file_status {
  std::optional<std::uint64_t> length;
  std::string type;
};

bool read_member(json_reader& json, std::string_view key, file_status& to) {
  constexpr int depth = 8;
  if (key == "length") return json.number(to.length.emplace());
  if (key != "type") return json.skip(depth);
  std::string_view type;
  if (!json.string(type)) return false;
  to.type = type;
  return true;
}

result<file_status> parse_file_status(std::string_view text) {
  constexpr int depth = 8;
  file_status made;
  json_reader json(text, "the response");
  const bool read = json.object([&](std::string_view key) {
    if (key != "FileStatus") return json.skip(depth);
    return json.object([&](std::string_view member) { return read_member(json, member, made); });
  });
  if (!read || !json.end()) return json.problem();
  if (!made.length) return status(errc::io, "the response contains no length");
  return made;
}

url with_user(url address, std::string_view user) {
  if (user.empty() || query_value(address.query.unredacted(), "user.name")) return address;
  address.query.add(fmt::format("user.name={}", percent_encoded(user, false)));
  return address;
}

}  // namespace

result<object_facts> find_webhdfs_file(network& by, const url& address, std::string_view user, std::optional<std::uint64_t> size,
                                       const patience& how) {
  object_facts made{address.shown(), with_user(address, user), size.value_or(0), {}};
  if (size) return made;
  auto asked = made.address;
  asked.query.add("op=GETFILESTATUS");
  const auto no_headers = [](std::string_view) -> result<std::vector<header>> { return std::vector<header>(); };
  auto answer = ask(by, {.address = asked, .headers = no_headers}, how);
  if (!answer) return answer.error();
  if (answer->status != 200) return error_of(answer->status, made.name);
  const auto found = parse_file_status(answer->body);
  if (!found) return status(errc::io, fmt::format("{}: {}", made.name, found.error().message()));
  if (found->type == "DIRECTORY") return status(errc::not_a_file, fmt::format("{} is a directory", made.name));
  made.size = *found->length;
  return made;
}

std::shared_ptr<protocol> make_webhdfs_protocol() { return std::make_shared<webhdfs_protocol>(); }

}  // namespace penstock::source::remote
