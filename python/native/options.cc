#include "options.hpp"

#include <chrono>
#include <cmath>
#include <cstdint>
#include <string_view>

#include "arguments.hpp"
#include "errors.hpp"

namespace penstock::python {

namespace {

std::string_view word(nb::handle text, const char* name) {
  Py_ssize_t length = 0;
  if (!PyUnicode_Check(text.ptr())) throw nb::type_error((std::string(name) + " must be a str or None, not " + type_of(text)).c_str());
  const char* bytes = PyUnicode_AsUTF8AndSize(text.ptr(), &length);
  if (bytes == nullptr) throw nb::python_error();
  return {bytes, static_cast<std::size_t>(length)};
}

unsigned parse_links(nb::handle links) {
  constexpr std::int64_t most = 8;
  if (links.is_none() || (PyUnicode_Check(links.ptr()) && word(links, "links") == "auto")) return 0;
  const auto number = PyUnicode_Check(links.ptr()) ? 0 : signed_integer(links, "links");
  if (number < 1 || number > most) raise_invalid("links must be 1 to 8, or 'auto'");
  return static_cast<unsigned>(number);
}

}  // namespace

deadline_clock::time_point deadline_after(double seconds) {
  using namespace std::chrono;
  if (std::isnan(seconds)) raise_invalid("timeout is not a number");
  const auto now = deadline_clock::now();
  const duration<double> most = deadline_clock::time_point::max() - now;
  if (seconds >= most.count() * 0.99) return deadline_clock::time_point::max();
  return now + duration_cast<deadline_clock::duration>(duration<double>(seconds > 0 ? seconds : 0));
}

cache_use parse_cache(nb::handle cache) {
  if (cache.is_none()) return cache_use::automatic;
  const std::string_view name = word(cache, "cache");
  if (name == "keep" && PyErr_WarnEx(PyExc_DeprecationWarning, "cache=\"keep\" is deprecated: use cache=\"fill\"", 1) != 0)
    throw nb::python_error();
  const auto parsed = parse_cache_use(name);
  if (!parsed) raise(parsed.error());
  return *parsed;
}

io_options request_options(nb::handle path, nb::handle prefer, nb::handle cache, nb::handle links, nb::handle priority,
                           nb::handle timeout) {
  io_options options;
  options.cache = parse_cache(cache);
  options.links = parse_links(links);
  if (!path.is_none()) {
    const auto parsed = parse_path_kind(word(path, "path"));
    if (!parsed) raise(parsed.error());
    options.path = *parsed;
  }
  if (!prefer.is_none()) {
    const auto parsed = parse_preference(word(prefer, "prefer"));
    if (!parsed) raise(parsed.error());
    options.prefer = *parsed;
  }
  if (!priority.is_none()) {
    const auto parsed = parse_request_priority(word(priority, "priority"));
    if (!parsed) raise(parsed.error());
    options.priority = *parsed;
  }
  if (!timeout.is_none()) options.deadline = deadline_after(real_number(timeout, "timeout"));
  return options;
}

}  // namespace penstock::python
