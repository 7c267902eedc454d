#include "remote/servers.hpp"

#include <algorithm>
#include <array>
#include <condition_variable>
#include <iterator>
#include <span>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/no_memory.hpp"
#include "base/printable.hpp"
#include "remote/cache/cached_object.hpp"
#include "remote/credentials/aws_settings.hpp"
#include "remote/credentials/credential_answers.hpp"
#include "remote/net/url.hpp"
#include "remote/object/http.hpp"
#include "remote/object/object.hpp"
#include "remote/object/webhdfs.hpp"
#include "remote/s3/s3_headers.hpp"
#include "remote/s3/s3_listing.hpp"
#include "remote/s3/s3_settings.hpp"
#include "source/local_file.hpp"
#include "sys/memory_share.hpp"
#include "sys/run_command.hpp"
#include "sys/secret.hpp"

namespace penstock::source::remote {

namespace {

using namespace std::chrono_literals;

constexpr std::size_t most_hub_token_bytes = 4096;
// Google Cloud Storage's S3 interface ("Interoperability with other storage providers"). It accepts any region.
constexpr const char* google_endpoint = "https://storage.googleapis.com";
constexpr const char* google_region = "auto";

// Implements control_call with the network.
result<control_answer> call_over(network& by, const control_request& asked) {
  sys::web_request sent;
  sent.method = asked.method;
  sent.url = asked.address.unredacted();
  for (const auto& each : asked.headers) sent.headers.push_back({each.name, each.value});
  sent.body = asked.body;
  sent.timeout = asked.timeout;
  sent.most_bytes = asked.most_bytes;
  sent.by_proxy = asked.use_proxy;
  auto come = by.exchange(sent);
  if (!come) return come.error();
  control_answer made{.status_code = come->status, .headers = {}, .body = std::move(come->body)};
  for (auto& each : come->headers) made.headers.push_back({std::move(each.name), std::move(each.value)});
  return made;
}

credential_options credential_options_of(const remote_options& how, const std::string& region) {
  credential_options made;
  made.profile = how.profile;
  made.region = region;
  made.anonymous = how.anonymous;
  made.allow_process = how.allow_credential_process;
  if (!how.access_key_id.empty() || !how.secret_access_key.empty() || !how.session_token.empty()) {
    made.given = credentials{.access_key_id = how.access_key_id,
                             .secret_access_key = secret_text(how.secret_access_key),
                             .session_token = secret_text(how.session_token),
                             .expires_at = std::nullopt,
                             .found_in = "the program"};
  }
  return made;
}

// Returns a key that is equal for objects with the same credentials: a hash of all options and current environment variables that determine
// them. It reveals no secrets.
result<std::string> key_of(const remote_options& how, const variable_lookup& variable) {
  auto all = fmt::format("{}\n{}\n{}\n{}\n{}\n{}", how.profile, how.anonymous, how.allow_credential_process, how.access_key_id,
                         how.secret_access_key, how.session_token);
  all += "\n" + variable_set(variable, "HOME").value_or("");
  for (const auto& each : aws_settings()) {
    if (!each.variable.empty()) all += "\n" + variable_set(variable, each.variable).value_or("");
  }
  return payload_hash(all);
}

// Returns a random text that identifies one object.
result<std::string> drawn_mark() {
  const auto drawn = sys::random_digest();
  if (!drawn) return drawn.error();
  return fmt::format("{:02x}", fmt::join(std::span(reinterpret_cast<const unsigned char*>(drawn->data()), 16), ""));
}

result<url_kind> kind_of(const remote_url& what, const remote_options& how) {
  if (how.kind == remote_kind::automatic) return what.kind;
  constexpr std::array kinds{url_kind::http, url_kind::s3, url_kind::s3_public, url_kind::s3_presigned, url_kind::webhdfs};
  const auto asked = kinds[static_cast<std::size_t>(how.kind) - 1];
  if (fits(what, asked)) return asked;
  return status(errc::invalid_argument, fmt::format("{}: the kind {} does not apply to this URL", what.shown(), to_string(asked)));
}

// Removes the parameters that change each time a URL is signed.
std::string query_without_signature(std::string_view query) {
  std::string made;
  while (!query.empty()) {
    const auto one = query.substr(0, query.find('&'));
    query.remove_prefix(std::min(one.size() + 1, query.size()));
    if (!one.starts_with("X-Amz-")) made += fmt::format("&{}", one);
  }
  return made;
}

// Identifies an object by a hash of its server's kind, its address, and those user headers that may select one of several objects at an
// address.
result<std::string> identity_of(const remote_url& what, url_kind kind, const url& address, const remote_options& how) {
  auto at = what.by_name || kind == url_kind::s3 ? address : what.address;
  if (is_presigned(at)) at.query = url_query(query_without_signature(at.query.unredacted()));
  auto all = fmt::format("{}\n{}", to_string(kind), at.unredacted());
  for (const auto& each : how.headers) {
    if (!header_value({{each.name, {}}}, "authorization")) all += fmt::format("\n{}: {}", each.name, each.value);
  }
  return payload_hash(all);
}

// Returns the bucket's address in the region that S3 reported.
result<url> address_in_region(const remote_url& what, const std::string& region) {
  auto made = s3_address(what.object, {.region = region, .endpoint = std::nullopt});
  if (!made) return made;
  made->tls = what.address.tls;
  made->port = what.address.port;
  return made;
}

// Returns a text that permanently identifies the version. Error: unsupported (the server sends no such version).
result<std::string> version_text(const version& of) {
  auto made = of.has_strong_etag()        ? of.etag
              : !of.last_modified.empty() ? fmt::format("last changed {}; {}", of.last_modified, of.etag)
                                          : std::string();
  if (made.empty()) return status(errc::unsupported, "the server reports no version");
  if (made.size() > most_cache_text_bytes) return status(errc::unsupported, "its version identifier is too long");
  return made;
}

}  // namespace

// Gives threads that look up credentials access to the network, but only while the servers object exists. They never own the network:
// otherwise it could be destroyed on one of its own threads, which it joins.
class servers::visitors {
 public:
  explicit visitors(network& whose) noexcept : whose_(&whose) {}
  // Returns the result of call, or errc::closed.
  template <class Call>
  auto visit(Call call) -> decltype(call(std::declval<network&>())) {
    {
      const std::lock_guard guard(lock_);
      if (whose_ == nullptr) return status(errc::closed, "the engine was destroyed");
      ++inside_;
    }
    auto come = or_no_memory([&] { return call(*whose_); });
    const std::lock_guard guard(lock_);
    if (--inside_ == 0) empty_.notify_all();
    return come;
  }
  void close() noexcept {
    std::unique_lock guard(lock_);
    empty_.wait(guard, [this] { return inside_ == 0; });
    whose_ = nullptr;
  }

