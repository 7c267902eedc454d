// The exported calls that set and get parameters. settings_book does the work; this file checks pointers and returns codes.
#include <algorithm>
#include <cstring>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "cufile/addresses.hpp"
#include "cufile/cufile.h"
#include "cufile/driver.hpp"
#include "cufile/errors.hpp"
#include "cufile/raw.hpp"
#include "cufile/settings.hpp"

namespace {

using penstock::cufile::answer;
using penstock::cufile::driver;
using penstock::cufile::guarded;
using penstock::cufile::is_readable;
using penstock::cufile::is_writable;
using penstock::cufile::raw;
using penstock::cufile::settings_book;
using penstock::cufile::size_range;
using penstock::cufile::slab_pool;
using penstock::cufile::text_at;

settings_book& book() { return driver::current().settings(); }

// The number of parameters of each kind.
constexpr std::size_t count_of(std::type_identity<CUFileSizeTConfigParameter_t>) { return penstock::cufile::size_parameter_count; }
constexpr std::size_t count_of(std::type_identity<CUFileBoolConfigParameter_t>) { return penstock::cufile::flag_parameter_count; }
constexpr std::size_t count_of(std::type_identity<CUFileStringConfigParameter_t>) { return penstock::cufile::word_parameter_count; }

// Check this before reading a parameter as its enumeration. Takes a reference, because making a copy would read it.
template <class Parameter>
bool exists(const Parameter& parameter) noexcept {
  const int number = raw(parameter);
  return number >= 0 && static_cast<std::size_t>(number) < count_of(std::type_identity<Parameter>());
}

template <class Parameter, class Value>
CUfileError_t get_value(const Parameter& parameter, Value* value) noexcept {
  return guarded([&] { return answer(!exists(parameter) || !is_writable(value) ? CU_FILE_INVALID_VALUE : book().get(parameter, *value)); });
}

template <class Parameter, class Value>
CUfileError_t set_value(const Parameter& parameter, Value value) noexcept {
  return guarded([&] { return answer(exists(parameter) ? book().set(parameter, std::move(value)) : CU_FILE_INVALID_VALUE); });
}

// The buffer must have room for the text and its terminating NUL.
CUfileOpError get_text(const CUFileStringConfigParameter_t& parameter, char* target, int length) {
  if (!exists(parameter) || length <= 0) return CU_FILE_INVALID_VALUE;
  std::string text;
  if (const CUfileOpError code = book().get(parameter, text); code != CU_FILE_SUCCESS) return code;
  if (static_cast<std::size_t>(length) <= text.size() || !is_writable(target, text.size() + 1)) return CU_FILE_INVALID_VALUE;
  std::memcpy(target, text.c_str(), text.size() + 1);
  return CU_FILE_SUCCESS;
}

CUfileOpError get_range(const CUFileSizeTConfigParameter_t& parameter, size_t* least, size_t* most) {
  if (!exists(parameter) || !is_writable(least) || !is_writable(most)) return CU_FILE_INVALID_VALUE;
  size_range range;
  if (const CUfileOpError code = settings_book::range(parameter, range); code != CU_FILE_SUCCESS) return code;
  *least = range.least;
  *most = range.most;
  return CU_FILE_SUCCESS;
}

using check = bool (*)(const void* memory, std::size_t bytes) noexcept;

bool usable(const size_t* sizes_kb, const size_t* counts, int length, check good) {
  const auto bytes = static_cast<std::size_t>(std::max(length, 0)) * sizeof(size_t);
  return length > 0 && good(sizes_kb, bytes) && good(counts, bytes);
}

CUfileError_t get_slabs(slab_pool pool, size_t* sizes_kb, size_t* counts, int length) noexcept {
  return guarded([&] {
    if (!usable(sizes_kb, counts, length, is_writable)) return answer(CU_FILE_INVALID_VALUE);
    const auto entries = static_cast<std::size_t>(length);
    return answer(book().get(pool, std::span(sizes_kb, entries), std::span(counts, entries)));
  });
}

CUfileError_t set_slabs(slab_pool pool, const size_t* sizes_kb, const size_t* counts, int length) noexcept {
  return guarded([&] {
    if (!usable(sizes_kb, counts, length, is_readable)) return answer(CU_FILE_INVALID_VALUE);
    return answer(book().set(pool, {{sizes_kb, sizes_kb + length}, {counts, counts + length}}));
  });
}

}  // namespace

CUfileError_t cuFileGetParameterSizeT(CUFileSizeTConfigParameter_t parameter, size_t* value) { return get_value(parameter, value); }

CUfileError_t cuFileSetParameterSizeT(CUFileSizeTConfigParameter_t parameter, size_t value) { return set_value(parameter, value); }

CUfileError_t cuFileGetParameterBool(CUFileBoolConfigParameter_t parameter, bool* value) { return get_value(parameter, value); }

CUfileError_t cuFileSetParameterBool(CUFileBoolConfigParameter_t parameter, bool value) { return set_value(parameter, value); }

CUfileError_t cuFileGetParameterString(CUFileStringConfigParameter_t parameter, char* text, int length) {
  return guarded([&] { return answer(get_text(parameter, text, length)); });
}

CUfileError_t cuFileSetParameterString(CUFileStringConfigParameter_t parameter, const char* text) {
  return guarded([&] {
    auto copy = text_at(text);
    return copy ? set_value(parameter, *std::move(copy)) : answer(CU_FILE_INVALID_VALUE);
  });
}

CUfileError_t cuFileGetParameterMinMaxValue(CUFileSizeTConfigParameter_t parameter, size_t* least, size_t* most) {
  return guarded([&] { return answer(get_range(parameter, least, most)); });
}

CUfileError_t cuFileSetParameterPosixPoolSlabArray(const size_t* sizes_kb, const size_t* counts, int length) {
  return set_slabs(slab_pool::posix, sizes_kb, counts, length);
}

CUfileError_t cuFileGetParameterPosixPoolSlabArray(size_t* sizes_kb, size_t* counts, int length) {
  return get_slabs(slab_pool::posix, sizes_kb, counts, length);
}

CUfileError_t cuFileSetParameterGpuBounceBufferSlabArray(const size_t* sizes_kb, const size_t* counts, int length) {
  return set_slabs(slab_pool::gpu_bounce, sizes_kb, counts, length);
}

CUfileError_t cuFileGetParameterGpuBounceBufferSlabArray(size_t* sizes_kb, size_t* counts, int length) {
  return get_slabs(slab_pool::gpu_bounce, sizes_kb, counts, length);
}
