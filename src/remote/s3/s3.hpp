// S3 objects. Requests are signed with credentials that are looked up, kept and renewed for all of an account's objects.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "penstock/status.hpp"
#include "remote/credentials/credential_source.hpp"
#include "remote/credentials/signature.hpp"
#include "remote/net/control.hpp"
#include "remote/net/network.hpp"
#include "remote/net/patience.hpp"
#include "remote/net/url.hpp"
#include "remote/object/object.hpp"

namespace penstock::source::remote {

// An account in one region. Shared by all objects opened with it. Thread-safe.
class s3_account : public std::enable_shared_from_this<s3_account> {
 public:
  // aside: runs a function that may block on one of the network's threads; returns false if there is no thread. added: headers to add to
  // each request; they are signed.
  s3_account(std::shared_ptr<credential_source> keys, std::string region, std::function<bool(std::function<void()>)> aside,
             std::vector<header> added = {});

  // Returns the headers for a signed request. If no credentials are kept, blocks while they are looked up.
  result<std::vector<header>> sign(std::string_view method, const url& address);
  // Like sign(), for a thread that must not block. Error: would_block if credentials have to be looked up first.
  result<std::vector<header>> sign_now(std::string_view method, const url& address) {
    const std::vector<header> none;
    return sign_now({.method = method, .address = address, .headers = none});
  }
  result<std::vector<header>> sign_now(const signed_request& request);
  // Handle a server's response: the request's time was wrong (date: the response's date), or the credentials are no longer valid.
  void correct_time(std::string_view date);
  void credentials_refused();
  [[nodiscard]] const std::string& region() const noexcept { return signer_.scope().region; }

 private:
  result<std::vector<header>> sign_by(const std::shared_ptr<const credentials>& by, const signed_request& request);
  void renew_aside();

  const std::shared_ptr<credential_source> keys_;
  signer signer_;
  const std::function<bool(std::function<void()>)> aside_;
  const std::vector<header> added_;
  std::atomic<std::int64_t> ahead_seconds_{0};  // how far servers are ahead of this machine's clock
  std::atomic<bool> renewing_{false};
};

std::shared_ptr<protocol> make_s3_protocol(std::shared_ptr<s3_account> account);

// Interprets an S3 error response to one of the account's requests, and updates the account; nullopt if the status alone is sufficient.
std::optional<verdict> judged_by_s3(s3_account& account, const response_head& head, std::string_view body, fetch& what);

// Like find_http_object(). account_of: returns the account for another region, if S3 reports that the bucket is there; account: on return,
// the one for that region.
result<object_facts> find_s3_object(network& by, std::string name, url address, const patience& how,
                                    const std::function<result<url>(const std::string& region)>& address_in,
                                    const std::function<std::shared_ptr<s3_account>(const std::string& region)>& account_of,
                                    std::shared_ptr<s3_account>& account);

}  // namespace penstock::source::remote
