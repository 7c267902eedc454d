// Which objects a bucket has.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include "penstock/status.hpp"
#include "source/remote/network.hpp"
#include "source/remote/patience.hpp"
#include "source/remote/s3.hpp"
#include "source/remote/s3_error.hpp"
#include "source/remote/url.hpp"

namespace penstock::source::remote {

// Who asks for a bucket in a region, and where it is asked for there.
struct s3_region {
  url bucket;
  std::shared_ptr<s3_account> account;
};

struct s3_listing {
  std::string name;    // for messages
  std::string prefix;  // of the keys
  bool one_level;      // what has a "/" behind the prefix is told as a folder
  std::size_t most;    // objects and folders
  patience how;
};

// All pages, in the server's order. Blocks. in: of a region that S3 says the bucket is in. Errors name the listing: not_found,
// permission_denied, timed_out, io, invalid_argument (there are more).
result<object_list> list_s3_objects(network& by, const s3_listing& what, s3_region at,
                                    const std::function<result<s3_region>(const std::string& region)>& in);

}  // namespace penstock::source::remote
