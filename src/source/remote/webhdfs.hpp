// Files of HDFS over its REST interface (WebHDFS, "http://HOST:PORT/webhdfs/v1/PATH"): the name node is asked, and sends each reader of a
// range to the data node that has it.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "penstock/status.hpp"
#include "source/remote/network.hpp"
#include "source/remote/object.hpp"
#include "source/remote/url.hpp"

namespace penstock::source::remote {

// user: user.name of each request; empty: what the URL has. size: that its user knows; then nothing is asked. Errors as find_http_object.
result<object_facts> find_webhdfs_file(network& by, const url& address, std::string_view user, std::optional<std::uint64_t> size,
                                       const patience& how);
std::shared_ptr<protocol> make_webhdfs_protocol();

}  // namespace penstock::source::remote
