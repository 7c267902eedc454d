#include "remote/s3/s3_listing.hpp"

#include <algorithm>
#include <iterator>
#include <optional>
#include <string_view>
#include <unordered_set>
#include <utility>

#include <fmt/format.h>

#include "base/printable.hpp"
#include "remote/object/http.hpp"

namespace penstock::source::remote {

namespace {

constexpr unsigned most_region_moves = 2;
constexpr std::size_t most_bytes_of_key = 200;
constexpr unsigned most_empty_pages = 100;  // consecutive; servers send empty pages if many objects were deleted
constexpr std::size_t most_pages = 1000;    // plus one per 10 objects and folders; S3 sends up to 1,000 per page
constexpr std::size_t keys_of_a_page = 10;

class s3_lister {
 public:
  s3_lister(network& by, const s3_listing& what, s3_region at, const std::function<result<s3_region>(const std::string& region)>& in)
      : by_(by), what_(what), at_(std::move(at)), in_(in) {}

  result<object_list> all() {
    object_list made;
    std::unordered_set<std::size_t> tokens;  // hashes of the tokens used so far
    unsigned empty = 0;
    for (std::string token;;) {
      auto page = next(token);
      if (!page) return page.error().with_context(what_.name);
      if (auto problem = check_page(*page); !problem.ok()) return problem.with_context(what_.name);
      empty = page->objects.empty() && page->folders.empty() ? empty + 1 : 0;
      std::ranges::move(page->objects, std::back_inserter(made.objects));
      std::ranges::move(page->folders, std::back_inserter(made.folders));
      const auto count = made.objects.size() + made.folders.size();
      if (count > what_.most)
        return status(errc::invalid_argument, fmt::format("{}: there are more than {} objects", what_.name, what_.most));
      if (page->continuation_token.empty()) return made;
      token = std::move(page->continuation_token);
      const bool is_new = tokens.insert(std::hash<std::string>{}(token)).second;
      if (!is_new || empty > most_empty_pages || tokens.size() > most_pages + count / keys_of_a_page)
        return status(errc::io, fmt::format("{}: the server's list does not end: {} pages contain {} objects{}", what_.name, tokens.size(),
                                            count, is_new ? "" : ", and a page is repeated"));
    }
  }

 private:
  result<object_list> next(const std::string& token) {
    for (bool time_corrected = false;;) {
      auto address = at_.bucket;
      address.query = url_query(list_query(what_.prefix, token, what_.one_level));
      const auto headers = [&](std::string_view method) { return at_.account->sign(method, address); };
      if (auto signed_once = headers("GET"); !signed_once) return signed_once.error();
      const auto answer = ask(by_, {.address = address, .headers = headers, .most_bytes = most_list_bytes}, what_.how);
      if (!answer) return answer.error();
      if (answer->status == 200) return parse_object_list(answer->body);
      const auto error = parse_s3_error(answer->body);
      if (auto moved = follow(*answer, error)) {
        if (!moved->ok()) return *moved;
      } else if (error.code == "RequestTimeTooSkewed" && !std::exchange(time_corrected, true)) {
        at_.account->correct_time(answer->header("date"));
      } else {
        return refusal(answer->status, error);
      }
    }
  }

  // Checks the prefix, because callers remove it.
  status check_page(const object_list& page) const {
    const auto is_asked_for = [&](std::string_view key) { return key.starts_with(what_.prefix); };
    const auto object = std::ranges::find_if_not(page.objects, is_asked_for, &listed_object::key);
    if (object != page.objects.end()) return outside(object->key);
    const auto folder = std::ranges::find_if_not(page.folders, is_asked_for);
    return folder == page.folders.end() ? status() : outside(*folder);
  }
  static status outside(const std::string& key) {
    return {errc::io, fmt::format("the server listed the key {}, which does not begin with the prefix",
                                  printable_text(key.substr(0, most_bytes_of_key)))};
  }

  // Switches to the bucket's region; nullopt if the response contains no other region.
  std::optional<status> follow(const sys::web_answer& answer, const s3_error& error) {
    std::string region(answer.header("x-amz-bucket-region"));
    if (region.empty()) region = error.region;
    if (!is_region(region) || region == at_.account->region() || moves_++ == most_region_moves) return std::nullopt;
    auto there = in_(region);
    if (!there) return there.error();
    at_ = *std::move(there);
    return status();
  }

  static status refusal(int code, const s3_error& error) {
    const bool denied = code == 401 || code == 403;
    return {code == 404 ? errc::not_found : denied ? errc::permission_denied : errc::io, shown_error(code, error)};
  }

  network& by_;
  const s3_listing& what_;
  s3_region at_;
  const std::function<result<s3_region>(const std::string& region)>& in_;
  unsigned moves_ = 0;
};

}  // namespace

result<object_list> list_s3_objects(network& by, const s3_listing& what, s3_region at,
                                    const std::function<result<s3_region>(const std::string& region)>& in) {
  return s3_lister(by, what, std::move(at), in).all();
}

}  // namespace penstock::source::remote
