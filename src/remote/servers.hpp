// An engine's access to servers: the network that connects to them, and the S3 accounts. Only this class knows which kinds of server exist.
// Thread-safe.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "penstock/options.hpp"
#include "remote/cache/node_cache.hpp"
#include "remote/credentials/credential_search.hpp"
#include "remote/credentials/profiles.hpp"
#include "remote/net/network.hpp"
#include "remote/net/patience.hpp"
#include "remote/object/object.hpp"
#include "remote/s3/s3.hpp"
#include "remote/s3/s3_settings.hpp"
#include "remote/s3/upload.hpp"
#include "source/source.hpp"
#include "sys/kernel.hpp"

namespace penstock::source::remote {

// All external facts that determine settings and credentials.
struct surroundings {
  variable_lookup variable{};             // environment variables; empty: none are set
  std::shared_ptr<sys::kernel> kernel{};  // reads the AWS tools' files
  node_cache_settings cache{};            // for objects without their own settings; if the folder is empty, nothing is cached
  bool allow_credential_process = false;  // applies even to objects whose options do not allow it
};

class servers final {
 public:
  servers(const network_settings& how, surroundings around);
  servers(const servers&) = delete;
  servers& operator=(const servers&) = delete;
  ~servers();  // waits for threads that look up credentials

  // Opens an object. Blocks while it queries the server for the size. Errors contain the URL without its query: invalid_argument (not a
  // URL; contradictory options), not_found, permission_denied, timed_out, unsupported (no libcurl, no ranges), io.
  result<std::unique_ptr<source>> open(const std::string& url, const remote_options& how);
  // Lists the objects whose URLs begin with url (s3://BUCKET/...), sorted. With one_level, objects that have another "/" after that are
  // replaced by their common prefixes, without a size. Blocks. Errors: those of open(), and invalid_argument if there are more than `most`.
  result<std::vector<remote_object>> list(const std::string& url, const remote_options& how, bool one_level, std::size_t most);
  // Starts to write an object; nothing is sent to the server before the first part. Blocks while credentials are looked up. Errors contain
  // the URL as above: invalid_argument, permission_denied, unsupported (no libcurl; not an S3 server).
  result<std::shared_ptr<upload>> begin_upload(const std::string& url, const remote_options& how);
  // Completes the work of the node caches, closes all connections, and ends the threads. The next use starts them again. Error: timed_out.
  status rest(network::clock::time_point until);
  [[nodiscard]] network& net() noexcept { return *network_; }

 private:
  static constexpr std::size_t most_accounts = 256;  // beyond this, accounts without an open object are dropped
  static constexpr std::size_t most_caches = 16;     // beyond this, unused caches are dropped

  // The cached part of an object.
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
  // The account that requests S3 objects, and the headers added to each request.
  struct s3_asker {
    std::string whose;  // identifies its credentials: a hash of everything that they depend on
    remote_options how;
    s3_settings settings;
    bool for_google = false;  // Google Cloud Storage has its own keys
    std::vector<header> added{};
    std::string added_hash{};
  };
  // Where an S3 object is, assuming the region from the user or the environment, and how to find it in another region.
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
  std::mutex lock_;  // guards the members below
  std::map<std::string, std::shared_ptr<credential_source>> keys_;
  std::map<std::string, std::shared_ptr<s3_account>> accounts_;
  std::map<std::pair<std::string, std::uint64_t>, std::shared_ptr<node_cache>> caches_;  // keyed by folder and size limit
};

}  // namespace penstock::source::remote
