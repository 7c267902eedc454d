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

// For a caller to read as the int that it is.
template <class Enumeration>
void store_raw(Enumeration* target, int number) noexcept {
  static_assert(sizeof *target == sizeof(int), "C's enumerations are ints");
  std::memcpy(target, &number, sizeof number);
}

}  // namespace penstock::cufile
