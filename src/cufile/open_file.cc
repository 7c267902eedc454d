#include "cufile/open_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace penstock::cufile {

std::optional<file_identity> identity_of(int descriptor) noexcept {
  struct stat facts {};
  if (::fstat(descriptor, &facts) != 0) return std::nullopt;
  return file_identity{facts.st_dev, facts.st_ino};
}

bool share_open_file(int a, int b) noexcept {
  constexpr int query = 1024 + 3;  // F_DUPFD_QUERY of linux/fcntl.h 6.10
  if (const int same = ::fcntl(a, query, b); same >= 0) return same == 1;
  constexpr int of_files = 0;  // KCMP_FILE of linux/kcmp.h
  const auto self = ::getpid();
  if (const long order = ::syscall(SYS_kcmp, self, self, of_files, a, b); order >= 0) return order == 0;
  const auto first = identity_of(a);
  return first && first == identity_of(b);
}

}  // namespace penstock::cufile
