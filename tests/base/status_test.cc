#include "penstock/status.hpp"

#include <gtest/gtest.h>

#include <cerrno>
#include <set>
#include <string>
#include <utility>

namespace penstock {
namespace {

TEST(status, default_is_ok_and_empty) {
  const status fine;
  EXPECT_TRUE(fine.ok());
  EXPECT_EQ(fine.code(), errc::ok);
  EXPECT_EQ(fine.native(), 0);
  EXPECT_EQ(fine.message(), "");
}

TEST(status, code_ok_makes_an_ok_status) { EXPECT_TRUE(status(errc::ok, "nothing").ok()); }

TEST(status, from_errno_keeps_number_and_says_what_was_done) {
  const status full = status::from_errno(ENOSPC, "write 4096 at 0 of /data/x");
  EXPECT_EQ(full.code(), errc::no_space);
  EXPECT_EQ(full.domain(), error_domain::os);
  EXPECT_EQ(full.native(), ENOSPC);
  EXPECT_EQ(full.message(), "write 4096 at 0 of /data/x: No space left on device (os 28)");
}

TEST(status, code_follows_from_errno) {
  const std::pair<int, errc> expected[] = {
      {ENOENT, errc::not_found},
      {EACCES, errc::permission_denied},
      {EPERM, errc::permission_denied},
      {EROFS, errc::permission_denied},
      {EDQUOT, errc::no_space},
      {EFBIG, errc::no_space},
      {ENOMEM, errc::out_of_memory},
      {EMFILE, errc::out_of_memory},
      {ENFILE, errc::out_of_memory},
      {EAGAIN, errc::would_block},
      {EFAULT, errc::bad_memory},
      {EISDIR, errc::not_a_file},
      {ENOTDIR, errc::not_a_file},
      {EINVAL, errc::invalid_argument},
      {ENOSYS, errc::unsupported},
      {EOPNOTSUPP, errc::unsupported},
      {EIO, errc::io},
      {EBADF, errc::io},
      {ESTALE, errc::io},
      {0, errc::internal},
  };
  for (const auto& [number, code] : expected) EXPECT_EQ(status::from_errno(number, "x").code(), code) << number;
}

TEST(status, an_errno_without_a_name_is_still_reported) {
  const status odd = status::from_errno(99999, "x");
  EXPECT_EQ(odd.code(), errc::io);
  EXPECT_NE(odd.message().find("(os 99999)"), std::string_view::npos);
}

TEST(status, context_goes_in_front_and_changes_nothing_else) {
  const status inner = status::from_errno(EIO, "pread");
  const status outer = inner.with_context("staged");
  EXPECT_EQ(outer.message(), "staged: " + std::string(inner.message()));
  EXPECT_EQ(outer.code(), inner.code());
  EXPECT_EQ(outer.domain(), inner.domain());
  EXPECT_EQ(outer.native(), inner.native());
  EXPECT_TRUE(status().with_context("staged").ok());
}

TEST(status, a_copy_outlives_its_source) {
  status copy;
  {
    const status source(errc::device, "launch", error_domain::cuda, 700);
    copy = source;
  }
  EXPECT_EQ(copy.message(), "launch");
  EXPECT_EQ(copy.native(), 700);
}

TEST(status, every_code_has_a_name_of_its_own) {
  std::set<std::string_view> names;
  for (int code = 0; code <= static_cast<int>(errc::internal); ++code) names.insert(to_string(static_cast<errc>(code)));
  EXPECT_EQ(names.size(), static_cast<std::size_t>(errc::internal) + 1);
  EXPECT_EQ(names.count("unknown"), 0U);
  EXPECT_EQ(to_string(static_cast<errc>(200)), "unknown");
  EXPECT_EQ(to_string(error_domain::cufile), "cufile");
}

TEST(result, holds_a_value_or_an_error) {
  const result<int> value = 7;
  EXPECT_TRUE(value.ok());
  EXPECT_EQ(*value, 7);
  EXPECT_TRUE(value.error().ok());
  const result<int> failed = status(errc::closed, "gone");
  EXPECT_FALSE(failed);
  EXPECT_EQ(failed.error().code(), errc::closed);
  EXPECT_EQ(failed.value_or(3), 3);
}

TEST(result, a_failed_one_throws_its_status_if_its_value_is_read) {
  const auto why = [](auto&& read) -> std::string {
    try {
      read();
    } catch (const bad_result& error) {
      return error.what();
    }
    return "nothing was thrown";
  };
  result<std::string> failed = status(errc::not_found, "open /x: No such file or directory (os 2)");
  const auto& constant = failed;
  for (const auto& message : {why([&] { (void)*failed; }), why([&] { (void)*constant; }), why([&] { (void)*std::move(failed); }),
                              why([&] { (void)failed->size(); }), why([&] { (void)constant->size(); })}) {
    EXPECT_EQ(message, "the program read the value of a failed result: open /x: No such file or directory (os 2)");
  }
}

}  // namespace
}  // namespace penstock
