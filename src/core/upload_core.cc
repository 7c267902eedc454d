#include "core/upload_core.hpp"

#include <new>
#include <utility>

#include <fmt/format.h>

#include "remote/net/url.hpp"

namespace penstock::core {

result<std::shared_ptr<upload_core>> upload_core::begin(std::shared_ptr<engine_core> with, const std::string& url,
                                                        const remote_options& how) {
  const auto shown = source::remote::shown_text(url);
  if (with->forked()) return status(errc::forked, fmt::format("write {}: the engine belongs to the parent process", shown));
  auto begun = with->servers().begin_upload(url, how);
  if (!begun) return begun.error().with_context("write");
  return std::make_shared<upload_core>(std::move(with), *std::move(begun), how.overwrite);
}

// A forked child leaks the upload, because the parent's threads may have held its locks or waited for it.
upload_core::~upload_core() {
  if (engine_->forked()) {
    (void)new (std::nothrow) std::shared_ptr<source::remote::upload>(std::move(upload_));
  } else {
    upload_->abort();
  }
}

status upload_core::usable() const {
  if (!engine_->forked()) return {};
  return {errc::forked, fmt::format("{} belongs to the parent process; write it again after fork", name())};
}

result<std::shared_ptr<file_core>> upload_core::open(std::uint64_t bytes_per_second) {
  if (auto problem = usable(); !problem.ok()) return problem;
  return engine_->open(source::remote::make_upload_source(upload_), {.bytes_per_second = bytes_per_second});
}

status upload_core::publish(bool replace) {
  if (auto problem = usable(); !problem.ok()) return problem;
  return upload_->complete(replace && overwrites_).with_context(name());
}

}  // namespace penstock::core
