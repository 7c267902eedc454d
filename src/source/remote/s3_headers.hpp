// What a program's options add to requests to S3, as headers. Pure functions.
#pragma once

#include <vector>

#include "penstock/options.hpp"
#include "penstock/status.hpp"
#include "source/remote/control.hpp"

namespace penstock::source::remote {

// Of the request that makes an object: type, encryption, storage class, access list, tags. Errors: invalid_argument (a value that no header
// may have; a key without a kind of encryption that uses it).
result<std::vector<header>> headers_of_new_object(const remote_options& how);

// Of each request for an object that is encrypted with a key of the customer's (SSE-C); none without one. Errors: invalid_argument (a key
// that has not 32 bytes; another encryption beside it); content_md5's.
result<std::vector<header>> headers_of_customer_key(const remote_options& how);

}  // namespace penstock::source::remote
