// Callers and callees of one function, wherever it is called: two trees around it.
"use strict";

(function (jvmprof) {
  const { element, format, icon } = jvmprof;

  function childOf(node, fn) {
    const children = (node.byFunction ??= new Map());
    let child = children.get(fn);
    if (!child) {
      child = { name: fn.name, fn, value: 0, self: 0, lines: [], how: [], children: [], parent: node };
      children.set(fn, child);
      node.children.push(child);
    }
    return child;
  }

  function count(into, node) {
    into.value += node.value;
    if (!node.sides) return;
    into.sides ??= [0, 0];
    node.sides.forEach((samples, side) => (into.sides[side] += samples));
  }

  function finish(root) {
    const todo = [root];
    while (todo.length) {
      const node = todo.pop();
      delete node.byFunction;
      node.self = node.value - node.children.reduce((sum, child) => sum + child.value, 0);
      node.children.sort((a, b) => b.value - a.value);
      todo.push(...node.children);
    }
    return root;
  }

  /// The trees `{callers, callees}` of the function with this name; null if it isn't there. A call
  /// within another one of the same function counts once, and is among the callees.
  jvmprof.sandwich = function (root, name) {
    let [callers, callees] = [null, null];
    const todo = [root];
    const below = [];
    while (todo.length) {
      const node = todo.pop();
      if (node.name !== name || node.fn.kind === "root") {
        todo.push(...node.children);
        continue;
      }
      const top = () => ({ name, fn: node.fn, value: 0, self: 0, lines: [], how: [], children: [], parent: null });
      callers ??= { ...top(), hasCallersBelow: true };
      callees ??= top();
      count(callers, node);
      let at = callers;
      for (let caller = node.parent; caller && caller.fn.kind !== "root"; caller = caller.parent) {
        at = childOf(at, caller.fn);
        count(at, node);
      }
      below.push([node, callees]);
    }
    while (below.length) {
      const [node, into] = below.pop();
      count(into, node);
      jvmprof.addCounts(into.lines, node.lines);
      jvmprof.addCounts(into.how, node.how);
      for (const child of node.children) below.push([child, childOf(into, child.fn)]);
    }
    return callers && { callers: finish(callers), callees: finish(callees) };
  };

  /// The pane with both trees: callers above, growing upwards, callees below.
  class Sandwich {
    /// `onFocus(node or null)` gets what is pointed at in either graph, `onMenu(node, x, y, zoom)`
    /// whose menu the user asks for and what zooms to a node of the same graph, `onZoom(zooms)`
    /// what is zoomed to in both, as the address has it (see state.js).
    constructor({ onClose, onFocus, onMenu, onZoom }) {
      Object.assign(this, { onFocus, onMenu, onZoom });
      this.title = element("span.sandwich-title");
      const close = element("button.tool", { type: "button", title: "Close callers and callees (s)", "aria-label": "Close callers and callees", onclick: onClose }, icon("close"));
      this.scrollers = { callers: element("div.scroller.sandwich-part"), callees: element("div.scroller.sandwich-part") };
      this.flames = null;
      this.node = element(
        "div.sandwich",
        { hidden: true },
        element("div.sandwich-head", {}, this.title, close),
        element("div.sandwich-name", {}, "Callers"),
        this.scrollers.callers,
        element("div.sandwich-name", {}, "Callees"),
        this.scrollers.callees,
      );
    }

    /// The two graphs, made when they are first needed.
    graphs() {
      if (!this.flames) {
        this.flames = { callers: this.graph("callers", "Callers"), callees: this.graph("callees", "Callees") };
        this.flames.callers.rootOnTop = false;
      }
      return this.flames;
    }

    graph(which, name) {
      const { onFocus } = this;
      const onZoom = (node) => {
        this.zooms[which] = node ? jvmprof.drawnHash(node) : "";
        const { callers, callees } = this.zooms;
        this.onZoom(callers || callees ? `${callers}-${callees}` : "");
      };
      const zoom = (node) => {
        flame.zoomToNode(node);
        onZoom(flame.zoomed && node);
      };
      const onMenu = (node, x, y) => this.onMenu(node, x, y, zoom);
      const flame = new jvmprof.Flame(this.scrollers[which], { onFocus, onZoom, onMenu, name });
      return flame;
    }

    /// The node that the cursor or else the mouse is on in either graph.
    pointedAt() {
      const graphs = Object.values(this.flames ?? {});
      return (graphs.find(({ cursor }) => cursor) ?? graphs.find(({ hovered }) => hovered))?.pointedAt();
    }

    /// Gives the focus to the callers, and from there to the callees.
    focus() {
      const { callers, callees } = this.graphs();
      const isThere = callers.holder === document.activeElement;
      (isThere ? callees : callers).holder.focus();
    }

    /// Shows what matches; null ends the search.
    find(search) {
      for (const flame of Object.values(this.flames ?? {})) flame.find(search);
    }

    /// Draws what a tree has of the function, of `total` samples that are shown, with the zooms of
    /// the address.
    draw(root, name, total, zooms, { measure, comparison, colours }) {
      const [callers = "", callees = ""] = zooms.split("-");
      this.zooms = { callers, callees };
      const trees = name ? jvmprof.sandwich(root, name) : null;
      this.node.hidden = !name;
      for (const flame of Object.values(this.flames ?? {})) flame.leave();
      if (!name) return;
      const share = trees ? this.share(trees.callees, total, measure, comparison) : "no samples here";
      const pruned = jvmprof.prunedOutside(root, name) > 0 ? " · without what is pruned" : "";
      this.title.replaceChildren(element("b", {}, name), ` · ${share}${pruned}`);
      for (const [which, flame] of Object.entries(this.graphs())) {
        Object.assign(flame, { measure, comparison, colours });
        flame.scroller.hidden = !trees;
        if (!trees) continue;
        flame.draw(trees[which], total);
        const zoomed = this.zooms[which] && jvmprof.drawnNode(trees[which], this.zooms[which]);
        if (zoomed) flame.zoomToNode(zoomed);
      }
    }

    share({ value, sides }, total, measure, comparison) {
      if (comparison) return comparison.beforeAfter(sides);
      return `${measure.number(value)}, ${format.share(value, total)}`;
    }
  }

  /// Shows the callers and callees of the function that is pointed at, zoomed or chosen in a
  /// ProfileView. Where some are shown, goes on to the function that is pointed at among them, or
  /// else back.
  jvmprof.toggleSandwich = function (view) {
    const { sandwich, search, view: panes } = view.state;
    if (sandwich) {
      const next = view.sandwich.pointedAt()?.name ?? sandwich;
      return view.showCallersOf(next === sandwich ? "" : next);
    }
    const inGraph = (view.flame.pointedAt() ?? view.zoomedNode)?.name;
    const inTable = /^"(.+)"$/.exec(search)?.[1];
    const name = panes === "table" ? inTable ?? inGraph : inGraph ?? inTable;
    if (name !== undefined && name !== view.tree?.name) view.showCallersOf(name);
    else view.status.textContent = "Zoom to a frame, point at one, or choose a function in the table: then its callers and callees are shown.";
  };

  jvmprof.Sandwich = Sandwich;
})(globalThis.jvmprof);
