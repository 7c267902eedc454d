// Compiles the non-template parts of {fmt} 9 once; all other sources see only their declarations, which halves their compile time. It is
// built into our own libraries, so that none of them needs libfmt.so. cmake/dependencies.cmake decides when this file is used.

#include <fmt/format-inl.h>

namespace fmt {
inline namespace v9 {

template detail::locale_ref::locale_ref(const std::locale& locale);
template std::locale detail::locale_ref::get<std::locale>() const;

namespace detail {

template thousands_sep_result<char> thousands_sep_impl(locale_ref locale);
template char decimal_point_impl(locale_ref locale);
template dragonbox::decimal_fp<float> dragonbox::to_decimal(float value) noexcept;
template dragonbox::decimal_fp<double> dragonbox::to_decimal(double value) noexcept;

}  // namespace detail
}  // namespace v9
}  // namespace fmt
