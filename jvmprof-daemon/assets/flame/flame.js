// The flame graph: what is pointed at, zoomed to and searched, tooltips and keys. flame_layout.js
// has the boxes, flame_canvas.js draws them, flame_touch.js knows fingers. Nothing is drawn of it
// that a screen reader could go through: its keys move between frames, and the page's status line
// says where one is.
"use strict";

(function (jvmprof) {
  const { element, format } = jvmprof;

  const ROW = jvmprof.FLAME_ROW;
  const FOUND = "#c21fb4";

  class Flame {
    /// `scroller` scrolls and holds the graph; `onFocus(node or null)` gets what is pointed at,
    /// `onZoom(node or null)` what the user zooms to, `onMenu(node, x, y)` whose menu the user asks
    /// for. `name` is what a screen reader calls the graph.
    constructor(scroller, { onFocus, onZoom, onMenu, name = "Flame graph" }) {
      this.scroller = scroller;
      this.onFocus = onFocus;
      this.onZoom = onZoom;
      this.onMenu = onMenu;
      this.comparison = null;
      this.colours = new jvmprof.Colours();
      this.holder = element("div.flame", {
        tabindex: "0",
        role: "application",
        "aria-label": `${name}. Arrow keys move between frames, Enter zooms, m opens a frame's menu, Escape zooms out.`,
      });
      this.tip = element("div.tip", { role: "tooltip", hidden: true });
      this.touch = new jvmprof.FlameTouch(this.holder, (event) => this.menu(event));
      this.marks = { hover: element("div.frame-mark.hover", { hidden: true }), cursor: element("div.frame-mark.cursor", { hidden: true }) };
      scroller.append(this.holder);
      document.querySelector("main").append(this.tip);
      this.canvas = new jvmprof.FlameCanvas(scroller, this.holder, (box) => ({ colour: this.fill(box), isFound: box.highlight }));
      this.holder.append(this.marks.hover, this.marks.cursor);
      this.rootOnTop = this.canvas.rootOnTop = true;
      this.search = null;
      this.listen();
    }

    listen() {
      const { holder, scroller } = this;
      holder.addEventListener("keydown", (event) => this.key(event));
      holder.addEventListener("click", (event) => this.click(event));
      holder.addEventListener("contextmenu", (event) => this.menu(event));
      // Browsers make mouse events of taps, too, but tell pointers apart.
      const byMouse = (what) => (event) => event.pointerType !== "touch" && what(event);
      holder.addEventListener("pointermove", byMouse((event) => this.hover(event)));
      holder.addEventListener("pointerleave", byMouse(() => this.leave()));
      document.addEventListener("pointerdown", (event) => this.isTapped() && !this.tip.contains(event.target) && this.leave());
      // A frame's menu and a copy give the focus back; what a finger tapped has buttons that take
      // it.
      holder.addEventListener("blur", () => this.isTapped() || document.querySelector(".frame-menu, .clipboard-text") || this.setCursor(null));
      const scrolled = () => {
        this.leave();
        this.canvas.draw();
      };
      scroller.addEventListener("scroll", scrolled, { passive: true });
      new ResizeObserver(() => this.resize()).observe(scroller);
      jvmprof.theme.listeners.push(() => this.root && this.redraw());
    }

    width() {
      return this.canvas.width();
    }

    draw(tree, total) {
      this.leave();
      this.tree = tree;
      this.total = total;
      this.cursor = null;
      this.zoomed = null;
      this.layout = new jvmprof.FlameLayout(tree);
      this.root = this.layout.root;
      this.canvas.rootOnTop = this.rootOnTop;
      this.canvas.show(this.layout);
      this.drawCursor();
      this.scrollToRoot();
    }

    /// Boxes that are drawn if they are scrolled to, row by row.
    drawnBoxes() {
      return this.canvas.drawnBoxes();
    }

    /// Where a box stands in the window.
    place(box) {
      const area = this.holder.getBoundingClientRect();
      const width = this.width();
      return new DOMRect(area.left + box.x0 * width, area.top + this.rowTop(box), box.width * width, ROW);
    }

    fill(d) {
      if (d.highlight) return FOUND;
      const muted = this.search !== null;
      const { fn, how, sides } = d.data;
      if (this.comparison && sides) return jvmprof.changeColour(this.comparison, sides, muted);
      return this.colours.of(fn, how, muted);
    }

    redraw() {
      this.canvas.repaint();
      this.drawCursor();
    }

    resize() {
      if (!this.root) return;
      this.canvas.placed();
      this.drawCursor();
    }

    setRootOnTop(rootOnTop) {
      this.rootOnTop = this.canvas.rootOnTop = rootOnTop;
      if (!this.root) return;
      this.redraw();
      this.scrollToRoot();
    }

    /// Shows what matches; null ends the search.
    find(search) {
      this.search = search;
      if (!this.root) return;
      const known = new Map();
      const matches = ({ fn }) => {
        if (!known.has(fn)) known.set(fn, search.matches(fn));
        return known.get(fn);
      };
      for (const row of this.layout.rows) for (const d of row) d.highlight = search !== null && d.depth > 0 && matches(d.data);
      this.redraw();
      if (search) this.scrollToMatch();
    }

    /// Brings a match into view if none is: those of deep stacks may be a screen away.
    scrollToMatch() {
      const { scrollTop, clientHeight } = this.scroller;
      let nearest = null;
      for (const d of this.drawnBoxes()) {
        if (!d.highlight) continue;
        const top = this.rowTop(d);
        if (top >= scrollTop && top + ROW <= scrollTop + clientHeight) return;
        nearest ??= d;
      }
      if (nearest) this.scroller.scrollTop = this.rowTop(nearest) - (this.rootOnTop ? 0.4 : 0.6) * clientHeight;
    }

    scrollToRoot() {
      this.scroller.scrollTop = this.rootOnTop ? 0 : this.scroller.scrollHeight;
      this.canvas.draw();
    }

    click(event) {
      const d = this.canvas.boxAt(event.clientX, event.clientY);
      if (!d || this.touch.hasRested) return;
      if (this.touch.isFinger) this.showTapped(d, event.clientX, event.clientY);
      else this.zoomTo(d);
    }

    /// The details of a frame that a finger tapped: they stay until it taps elsewhere.
    showTapped(d, x, y) {
      const onMenu = () => {
        const { left, top } = this.tip.getBoundingClientRect();
        this.leave();
        this.onMenu(d.data, left, top);
      };
      this.showTip(d);
      this.mark("hover", d);
      this.tip.append(jvmprof.FlameTouch.buttons({ onZoom: () => this.zoomTo(d), onMenu }));
      this.tip.classList.add("tapped");
      this.tip.setAttribute("role", "dialog");
      this.tip.setAttribute("aria-label", d.data.name);
      this.placeTip(x, y);
    }

    isTapped() {
      return !this.tip.hidden && this.tip.classList.contains("tapped");
    }

    hover(event) {
      const d = this.canvas.boxAt(event.clientX, event.clientY);
      if (!d) return this.leave();
      if (this.hovered !== d.data) {
        this.showTip(d);
        this.mark("hover", d);
        this.holder.classList.add("on-frame");
      }
      this.placeTip(event.clientX, event.clientY);
    }

    leave() {
      this.holder.classList.remove("on-frame");
      this.marks.hover.hidden = true;
      this.hideTip();
    }

    /// Frames a box; null frames none.
    mark(which, d) {
      const mark = this.marks[which];
      mark.hidden = !d;
      if (!d) return;
      const width = this.width();
      const place = { left: d.x0 * width, top: this.rowTop(d), width: Math.max(3, d.width * width), height: ROW };
      for (const [name, pixels] of Object.entries(place)) mark.style[name] = `${pixels}px`;
    }

    /// The menu of the frame below the mouse; the browser's own elsewhere.
    menu(event) {
      const d = this.canvas.boxAt(event.clientX, event.clientY);
      if (!d) return;
      event.preventDefault();
      this.leave();
      this.onMenu(d.data, event.clientX, event.clientY);
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
      this.leave();
      this.layout.zoom(d);
      this.zoomed = d.depth > 0 ? d : null;
      this.canvas.placed(!atOnce);
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
      for (const row of this.layout.rows) {
        const d = row.find(({ data }) => data === node);
        if (d) return this.showZoomed(d, true);
      }
      this.showZoomed(this.root, true);
    }

    resetZoom() {
      if (!this.root) return;
      this.zoomTo(this.root);
      this.scrollToRoot();
    }

    rowTop(d) {
      return this.canvas.rowTop(d.depth);
    }

    showTip(d, x, y) {
      this.tip.replaceChildren(...this.describe(d));
      this.tip.classList.remove("tapped");
      this.tip.setAttribute("role", "tooltip");
      this.tip.removeAttribute("aria-label");
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
      const kind = element("div.tip-kind", {}, swatch, jvmprof.kindName(fn), fn.module ? ` · ${fn.module}` : "");
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
      if (!this.root || event.ctrlKey || event.metaKey || event.altKey) return;
      const at = this.cursor ?? this.zoomed ?? this.root;
      const deeper = this.rootOnTop ? "ArrowDown" : "ArrowUp";
      const shallower = this.rootOnTop ? "ArrowUp" : "ArrowDown";
      const drawn = (d) => d && d.width * this.width() >= jvmprof.FLAME_NARROWEST;
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
      this.mark("cursor", this.cursor);
    }
  }

  jvmprof.Flame = Flame;
})(globalThis.jvmprof);
