// What the collector's timeline and the heatmap of a recording have in common: scales and labels of
// their axes, the mark of a chosen part, and the choice of cells by keys.
"use strict";

(function (jvmprof) {
  const { element, format } = jvmprof;

  /// The distance of about `count` round numbers in a span, `{of(index), index(number)}`: 1, 2 or 5
  /// times a power of ten, as d3 chooses it. Parts of one are divided by, so that they are exact.
  function roundStep(span, count) {
    const power = Math.floor(Math.log10(span / count));
    const error = span / count / 10 ** power;
    const factor = error >= Math.sqrt(50) ? 10 : error >= Math.sqrt(10) ? 5 : error >= Math.sqrt(2) ? 2 : 1;
    const by = power < 0 ? 10 ** -power / factor : 10 ** power * factor;
    return power < 0 ? { of: (index) => index / by, index: (number) => number * by } : { of: (index) => index * by, index: (number) => number / by };
  }

  /// About `count` round numbers from 0 to `most`.
  jvmprof.roundTicks = function (most, count) {
    const step = roundStep(most, count);
    const nearest = Math.round(step.index(most));
    const last = step.of(nearest) > most ? nearest - 1 : nearest;
    return Array.from({ length: last + 1 }, (_, index) => step.of(index));
  };

  /// A scale that stands upright, from 0 at the pixel `bottom` to a round number of at least `most`
  /// at `top`, with about two ticks.
  jvmprof.uprightScale = function (most, bottom, top) {
    let rounded = most;
    for (let before = null; rounded !== before; ) {
      before = rounded;
      const step = roundStep(before, 2);
      rounded = step.of(Math.ceil(step.index(before)));
    }
    const y = (value) => bottom + ((top - bottom) * value) / rounded;
    return Object.assign(y, { ticks: (count) => jvmprof.roundTicks(rounded, count) });
  };

  /// A label of an axis, placed by `style`.
  jvmprof.axisLabel = function (text, style) {
    const label = element("span", {}, text);
    Object.assign(label.style, style);
    return label;
  };

  /// The labels of a scale that stands upright; the highest one has the unit.
  jvmprof.scaleLabels = function (y, unit) {
    const ticks = y.ticks(2).filter((value) => value > 0);
    const top = Math.max(...ticks);
    return ticks.map((value) => jvmprof.axisLabel(`${format.short(value)}${value === top ? ` ${unit}` : ""}`, { top: `${y(value)}px` }));
  };

  /// Marks a chosen part of a chart, from one pixel to another, over all of its height.
  jvmprof.drawPart = function (context, [from, to], height) {
    context.fillStyle = getComputedStyle(document.documentElement).getPropertyValue("--text");
    context.globalAlpha = 0.16;
    context.fillRect(from, 0, Math.max(2, to - from), height);
    context.globalAlpha = 0.8;
    context.fillRect(from, 0, 1, height);
    context.fillRect(Math.max(from + 1, to - 1), 0, 1, height);
    context.globalAlpha = 1;
  };

  /// A cursor on one of a row of cells; with Shift it stretches from where it was.
  jvmprof.CellCursor = class {
    constructor() {
      this.leave();
    }

    isShown() {
      return this.at !== undefined;
    }

    leave() {
      this.at = this.pinned = undefined;
    }

    /// Moves by `steps`, cells by key, up to the cell `last`, and first appears at `start`. False
    /// if the key isn't one of these.
    press(event, steps, start, last) {
      if (!(event.key in steps)) return false;
      const from = this.at ?? start;
      this.at = this.isShown() ? Math.min(last, Math.max(0, from + steps[event.key])) : start;
      if (!event.shiftKey) this.pinned = this.at;
      this.pinned ??= from;
      return true;
    }

    /// The first one of the chosen cells, and the one behind them.
    part() {
      return [Math.min(this.at, this.pinned), Math.max(this.at, this.pinned) + 1];
    }
  };
})(globalThis.jvmprof);
