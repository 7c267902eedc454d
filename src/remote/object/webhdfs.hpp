// HDFS files through WebHDFS, HDFS's REST interface ("http://HOST:PORT/webhdfs/v1/PATH"). The name node redirects each range read to the
// data node that stores the range.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "penstock/status.hpp"
#include "remote/net/network.hpp"
#include "remote/net/url.hpp"
#include "remote/object/object.hpp"

namespace penstock::source::remote {

// user: sent as user.name with each request; empty: taken from the URL. size: the size, if the caller knows it; then no request is sent.
// Errors: those of find_http_object().
result<object_facts> find_webhdfs_file(network& by, const url& address, std::string_view user, std::optional<std::uint64_t> size,
                                       const patience& how);
std::shared_ptr<protocol> make_webhdfs_protocol();

}  // namespace penstock::source::remote