 private:
  std::mutex lock_;  // guards the members below
  std::condition_variable empty_;
  network* whose_;
  unsigned inside_ = 0;
};

servers::~servers() { visitors_->close(); }

status servers::rest(network::clock::time_point until) {
  std::vector<std::shared_ptr<node_cache>> caches;
  {
    const std::lock_guard guard(lock_);
    for (const auto& [how, each] : caches_) caches.push_back(each);
  }
  for (const auto& each : caches) each->threads().rest();
  return network_->rest(until);
}

servers::servers(const network_settings& how, surroundings around)
    : network_(network::make(how)), visitors_(std::make_shared<visitors>(*network_)), around_(std::move(around)) {
  if (around_.variable == nullptr) around_.variable = [](std::string_view) { return std::optional<std::string>(); };
}

result<std::unique_ptr<source>> servers::open(const std::string& text, const remote_options& how) {
  if (auto at_hub = hub_address(text, variable_set(around_.variable, "HF_ENDPOINT").value_or("https://huggingface.co")))
    return at_hub->ok() ? open_at_hub(**at_hub, how) : result<std::unique_ptr<source>>(at_hub->error());
  auto parsed = parse_remote_url(text);
  if (!parsed) return parsed.error();
  const auto kind = kind_of(*parsed, how);
  if (!kind) return kind.error();
  if (*kind != url_kind::s3 && !how.sse_customer_key.empty())
    return status(errc::invalid_argument, fmt::format("{}: the option sse_customer_key is only for S3 objects, but this URL's kind is {}",
                                                      parsed->shown(), to_string(*kind)));
  auto found = find(*parsed, *kind, how);
  if (!found) return found.error();
  return over_cache(*std::move(found), *parsed, *kind, how);
}

// Sends the token only to the Hub, not to servers that it redirects to.
result<std::unique_ptr<source>> servers::open_at_hub(const std::string& address, const remote_options& how) {
  for (const auto* name : {"HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"}) {
    const auto value = variable_set(around_.variable, name).value_or("0");
    if (value == "1" || value == "true" || value == "TRUE" || value == "ON" || value == "YES")
      return status(errc::permission_denied, fmt::format("{}: {} is set, so the Hub is not contacted", shown_text(address), name));
  }
  auto asking = how;
  std::vector<header> given;
  for (const auto& each : how.headers) given.push_back({each.name, each.value});
  if (!header_value(given, "authorization")) {
    auto token = how.session_token.empty() ? hub_token() : result<secret_text>(secret_text(how.session_token));
    if (!token) return token.error().with_context(shown_text(address));
    if (!token->empty()) asking.headers.push_back({"Authorization", fmt::format("Bearer {}", token->reveal())});
  }
  asking.kind = remote_kind::http;
  return open(address, asking);
}

// Searches in the same places as the Hub's library. A missing token is not an error, because most files are public.
result<secret_text> servers::hub_token() {
  for (const auto* name : {"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"}) {
    if (const auto token = variable_set(around_.variable, name)) return secret_text(*token);
  }
  const auto home = variable_set(around_.variable, "HOME").value_or("");
  const auto cache = variable_set(around_.variable, "XDG_CACHE_HOME").value_or(home + "/.cache");
  const auto folder = variable_set(around_.variable, "HF_HOME").value_or(cache + "/huggingface");
  const auto file = variable_set(around_.variable, "HF_TOKEN_PATH").value_or(folder + "/token");
  if (!file.starts_with('/')) return secret_text();
  auto text = read_small_file(*around_.kernel, file, most_hub_token_bytes);
  if (!text)
    return text.error().code() == errc::not_found || text.error().code() == errc::permission_denied ? secret_text()
                                                                                                    : result<secret_text>(text.error());
  text->resize(std::min(text->size(), text->find_first_of(" \t\r\n")));
  return secret_text::taken_from(*text);
}

servers::found_object servers::find(const remote_url& what, url_kind kind, const remote_options& how) {
  switch (kind) {
    case url_kind::s3:
      return open_s3(what, how);
    case url_kind::webhdfs:
      return open_webhdfs(what, how);
    case url_kind::s3_presigned:
      return open_http(what, how, true);
    case url_kind::s3_public:
    case url_kind::http:
      break;
  }
  return open_http(what, how, is_presigned(what.address));
}

servers::found_object servers::open_http(const remote_url& what, const remote_options& how, bool presigned) {
  std::vector<header> headers;
  for (const auto& each : how.headers) headers.push_back({each.name, each.value});
  if (auto wrong = check_headers(headers); !wrong.ok()) return wrong.with_context(what.shown());
  auto address = what.address;
  if (what.by_name) {  // treat the object as public
    const auto settings = settings_of(how, what.object);
    if (!settings) return settings.error().with_context(what.shown());
    auto found = s3_address(what.object, settings->place());
    if (!found) return found.error();
    address = *std::move(found);
  }
  patience patient(network_->settings(), how);
  auto facts = find_http_object(*network_, address, headers, how.size, patient, !presigned);
  if (!facts) return facts.error();
  const bool has_size = facts->size != unknown_bytes;
  if (!has_size && how.ranges_only)
    return status(errc::unsupported, fmt::format("{}: the server does not report its size or support ranges", facts->name));
  auto speaks = make_http_protocol(address, headers);
  auto made = std::make_unique<object>(network_, std::move(speaks), *std::move(facts), patient, whole_of(how));
  if (auto problem = has_size ? status() : made->find_size(how.stop_requested); !problem.ok()) return problem.with_context(made->name());
  return made;
}

whole_reading servers::whole_of(const remote_options& how) const {
  return {.allowed = !how.ranges_only, .folder = variable_set(around_.variable, "TMPDIR").value_or("")};
}

servers::found_object servers::open_webhdfs(const remote_url& what, const remote_options& how) {
  auto user = how.user;
  for (const auto* name : {"KVIKIO_WEBHDFS_USERNAME", "HADOOP_USER_NAME"}) {
    if (user.empty()) user = variable_set(around_.variable, name).value_or("");
  }
  patience patient(network_->settings(), how);
  auto facts = find_webhdfs_file(*network_, what.address, user, how.size, patient);
  if (!facts) return facts.error();
  return std::make_unique<object>(network_, make_webhdfs_protocol(), *std::move(facts), patient);
}

// --- the node's cache

result<std::shared_ptr<node_cache>> servers::cache_of(const node_cache_settings& how) {
  std::vector<std::shared_ptr<node_cache>> gone;  // destroyed after the lock is released, because each joins its threads
  const std::lock_guard guard(lock_);
  const auto known = caches_.find({how.folder, how.bytes});
  if (known != caches_.end()) return known->second;
  for (auto each = caches_.begin(); caches_.size() >= most_caches && each != caches_.end();) {
    const bool is_unused = each->second.use_count() == 1;
    if (is_unused) gone.push_back(std::move(each->second));
    each = is_unused ? caches_.erase(each) : std::next(each);
  }
  if (caches_.size() >= most_caches)
    return status(errc::unsupported, fmt::format("this program already has objects open in {} node cache folders", caches_.size()));
  auto opened = node_cache::open(around_.kernel, how);
  if (!opened) return opened.error();
  caches_.emplace(std::pair(how.folder, how.bytes), *opened);
  return opened;
}

result<servers::kept_object> servers::enter_cache(const object& found, const remote_url& what, url_kind kind, const remote_options& how) {
  if (how.size) return status(errc::unsupported, "its size was set by an option, so its version was not requested from the server");
  const auto& facts = found.known();
  if (facts.size == 0 || facts.size > most_cached_object_bytes) return status(errc::unsupported, "its size is 0 or too large");
  auto version = version_text(facts.of);
  if (!version) return version.error();
  auto identity = identity_of(what, kind, facts.address, how);
  if (!identity) return identity.error();
  auto by = cache_of({how.cache_dir.value_or(around_.cache.folder), how.cache_bytes.value_or(around_.cache.bytes)});
  if (!by) return by.error();
  auto entry = (*by)->enter({.identity = *std::move(identity),
                             .shown = facts.name,
                             .version = *std::move(version),
                             .size = facts.size,
                             .data_inode = 0,
                             .boot = {},
                             .is_sealed = false});
  if (!entry) return entry.error();
  return kept_object{*std::move(by), *std::move(entry)};
}

// Puts the cache in front of an object. A completely cached object becomes a local file. Cache errors never become errors of the object.
std::unique_ptr<source> servers::over_cache(std::unique_ptr<object> found, const remote_url& what, url_kind kind,
                                            const remote_options& how) {
  if (how.cache_dir.value_or(around_.cache.folder).empty()) return found;
  auto kept = or_no_memory([&] { return enter_cache(*found, what, kind, how); });
  if (!kept) {
    found->set_note(fmt::format("it is not kept in the node cache: {}", kept.error().message()));
    return found;
  }
  auto& [by, entry] = *kept;
  const auto as_file = [&]() -> result<std::unique_ptr<local_file>> {
    if (!entry->is_whole()) return status(errc::would_block, "it is not cached completely");
    auto data = by->open_data(*entry);
    if (!data) return data.error();
    const auto owned = std::make_shared<sys::owned_descriptor>(*std::move(data));
    auto words = fmt::format("all of it is in the node cache in {} (version {})", by->folder(), printable_text(entry->head().version));
    return local_file::adopt(*around_.kernel, owned->get(), {.name = found->name(), .held = owned, .told = std::move(words)});
  };
  auto file = or_no_memory(as_file);
  if (!file) return std::make_unique<cached_object>(std::move(found), std::move(by), std::move(entry));
  entry->begin_sealing();
  return *std::move(file);
}

std::shared_ptr<s3_account> servers::account_of(const s3_asker& by, const std::string& region) {
  const std::lock_guard guard(lock_);
  if (keys_.size() + accounts_.size() > most_accounts) {
    std::erase_if(accounts_, [](const auto& each) { return each.second.use_count() == 1; });
    std::erase_if(keys_, [](const auto& each) { return each.second.use_count() == 1; });
  }
  auto& keys = keys_[by.whose];
  if (keys == nullptr) {
    const credential_world world{
        .variable = around_.variable,
        .call = [by = visitors_](const control_request& asked) { return by->visit([&](network& with) { return call_over(with, asked); }); },
        .kernel = around_.kernel,
        .now = [] { return std::chrono::system_clock::now(); },
        .run = [](const std::string& command) { return sys::run_command(command, most_credential_bytes, 60s); }};
    auto asked = credential_options_of(by.how, region);
    asked.allow_process |= around_.allow_credential_process;
    asked.use_fips = by.settings.fips;
    asked.for_google = by.for_google;
    keys = std::make_shared<credential_source>([world, asked = std::move(asked)] { return find_credentials(asked, world); }, world.now);
  }
  auto& account = accounts_[fmt::format("{}\n{}\n{}", by.whose, region, by.added_hash)];
  if (account == nullptr) {
    account = std::make_shared<s3_account>(
        keys, region,
        [by = visitors_](std::function<void()> what) {
          const auto begun = by->visit([&](network& with) -> result<bool> { return with.aside(std::move(what)); });
          return begun.value_or(false);
        },
        by.added);
  }
  return account;
}

result<std::vector<remote_object>> servers::list(const std::string& text, const remote_options& how, bool one_level, std::size_t most) {
  const auto refuse = [&](std::string_view why) { return status(errc::unsupported, fmt::format("{}: {}", shown_text(text), why)); };
  const auto parsed = parse_s3_prefix(text);
  if (!parsed) return parsed.error();
  if (how.kind != remote_kind::automatic && how.kind != remote_kind::s3 && how.kind != remote_kind::s3_public)
    return refuse("only S3 buckets can be listed");
  auto asking = how;
  asking.sse_customer_key.clear();  // a listing contains nothing to decrypt
  if (how.kind == remote_kind::s3_public) asking.anonymous = true;
  const auto asker = asker_of(asking, *parsed);
  if (!asker) return asker.error().with_context(shown_text(text));
  const auto in = [&](const std::string& region) -> result<s3_region> {
    auto there = asker->settings.place();
    there.region = region;
    auto bucket = s3_bucket_address(parsed->bucket, there);
    if (!bucket) return bucket.error().with_context(shown_text(text));
    return s3_region{*std::move(bucket), account_of(*asker, region)};
  };
  auto at = in(asker->settings.region);
  if (!at) return at.error();
  const s3_listing what{.name = "list " + parsed->name_of(parsed->key),
                        .prefix = parsed->key,
                        .one_level = one_level,
                        .most = most,
                        .how = patience_with(how, asker->settings)};
  auto found = list_s3_objects(*network_, what, *std::move(at), in);
  if (!found) return found.error();
  std::vector<remote_object> made;
  made.reserve(found->objects.size() + found->folders.size());
  for (const auto& each : found->objects) made.push_back({parsed->name_of(each.key), each.size_bytes});
  for (const auto& each : found->folders) made.push_back({parsed->name_of(each), std::nullopt});
  std::ranges::sort(made, {}, &remote_object::url);
  return made;
}

result<s3_settings> servers::settings_of(const remote_options& how, const s3_object& what) {
  s3_options asked{.region = how.region.empty() ? what.region : how.region,
                   .access_point_region = what.by_access_point() ? what.region : std::string(),
                   .endpoint_url = how.endpoint,
                   .ca_bundle = {},
                   .profile = how.profile,
                   .addressing_style = how.addressing_style,
                   .use_fips = how.use_fips,
                   .use_dualstack = how.use_dualstack,
                   .requester_pays = how.requester_pays,
                   .use_ssl = how.use_ssl};
  for (const auto& each : how.aws_settings) asked.settings.push_back({each.name, each.value});
  if (what.by_access_point()) asked.region = how.region;
  if (what.at_google) {  // AWS settings do not apply to Google
    if (asked.endpoint_url.empty()) asked.endpoint_url = google_endpoint;
    if (asked.region.empty()) asked.region = google_region;
  }
  return find_s3_settings(asked, around_.variable, *around_.kernel);
}

result<servers::s3_asker> servers::asker_of(const remote_options& how, const s3_object& what) {
  auto settings = settings_of(how, what);
  if (!settings) return settings.error();
  s3_asker made{.whose = {}, .how = how, .settings = *std::move(settings), .for_google = what.at_google && how.endpoint.empty()};
  made.how.stop_requested = {};  // this object outlives the call
  auto whose = key_of(how, around_.variable);
  if (!whose) return whose.error();
  made.whose = *std::move(whose) + (made.for_google ? "g" : "");
  if (made.settings.requester_pays) made.added.push_back({"x-amz-request-payer", "requester"});
  auto customers = headers_of_customer_key(how);
  if (!customers) return customers.error();
  made.added.insert(made.added.end(), customers->begin(), customers->end());
  std::string all;
  for (const auto& each : made.added) all += fmt::format("{}: {}\n", each.name, each.value);
  auto hash = payload_hash(all);
  if (!hash) return hash.error();
  made.added_hash = *std::move(hash);
  return made;
}

patience servers::patience_with(const remote_options& how, const s3_settings& settings) const {
  auto asking = how;
  if (asking.attempts == 0) asking.attempts = settings.attempts;
  return {network_->settings(), asking};
}

result<servers::s3_way> servers::find_way(const remote_url& what, const remote_options& how) {
  if (!what.by_name && !how.endpoint.empty())
    return status(errc::invalid_argument,
                  fmt::format("{}: the URL already names its server, so the option endpoint does not apply; use {} instead", what.shown(),
                              printable_text(what.object.name_of(what.object.key))));
  auto by = asker_of(how, what.object);
  if (!by) return by.error().with_context(what.shown());
  const auto& settings = by->settings;
  if (!what.by_name && settings.fips && !is_fips_host(what.address.host)) {
    return status(errc::invalid_argument,
                  fmt::format("{}: FIPS endpoints are required, but the URL contains a different endpoint; use {} instead", what.shown(),
                              printable_text(what.object.name_of(what.object.key))));
  }
  s3_way made{.region = settings.region, .settings = settings, .address_in = {}, .account_in = {}};
  // An endpoint from the environment or a profile applies only to s3:// URLs. A URL with a host is requested from that host, with its own
  // scheme and port.
  const auto in = [what, first = settings.region, place = settings.place()](const std::string& region) -> result<url> {
    if (!what.by_name) return region == first ? result<url>(what.address) : address_in_region(what, region);
    auto there = place;
    there.region = region;
    return s3_address(what.object, there);
  };
  made.address_in = [in, has_key = !how.sse_customer_key.empty()](const std::string& region) -> result<url> {
    auto address = in(region);
    if (address && has_key && !address->tls)
      return status(errc::invalid_argument,
                    fmt::format("{}: the option sse_customer_key requires https, because the key is sent to the server", address->shown()));
    return address;
  };
  made.account_in = [this, by = *std::move(by)](const std::string& region) { return account_of(by, region); };
  return made;
}

servers::found_object servers::open_s3(const remote_url& what, const remote_options& how) {
  const auto way = find_way(what, how);
  if (!way) return way.error();
  auto address = way->address_in(way->region);
  if (!address) return address.error();
  auto by = way->account_in(way->region);
  auto patient = patience_with(how, way->settings);
  object_facts facts{what.shown(), *std::move(address), how.size.value_or(0), {}};
  if (how.size) {
    if (auto signed_once = by->sign("GET", facts.address); !signed_once) return signed_once.error().with_context(what.shown());
  } else {
    auto found = find_s3_object(*network_, what.shown(), facts.address, patient, way->address_in, way->account_in, by);
    if (!found) return found.error();
    facts = *std::move(found);
  }
  return std::make_unique<object>(network_, make_s3_protocol(std::move(by)), std::move(facts), patient, whole_of(how));
}

result<std::shared_ptr<upload>> servers::begin_upload(const std::string& text, const remote_options& how) {
  const auto what = parse_remote_url(text);
  if (!what) return what.error();
  const auto kind = kind_of(*what, how);
  if (!kind) return kind.error();
  if (*kind != url_kind::s3)
    return status(errc::unsupported,
                  fmt::format("{}: objects can be written only to S3, but this URL's kind is {}", what->shown(), to_string(*kind)));
  if (!what->by_name && !what->address.query.empty())
    return status(errc::unsupported, fmt::format("{}: objects can be written only to URLs without a query", what->shown()));
  if (what->object.at_google && !how.overwrite)
    return status(errc::unsupported, fmt::format("{}: overwrite=False requires If-None-Match, which Google Cloud Storage's S3 interface "
                                                 "does not support for writes",
                                                 what->shown()));
  auto plan = how.size ? part_plan::of_size(*how.size) : result<part_plan>(part_plan());
  if (!plan) return plan.error().with_context(what->shown());
  if (auto there = network_->library_version(); !there) return there.error().with_context(what->shown());
  const auto way = find_way(*what, how);
  if (!way) return way.error();
  const auto in_region = [way = *way](const std::string& region) -> result<upload_target> {
    auto address = way.address_in(region);
    if (!address) return address.error();
    return upload_target{way.account_in(region), *std::move(address)};
  };
  auto to = in_region(way->region);
  if (!to) return to.error();
  if (auto signed_once = to->account->sign("PUT", to->address); !signed_once) return signed_once.error().with_context(what->shown());
  auto mark = drawn_mark();
  if (!mark) return mark.error().with_context(what->shown());
  auto headers = headers_of_new_object(how);
  if (!headers) return headers.error().with_context(what->shown());
  upload_facts facts{.name = what->shown(),
                     .mark = *std::move(mark),
                     .to = *std::move(to),
                     .in_region = in_region,
                     .how = patience_with(how, way->settings),
                     .headers = *std::move(headers),
                     .sends_md5 = way->settings.always_checksums,
                     .signs_payload = way->settings.signs_payload,
                     .most_held_bytes = sys::share_of_memory(*around_.kernel, upload::most_held_bytes)};
  auto made = std::make_shared<upload>(network_, std::move(facts), *plan);
  if (how.size) {
    if (auto set = made->set_size(*how.size); !set.ok()) return set.with_context(what->shown());
  }
  return made;
}

}  // namespace penstock::source::remote
