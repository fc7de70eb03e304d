// When samples were taken: the load in CPUs over time, and below it a heatmap, a column a second
// with the parts of that second from top to bottom. A drag over either chooses a part; so do keys.
"use strict";

(function (jvmprof) {
  const { element, format } = jvmprof;

  const LOAD = 44;
  const ROWS = 20;
  const ROW = 3;
  const HEIGHT = LOAD + ROWS * ROW + 4;
  const MOST_COLUMNS = 900;
  /// What is left of the time behind whole columns is a column if it is this part of one.
  const LEAST_COLUMN = 0.05;
  const SHORTEST_DRAG = 4;

  /// Milliseconds of a column: so many seconds that all of them fit, parts of a second for what is
  /// short.
  jvmprof.heatStep = (duration) => (duration <= 5_000 ? 100 : 1_000 * Math.ceil(duration / (1_000 * MOST_COLUMNS)));

  /// From pale to full by a part of the most, 0 to 1.
  jvmprof.heatColour = function (heat) {
    const lightness = jvmprof.theme.isDark() ? 18 + 48 * heat : 94 - 52 * heat;
    return `hsl(${48 - 44 * heat} 85% ${lightness}%)`;
  };

  const seconds = (ms) => `${(ms / 1_000).toFixed(ms % 1_000 ? 2 : 0)} s`;
  const timeText = (ms, clock) => (clock ? clock.text(ms) : seconds(ms));

  class Heatmap {
    /// `onPart([from, to] or null)` gets what was chosen, in milliseconds since the start.
    constructor(onPart) {
      this.onPart = onPart;
      this.cursor = new jvmprof.CellCursor();
      this.canvas = element("canvas.heat", { "aria-hidden": "true" });
      this.hint = element("div.timeline-hint", { "aria-live": "polite" });
      this.axis = element("div.axis", { "aria-hidden": "true" });
      this.scale = element("div.scale", { "aria-hidden": "true" });
      this.node = element("div.heatmap", { tabindex: "0", role: "application", hidden: true }, this.canvas, this.scale, this.axis, this.hint);
      this.node.addEventListener("pointerdown", (event) => this.start(event));
      this.node.addEventListener("pointermove", (event) => this.move(event));
      this.node.addEventListener("pointerup", (event) => this.end(event));
      this.node.addEventListener("pointercancel", () => this.leave());
      this.node.addEventListener("pointerleave", () => this.hint.replaceChildren());
      this.node.addEventListener("keydown", (event) => this.key(event));
      this.node.addEventListener("blur", () => this.leave());
      new ResizeObserver(() => this.draw()).observe(this.node);
      jvmprof.theme.listeners.push(() => this.draw());
    }

    /// Shows these times, of a recording of `duration` milliseconds; null for none. `clock`: see
    /// view.js. `part` is chosen, compared with `basePart` or nothing, as are activities, beside
    /// which the others stay, and kinds of threads.
    show(times, { duration, periodNs, clock = null, part, basePart = null, chosen = null, threadKinds = null }) {
      this.node.hidden = !times || times.times.length === 0;
      if (this.node.hidden) return;
      this.duration = Math.max(duration, times.times[times.times.length - 1] + 1);
      this.periodNs = periodNs;
      this.clock = clock;
      Object.assign(this, { part, basePart });
      this.step = jvmprof.heatStep(this.duration);
      this.columns = Math.max(1, Math.ceil(this.duration / this.step - LEAST_COLUMN));
      this.cells = times.slots(this.step / ROWS, this.columns * ROWS, chosen, threadKinds);
      this.stacks = this.stacked(times, chosen, threadKinds);
      this.most = this.cells.reduce((most, samples) => Math.max(most, samples), 1);
      const label = `Load over ${seconds(this.duration)}. Arrow keys move by columns of ${seconds(this.step)} and by parts of them, with Shift they choose, Enter shows the part, Escape the whole.`;
      this.node.setAttribute("aria-label", label);
      this.draw();
    }

    /// The samples of each column by what they were taken in: `[{activity, samples, isAside}]`,
    /// what is chosen first. One stack of all where that isn't known.
    stacked(times, chosen, threadKinds) {
      if (!times.activities.length) return [{ activity: null, samples: times.slots(this.step, this.columns), isAside: false }];
      const seen = [...new Set(times.activities.map(jvmprof.activityOf))].sort((a, b) => a - b);
      const stacks = seen.map((activity) => ({
        activity,
        samples: times.slots(this.step, this.columns, new Set([activity]), threadKinds),
        isAside: chosen !== null && !chosen.has(activity),
      }));
      return stacks.sort((a, b) => a.isAside - b.isAside);
    }

    /// The milliseconds of its width; null where it isn't shown.
    get span() {
      return this.node.hidden ? null : this.columns * this.step;
    }

    /// CPUs that these samples took in a column.
    cpus(samples) {
      return (samples * this.periodNs) / (this.step * 1e6);
    }

    columnSamples(column) {
      return this.stacks.reduce((sum, { samples }) => sum + samples[column], 0);
    }

    draw() {
      const width = this.node.clientWidth;
      if (this.node.hidden || !width || !this.cells) return;
      const ratio = devicePixelRatio || 1;
      Object.assign(this.canvas, { width: Math.round(width * ratio), height: Math.round(HEIGHT * ratio) });
      const context = this.canvas.getContext("2d");
      context.scale(ratio, ratio);
      const style = getComputedStyle(document.documentElement);
      const x = width / this.columns;
      const loads = Array.from({ length: this.columns }, (_, column) => this.cpus(this.columnSamples(column)));
      const y = jvmprof.uprightScale(Math.max(...loads) || 1, LOAD, 6);
      const below = new Float64Array(this.columns);
      for (const { activity, samples, isAside } of this.stacks) {
        context.fillStyle = activity === null ? style.getPropertyValue("--accent") : jvmprof.activityColour(activity);
        context.globalAlpha = isAside ? 0.22 : activity === null ? 0.55 : 0.9;
        samples.forEach((count, column) => {
          const [from, to] = [y(below[column]), y((below[column] += this.cpus(count)))];
          if (count) context.fillRect(column * x, to, Math.max(1, x - 0.5), from - to);
        });
      }
      context.globalAlpha = 1;
      for (let cell = 0; cell < this.cells.length; cell++) {
        const heat = this.cells[cell] / this.most;
        if (!heat) continue;
        context.fillStyle = jvmprof.heatColour(heat);
        context.fillRect(Math.floor(cell / ROWS) * x, LOAD + 4 + (cell % ROWS) * ROW, Math.max(1, x - 0.3), ROW - 0.3);
      }
      // The one that is being chosen, or that was, and what that is compared with.
      const parts = [this.basePart, this.drawnPart()].filter(Boolean);
      for (const part of parts) jvmprof.drawPart(context, part.map((time) => (time / this.step) * x), HEIGHT);
      this.drawAxes(y, width);
    }

    drawnPart() {
      if (this.cursor.isShown()) return this.keyPart();
      return this.dragged ?? this.part;
    }

    drawAxes(y, width) {
      this.scale.replaceChildren(...jvmprof.scaleLabels(y, "CPUs"));
      const place = (time) => (width * time) / (this.columns * this.step);
      const inside = this.ticks(Math.max(2, Math.floor(width / 110))).filter(({ time }) => place(time) > 16 && place(time) < width - 16);
      this.axis.replaceChildren(...inside.map(({ time, text }) => jvmprof.axisLabel(text, { left: `${place(time)}px` })));
    }

    /// About `count` round times, `[{time, text}]`.
    ticks(count) {
      if (!this.clock) return jvmprof.roundTicks(this.duration, count).map((time) => ({ time, text: seconds(time) }));
      const { from } = this.clock;
      return jvmprof.timeTicks(from, from + this.duration, count).map(({ time, text }) => ({ time: time - from, text }));
    }

    /// The time below the mouse: of the load by x alone, of the heatmap by the cell.
    time(event) {
      const box = this.canvas.getBoundingClientRect();
      const x = Math.min(box.width - 1e-6, Math.max(0, event.clientX - box.left)) / box.width;
      const y = event.clientY - box.top - LOAD - 4;
      if (y < 0 || y >= ROWS * ROW) return x * this.columns * this.step;
      return Math.floor(x * this.columns) * this.step + (Math.floor(y / ROW) * this.step) / ROWS;
    }

    start(event) {
      if (event.button !== 0) return;
      this.node.setPointerCapture(event.pointerId);
      this.leave();
      this.anchor = { time: this.time(event), x: event.clientX, y: event.clientY };
      event.preventDefault();
    }

    move(event) {
      const time = this.time(event);
      if (this.anchor) {
        this.dragged = [Math.min(time, this.anchor.time), Math.max(time, this.anchor.time)];
        this.hint.textContent = jvmprof.partText(this.dragged, this.clock);
        this.draw();
        return;
      }
      const column = Math.min(this.columns - 1, Math.floor(time / this.step));
      this.hint.textContent = `${timeText(time, this.clock)} · ${format.short(this.cpus(this.columnSamples(column)))} CPUs · drag to choose`;
    }

    end(event) {
      const { anchor } = this;
      this.anchor = this.dragged = undefined;
      if (!anchor) return;
      const moved = Math.abs(event.clientX - anchor.x) + Math.abs(event.clientY - anchor.y);
      const [from, to] = [anchor.time, this.time(event)].sort((a, b) => a - b);
      if (moved >= SHORTEST_DRAG && to > from) this.choose([from, to]);
      else this.draw();
    }

    choose([from, to]) {
      const end = Math.ceil(this.duration);
      this.onPart([Math.floor(from), to < this.columns * this.step ? Math.min(Math.ceil(to), end) : end]);
    }

    key(event) {
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      const last = this.columns * ROWS - 1;
      const steps = { ArrowLeft: -ROWS, ArrowRight: ROWS, ArrowUp: -1, ArrowDown: 1, PageUp: -10 * ROWS, PageDown: 10 * ROWS, Home: -last, End: last };
      if (this.cursor.press(event, steps, 0, last)) {
        this.hint.textContent = `${jvmprof.partText(this.keyPart(), this.clock)} · Shift and arrows choose, Enter shows`;
        this.draw();
      } else if (event.key === "Enter" && this.cursor.isShown()) {
        const part = this.keyPart();
        this.leave();
        this.choose(part);
      } else if (event.key === "Escape" && this.cursor.isShown()) this.leave();
      else if (event.key === "Escape" && this.part) this.onPart(null);
      else return;
      event.preventDefault();
      event.stopPropagation();
    }

    keyPart() {
      const cell = this.step / ROWS;
      return this.cursor.part().map((at) => at * cell);
    }

    leave() {
      this.cursor.leave();
      this.anchor = this.dragged = undefined;
      this.hint.replaceChildren();
      this.draw();
    }
  }

  jvmprof.Heatmap = Heatmap;
  jvmprof.partText = (part, clock = null) => part.map((ms) => timeText(ms, clock)).join(" – ");
})(globalThis.jvmprof);
