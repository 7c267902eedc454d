// Feeds any bytes to the parser of checkpoint pickles, as the pickle of an archive with some storages. Each accepted tensor lies inside its
// storage. Rejected input gives a message that is safe to print in a terminal. Built with clang's -fsanitize=fuzzer, or with replay_main.cc
// for a replay.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "penstock/torch_checkpoint.hpp"
#include "tensors/checkpoint_contents.hpp"

using namespace penstock;

namespace {

void require_that(bool truth) {
  if (!truth) std::abort();
}

std::vector<zip_member> some_storages() {
  std::vector<zip_member> made;
  std::uint64_t offset = 64;
  for (const std::uint64_t bytes : {0, 4, 16, 24, 48, 1024}) {
    made.push_back({"m/data/" + std::to_string(made.size()), bytes, bytes, offset, true});
    offset += bytes;
  }
  made.push_back({"m/data/packed", 100, 50, offset, false});
  return made;
}

void check_place(const checkpoint_tensor& tensor, const std::vector<zip_member>& members) {
  const auto found = std::find_if(members.begin(), members.end(), [&](const zip_member& each) { return each.name == tensor.storage; });
  require_that(found != members.end() && tensor.storage_bytes == found->bytes);
  if (!tensor.problem.ok()) return;
  const auto bytes = tensor_bytes(tensor.type, tensor.shape);
  require_that(bytes.ok() && *bytes == tensor.bytes && tensor.shape.size() == tensor.strides.size());
  require_that(tensor.offset >= found->offset && tensor.offset - found->offset <= found->bytes);
  require_that(tensor.extent <= found->bytes - (tensor.offset - found->offset));
  if (tensor.contiguous) require_that(tensor.extent == tensor.bytes);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const std::vector<zip_member> members = some_storages();
  const std::string_view pickle(reinterpret_cast<const char*>(data), size);
  const auto contents = tensors::contents_of(pickle, members, "m/");
  if (!contents.ok()) {
    require_that(!contents.error().message().empty());
    for (const char c : contents.error().message()) require_that(static_cast<unsigned char>(c) >= ' ');
    return 0;
  }
  for (const checkpoint_tensor& each : contents->tensors) check_place(each, members);
  return 0;
}
