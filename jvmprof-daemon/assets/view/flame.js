// The flame graph: d3-flame-graph with our colours (colour.js), names that fit, tooltips and keys.
//
// The library walks the tree by recursion when it zooms and searches, which exhausts the stack of
// the browser at a few thousand frames. So both are done here, on the marks that the library draws
// by: `hide`, `fade` and `highlight`.
"use strict";

(function (jvmprof) {
  const { element, format } = jvmprof;

  const ROW = 18;
  const CHARACTER = 6.4;
  /// Above this many boxes an animation stutters.
  const ANIMATED_BOXES = 1500;
  /// Boxes narrower than this aren't drawn, so that a big profile costs no more than the screen has
  /// pixels.
  const NARROWEST = 0.6;

  const FOUND = "#c21fb4";

  class Flame {
    /// `scroller` scrolls and holds the graph; `onFocus(node or null)` gets what is pointed at,
    /// `onZoom(node or null)` what the user zooms to, `onMenu(node, x, y)` whose menu the user asks
    /// for.
    constructor(scroller, { onFocus, onZoom, onMenu = () => {} }) {
      this.scroller = scroller;
      this.onFocus = onFocus;
      this.onZoom = onZoom;
      this.onMenu = onMenu;
      this.comparison = null;
      this.colours = new jvmprof.Colours();
      this.holder = element("div.flame", {
        tabindex: "0",
        role: "application",
        "aria-label": "Flame graph. Arrow keys move between frames, Enter zooms, m opens a frame's menu, Escape zooms out.",
      });
      this.tip = element("div.tip", { role: "tooltip", hidden: true });
      scroller.append(this.holder);
      document.body.append(this.tip);
      this.rootOnTop = true;
      this.search = null;
      this.holder.addEventListener("keydown", (event) => this.key(event));
      this.holder.addEventListener("click", (event) => this.click(event), { capture: true });
      this.holder.addEventListener("contextmenu", (event) => this.menu(event));
      this.holder.addEventListener("mousemove", (event) => this.placeTip(event.clientX, event.clientY));
      // A frame's menu gives the focus back.
      this.holder.addEventListener("blur", () => document.querySelector(".frame-menu") || this.setCursor(null));
      scroller.addEventListener("scroll", () => this.hideTip(), { passive: true });
      new ResizeObserver(() => this.resize()).observe(scroller);
      jvmprof.theme.listeners.push(() => this.chart && this.redraw());
    }

    width() {
      return Math.max(200, this.scroller.clientWidth);
    }

    draw(tree, total) {
      this.hideTip();
      this.tree = tree;
      this.total = total;
      this.cursor = null;
      this.zoomed = null;
      this.holder.replaceChildren();
      const tooltip = () => {};
      tooltip.show = (event, d) => this.showTip(d);
      tooltip.hide = () => this.hideTip();
      this.chart = flamegraph
        .default()
        .width(this.width())
        .cellHeight(ROW)
        .minFrameSize(NARROWEST)
        .transitionDuration(0)
        .sort(false)
        .inverted(this.rootOnTop)
        .tooltip(tooltip)
        .getName((d) => this.label(d))
        .setLabelHandler((d) => d.data.name)
        .setColorMapper((d) => this.fill(d));
      d3.select(this.holder).datum(tree).call(this.chart);
      this.root = d3.select(this.holder).datum();
      this.animate();
      this.scrollToRoot();
    }

    label(d) {
      const room = ((d.x1 - d.x0) * this.width() - 8) / CHARACTER;
      return jvmprof.shortName(d.data.fn, room);
    }

    fill(d) {
      if (d.highlight) return FOUND;
      const muted = this.search !== null;
      const { fn, how, sides } = d.data;
      if (this.comparison && sides) return jvmprof.changeColour(this.comparison, sides, muted);
      return this.colours.of(fn, how, muted);
    }

    animate() {
      const boxes = this.holder.querySelectorAll("g.frame").length;
      const still = matchMedia("(prefers-reduced-motion: reduce)").matches || boxes > ANIMATED_BOXES;
      this.chart.transitionDuration(still ? 0 : 180);
    }

    /// Draws at once, for changes that nobody needs to follow with the eye.
    redraw() {
      this.chart.transitionDuration(0).update();
      this.animate();
      this.drawCursor();
    }

    resize() {
      if (!this.chart || this.chart.width() === this.width()) return;
      this.chart.width(this.width());
      this.redraw();
    }

    setRootOnTop(rootOnTop) {
      this.rootOnTop = rootOnTop;
      if (!this.chart) return;
      this.chart.inverted(rootOnTop);
      this.redraw();
      this.scrollToRoot();
    }

    /// Shows what matches; null ends the search.
    find(search) {
      this.search = search;
      if (!this.chart) return;
      for (const d of this.root.descendants()) d.highlight = search !== null && d.depth > 0 && search.matches(d.data.fn);
      this.redraw();
      if (search) this.scrollToMatch();
    }

    /// Brings a match into view if none is: those of deep stacks may be a screen away.
    scrollToMatch() {
      const { scrollTop, clientHeight } = this.scroller;
      let nearest = null;
      for (const d of this.root.descendants()) {
        if (!d.highlight || (d.x1 - d.x0) * this.width() < NARROWEST) continue;
        const top = this.rowTop(d);
        if (top >= scrollTop && top + ROW <= scrollTop + clientHeight) return;
        if (nearest === null || d.depth < nearest.depth) nearest = d;
      }
      if (nearest) this.scroller.scrollTop = this.rowTop(nearest) - (this.rootOnTop ? 0.4 : 0.6) * clientHeight;
    }

    scrollToRoot() {
      this.holder.classList.toggle("root-at-bottom", !this.rootOnTop);
      this.scroller.scrollTop = this.rootOnTop ? 0 : this.scroller.scrollHeight;
    }

    click(event) {
      const frame = event.target.closest?.("g.frame");
      if (!frame) return;
      event.stopPropagation();
      this.zoomTo(d3.select(frame).datum());
    }

    /// The menu of the frame below the mouse; the browser's own elsewhere.
    menu(event) {
      const frame = event.target.closest?.("g.frame");
      if (!frame) return;
      event.preventDefault();
      this.hideTip();
      this.onMenu(d3.select(frame).datum().data, event.clientX, event.clientY);
    }

    /// The user's zoom.
    zoomTo(d) {
      // What was pruned shows by itself below its caller.
      const to = d.data.fn.kind === "pruned" && d.parent ? d.parent : d;
      this.showZoomed(to, false);
      this.onZoom(this.zoomed ? to.data : null);
    }

    /// Gives the frame and what it calls all of the width; its callers stay above it, faded.
    showZoomed(d, atOnce) {
      this.hideTip();
      for (const { data } of this.root.descendants()) data.hide = data.fade = false;
      for (let at = d; at.parent; at = at.parent) {
        for (const sibling of at.parent.children) sibling.data.hide = sibling !== at;
        at.parent.data.fade = true;
      }
      this.zoomed = d.depth > 0 ? d : null;
      if (atOnce) this.chart.transitionDuration(0);
      this.chart.update();
      this.animate();
      if (this.cursor) this.setCursor(d);
      this.scrollTo(d);
    }

    /// The callers of a frame may be a thousand rows: brings the frame itself into view.
    scrollTo(d) {
      const top = this.rowTop(d);
      const margin = 4 * ROW;
      const { scrollTop, clientHeight } = this.scroller;
      if (top < scrollTop + margin || top > scrollTop + clientHeight - margin) {
        this.scroller.scrollTop = this.rootOnTop ? top - margin : top - clientHeight + margin;
      }
    }

    /// Shows a node of the tree zoomed, without a word to anyone; the root if it isn't there.
    zoomToNode(node) {
      this.showZoomed(this.root.descendants().find((d) => d.data === node) ?? this.root, true);
    }

    resetZoom() {
      if (!this.chart || !this.root) return;
      this.zoomTo(this.root);
      this.scrollToRoot();
    }

    rowTop(d) {
      return this.rootOnTop ? d.depth * ROW : this.chart.height() - (d.depth + 1) * ROW;
    }

    showTip(d, x, y) {
      this.tip.replaceChildren(...this.describe(d));
      this.tip.hidden = false;
      this.hovered = d.data;
      if (x !== undefined) this.placeTip(x, y);
      this.onFocus(d.data);
    }

    hideTip() {
      if (this.tip.hidden) return;
      this.tip.hidden = true;
      this.hovered = null;
      this.onFocus(null);
    }

    placeTip(x, y) {
      if (this.tip.hidden) return;
      const { offsetWidth, offsetHeight, style } = this.tip;
      const left = x + 14 + offsetWidth > innerWidth ? x - offsetWidth - 10 : x + 14;
      const top = y + 18 + offsetHeight > innerHeight ? y - offsetHeight - 10 : y + 18;
      style.left = `${Math.max(4, left)}px`;
      style.top = `${Math.max(4, top)}px`;
    }

    describe(d) {
      const { fn, value, self } = d.data;
      const swatch = element("span.swatch");
      swatch.style.background = this.colours.of(fn, d.data.how, false, false);
      const kind = element("div.tip-kind", {}, swatch, jvmprof.KIND_NAMES[fn.kind], fn.module ? ` · ${fn.module}` : "");
      const rows = element("dl");
      const row = (name, ...what) => rows.append(element("dt", {}, name), element("dd", {}, ...what));
      const { number, more, row: unit } = this.measure;
      const samples = (count) => `${number(count)} (${format.share(count, this.total)})`;
      if (this.comparison && d.data.sides) this.describeChange(d.data, row);
      else row(unit, samples(value), more(value) && ` · ${more(value)}`);
      if (jvmprof.isCode(fn) && !this.comparison) row("Self", samples(self));
      if (this.zoomed && this.zoomed !== d && d.depth > this.zoomed.depth) {
        row("Of the zoomed", format.share(value, this.zoomed.data.value));
      }
      const hows = jvmprof.hows(d.data);
      // Folded recursion counts a sample once a call: shares are those of the calls.
      const calls = hows.reduce((sum, { samples }) => sum + samples, 0);
      const ran = ({ name, samples }) => (hows.length > 1 ? `${name} ${format.share(samples, calls)}` : name);
      if (hows.length) row("Ran", hows.map(ran).join(", "));
      const places = jvmprof.places(d.data);
      places.forEach(({ place, samples }, index) => {
        const share = places.length > 1 || samples < value ? ` (${format.share(samples, value)})` : "";
        row(index ? "" : places.length > 1 ? "Lines" : "Line", `${place}${share}`);
      });
      if (!places.length && fn.file) row("File", fn.file);
      return [element("div.tip-name", {}, fn.name), kind, rows];
    }

    describeChange({ sides, ownSides }, row) {
      const { comparison } = this;
      row("Change", `${comparison.changeText(sides)} (${comparison.beforeAfter(sides)})`);
      row("", comparison.verdict(sides));
      if (ownSides) row("Self", `${comparison.changeText(ownSides)} (${comparison.beforeAfter(ownSides)})`);
    }

    // Keys. The cursor is a node that is framed; siblings too narrow to be drawn are passed over.

    key(event) {
      if (!this.chart || event.ctrlKey || event.metaKey || event.altKey) return;
      const at = this.cursor ?? this.zoomed ?? this.root;
      const deeper = this.rootOnTop ? "ArrowDown" : "ArrowUp";
      const shallower = this.rootOnTop ? "ArrowUp" : "ArrowDown";
      const drawn = (d) => d && (d.x1 - d.x0) * this.width() > NARROWEST;
      let to;
      if (event.key === deeper) to = this.cursor ? (at.children ?? []).find(drawn) : at;
      else if (event.key === shallower) to = at.parent;
      else if (event.key === "ArrowLeft" || event.key === "ArrowRight") {
        const siblings = (at.parent?.children ?? []).filter(drawn);
        to = siblings[siblings.indexOf(at) + (event.key === "ArrowRight" ? 1 : -1)];
      } else if (event.key === "Enter" || event.key === " ") this.zoomTo(at);
      else if (event.key === "m" || event.key === "ContextMenu") this.keyMenu(at);
      else if (event.key === "Escape" && (this.cursor || this.zoomed)) this.escape();
      else return;
      event.preventDefault();
      event.stopPropagation();
      if (to) this.setCursor(to);
    }

    keyMenu(d) {
      const box = this.holder.getBoundingClientRect();
      this.onMenu(d.data, box.left + d.x0 * this.width() + 8, box.top + this.rowTop(d) + ROW);
    }

    /// The node that the cursor or else the mouse is on.
    pointedAt() {
      return this.cursor?.data ?? this.hovered;
    }

    escape() {
      if (this.zoomed) this.resetZoom();
      else this.setCursor(null);
    }

    setCursor(d) {
      this.cursor = d;
      this.drawCursor();
      if (!d) return this.hideTip();
      const top = this.rowTop(d);
      const { scrollTop, clientHeight } = this.scroller;
      if (top < scrollTop) this.scroller.scrollTop = top - ROW;
      else if (top + ROW > scrollTop + clientHeight) this.scroller.scrollTop = top + 2 * ROW - clientHeight;
      // Scrolling hides the tip a frame later.
      requestAnimationFrame(() => requestAnimationFrame(() => this.cursor === d && this.showCursorTip(d)));
    }

    showCursorTip(d) {
      const box = this.holder.getBoundingClientRect();
      this.showTip(d, box.left + d.x0 * this.width(), box.top + this.rowTop(d));
    }

    drawCursor() {
      const svg = d3.select(this.holder).select("svg");
      const frames = svg.selectAll("rect.cursor").data(this.cursor ? [this.cursor] : []);
      frames.exit().remove();
      frames
        .enter()
        .append("rect")
        .attr("class", "cursor")
        .merge(frames)
        .raise()
        .attr("x", (d) => d.x0 * this.width() + 1)
        .attr("y", (d) => this.rowTop(d) + 1)
        .attr("width", (d) => Math.max(2, (d.x1 - d.x0) * this.width() - 2))
        .attr("height", ROW - 2);
    }
  }

  jvmprof.Flame = Flame;
})(globalThis.jvmprof);
