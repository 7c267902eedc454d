// Plots as SVG for an HTML page: each line has a colour, a dash and a marker of its own and its name at its end, so that no plot needs
// colour to be read. In a page the colours come from its style sheet. Free functions; safe from any thread.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace penstock::cli {

// How the x axis is divided: by bytes in powers of two, or by per cent of calls with room for the last of them.
enum class x_axis { bytes, percent };

struct plot_line {
  std::string name;
  std::vector<std::pair<double, double>> points;  // x ascending; y above 0
  unsigned style = 0;                             // of plot_styles
};

// A raw speed: a thin line across the plot.
struct plot_level {
  std::string name;
  double value = 0;  // above 0
};

struct line_plot {
  std::string id;  // of the figure in the page: letters, digits, "-"
  std::string title, description, y_title;
  x_axis x = x_axis::bytes;
  std::string unit;  // of y, for what is shown when a point is touched
  std::vector<plot_line> lines;
  std::vector<plot_level> levels;
};

struct plot_bar {
  std::string name;
  double value = 0;
  std::string text;    // beside the bar
  unsigned style = 0;  // 0: ours
};

struct bar_plot {
  std::string id, title, description;
  std::vector<plot_bar> bars;
};

inline constexpr unsigned plot_styles = 8;

// A <figure>; nothing where there are no points or bars.
std::string draw(const line_plot& plot);
std::string draw(const bar_plot& plot);
// An SVG that is a file by itself, with colours of its own.
std::string drawing_of(const line_plot& plot);

}  // namespace penstock::cli
