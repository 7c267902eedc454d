// Enumerations of the C interface as numbers. A caller in C may pass any int for one; in C++, reading an enumeration that holds none of its
// values is undefined. So what comes from a caller is looked at as the int that it is.
#pragma once

#include <cstring>

namespace penstock::cufile {

template <class Enumeration>
int raw(const Enumeration& value) noexcept {
  static_assert(sizeof value == sizeof(int), "C's enumerations are ints");
  int number = 0;
  std::memcpy(&number, &value, sizeof number);
  return number;
}

}  // namespace penstock::cufile
