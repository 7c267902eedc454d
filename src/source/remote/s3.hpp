// Objects of S3: requests are signed with credentials that are found, kept and renewed for all objects of one account.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "penstock/status.hpp"
#include "source/remote/control.hpp"
#include "source/remote/credential_source.hpp"
#include "source/remote/network.hpp"
#include "source/remote/object.hpp"
#include "source/remote/patience.hpp"
#include "source/remote/signature.hpp"
#include "source/remote/url.hpp"

namespace penstock::source::remote {

// Who asks, in one region. Shared by the objects that were opened for it. Thread-safe.
class s3_account : public std::enable_shared_from_this<s3_account> {
 public:
  // aside: runs a function that may block on a thread of the network; false: no thread. added: headers that each request has, signed.
  s3_account(std::shared_ptr<credential_source> keys, std::string region, std::function<bool(std::function<void()>)> aside,
             std::vector<header> added = {});

  // Headers of a signed request. Blocks while credentials are found, where none are kept.
  result<std::vector<header>> sign(std::string_view method, const url& address);
  // The same for a thread that may not block: would_block where credentials are about to be found.
  result<std::vector<header>> sign_now(std::string_view method, const url& address) {
    const std::vector<header> none;
    return sign_now({.method = method, .address = address, .headers = none});
  }
  result<std::vector<header>> sign_now(const signed_request& request);
  // What a server said: that the time of its requests is wrong (date: of its answer), or that its credentials are no more.
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
  std::atomic<std::int64_t> ahead_seconds_{0};  // that servers are of this machine's clock
  std::atomic<bool> renewing_{false};
};

std::shared_ptr<protocol> make_s3_protocol(std::shared_ptr<s3_account> account);

// What an answer of S3 that is an error means to who asked by that account, which learns from it; nothing where its status says all.
std::optional<verdict> judged_by_s3(s3_account& account, const response_head& head, std::string_view body, fetch& what);

// As find_http_object. account_of: the account of another region, to which S3 may say that the bucket belongs; account: on return, the one
// whose region it is.
result<object_facts> find_s3_object(network& by, std::string name, url address, const patience& how,
                                    const std::function<result<url>(const std::string& region)>& address_in,
                                    const std::function<std::shared_ptr<s3_account>(const std::string& region)>& account_of,
                                    std::shared_ptr<s3_account>& account);

}  // namespace penstock::source::remote
