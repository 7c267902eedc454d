// Lists the objects in a bucket.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include "penstock/status.hpp"
#include "remote/net/network.hpp"
#include "remote/net/patience.hpp"
#include "remote/net/s3_error.hpp"
#include "remote/net/url.hpp"
#include "remote/s3/s3.hpp"

namespace penstock::source::remote {

// A bucket's address in a region, and the account that lists it.
struct s3_region {
  url bucket;
  std::shared_ptr<s3_account> account;
};

struct s3_listing {
  std::string name;    // for messages
  std::string prefix;  // key prefix
  bool one_level;      // group keys with a "/" after the prefix into folders
  std::size_t most;    // limit on objects and folders
  patience how;
};

// Returns all pages, in the server's order. Blocks. in: returns the bucket in the region that S3 reports. Errors contain the listing's
// name: not_found, permission_denied, timed_out, io, invalid_argument (more than `most`).
result<object_list> list_s3_objects(network& by, const s3_listing& what, s3_region at,
                                    const std::function<result<s3_region>(const std::string& region)>& in);

}  // namespace penstock::source::remote
