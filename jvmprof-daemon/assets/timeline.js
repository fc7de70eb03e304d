// Samples over the chosen range, as bars; dragging over them chooses a part of it.
"use strict";

(function (jvmprof) {
  const { element, format } = jvmprof;

  const HEIGHT = 46;
  /// A shorter drag is a click.
  const SHORTEST_DRAG = 4;

  class Timeline {
    /// `onRange(from, to)` hears which part was chosen.
    constructor(container, onRange) {
      this.onRange = onRange;
      this.bars = d3.select(container).append("svg").attr("class", "bars").attr("role", "img");
      this.axis = element("div.axis", { "aria-hidden": "true" });
      this.hint = element("div.timeline-hint");
      container.append(this.axis, this.hint);
      container.addEventListener("pointerdown", (event) => this.start(event));
      container.addEventListener("pointermove", (event) => this.move(event));
      container.addEventListener("pointerup", (event) => this.end(event));
      container.addEventListener("pointercancel", () => this.select(null));
      container.addEventListener("pointerleave", () => this.hint.replaceChildren());
      new ResizeObserver(() => this.draw()).observe(container);
      this.container = container;
    }

    show({ start_ms, step_ms, samples }) {
      this.from = start_ms;
      this.step = step_ms;
      this.samples = samples;
      this.to = start_ms + step_ms * samples.length;
      this.bars.attr("aria-label", `Samples from ${format.time(this.from)} to ${format.time(this.to)}`);
      this.draw();
    }

    draw() {
      const width = this.container.clientWidth;
      if (!this.samples || !width) return;
      const highest = Math.max(Number.MIN_VALUE, ...this.samples);
      const step = width / this.samples.length;
      this.bars.attr("width", width).attr("height", HEIGHT);
      this.bars
        .selectAll("rect.slot")
        .data(this.samples)
        .join("rect")
        .attr("class", "slot")
        .attr("x", (_, index) => index * step)
        .attr("width", Math.max(1, step - 0.5))
        .attr("y", (count) => HEIGHT - this.barHeight(count, highest))
        .attr("height", (count) => this.barHeight(count, highest));
      const ticks = Math.max(2, Math.floor(width / 160));
      const times = d3.range(ticks + 1).map((tick) => this.from + ((this.to - this.from) * tick) / ticks);
      const withSeconds = this.to - this.from < 30 * 60_000;
      this.axis.replaceChildren(...times.map((time) => element("span", {}, format.time(time, withSeconds))));
    }

    barHeight(count, highest) {
      return count === 0 ? 0 : Math.max(2, (count / highest) * (HEIGHT - 4));
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
      const index = Math.min(this.samples.length - 1, Math.floor((this.time(x) - this.from) / this.step));
      this.hint.textContent = `${format.time(this.time(x))} · ${format.count(Math.round(this.samples[index]))} samples · drag to choose`;
    }

    end(event) {
      const [from, to] = [this.anchor, this.x(event)].sort((a, b) => a - b);
      const chosen = this.anchor !== undefined && to - from >= SHORTEST_DRAG;
      this.select(null);
      if (chosen) this.onRange(Math.floor(this.time(from)), Math.ceil(this.time(to)));
    }

    select(part) {
      if (!part) this.anchor = undefined;
      this.bars
        .selectAll("rect.selection")
        .data(part ? [part] : [])
        .join("rect")
        .attr("class", "selection")
        .attr("x", ([from]) => from)
        .attr("width", ([from, to]) => to - from)
        .attr("y", 0)
        .attr("height", HEIGHT);
      if (part) this.hint.textContent = `${format.time(this.time(part[0]))} – ${format.time(this.time(part[1]))}`;
    }
  }

  jvmprof.Timeline = Timeline;
})(globalThis.jvmprof);
