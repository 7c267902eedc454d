// What an engine knows of servers: the network that reaches them, and who asks S3. The one place that knows which kinds of server there
// are. Thread-safe.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "penstock/options.hpp"
#include "source/remote/credential_search.hpp"
#include "source/remote/network.hpp"
#include "source/remote/node_cache.hpp"
#include "source/remote/object.hpp"
#include "source/remote/patience.hpp"
#include "source/remote/profiles.hpp"
#include "source/remote/s3.hpp"
#include "source/remote/s3_settings.hpp"
#include "source/remote/upload.hpp"
#include "source/source.hpp"
#include "sys/kernel.hpp"

namespace penstock::source::remote {

// Everything outside that decides who asks.
struct surroundings {
  variable_lookup variable{};             // of the environment; none: nothing is set
  std::shared_ptr<sys::kernel> kernel{};  // reads the files of the AWS tools
  node_cache_settings cache{};            // for objects that say nothing of it; no folder: they are not kept
  bool allow_credential_process = false;  // also for objects that do not
};

class servers final {
 public:
  servers(const network_settings& how, surroundings around);
  servers(const servers&) = delete;
  servers& operator=(const servers&) = delete;
  ~servers();  // waits for those who are finding credentials

  // Blocks while the server is asked how large the object is. Errors name the URL, without its query: invalid_argument (a URL that is
  // none; options that do not go together), not_found, permission_denied, timed_out, unsupported (no libcurl, no ranges), io.
  result<std::unique_ptr<source>> open(const std::string& url, const remote_options& how);
  // The objects whose URLs begin with that of s3://BUCKET/..., sorted; and with one_level, instead of those with a "/" behind it, what
  // their URLs have up to there, without a size. Blocks. Errors as of open(), and invalid_argument where there are more than most.
  result<std::vector<remote_object>> list(const std::string& url, const remote_options& how, bool one_level, std::size_t most);
  // Begins to write an object, of which the server has nothing before the first part. Blocks while credentials are found. Errors name the
  // URL as above: invalid_argument, permission_denied, unsupported (no libcurl; a server that is none of S3's).
  result<std::shared_ptr<upload>> begin_upload(const std::string& url, const remote_options& how);
  [[nodiscard]] network& net() noexcept { return *network_; }

 private:
  static constexpr std::size_t most_accounts = 256;  // then those are forgotten that no object is open for
  static constexpr std::size_t most_caches = 16;     // likewise

  // What is kept of an object.
  struct kept_object {
    std::shared_ptr<node_cache> by;
    std::shared_ptr<cache_entry> entry;
  };
  using found_object = result<std::unique_ptr<object>>;
  found_object find(const remote_url& what, url_kind kind, const remote_options& how);
  found_object open_http(const remote_url& what, const remote_options& how, bool presigned);
  found_object open_s3(const remote_url& what, const remote_options& how);
  found_object open_webhdfs(const remote_url& what, const remote_options& how);
  [[nodiscard]] whole_reading whole_of(const remote_options& how) const;
  result<std::unique_ptr<source>> open_at_hub(const std::string& address, const remote_options& how);
  result<secret_text> hub_token();
  std::unique_ptr<source> over_cache(std::unique_ptr<object> found, const remote_url& what, url_kind kind, const remote_options& how);
  result<kept_object> enter_cache(const object& found, const remote_url& what, url_kind kind, const remote_options& how);
  result<std::shared_ptr<node_cache>> cache_of(const node_cache_settings& how);
  // Who asks for objects of S3 there, and what is added to each request.
  struct s3_asker {
    std::string whose;  // its credentials, as a hash of all that they depend on
    remote_options how;
    s3_settings settings;
    bool for_google = false;  // which has keys of its own
    std::vector<header> added{};
    std::string added_hash{};
  };
  // Where an object of S3 is, in the region that its user or the environment says, and how it is found in another.
  struct s3_way {
    std::string region;
    s3_settings settings;
    std::function<result<url>(const std::string& region)> address_in;
    std::function<std::shared_ptr<s3_account>(const std::string& region)> account_in;
  };
  result<s3_settings> settings_of(const remote_options& how, const s3_object& what);
  result<s3_asker> asker_of(const remote_options& how, const s3_object& what);
  result<s3_way> find_way(const remote_url& what, const remote_options& how);
  [[nodiscard]] patience patience_with(const remote_options& how, const s3_settings& settings) const;
  std::shared_ptr<s3_account> account_of(const s3_asker& by, const std::string& region);

  class visitors;

  const std::shared_ptr<network> network_;
  const std::shared_ptr<visitors> visitors_;
  surroundings around_;
  std::mutex lock_;  // guards what follows
  std::map<std::string, std::shared_ptr<credential_source>> keys_;
  std::map<std::string, std::shared_ptr<s3_account>> accounts_;
  std::map<std::pair<std::string, std::uint64_t>, std::shared_ptr<node_cache>> caches_;  // by folder and its bound
};

}  // namespace penstock::source::remote
