// A file that has its name only once it is whole. Until then it has none (O_TMPFILE) or, where the file system cannot do that, a hidden
// one. Whoever looks at the path sees the old file or the new one, and nothing between; so it is also after the process was killed or, once
// publish() has returned, after the power went, at any moment.
//
//   auto pending = penstock::pending_file::create("model.safetensors");
//   auto file    = engine->adopt(pending->descriptor());
//   file->write(...);
//   file->close();
//   pending->publish();
//
// Of a URL (s3://BUCKET/KEY) it is an object of S3, which is there once publish() has returned, and nothing of it otherwise (see upload in
// engine.hpp). It has no descriptor: open() gives the file to write to, of either.
//
// A process that is killed while it gives a whole file its name, in place of another one, may leave that file under a hidden name beside
// it, ".NAME.penstock-PID-N", where a long NAME is cut; without O_TMPFILE also one that is not whole. Nobody else uses such names, so they
// can be removed.
//
// From a file that it replaces it takes owner and group, as far as this process may set them, permissions with the access control list, the
// attributes user.* and the label of SELinux, all before its first byte. Where the group cannot be set, the group's permissions become
// those that everybody has; where the list cannot be, only the owner keeps any. Set-user-ID and set-group-ID bits need both owner and
// group. Capabilities stay behind, and so do other hard links: they lead to the old file. One thread at a time. Blocks where the file
// system does.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "penstock/engine.hpp"
#include "penstock/options.hpp"
#include "penstock/status.hpp"

namespace penstock {

struct pending_file_options {
  // Permissions, whatever is there; none: those of the file that it replaces or, where there is none, new_mode less the umask.
  std::optional<unsigned> mode{};
  unsigned new_mode = 0666;
  bool unnamed = true;  // false: with a hidden name from the beginning
  // A descriptor of the folder in which the file gets the last name of the path; the rest of the path is for messages only. A link that has
  // this name is refused, and not followed. -1: the path says which folder it is. The caller may close it once create() has returned.
  int folder = -1;
  // Of a URL, for which the others mean nothing. size: of the object, if it is known.
  remote_options remote{};
};

struct publish_options {
  bool replace = true;  // false: what has the name meanwhile keeps it, and publish() fails (EEXIST); of an object by If-None-Match
  // The bytes are on the disk before the file has its name, and the name before publish() returns (fdatasync of the file, fsync of its
  // folder). False: a power cut may leave a file without its bytes, or the old one. What a server does to keep an object is its own.
  bool durable = true;
};

class PENSTOCK_API pending_file {
 public:
  // path: of the file that will be; its folder must exist. Of a link, where it leads, also where nothing is yet. What is there is not
  // touched. Errors name the path: not_a_file (there is something else than a regular file: FIFOs, devices and folders are neither replaced
  // nor written to), permission_denied (a file that one may not write, or its folder), and those of open(2), which name the folder too.
  // Of a URL: those of engine::begin_upload().
  static result<pending_file> create(const std::string& path, const pending_file_options& options = {});
  // The same, where the engine counts that carries an object; engine::shared() does for the one above.
  static result<pending_file> create(const engine& by, const std::string& path, const pending_file_options& options = {});
  pending_file(pending_file&& other) noexcept;
  pending_file& operator=(pending_file&& other) noexcept;  // discards what it was
  ~pending_file();                                         // discards

  // For reading and writing; open until this is destroyed or discarded, -1 then, and of an object. Files that have adopted it are to be
  // closed before publish().
  [[nodiscard]] int descriptor() const noexcept;
  // A file of that engine over it, to be closed before publish(); of an object, over the engine that carries it, to be written to only.
  // Errors: closed, and those of engine::adopt().
  [[nodiscard]] result<file> open(const engine& by, const adopt_options& options = {}) const;
  // Whether it is an object on a server.
  [[nodiscard]] bool is_object() const noexcept;
  // Where it will be: what create() was given, or where that link leads. Of an object its URL, without a query.
  [[nodiscard]] const std::string& path() const noexcept;
  // Gives it its name, once. On failure the file that was there is as it was, and the caller may try again, unless it was the last step
  // that failed: the message says then that the file has its name, but may lose it. Errors: those that the kernel had kept to itself until
  // now (no_space, io), of the name, and closed (it was published or discarded).
  status publish(const publish_options& options = {});
  // Lets go of a file that was not published: nothing remains of it, unless this is a forked child of who made it, who has it still. A
  // second time, and after publish(), it only closes the descriptor.
  void discard() noexcept;

  // A name in the same folder, another one at each call, for what is to be renamed to this path. Only what a killed process has left may
  // have it, so try again where it is taken, most_hidden_names times: in a container, the number of a killed process is soon another one's.
  static std::string hidden_name(const std::string& path);
  static constexpr int most_hidden_names = 100;

 private:
  struct state;
  explicit pending_file(std::unique_ptr<state> made) noexcept;
  std::unique_ptr<state> state_;
};

}  // namespace penstock
