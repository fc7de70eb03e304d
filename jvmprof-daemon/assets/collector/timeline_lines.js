// The timeline as lines: one for each of the heaviest groups, all over the same scale.
"use strict";

(function (jvmprof) {
  const { element, format } = jvmprof;

  /// What the address says while they are shown (see timeline_heat.js).
  jvmprof.LINES = "lines";

  jvmprof.LINES_HEIGHT = 90;

  /// More lines can't be told apart.
  const MOST_LINES = 8;
  /// Groups that the hint names.
  const NAMED = 3;

  /// By place: hue, saturation, lightness in light and in dark.
  const COLOURS = [
    [214, 72, 48, 66],
    [25, 86, 46, 62],
    [145, 60, 34, 54],
    [330, 65, 46, 70],
    [262, 55, 55, 74],
    [45, 95, 36, 58],
    [188, 75, 34, 56],
    [220, 9, 45, 66],
  ];

  function lineColour(place) {
    const [hue, saturation, light, dark] = COLOURS[place];
    return `hsl(${hue} ${saturation}% ${jvmprof.theme.isDark() ? dark : light}%)`;
  }

  /// The groups that have a line, of those that the collector answers, the heaviest first.
  jvmprof.groupLines = (groups) => groups.slice(0, MOST_LINES);

  /// Draws lines of groups, `[{name, samples}]`, into the timeline.
  jvmprof.drawGroupLines = function (timeline, lines, width) {
    const { bars, step, rate } = timeline;
    bars.selectAll("rect.cell, text.row-name, rect.slot").remove();
    const values = lines.map(({ samples }) => samples.map((count) => rate.of(count, step)));
    const y = timeline.drawScale(values.flat(), width);
    const column = width / timeline.samples.length;
    const points = (of) => of.map((value, index) => `${((index + 0.5) * column).toFixed(1)},${y(value).toFixed(1)}`);
    bars
      .selectAll("polyline")
      .data(values)
      .join("polyline")
      .style("stroke", (_, place) => lineColour(place))
      .attr("points", (of) => points(of).join(" "));
  };

  /// Which line is whose: the content of the legend. `count`: of all groups.
  jvmprof.lineLegend = function (lines, count) {
    const entries = lines.map(({ name }, place) => {
      const swatch = element("span.swatch");
      swatch.style.background = lineColour(place);
      return element("span.line-name", {}, swatch, name);
    });
    return count > lines.length ? [...entries, element("span", {}, "Lighter groups have no line.")] : entries;
  };

  /// The groups that took most at one place: `shop 1.2, postgres 0.1`.
  jvmprof.heaviestLines = function (lines, index, { rate, step }) {
    const values = lines.map(({ name, samples }) => [rate.of(samples[index], step), name]).filter(([value]) => value > 0);
    const heaviest = values.sort((a, b) => b[0] - a[0]).slice(0, NAMED);
    return heaviest.map(([value, name]) => `${name} ${format.short(value)}`).join(", ") || "idle";
  };
})(globalThis.jvmprof);
