// A user's first program: writes a file and reads it back into memory of the host device, with only the installed headers.
#include <penstock/penstock.hpp>

#include <cstdio>
#include <cstring>
#include <string>
#include <string_view>

namespace {

int fail(std::string_view what, const penstock::status& error) {
  std::fprintf(stderr, "%.*s: %.*s\n", static_cast<int>(what.size()), what.data(), static_cast<int>(error.message().size()),
               error.message().data());
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fputs("usage: consumer FILE\n", stderr);
    return 2;
  }
  const std::string text = "through the penstock";
  auto engine = penstock::engine::create();
  if (!engine) return fail("create", engine.error());
  auto file = engine->open(argv[1], {.write = true, .create = true, .truncate = true});
  if (!file) return fail("open", file.error());
  if (auto done = file->write(text.data(), text.size(), 0); !done.ok()) return fail("write", done.error);

  auto buffer = engine->allocate("host:0", text.size());
  if (!buffer) return fail("allocate", buffer.error());
  auto done = file->read(buffer->data(), buffer->size(), 0);
  if (!done.ok()) return fail("read", done.error);
  std::string back(text.size(), '\0');
  if (auto error = engine->copy(back.data(), buffer->data(), back.size()); !error.ok()) return fail("copy", error);
  if (done.bytes_done != text.size() || back != text) {
    std::fputs("read other bytes than were written\n", stderr);
    return 1;
  }
  const std::string_view version = penstock::version();
  std::printf("%.*s\n", static_cast<int>(version.size()), version.data());
  return 0;
}
