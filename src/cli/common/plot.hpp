// Plots as SVG for an HTML page. Each line has its own colour, dash and marker and is labelled at its end, so that a plot can be read
// without colour. In a page, the style sheet sets the colours. Free functions; thread-safe.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace penstock::cli {

// The scale of the x axis: bytes in powers of two, or percent of calls, stretched towards 100%.
enum class x_axis { bytes, percent };

struct plot_line {
  std::string name;
  std::vector<std::pair<double, double>> points;  // ascending x; y above 0
  unsigned style = 0;                             // index into plot_styles
};

// A reference speed, drawn as a thin line across the plot.
struct plot_level {
  std::string name;
  double value = 0;  // above 0
};

struct line_plot {
  std::string id;  // the id attribute of the figure: letters, digits, "-"
  std::string title, description, y_title;
  x_axis x = x_axis::bytes;
  std::string unit;  // the unit of y, for tooltips
  std::vector<plot_line> lines;
  std::vector<plot_level> levels;
};

struct plot_bar {
  std::string name;
  double value = 0;
  std::string text;    // next to the bar
  unsigned style = 0;  // 0: Penstock
};

struct bar_plot {
  std::string id, title, description;
  std::vector<plot_bar> bars;
};

inline constexpr unsigned plot_styles = 8;

// Returns a <figure> element; empty if there are no points or bars.
std::string draw(const line_plot& plot);
std::string draw(const bar_plot& plot);
// Returns a standalone SVG file, which sets its own colours.
std::string drawing_of(const line_plot& plot);

}  // namespace penstock::cli
