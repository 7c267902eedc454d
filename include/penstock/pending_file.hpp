// A file that appears under its name only when it is complete. Until then it has no name (O_TMPFILE) or, if the file system does not
// support that, a hidden one. A reader of the path sees the old file or the new one, never a mixture, even if the process is killed at any
// moment or the power fails after publish() has returned.
//
//   auto pending = penstock::pending_file::create("model.safetensors");
//   auto file    = engine->adopt(pending->descriptor());
//   file->write(...);
//   file->close();
//   pending->publish();
//
// For a URL (s3://BUCKET/KEY) this is an S3 object that appears when publish() returns (see upload in engine.hpp). It has no descriptor;
// open() returns the file to write to in both cases.
//
// A process that is killed while it replaces a file may leave the complete new file under a hidden name next to it, ".NAME.penstock-PID-N"
// (a long NAME is truncated); without O_TMPFILE it may also leave an incomplete one. Nothing else uses such names, so you can delete these
// files.
//
// Before its first byte is written, the new file takes over the following from the file that it replaces: owner and group, if this process
// may set them; permissions and the access control list; user.* attributes; the SELinux label. If the group cannot be set, the group gets
// the permissions of others; if the list cannot be set, only the owner keeps permissions. Set-user-ID and set-group-ID bits are kept only
// if both owner and group were set. Capabilities are not copied, and other hard links keep the old file. Not thread-safe. Blocks whenever
// the file system does.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "penstock/engine.hpp"
#include "penstock/options.hpp"
#include "penstock/status.hpp"

namespace penstock {

struct pending_file_options {
  // Permissions of the new file. nullopt: those of the file that it replaces or, for a new file, new_mode minus the umask.
  std::optional<unsigned> mode{};
  unsigned new_mode = 0666;
  bool unnamed = true;  // false: use a hidden name from the start
  // A descriptor for the folder in which the last component of the path is created; the rest of the path is then only used in messages. A
  // symbolic link with that name is rejected, not followed. -1: use the folder in the path. You may close the descriptor after create()
  // returns.
  int folder = -1;
  // For URLs, which ignore the options above. size: the object's size, if known.
  remote_options remote{};
};

struct publish_options {
  bool replace = true;  // false: an existing file is kept and publish() fails (EEXIST); objects use If-None-Match
  // True: the bytes are on disk before the file gets its name, and the name is on disk before publish() returns (fdatasync of the file,
  // fsync of its folder). False: after a power failure, the file may be empty or incomplete, or the old file may still be
  // there. For objects, the server determines this.
  bool durable = true;
};

class PENSTOCK_API pending_file {
 public:
  // path: the file to create; its folder must exist. A symbolic link is followed, even to a file that does not exist yet. An existing file
  // is not modified. Errors (the message includes the path): not_a_file (not a regular file: FIFOs, devices and folders are neither
  // replaced nor written), permission_denied (you may not write the file or its folder), and those of open(2), whose messages also include
  // the folder. For a URL: those of engine::begin_upload().
  static result<pending_file> create(const std::string& path, const pending_file_options& options = {});
  // The same with the engine that uploads the object; the version above uses engine::shared().
  static result<pending_file> create(const engine& by, const std::string& path, const pending_file_options& options = {});
  pending_file(pending_file&& other) noexcept;
  pending_file& operator=(pending_file&& other) noexcept;  // discards its previous file
  ~pending_file();                                         // discards

  // Returns the descriptor, open for reading and writing until this object is destroyed or discarded, then -1; -1 for an object on a
  // server. Close files that have adopted it before publish().
  [[nodiscard]] int descriptor() const noexcept;
  // Returns this file, opened with `with`; close it before publish(). For an object: a write-only file of the engine that uploads it.
  // Errors: closed, and those of engine::adopt().
  [[nodiscard]] result<file> open(const engine& by, const adopt_options& options = {}) const;
  // Returns true for an object on a server.
  [[nodiscard]] bool is_object() const noexcept;
  // Returns the path given to create(), or its target if it is a symbolic link; for an object, its URL without the query.
  [[nodiscard]] const std::string& path() const noexcept;
  // Moves the file to its name, once. On failure the old file is unchanged and you may retry, unless only the last step failed: the message
  // then says that the file is in place but a power failure may undo that. Errors: those that the kernel reports late (no_space, io), those
  // of linking or renaming the file, and closed (already published or discarded).
  status publish(const publish_options& options = {});
  // Discards a file that was not published; nothing remains of it. In a forked child this affects only the child's copy: the parent keeps
  // the file. After publish() or a previous discard(), only closes the descriptor.
  void discard() noexcept;

  // Returns a hidden name in the same folder, different on each call, for a file that will be renamed to this path. A killed process may
  // have left a file with that name, because containers reuse process ids: if the name is taken, retry, up to most_hidden_names times.
  static std::string hidden_name(const std::string& path);
  static constexpr int most_hidden_names = 100;

 private:
  struct state;
  explicit pending_file(std::unique_ptr<state> made) noexcept;
  std::unique_ptr<state> state_;
};

}  // namespace penstock
