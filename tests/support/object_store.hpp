// The parts of an S3 server that writing objects needs, for tests. It keeps objects in memory, checks requests, and misbehaves where a test
// asks for it. Thread-safe.
#pragma once

#include <algorithm>
#include <cstddef>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "remote/credentials/signature.hpp"
#include "support/web_server.hpp"

namespace penstock::testing {

class object_store {
 public:
  using client = web_server::client;
  using then = web_server::then;
  // Answers the request itself, or returns nothing to have the server answer.
  using fault = std::function<std::optional<then>(const web_request& asked, const client& to)>;

  struct object {
    std::string content;
    std::string mark;
  };

  object_store() {
    server_.set_answer([this](const web_request& asked, const client& to) { return answer(asked, to); });
  }
  [[nodiscard]] web_server& server() noexcept { return server_; }
  // Called before the server does anything.
  void set_fault(fault what) {
    const std::lock_guard guard(lock_);
    fault_ = std::move(what);
  }
  // Does the server's work for a request, but returns the response instead of sending it.
  std::string work(const web_request& asked) {
    const std::lock_guard guard(lock_);
    return answer_to(asked);
  }
  void put(const std::string& path, std::string content) {
    const std::lock_guard guard(lock_);
    objects_[path] = {std::move(content), {}};
  }
  void remove(const std::string& path) {
    const std::lock_guard guard(lock_);
    objects_.erase(path);
  }
  [[nodiscard]] std::optional<std::string> get(const std::string& path) const {
    const std::lock_guard guard(lock_);
    const auto found = objects_.find(path);
    return found == objects_.end() ? std::nullopt : std::optional(found->second.content);
  }
  // Uploads begun and neither completed nor aborted.
  [[nodiscard]] std::size_t uploads() const {
    const std::lock_guard guard(lock_);
    return uploads_.size();
  }
  [[nodiscard]] std::size_t aborted() const {
    const std::lock_guard guard(lock_);
    return aborted_;
  }
  [[nodiscard]] std::size_t parts_taken() const {
    const std::lock_guard guard(lock_);
    return parts_taken_;
  }
  // Returns the number of requests with that method whose query contains that text.
  [[nodiscard]] std::size_t asked(const std::string& method, const std::string& part_of_query) const {
    std::size_t count = 0;
    for (const auto& each : server_.requests())
      count += each.method == method && each.target.find(part_of_query) != std::string::npos ? 1 : 0;
    return count;
  }

  static std::string plain(int status, std::string_view body = {}, std::string_view more = {}) {
    return fmt::format("HTTP/1.1 {} OK\r\nContent-Length: {}\r\n{}\r\n{}", status, body.size(), more, body);
  }
  static std::string error(int status, std::string_view code) {
    return plain(status, fmt::format("<?xml version=\"1.0\"?>\n<Error><Code>{}</Code><Message>of a test</Message></Error>", code));
  }

 private:
  struct pending {
    std::string path;
    std::string mark;
    std::map<unsigned, std::string> parts;
  };

  static std::string path_of(const web_request& asked) { return asked.target.substr(0, asked.target.find('?')); }
  static std::string of_query(const web_request& asked, const std::string& name) {
    const auto at = asked.target.find(name + "=");
    if (at == std::string::npos) return {};
    const auto text = asked.target.substr(at + name.size() + 1);
    return text.substr(0, text.find('&'));
  }
  static std::string etag_of(const std::string& content) { return "\"" + source::remote::payload_hash(content)->substr(0, 32) + "\""; }

  std::optional<then> answer(const web_request& asked, const client& to) {
    fault what;
    {
      const std::lock_guard guard(lock_);
      what = fault_;
    }
    if (what) {
      if (const auto instead = what(asked, to)) return instead;
    }
    return to.send(work(asked)) ? then::keep : then::close;
  }

  std::string answer_to(const web_request& asked) {
    if (asked.header("authorization").empty()) return error(403, "AccessDenied");
    if (!asked.body.empty() && asked.header("x-amz-content-sha256") != *source::remote::payload_hash(asked.body))
      return error(400, "XAmzContentSHA256Mismatch");
    const auto path = path_of(asked);
    if (asked.method == "HEAD") {
      const auto found = objects_.find(path);
      if (found == objects_.end()) return "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n";
      return fmt::format("HTTP/1.1 200 OK\r\nContent-Length: {}\r\nx-amz-meta-penstock-upload: {}\r\n\r\n", found->second.content.size(),
                         found->second.mark);
    }
    if (asked.method == "POST" && asked.target.ends_with("?uploads")) {
      const auto id = fmt::format("id-{}", ++begun_);
      uploads_[id] = {path, asked.header("x-amz-meta-penstock-upload"), {}};
      return plain(200, fmt::format("<InitiateMultipartUploadResult><UploadId>{}</UploadId></InitiateMultipartUploadResult>", id));
    }
    const auto id = of_query(asked, "uploadId");
    if (!id.empty()) return of_upload(asked, id);
    if (asked.method != "PUT") return error(405, "MethodNotAllowed");
    if (asked.header("if-none-match") == "*" && objects_.count(path) > 0) return error(412, "PreconditionFailed");
    objects_[path] = {asked.body, asked.header("x-amz-meta-penstock-upload")};
    return plain(200, {}, fmt::format("ETag: {}\r\n", etag_of(asked.body)));
  }

  std::string of_upload(const web_request& asked, const std::string& id) {
    const auto found = uploads_.find(id);
    if (found == uploads_.end()) return error(404, "NoSuchUpload");
    auto& [path, mark, parts] = found->second;
    if (asked.method == "DELETE") {
      uploads_.erase(found);
      ++aborted_;
      return "HTTP/1.1 204 No Content\r\n\r\n";
    }
    if (asked.method == "PUT") {
      parts[static_cast<unsigned>(std::stoul(of_query(asked, "partNumber")))] = asked.body;
      ++parts_taken_;
      return plain(200, {}, fmt::format("ETag: {}\r\n", etag_of(asked.body)));
    }
    if (asked.header("if-none-match") == "*" && objects_.count(path) > 0) return error(412, "PreconditionFailed");
    object made{{}, mark};
    std::string wanted("<CompleteMultipartUpload xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">");
    for (const auto& [number, content] : parts) {
      wanted += fmt::format("<Part><PartNumber>{}</PartNumber><ETag>{}</ETag></Part>", number, etag_of(content));
      made.content += content;
    }
    if (asked.body != wanted + "</CompleteMultipartUpload>") return error(400, "InvalidPart");
    objects_[path] = std::move(made);
    uploads_.erase(found);
    return plain(200, "<?xml version=\"1.0\"?>\n<CompleteMultipartUploadResult><ETag>\"x-1\"</ETag></CompleteMultipartUploadResult>");
  }

  mutable std::mutex lock_;  // guards all members below
  fault fault_;
  std::map<std::string, object> objects_;  // by path
  std::map<std::string, pending> uploads_;
  std::size_t begun_ = 0;
  std::size_t aborted_ = 0;
  std::size_t parts_taken_ = 0;
  web_server server_{{}};  // last, since its threads use the other members
};

}  // namespace penstock::testing
