// Load over the chosen range, as bars; a part of it is chosen by dragging over them, or with keys.
"use strict";

(function (jvmprof) {
  const { element, format } = jvmprof;

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
    return step < MINUTE ? `${clock}:${two(time.getSeconds())}` : clock;
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
      this.container = container;
      container.tabIndex = 0;
      container.setAttribute("role", "application");
      this.bars = d3.select(container).append("svg").attr("class", "bars").attr("aria-hidden", "true");
      this.axis = element("div.axis", { "aria-hidden": "true" });
      this.scale = element("div.scale", { "aria-hidden": "true" });
      this.hint = element("div.timeline-hint", { "aria-live": "polite" });
      container.append(this.scale, this.axis, this.hint);
      container.addEventListener("pointerdown", (event) => this.start(event));
      container.addEventListener("pointermove", (event) => this.move(event));
      container.addEventListener("pointerup", (event) => this.end(event));
      container.addEventListener("pointercancel", () => this.select(null));
      container.addEventListener("pointerleave", () => this.hint.replaceChildren());
      container.addEventListener("keydown", (event) => this.key(event));
      container.addEventListener("blur", () => this.leave());
      new ResizeObserver(() => this.draw()).observe(container);
      this.clear();
    }

    /// Shows nothing, not even an empty box.
    clear() {
      this.samples = null;
      this.container.hidden = true;
    }

    /// `rate` is what bars measure: `{name, of(samples, milliseconds)}`.
    show({ start_ms, step_ms, samples }, rate) {
      this.from = start_ms;
      this.step = step_ms;
      this.samples = samples;
      this.rate = rate;
      this.to = start_ms + step_ms * samples.length;
      this.container.hidden = false;
      const label = `${rate.name} from ${format.time(this.from)} to ${format.time(this.to)}. Arrow keys move, with Shift they choose a part, Enter shows it.`;
      this.container.setAttribute("aria-label", label);
      this.draw();
    }

    draw() {
      const width = this.container.clientWidth;
      if (!this.samples || !width) return;
      const values = this.samples.map((count) => this.rate.of(count, this.step));
      const y = d3.scaleLinear().domain([0, Math.max(...values) || 1]).nice(2).range([HEIGHT, ABOVE]);
      const step = width / values.length;
      this.bars.attr("width", width).attr("height", HEIGHT);
      const ticks = y.ticks(2).filter((value) => value > 0);
      this.bars
        .selectAll("line.grid")
        .data(ticks)
        .join("line")
        .attr("class", "grid")
        .attr("x2", width)
        .attr("y1", (value) => y(value))
        .attr("y2", (value) => y(value));
      this.bars
        .selectAll("rect.slot")
        .data(values)
        .join("rect")
        .attr("class", "slot")
        .attr("x", (_, index) => index * step)
        .attr("width", Math.max(1, step - 0.5))
        .attr("y", (value) => HEIGHT - this.barHeight(value, y))
        .attr("height", (value) => this.barHeight(value, y));
      const at = (text, style) => {
        const tick = element("span", {}, text);
        Object.assign(tick.style, style);
        return tick;
      };
      const top = Math.max(...ticks);
      this.scale.replaceChildren(
        ...ticks.map((value) => at(`${format.short(value)}${value === top ? ` ${this.rate.name}` : ""}`, { top: `${y(value)}px` })),
      );
      const times = jvmprof.timeTicks(this.from, this.to, Math.max(2, Math.floor(width / 110)));
      const x = (time) => (width * (time - this.from)) / (this.to - this.from);
      // One at the very edge would be cut.
      const inside = times.filter(({ time }) => x(time) > 16 && x(time) < width - 16);
      this.axis.replaceChildren(...inside.map(({ time, text }) => at(text, { left: `${x(time)}px` })));
    }

    barHeight(value, y) {
      return value === 0 ? 0 : Math.max(2, HEIGHT - y(value));
    }

    x(event) {
      const box = this.container.getBoundingClientRect();
      return Math.min(box.width, Math.max(0, event.clientX - box.left));
    }

    time(x) {
      return this.from + ((this.to - this.from) * x) / this.container.clientWidth;
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
      this.describe(Math.min(this.samples.length - 1, Math.floor((this.time(x) - this.from) / this.step)), "drag to choose");
    }

    end(event) {
      const [from, to] = [this.anchor, this.x(event)].sort((a, b) => a - b);
      const chosen = this.anchor !== undefined && to - from >= SHORTEST_DRAG;
      this.select(null);
      if (chosen) this.onRange(Math.floor(this.time(from)), Math.ceil(this.time(to)));
    }

    describe(index, what) {
      const value = format.short(this.rate.of(this.samples[index], this.step));
      this.hint.textContent = `${format.time(this.from + index * this.step)} · ${value} ${this.rate.name} · ${what}`;
    }

    // Keys: a cursor on one bar; with Shift it stretches from where it was.

    key(event) {
      if (!this.samples || event.ctrlKey || event.metaKey || event.altKey) return;
      const last = this.samples.length - 1;
      const at = this.cursor ?? last;
      const steps = { ArrowLeft: -1, ArrowRight: 1, PageUp: -20, PageDown: 20, Home: -last, End: last };
      if (event.key in steps) {
        const to = this.cursor === undefined ? at : Math.min(last, Math.max(0, at + steps[event.key]));
        if (!event.shiftKey) this.pinned = to;
        this.cursor = to;
        this.pinned ??= at;
        this.showCursor();
      } else if (event.key === "Enter" && this.cursor !== undefined) {
        const [from, to] = this.part();
        this.leave();
        this.onRange(Math.floor(this.from + from * this.step), Math.ceil(this.from + to * this.step));
      } else if (event.key === "Escape" && this.cursor !== undefined) this.leave();
      else return;
      event.preventDefault();
      event.stopPropagation();
    }

    part() {
      return [Math.min(this.cursor, this.pinned), Math.max(this.cursor, this.pinned) + 1];
    }

    showCursor() {
      const step = this.container.clientWidth / this.samples.length;
      const [from, to] = this.part();
      this.draws([from * step, to * step]);
      if (to - from === 1) this.describe(this.cursor, "Shift and arrows choose, Enter shows");
      else this.hint.textContent = `${format.time(this.from + from * this.step)} – ${format.time(this.from + to * this.step)} · Enter shows it`;
    }

    leave() {
      this.cursor = this.pinned = undefined;
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
        .attr("height", HEIGHT);
    }
  }

  jvmprof.Timeline = Timeline;
})(globalThis.jvmprof);
