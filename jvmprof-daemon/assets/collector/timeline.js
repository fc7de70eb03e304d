// Load over the chosen range, as bars, lines of groups or a heatmap; a part of it is chosen by
// dragging over them, or with keys.
"use strict";

(function (jvmprof) {
  const { element, format } = jvmprof;

  /// Of bars.
  const HEIGHT = 54;
  /// Room above the highest bar.
  const ABOVE = 6;
  /// A shorter drag is a click.
  const SHORTEST_DRAG = 4;
  const MINUTE = 60_000;

  /// A tick's text: its date at midnight, seconds only where ticks are closer than a minute.
  function tickText(time, step) {
    if (time.getHours() + time.getMinutes() + time.getSeconds() === 0) {
      return time.toLocaleDateString("en", { month: "short", day: "numeric" });
    }
    const two = (number) => String(number).padStart(2, "0");
    const clock = `${two(time.getHours())}:${two(time.getMinutes())}`;
    const fraction = step < 1000 ? `.${String(time.getMilliseconds()).padStart(3, "0")}` : "";
    return step < MINUTE ? `${clock}:${two(time.getSeconds())}${fraction}` : clock;
  }

  /// Round times between two, `[{time, text}]`, about `count` of them.
  jvmprof.timeTicks = function (from, to, count) {
    const ticks = d3.scaleTime().domain([from, to]).ticks(count);
    const step = ticks.length > 1 ? ticks[1] - ticks[0] : to - from;
    return ticks.map((time) => ({ time: time.getTime(), text: tickText(time, step) }));
  };

  class Timeline {
    /// `onRange(from, to)` gets the part that was chosen.
    constructor(container, onRange) {
      this.onRange = onRange;
      this.cursor = new jvmprof.CellCursor();
      this.heat = "";
      this.left = 0;
      this.height = HEIGHT;
      this.container = container;
      container.tabIndex = 0;
      container.setAttribute("role", "application");
      this.bars = d3.select(container).append("svg").attr("class", "bars").attr("aria-hidden", "true");
      this.axis = element("div.axis", { "aria-hidden": "true" });
      this.scale = element("div.scale", { "aria-hidden": "true" });
      this.hint = element("div.timeline-hint", { "aria-live": "polite" });
      this.legend = element("div.timeline-legend", { "aria-hidden": "true" });
      container.append(this.scale, this.axis, this.legend, this.hint);
      container.addEventListener("pointerdown", (event) => this.start(event));
      container.addEventListener("pointermove", (event) => this.move(event));
      container.addEventListener("pointerup", (event) => this.end(event));
      container.addEventListener("pointercancel", () => this.select(null));
      container.addEventListener("pointerleave", () => this.hint.replaceChildren());
      container.addEventListener("keydown", (event) => this.key(event));
      container.addEventListener("blur", () => this.leave());
      new ResizeObserver(() => this.draw()).observe(container);
      jvmprof.theme.listeners.push(() => this.draw());
      this.clear();
    }

    /// Shows nothing, not even an empty box.
    clear() {
      this.samples = this.all = null;
      this.container.hidden = true;
    }

    /// `rate` is what bars measure: `{name, of(samples, milliseconds)}`. `activities`: samples of
    /// each bar by what JVMs' samples were taken in, if that is known; `chosen` of them are shown.
    show({ start_ms, step_ms, samples, rows }, rate, activities = null, chosen = null) {
      this.all = { samples, activities };
      Object.assign(this, this.all, { of: "" });
      this.groups = rows.map(({ name, samples }) => ({ name: name ?? "all others", samples }));
      this.chosen = chosen;
      this.from = start_ms;
      this.step = step_ms;
      this.rate = rate;
      this.to = start_ms + step_ms * samples.length;
      this.container.hidden = false;
      this.draw();
    }

    /// Shows the samples of some threads alone, `{samples, activities}`; null: those of all. `of`
    /// says which.
    limitTo(part, of = "") {
      if (!this.all) return;
      Object.assign(this, part ?? this.all, { of: part ? of : "" });
      this.draw();
    }

    /// Says what is drawn: rows of a heatmap or lines, or null for bars.
    describeAll(rows) {
      const by = rows ? jvmprof.HEAT_LABELS[this.heat] : "";
      const what = this.heat === jvmprof.LINES ? "Lines" : "Rows";
      const names = rows ? ` ${what}, with the most of each: ${rows.map(({ name, samples }) => `${name} ${format.short(this.rate.of(Math.max(...samples), this.step))}`).join(", ")}.` : "";
      const label = `${this.rate.name}${by} from ${format.time(this.from)} to ${format.time(this.to)}${this.of}.${names} Arrow keys move, with Shift they choose a part, Enter shows it.`;
      this.container.setAttribute("aria-label", label);
    }

    draw() {
      const width = this.container.clientWidth;
      if (!this.samples || !width) return;
      const [rows, lines] = [this.heatRows(), this.groupLines()];
      this.left = rows ? jvmprof.heatGutter(width) : 0;
      this.height = rows ? jvmprof.heatHeight(rows) : lines ? jvmprof.LINES_HEIGHT : HEIGHT;
      this.bars.attr("width", width).attr("height", this.height).classed("heat-rows", Boolean(rows));
      this.drawAxis(width);
      this.describeAll(rows ?? lines);
      this.legend.replaceChildren(...(lines ? jvmprof.lineLegend(lines, this.groups.length) : []));
      if (rows) jvmprof.drawHeatRows(this, rows, width);
      else if (lines) jvmprof.drawGroupLines(this, lines, width);
      else this.drawBars(width);
    }

    drawBars(width) {
      this.bars.selectAll("rect.cell, text.row-name, polyline").remove();
      const values = this.samples.map((count) => this.rate.of(count, this.step));
      const y = this.drawScale(values, width);
      const step = width / values.length;
      this.bars
        .selectAll("rect.slot")
        .data(this.activities ? this.stacks(y) : values.map((value, index) => ({ index, top: HEIGHT - this.barHeight(value, y), bottom: HEIGHT })))
        .join("rect")
        .attr("class", ({ isAside }) => (isAside ? "slot aside" : "slot"))
        .style("fill", ({ activity }) => (activity === undefined ? null : jvmprof.activityColour(activity)))
        .style("opacity", ({ activity, isAside }) => (activity === undefined ? null : isAside ? 0.22 : 0.9))
        .attr("x", ({ index }) => index * step)
        .attr("width", Math.max(1, step - 0.5))
        .attr("y", ({ top }) => top)
        .attr("height", ({ top, bottom }) => bottom - top);
    }

    /// Draws the scale of these values, and returns it.
    drawScale(values, width) {
      const y = d3.scaleLinear().domain([0, Math.max(...values) || 1]).nice(2).range([this.height, ABOVE]);
      this.bars
        .selectAll("line.grid")
        .data(y.ticks(2).filter((value) => value > 0))
        .join("line")
        .attr("class", "grid")
        .attr("x2", width)
        .attr("y1", (value) => y(value))
        .attr("y2", (value) => y(value));
      this.scale.replaceChildren(...jvmprof.scaleLabels(y, this.rate.name));
      return y;
    }

    drawAxis(width) {
      const times = jvmprof.timeTicks(this.from, this.to, Math.max(2, Math.floor((width - this.left) / 110)));
      const x = (time) => this.left + ((width - this.left) * (time - this.from)) / (this.to - this.from);
      // One at the very edge would be cut.
      const inside = times.filter(({ time }) => x(time) > this.left + 16 && x(time) < width - 16);
      this.axis.replaceChildren(
        ...inside.map(({ time, text }) => jvmprof.axisLabel(text, { left: `${x(time)}px` })),
        ...(this.left ? [element("span.axis-unit", {}, `most, ${this.rate.name}`)] : []),
      );
    }

    /// The groups that have lines, `[{name, samples}]`; null where none are shown.
    groupLines() {
      return this.heat === jvmprof.LINES && this.groups.length > 0 ? jvmprof.groupLines(this.groups) : null;
    }

    /// The rows of the heatmap, `[{name, samples, activity}]`; null where none is shown.
    heatRows() {
      if (this.heat === "groups") return this.groups;
      if (this.heat !== "activities" || !this.activities) return null;
      const rows = this.activities.map((samples, activity) => ({ name: jvmprof.ACTIVITIES[activity].name, samples, activity }));
      return rows.filter(({ samples }) => samples.some((count) => count > 0));
    }

    /// Shows bars, lines of groups, or a heatmap of groups or activities.
    setHeat(heat) {
      this.heat = heat;
      this.draw();
    }

    /// The parts of all bars, what is chosen at the bottom: `[{index, activity, isAside, top,
    /// bottom}]`.
    stacks(y) {
      const isAside = (activity) => this.chosen !== null && !this.chosen.has(activity);
      const order = this.activities.map((_, activity) => activity).sort((a, b) => isAside(a) - isAside(b) || a - b);
      const below = new Float64Array(this.samples.length);
      return order.flatMap((activity) =>
        this.activities[activity].flatMap((samples, index) => {
          if (!samples) return [];
          const bottom = y(below[index]);
          below[index] += this.rate.of(samples, this.step);
          return [{ index, activity, isAside: isAside(activity), top: y(below[index]), bottom }];
        }),
      );
    }

    /// Shows only these activities with their full colours; null for all.
    choose(chosen) {
      this.chosen = chosen;
      this.draw();
    }

    barHeight(value, y) {
      return value === 0 ? 0 : Math.max(2, HEIGHT - y(value));
    }

    x(event) {
      const box = this.container.getBoundingClientRect();
      return Math.min(box.width, Math.max(this.left, event.clientX - box.left));
    }

    time(x) {
      return this.from + ((this.to - this.from) * (x - this.left)) / (this.container.clientWidth - this.left);
    }

    start(event) {
      if (!this.samples || event.button !== 0) return;
      this.container.setPointerCapture(event.pointerId);
      this.leave();
      this.anchor = this.x(event);
      event.preventDefault();
    }

    move(event) {
      if (!this.samples) return;
      const x = this.x(event);
      if (this.anchor !== undefined) {
        this.select([Math.min(x, this.anchor), Math.max(x, this.anchor)]);
        return;
      }
      const row = this.heatRows()?.[jvmprof.heatRowAt(event.clientY - this.container.getBoundingClientRect().top)];
      this.describe(Math.min(this.samples.length - 1, Math.floor((this.time(x) - this.from) / this.step)), "drag to choose", row);
    }

    end(event) {
      const [from, to] = [this.anchor, this.x(event)].sort((a, b) => a - b);
      const chosen = this.anchor !== undefined && to - from >= SHORTEST_DRAG;
      this.select(null);
      if (chosen) this.onRange(Math.floor(this.time(from)), Math.ceil(this.time(to)));
    }

    describe(index, what, row = null) {
      if (row) {
        const at = format.time(this.from + index * this.step);
        this.hint.textContent = `${at} · ${row.name}: ${format.short(this.rate.of(row.samples[index], this.step))} ${this.rate.name} · ${what}`;
        return;
      }
      const value = format.short(this.rate.of(this.samples[index], this.step));
      const lines = this.groupLines();
      const parts = lines ? ` · ${jvmprof.heaviestLines(lines, index, this)}` : this.activities ? ` · ${this.heaviest(index)}` : "";
      this.hint.textContent = `${format.time(this.from + index * this.step)} · ${value} ${this.rate.name}${parts} · ${what}`;
    }

    /// The three activities with most samples of a bar: `62 % Application, 20 % GC`.
    heaviest(index) {
      const counts = this.activities.map((of, activity) => [of[index], activity]).filter(([samples]) => samples > 0);
      const sum = counts.reduce((all, [samples]) => all + samples, 0);
      const names = counts.sort((a, b) => b[0] - a[0]).slice(0, 3);
      return names.map(([samples, activity]) => `${jvmprof.ACTIVITIES[activity].name} ${Math.round((100 * samples) / sum)} %`).join(", ") || "idle";
    }

    key(event) {
      if (!this.samples || event.ctrlKey || event.metaKey || event.altKey) return;
      const last = this.samples.length - 1;
      const steps = { ArrowLeft: -1, ArrowRight: 1, PageUp: -20, PageDown: 20, Home: -last, End: last };
      if (this.cursor.press(event, steps, last, last)) this.showCursor();
      else if (event.key === "Enter" && this.cursor.isShown()) {
        const [from, to] = this.cursor.part();
        this.leave();
        this.onRange(Math.floor(this.from + from * this.step), Math.ceil(this.from + to * this.step));
      } else if (event.key === "Escape" && this.cursor.isShown()) this.leave();
      else return;
      event.preventDefault();
      event.stopPropagation();
    }

    showCursor() {
      const step = (this.container.clientWidth - this.left) / this.samples.length;
      const [from, to] = this.cursor.part();
      this.draws([this.left + from * step, this.left + to * step]);
      if (to - from === 1) this.describe(from, "Shift and arrows choose, Enter shows");
      else this.hint.textContent = `${format.time(this.from + from * this.step)} – ${format.time(this.from + to * this.step)} · Enter shows it`;
    }

    leave() {
      this.cursor.leave();
      this.select(null);
      this.hint.replaceChildren();
    }

    select(part) {
      if (!part) this.anchor = undefined;
      this.draws(part);
      if (part) this.hint.textContent = `${format.time(this.time(part[0]))} – ${format.time(this.time(part[1]))}`;
    }

    draws(part) {
      this.bars
        .selectAll("rect.selection")
        .data(part ? [part] : [])
        .join("rect")
        .attr("class", "selection")
        .attr("x", ([from]) => from)
        .attr("width", ([from, to]) => to - from)
        .attr("y", 0)
        .attr("height", this.height)
        .raise();
    }
  }

  jvmprof.Timeline = Timeline;
})(globalThis.jvmprof);
