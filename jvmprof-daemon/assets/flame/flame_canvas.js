// Draws a flame graph's boxes on a canvas of the size of what is seen of it: a graph of any size
// costs no more than the rows in the window.
"use strict";

(function (jvmprof) {
  const { element } = jvmprof;

  const ROW = 18;
  /// The mean width of a character of a name.
  const CHARACTER = 6.1;
  const PADDING = 4;
  /// Boxes narrower than this aren't drawn.
  const NARROWEST = 0.6;
  /// Boxes with less room than this have no name.
  const LEAST_ROOM = 16;
  const FONT = '11.5px system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", "DejaVu Sans", sans-serif';
  const ANIMATION = 180;
  /// Above this many boxes an animation stutters.
  const ANIMATED_BOXES = 20_000;

  /// What fits of a name; the font's characters differ, which the canvas makes up for.
  function fitted(fn, room) {
    const characters = Math.floor(room / CHARACTER);
    const name = jvmprof.shortName(fn, characters);
    return name.length <= characters + 1 ? name : `${name.slice(0, Math.max(1, characters - 1))}…`;
  }

  class FlameCanvas {
    /// `look(box)` says how a box is drawn: `{colour, isFound}`.
    constructor(scroller, holder, look) {
      Object.assign(this, { scroller, holder, look });
      this.canvas = element("canvas.flame-canvas", { "aria-hidden": "true" });
      this.layout = null;
      this.wide = [];
      /// How far boxes are on the way from their old places, 0 to 1.
      this.part = 1;
      holder.append(this.canvas);
    }

    width() {
      return Math.max(200, this.scroller.clientWidth);
    }

    /// Height of all rows.
    height() {
      return this.layout ? this.layout.rows.length * ROW : 0;
    }

    /// Where the first row stands in the holder: less rows than there is room for stand at the
    /// root's side.
    offset() {
      return this.rootOnTop ? 0 : Math.max(0, this.scroller.clientHeight - this.height());
    }

    /// The upper edge of a row, from that of the holder.
    rowTop(depth) {
      return this.offset() + (this.rootOnTop ? depth * ROW : this.height() - (depth + 1) * ROW);
    }

    depthAt(y) {
      const row = Math.floor((y - this.offset()) / ROW);
      return this.rootOnTop ? row : this.layout.rows.length - 1 - row;
    }

    /// Shows boxes that were made anew.
    show(layout) {
      this.layout = layout;
      this.holder.style.height = `${this.height()}px`;
      this.placed();
    }

    /// Boxes have other places. From the old ones to these it may be `animated`.
    placed(animated = false) {
      cancelAnimationFrame(this.frame);
      this.wide = this.layout.wide(NARROWEST / this.width());
      const boxes = this.wide.reduce((sum, row) => sum + row.length, 0);
      const isStill = matchMedia("(prefers-reduced-motion: reduce)").matches || boxes > ANIMATED_BOXES;
      this.part = 1;
      if (animated && !isStill) this.animate(performance.now());
      else this.draw();
    }

    animate(start) {
      const part = Math.min(1, (performance.now() - start) / ANIMATION);
      this.part = 1 - (1 - part) ** 3;
      this.draw();
      if (part < 1) this.frame = requestAnimationFrame(() => this.animate(start));
    }

    /// Colours are others.
    repaint() {
      for (const row of this.layout.rows) for (const box of row) box.colour = null;
      this.draw();
    }

    /// Boxes that are drawn if they are scrolled to, row by row.
    drawnBoxes() {
      return this.wide.flat();
    }

    /// The box at a place in the window.
    boxAt(clientX, clientY) {
      if (!this.layout) return undefined;
      const area = this.holder.getBoundingClientRect();
      const row = this.wide[this.depthAt(clientY - area.top)];
      return row && jvmprof.boxAt(row, (clientX - area.left) / this.width());
    }

    /// Draws the rows that are seen. Whoever scrolls while boxes move doesn't see them at the end
    /// of their way first.
    draw() {
      const { scroller, canvas, layout, part } = this;
      const [width, height] = [this.width(), scroller.clientHeight];
      if (!layout || !height || !scroller.clientWidth) return;
      const ratio = devicePixelRatio || 1;
      const size = [Math.round(width * ratio), Math.round(height * ratio)];
      if (canvas.width !== size[0] || canvas.height !== size[1]) {
        [canvas.width, canvas.height] = size;
        Object.assign(canvas.style, { width: `${width}px`, height: `${height}px` });
      }
      const context = canvas.getContext("2d");
      context.setTransform(ratio, 0, 0, ratio, 0, 0);
      context.clearRect(0, 0, width, height);
      Object.assign(context, { font: FONT, textBaseline: "middle" });
      const text = getComputedStyle(document.documentElement).getPropertyValue("--frame-text");
      const depths = [this.depthAt(scroller.scrollTop), this.depthAt(scroller.scrollTop + height)];
      const last = Math.min(Math.max(...depths), layout.rows.length - 1);
      for (let depth = Math.max(0, Math.min(...depths)); depth <= last; depth++) {
        const top = this.rowTop(depth) - scroller.scrollTop;
        for (const box of part < 1 ? layout.rows[depth] : this.wide[depth]) this.drawBox(context, box, top, width, part, text);
      }
      context.globalAlpha = 1;
    }

    drawBox(context, box, top, width, part, text) {
      const at = (was, is) => (part < 1 ? was + (is - was) * part : is) * width;
      const [from, to] = [at(box.was0, box.x0), at(box.was1, box.x1)];
      if (to - from < NARROWEST) return;
      box.colour ??= this.look(box);
      const { colour, isFound } = box.colour;
      context.globalAlpha = box.isCaller && !isFound ? 0.55 : 1;
      context.fillStyle = colour;
      context.fillRect(from, top, to - from - Math.min(0.7, (to - from) / 4), ROW - 0.8);
      const room = to - from - 2 * PADDING;
      if (room < LEAST_ROOM) return;
      // A name can be read on its own colour, and on a faded one.
      context.globalAlpha = 1;
      context.fillStyle = isFound ? "#fff" : text;
      context.fillText(fitted(box.data.fn, room), from + PADDING, top + ROW / 2, room);
    }
  }

  jvmprof.FlameCanvas = FlameCanvas;
  jvmprof.FLAME_ROW = ROW;
  jvmprof.FLAME_NARROWEST = NARROWEST;
})(globalThis.jvmprof);
