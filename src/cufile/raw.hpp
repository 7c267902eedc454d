// Reads and writes the C interface's enumerations as numbers. A C caller may pass any int, but in C++ reading an enumeration with an
// out-of-range value is undefined. So values from callers are read as plain ints.
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

// Stores a number for a caller that reads it as a plain int.
template <class Enumeration>
void store_raw(Enumeration* target, int number) noexcept {
  static_assert(sizeof *target == sizeof(int), "C's enumerations are ints");
  std::memcpy(target, &number, sizeof number);
}

}  // namespace penstock::cufile
