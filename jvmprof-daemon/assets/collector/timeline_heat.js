// The timeline as a heatmap: a row for each program, or for each part of JVMs' time, and in it the
// cores that were busy, by colour. Its columns are those of the bars; a drag chooses as in them.
"use strict";

(function (jvmprof) {
  const { format } = jvmprof;

  const ROW = 16;
  const GAP = 1;

  /// What the timeline can show, by what the address says.
  jvmprof.HEATS = { "": "Load", lines: "Lines by group", groups: "Heatmap of groups", activities: "Heatmap of JVM time", seconds: "Sub-second heatmap" };

  /// The same in the timeline's name.
  jvmprof.HEAT_LABELS = { lines: " by group", groups: " by group", activities: " by what JVMs' time went to" };

  /// Groups are those of series, which have no kinds of threads.
  jvmprof.isOfGroups = (heat) => heat === "groups" || heat === jvmprof.LINES;

  jvmprof.heatHeight = (rows) => Math.max(1, rows.length) * ROW;

  /// Room for names.
  jvmprof.heatGutter = (width) => Math.round(Math.min(190, Math.max(140, width / 5)));

  jvmprof.heatRowAt = (y) => Math.floor(y / ROW);

  /// What fits of a row's name: a class without its package first.
  function fitted(name, most, room) {
    const characters = Math.floor((room - 12) / 6) - most.length - 1;
    const short = name.length > characters ? name.split(".").pop() : name;
    return short.length > characters ? `${short.slice(0, Math.max(1, characters - 1))}…` : short;
  }

  /// Draws rows into the timeline, each with its name and the most that it took.
  jvmprof.drawHeatRows = function (timeline, rows, width) {
    const { bars, left, step, rate, scale } = timeline;
    scale.replaceChildren();
    bars.selectAll("line.grid, rect.slot, polyline").remove();
    const value = (samples) => rate.of(samples, step);
    const most = rows.map(({ samples }) => Math.max(...samples));
    const hottest = Math.max(...most, 0) || 1;
    const column = (width - left) / timeline.samples.length;
    const cells = rows.flatMap(({ samples }, row) => samples.flatMap((count, index) => (count > 0 ? [{ row, index, heat: count / hottest }] : [])));
    bars
      .selectAll("rect.cell")
      .data(cells)
      .join("rect")
      .attr("class", "cell")
      // Few cores are seen as well beside many: by the root.
      .style("fill", ({ heat }) => jvmprof.heatColour(Math.sqrt(heat)))
      .attr("x", ({ index }) => left + index * column)
      .attr("width", Math.max(1, column - (column > 4 ? 0.4 : 0)))
      .attr("y", ({ row }) => row * ROW)
      .attr("height", ROW - GAP);
    const mosts = most.map((samples) => format.short(value(samples)));
    const texts = rows.flatMap(({ name }, row) => [
      { text: fitted(name, mosts[row], left), row, x: 6, anchor: "start" },
      { text: mosts[row], row, x: left - 6, anchor: "end" },
    ]);
    bars
      .selectAll("text.row-name")
      .data(texts)
      .join("text")
      .attr("class", "row-name")
      .attr("text-anchor", ({ anchor }) => anchor)
      .attr("x", ({ x }) => x)
      .attr("y", ({ row }) => row * ROW + ROW / 2)
      .text(({ text }) => text);
  };
})(globalThis.jvmprof);
