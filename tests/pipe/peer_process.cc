#include "pipe/peer_process.hpp"

namespace penstock::testing {

std::string path_of_peer() { return PENSTOCK_PIPE_PEER_PATH; }

}  // namespace penstock::testing
