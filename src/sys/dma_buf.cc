#include "sys/dma_buf.hpp"

#include <cerrno>

namespace penstock::sys {

status dma_bufs_known(kernel& of) {
  constexpr int no_descriptor = -1;
  const auto made = of.make_ring(1);
  if (!made) return made.error().with_context("io_uring cannot be used");
  const auto refused = (*made)->register_dma_buf(0, no_descriptor, no_descriptor);
  if (refused.ok() || refused.native() == EBADF) return {};
  if (refused.native() == EINVAL || refused.code() == errc::unsupported)
    return refused.with_context("this kernel cannot register dma-bufs with io_uring, which requires Linux 7.4");
  return refused;
}

}  // namespace penstock::sys
