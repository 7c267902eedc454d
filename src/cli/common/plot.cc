#include "cli/common/plot.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <string_view>

#include "cli/common/html.hpp"
#include "cli/common/sizes.hpp"

namespace penstock::cli {
namespace {

constexpr double width = 820, height = 404;
constexpr double left = 62, right = 600, top = 32, bottom = 350;  // edges of the plotted area; the names are to its right
constexpr double label_distance = 15;
constexpr double letter_width = 6.8;  // for the widest likely fonts at 12 px

// --- scales

double placed(x_axis kind, double x) {
  constexpr double most_percent = 99.99;
  return kind == x_axis::bytes ? std::log2(x) : -std::log10(1 - std::min(x, most_percent) / 100);
}

struct range {
  double low = 0, high = 1;
  [[nodiscard]] double part(double value) const { return (value - low) / (high - low); }
};

double down_to_step(double value, bool up) {
  const double decade = std::pow(10, std::floor(std::log10(value)));
  double best = up ? decade * 10 : decade;
  for (const double step : {1.0, 2.0, 5.0, 10.0}) {
    const double at = step * decade;
    if (!up && at <= value * 1.0001) best = at;
    if (up && at >= value * 0.9999) return at;
  }
  return best;
}

range y_range(const line_plot& plot) {
  double low = 1e300, high = 0;
  const auto note = [&](double value) { low = std::min(low, value), high = std::max(high, value); };
  for (const auto& line : plot.lines)
    for (const auto& [x, y] : line.points) note(y);
  for (const auto& level : plot.levels) note(level.value);
  range found{std::log10(down_to_step(low, false)), std::log10(down_to_step(high, true))};
  if (found.high - found.low < 0.3) found.high = found.low + 0.31;
  return found;
}

range x_range(const line_plot& plot) {
  range found{1e300, -1e300};
  for (const auto& line : plot.lines) {
    for (const auto& [x, y] : line.points) {
      found.low = std::min(found.low, placed(plot.x, x));
      found.high = std::max(found.high, placed(plot.x, x));
    }
  }
  if (found.high - found.low < 1e-9) found.low -= 1, found.high += 1;
  return found;
}

struct frame {
  const line_plot& plot;
  range x, y;
  [[nodiscard]] double at_x(double value) const { return left + 12 + x.part(placed(plot.x, value)) * (right - left - 24); }
  [[nodiscard]] double at_y(double value) const { return bottom - y.part(std::log10(value)) * (bottom - top); }
};

std::string short_number(double value) {
  if (value >= 10000) return fmt::format("{:.0f} k", value / 1000);
  return value >= 100 ? fmt::format("{:.0f}", value) : fmt::format("{:.3g}", value);
}

// --- parts of an SVG

std::string text_at(double x, double y, std::string_view anchor, std::string_view text, std::string_view classes = "") {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\"{}>{}</text>\n", x, y, anchor,
                     classes.empty() ? "" : fmt::format(" class=\"{}\"", classes), html_text(text));
}

std::string rule(double x1, double y1, double x2, double y2, std::string_view classes) {
  return fmt::format("<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" class=\"{}\"/>\n", x1, y1, x2, y2, classes);
}

// Returns a marker at the point; each style has its own shape.
std::string marker(double x, double y, unsigned style, const std::string& hint) {
  constexpr std::array<std::string_view, plot_styles> shapes{
      "M-4,0a4,4 0 1,0 8,0a4,4 0 1,0 -8,0Z",
      "M-3.6,-3.6H3.6V3.6H-3.6Z",
      "M0,-5.2L5.2,0L0,5.2L-5.2,0Z",
      "M0,-5L4.8,3.6H-4.8Z",
      "M0,5L4.8,-3.6H-4.8Z",
      "M-4,-4L4,4M-4,4L4,-4",
      "M0,-5V5M-5,0H5",
      "M-4.5,0H4.5M-2.5,-4L2.5,4M-2.5,4L2.5,-4",
  };
  const std::string title = hint.empty() ? "" : fmt::format("<title>{}</title>", html_text(hint));
  return fmt::format("<path d=\"{}\" transform=\"translate({:.1f} {:.1f})\" class=\"m s{}\">{}</path>\n", shapes[style % plot_styles], x, y,
                     style % plot_styles, title);
}

std::string opened(const std::string& id, const std::string& title, const std::string& description, double tall, double wide = width) {
  return fmt::format(
      "<figure id=\"{0}\">\n<figcaption>{1}</figcaption>\n<div class=\"wide\"><svg viewBox=\"0 0 {2} {3:.0f}\" role=\"img\" "
      "aria-labelledby=\"{0}-t {0}-d\" xmlns=\"http://www.w3.org/2000/svg\">\n<title id=\"{0}-t\">{1}</title>\n<desc "
      "id=\"{0}-d\">{4}</desc>\n",
      id, html_text(title), std::ceil(wide), tall, html_text(description));
}

std::string closed(const std::string& description) {
  return fmt::format("</svg></div>\n<p class=\"about\">{}</p>\n</figure>\n", html_text(description));
}

std::string draw_y_axis(const frame& in) {
  std::string out;
  const bool few_decades = in.y.high - in.y.low <= 2.6;
  for (int decade = static_cast<int>(std::floor(in.y.low)); decade <= static_cast<int>(std::ceil(in.y.high)); ++decade) {
    for (const double step : {1.0, 2.0, 5.0}) {
      const double value = step * std::pow(10, decade);
      if (std::log10(value) < in.y.low - 1e-9 || std::log10(value) > in.y.high + 1e-9) continue;
      const double y = in.at_y(value);
      out += rule(left, y, right, y, step > 1 ? "grid minor" : "grid");
      if (few_decades || step == 1) out += text_at(left - 8, y + 4, "end", short_number(value));
    }
  }
  return out + text_at(left - 50, top - 14, "start", in.plot.y_title, "axis");
}

std::string draw_x_axis(const frame& in) {
  std::string out;
  const auto tick = [&](double value, const std::string& text) {
    const double x = in.at_x(value);
    if (x < left || x > right) return;
    out += rule(x, top, x, bottom, "grid minor") + text_at(x, bottom + 18, "middle", text);
  };
  if (in.plot.x == x_axis::bytes) {
    const auto first = static_cast<int>(std::ceil(in.x.low - 1e-9));
    const int step = in.x.high - in.x.low > 7 ? 2 : 1;
    for (int power = first; power <= static_cast<int>(in.x.high + 1e-9); power += step) {
      tick(std::exp2(power), format_size(std::uint64_t{1} << std::clamp(power, 0, 62)));
    }
    return out + text_at((left + right) / 2, bottom + 40, "middle", "call size", "axis");
  }
  for (const auto& [percent, text] : {std::pair(0.0, "min"), {50.0, "50 %"}, {90.0, "90 %"}, {99.0, "99 %"}, {99.9, "99.9 %"}})
    tick(percent, text);
  return out + text_at((left + right) / 2, bottom + 40, "middle", "percentile of the calls", "axis");
}

// --- names at the ends of lines

struct end_label {
  double wanted = 0;    // y at the end of the line
  double line_end = 0;  // x at the end of the line
  double y = 0;         // y of the name
  std::string text;
  int style = -1;  // -1: a level
};

// Moves overlapping names apart, no further than necessary, and keeps them inside the plot.
void spread(std::vector<end_label>& labels) {
  std::sort(labels.begin(), labels.end(), [](const end_label& a, const end_label& b) { return a.wanted < b.wanted; });
  double least = top;
  for (auto& each : labels) {
    each.y = std::max(each.wanted, least);
    least = each.y + label_distance;
  }
  double most = bottom + 8;
  for (auto each = labels.rbegin(); each != labels.rend(); ++each) {
    each->y = std::min(each->y, most);
    most = each->y - label_distance;
  }
}

// Returns the width of the drawing with all names.
double width_with(const std::vector<end_label>& labels) {
  constexpr double before = 32, behind = 8;
  std::size_t letters = 0;
  for (const auto& each : labels) letters = std::max(letters, each.text.size());
  return std::max(width, right + before + letter_width * static_cast<double>(letters) + behind);
}

std::string draw_labels(std::vector<end_label> labels) {
  spread(labels);
  std::string out;
  for (const auto& each : labels) {
    out += fmt::format("<path d=\"M{:.1f},{:.1f}L{:.1f},{:.1f}L{:.1f},{:.1f}\" class=\"leader\"/>\n", each.line_end + 6, each.wanted,
                       right + 4, each.wanted, right + 14, each.y);
    if (each.style >= 0) out += marker(right + 22, each.y, static_cast<unsigned>(each.style), "");
    out += text_at(right + (each.style >= 0 ? 32 : 17), each.y + 4, "start", each.text, each.style >= 0 ? "name" : "name level-name");
  }
  return out;
}

std::string draw_line(const frame& in, const plot_line& line) {
  std::string path;
  std::string markers;
  for (const auto& [x, y] : line.points) {
    path += fmt::format("{}{:.1f},{:.1f}", path.empty() ? "M" : "L", in.at_x(x), in.at_y(y));
    const std::string where = in.plot.x == x_axis::bytes ? format_size(static_cast<std::uint64_t>(x)) : fmt::format("{:g} %", x);
    markers += marker(in.at_x(x), in.at_y(y), line.style, fmt::format("{}, {}: {} {}", line.name, where, short_number(y), in.plot.unit));
  }
  return fmt::format("<g class=\"series\" data-series=\"{}\">\n<path d=\"{}\" class=\"l s{} d{}\"/>\n{}</g>\n", html_text(line.name), path,
                     line.style % plot_styles, line.style % plot_styles, markers);
}

// Styles of a standalone file; a page defines the same classes in its style sheet.
constexpr std::string_view style_of_file = R"css(<style>
svg { background: #fcfcfa; font: 12px system-ui, "Liberation Sans", sans-serif; }
text { fill: #59626d; } .name { fill: #1d2126; } .level-name { font-style: italic; } .axis { font-weight: 600; }
.grid { stroke: #d9dcd8; } .minor { stroke: #ecedea; } .base { stroke: #59626d; stroke-width: 1.2; }
.level { stroke: #59626d; stroke-dasharray: 1 4; stroke-linecap: round; } .leader { fill: none; stroke: #d9dcd8; }
.l { fill: none; stroke-width: 2; stroke-linejoin: round; } .m { fill: #fcfcfa; stroke-width: 1.8; }
.d1 { stroke-dasharray: 8 4; } .d2 { stroke-dasharray: 2.5 3.5; } .d3 { stroke-dasharray: 11 4 2 4; } .d4 { stroke-dasharray: 5 3; }
.d5 { stroke-dasharray: 14 4; } .d6 { stroke-dasharray: 2 2; } .d7 { stroke-dasharray: 9 3 2 3 2 3; }
.s0 { stroke: #0b5fa5; } .s1 { stroke: #c2410c; } .s2 { stroke: #15795a; } .s3 { stroke: #8a3b8f; }
.s4 { stroke: #8a6a00; } .s5 { stroke: #1a8aa8; } .s6 { stroke: #b0234f; } .s7 { stroke: #4d5661; }
</style>
)css";

}  // namespace

std::string draw(const line_plot& plot) {
  line_plot drawn = plot;
  std::erase_if(drawn.lines, [](const plot_line& line) { return line.points.empty(); });
  if (drawn.lines.empty()) return {};
  const frame in{drawn, x_range(drawn), y_range(drawn)};
  std::string out = draw_y_axis(in) + draw_x_axis(in) + rule(left, bottom, right, bottom, "base");
  std::vector<end_label> labels;
  for (const auto& level : drawn.levels) {
    const double y = in.at_y(level.value);
    out += fmt::format("<g data-level=\"{}\">{}</g>\n", html_text(level.name), rule(left, y, right, y, "level"));
    labels.push_back({y, right, 0, fmt::format("{}: {}", level.name, short_number(level.value)), -1});
  }
  for (const auto& line : drawn.lines) {
    out += draw_line(in, line);
    const auto& [x, y] = line.points.back();
    labels.push_back({in.at_y(y), in.at_x(x), 0, line.name, static_cast<int>(line.style % plot_styles)});
  }
  const std::string begin = opened(plot.id, plot.title, plot.description, height, width_with(labels));
  return begin + out + draw_labels(std::move(labels)) + closed(plot.description);
}

std::string draw(const bar_plot& plot) {
  if (plot.bars.empty()) return {};
  constexpr double step = 26, thick = 14, first = 16, base = 270;
  std::size_t letters = 0;
  for (const auto& each : plot.bars) letters = std::max(letters, each.text.size());
  const double longest = std::max(120.0, width - base - 20 - 6.6 * static_cast<double>(letters));  // the space that the widest text leaves
  double most = 0;
  for (const auto& each : plot.bars) most = std::max(most, each.value);
  std::string out = opened(plot.id, plot.title, plot.description, first + step * static_cast<double>(plot.bars.size()) + 8);
  double y = first;
  for (const auto& each : plot.bars) {
    const double length = most > 0 ? each.value / most * longest : 0;
    out +=
        fmt::format("<g data-series=\"{}\">{}<rect x=\"{:.0f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.0f}\" class=\"b s{}\"/>{}</g>\n",
                    html_text(each.name), text_at(base - 10, y + 11, "end", each.name, "name"), base, y, std::max(length, 1.0), thick,
                    each.style % plot_styles, text_at(base + length + 8, y + 11, "start", each.text, "name"));
    y += step;
  }
  return out + rule(base, first - 6, base, y - 4, "base") + closed(plot.description);
}

std::string drawing_of(const line_plot& plot) {
  const std::string figure = draw(plot);
  const std::size_t begin = figure.find("<svg");
  if (begin == std::string::npos) return {};
  const std::size_t inside = figure.find('>', begin) + 1;
  const std::string_view end = "</svg>";
  const std::size_t last = figure.rfind(end) + end.size();
  const std::string title = text_at((left + right) / 2, top - 14, "middle", plot.description, "axis");
  return figure.substr(begin, inside - begin) + "\n" + std::string(style_of_file) + title + figure.substr(inside, last - inside) + "\n";
}

}  // namespace penstock::cli
