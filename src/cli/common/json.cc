#include "cli/common/json.hpp"

#include "cli/common/interrupt.hpp"

namespace penstock::cli {
namespace {

struct promise {
  bool made = false, kept = false;
  std::string failure;
};

promise& the_promise() {
  static promise one;
  return one;
}

}  // namespace

void promise_json() noexcept { the_promise().made = true; }

void note_printed_json() noexcept { the_promise().kept = true; }

void note_failure(std::string_view message) { the_promise().failure = message; }

void keep_json_promise(int exit_code) {
  const promise& now = the_promise();
  if (!now.made || now.kept || exit_code == 0) return;
  const std::string why = interrupted() ? "interrupted" : now.failure.empty() ? "the command failed" : now.failure;
  print_json({{"error", why}});
}

}  // namespace penstock::cli
