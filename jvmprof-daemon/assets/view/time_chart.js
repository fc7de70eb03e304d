// What the collector's timeline and the heatmap of a recording have in common: labels of their
// axes, the mark of a chosen part, and the choice of cells by keys.
"use strict";

(function (jvmprof) {
  const { element, format } = jvmprof;

  /// A label of an axis, placed by `style`.
  jvmprof.axisLabel = function (text, style) {
    const label = element("span", {}, text);
    Object.assign(label.style, style);
    return label;
  };

  /// The labels of a scale of d3 that stands upright; the highest one has the unit.
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
