// One profile on the page: figures, search, legend, flame graph and table. The recorded file and the collector share it.
"use strict";

(function (jvmprof) {
  const { element, format, icon } = jvmprof;

  const LEGEND = ["java", "class", "jit", "native", "kernel", "marker"];
  /// Narrower than this, graph and table beside each other are both too small.
  const ROOM_FOR_BOTH = 1400;

  class ProfileView {
    /// `state` has the first `search`, `view`, `rootOnTop`, `fold`; `onState(changes)` hears what the user changed.
    constructor(container, { state = {}, onState = () => {} } = {}) {
      this.onState = onState;
      this.state = {
        search: "",
        view: innerWidth >= ROOM_FOR_BOTH ? "both" : "flame",
        rootOnTop: true,
        fold: false,
        ...state,
      };
      this.build(container);
      this.flame = new jvmprof.Flame(this.flameScroller, {
        onFocus: (node) => this.showStatus(node),
        onZoom: (node) => this.showZoom(node),
      });
      this.table = new jvmprof.TopTable(this.tableScroller, (fn) => this.chooseFunction(fn));
      this.flame.rootOnTop = this.state.rootOnTop;
      this.applySwitches();
      document.addEventListener("keydown", (event) => this.key(event));
    }

    build(container) {
      this.figures = element("div.figures");
      this.notice = element("div.notices");
      this.searchBox = element("input", {
        type: "search",
        placeholder: "Search functions",
        "aria-label": "Search functions",
        spellcheck: "false",
        autocomplete: "off",
        title: 'Part of a name; "whole name"; /regular expression/; module:libc; file:Order.java; kind:kernel',
      });
      this.searchBox.value = this.state.search;
      this.searchBox.addEventListener("input", () => this.searchSoon());
      this.searchBox.addEventListener("keydown", (event) => this.searchKey(event));
      this.matched = element("output.matched");
      this.views = element("div.segments", { role: "group", "aria-label": "What to show" });
      for (const [view, name] of [["flame", "Flame graph"], ["both", "Both"], ["table", "Table"]]) {
        this.views.append(
          element("button", { type: "button", "data-view": view, onclick: () => this.change({ view }) }, name),
        );
      }
      this.resetButton = this.tool("whole", "Reset zoom", () => this.flame.resetZoom());
      this.resetButton.disabled = true;
      this.directionButton = this.tool("down", "", () => this.change({ rootOnTop: !this.state.rootOnTop }));
      this.foldButton = this.tool("fold", "Fold recursion: a function that calls itself becomes one frame", () =>
        this.change({ fold: !this.state.fold }),
      );
      this.flameScroller = element("div.scroller.flame-scroller");
      this.tableScroller = element("div.scroller.table-scroller");
      this.status = element("div.status", { "aria-live": "polite" });
      this.main = element("div.panes", {}, this.tableScroller, this.flameScroller);
      container.append(
        element(
          "div.toolbar",
          {},
          element("label.search", {}, icon("search"), this.searchBox, this.matched),
          this.views,
          element("div.tools", {}, this.resetButton, this.directionButton, this.foldButton),
          this.figures,
        ),
        this.notice,
        this.main,
        element("footer", {}, this.legend(), this.status),
      );
      jvmprof.theme.listeners.push(() => this.legendNode.replaceWith(this.legend()));
    }

    tool(name, title, onclick) {
      return element("button.tool", { type: "button", title, "aria-label": title, onclick }, icon(name));
    }

    legend() {
      const entries = LEGEND.map((kind) => {
        const swatch = element("span.swatch");
        swatch.style.background = jvmprof.colour(kind);
        const title = `Search kind:${kind}`;
        const onclick = () => this.setSearch(`kind:${kind}`);
        return element("button", { type: "button", title, onclick }, swatch, jvmprof.KIND_NAMES[kind]);
      });
      this.legendNode = element("div.legend", { "aria-label": "Colours" }, ...entries);
      return this.legendNode;
    }

    /// Shows a tree as the collector and the recorded file have it.
    show(data, measure) {
      this.data = data;
      this.flame.measure = measure;
      this.table.measure = measure;
      this.functions = jvmprof.functions(data);
      this.showFigures(data, measure);
      this.table.draw(data, this.functions, data.total);
      this.drawTree();
    }

    drawTree() {
      const zoomed = this.flame.zoomPath();
      this.tree = jvmprof.buildTree(this.data, this.functions, this.state.fold);
      this.flame.draw(this.tree, this.data.total);
      this.showZoom(null);
      if (zoomed) this.flame.zoomToPath(zoomed);
      this.search();
    }

    showFigures(data, measure) {
      const cut = data.truncated.reduce((sum, [, samples]) => sum + samples, 0);
      const figure = (number, name) => element("span.figure", {}, element("b", {}, number), ` ${name}`);
      const whole = element(
        "details.figure",
        {},
        element("summary", {}, element("b", {}, format.share(data.total - cut, data.total)), " whole stacks"),
        element("div.popover", {}, ...this.truncatedRows(data, cut)),
      );
      this.figures.replaceChildren(
        figure(measure.number(data.total), measure.name(data.total)),
        ...(measure.more(data.total) ? [figure(measure.more(data.total), "CPU time")] : []),
        whole,
      );
      this.notice.replaceChildren();
      if (data.pruned.samples > 0) {
        const text =
          `Drawn are the heaviest ${format.count(data.nodes.parent.length)} frames; ` +
          `${format.count(data.pruned.nodes)} lighter ones are summed up as [pruned], ` +
          `where ${format.share(data.pruned.samples, data.total)} of the samples end. The table counts all of them.`;
        this.notice.append(element("p.notice", {}, text));
      }
    }

    truncatedRows(data, cut) {
      const rows = element("dl");
      const row = (name, count) => rows.append(element("dt", {}, name), element("dd", {}, format.count(count)));
      row("Reached the thread's start", data.total - cut);
      [...data.truncated].sort((a, b) => b[1] - a[1]).forEach(([name, samples]) => row(name, samples));
      return [rows];
    }

    // Search

    searchSoon() {
      clearTimeout(this.searchTimer);
      this.searchTimer = setTimeout(() => this.change({ search: this.searchBox.value }), 150);
    }

    searchKey(event) {
      if (event.key === "Escape") {
        event.stopPropagation();
        if (this.searchBox.value) this.setSearch("");
        else this.flame.holder.focus();
      } else if (event.key === "Enter") {
        clearTimeout(this.searchTimer);
        this.change({ search: this.searchBox.value });
      }
    }

    setSearch(text) {
      this.searchBox.value = text;
      this.change({ search: text });
    }

    chooseFunction(fn) {
      const exact = `"${fn.name}"`;
      this.setSearch(this.state.search === exact ? "" : exact);
    }

    search() {
      const search = jvmprof.parseSearch(this.state.search);
      this.searchBox.classList.toggle("wrong", Boolean(search?.error));
      const valid = search && !search.error ? search : null;
      this.flame.find(valid);
      // A chosen row filters nothing: its neighbours in the table are what one looks at next.
      this.table.find(this.state.search.startsWith('"') ? null : valid);
      this.matched.textContent = search?.error ? "no valid expression" : "";
      this.matched.title = search?.error ?? "";
      if (!valid || !this.tree) return;
      const samples = jvmprof.matchedSamples(this.tree, valid);
      this.matched.textContent = `${format.share(samples, this.data.total)} matched`;
      this.matched.title = `${format.count(samples)} of ${format.count(this.data.total)} samples`;
    }

    // What the user switches

    change(changes) {
      const before = this.state;
      this.state = { ...before, ...changes };
      this.applySwitches();
      if (this.data) {
        if (before.fold !== this.state.fold) this.drawTree();
        if (before.rootOnTop !== this.state.rootOnTop) this.flame.setRootOnTop(this.state.rootOnTop);
        if (before.search !== this.state.search) this.search();
      }
      this.onState(changes);
    }

    applySwitches() {
      const { view, rootOnTop, fold } = this.state;
      this.main.dataset.view = view;
      for (const button of this.views.children) {
        button.setAttribute("aria-pressed", String(button.dataset.view === view));
      }
      const title = rootOnTop ? "Root on top (icicle); click for root at the bottom" : "Root at the bottom (flame); click for root on top";
      this.directionButton.title = title;
      this.directionButton.setAttribute("aria-label", title);
      this.directionButton.replaceChildren(icon(rootOnTop ? "down" : "up"));
      this.foldButton.setAttribute("aria-pressed", String(fold));
    }

    showZoom(node) {
      this.resetButton.disabled = node === null;
      this.zoomedNode = node;
      this.showStatus(null);
    }

    showStatus(node) {
      const at = node ?? this.zoomedNode;
      if (!at) {
        this.status.textContent = "Click a frame to zoom · / search · Esc back · ? keys";
        return;
      }
      const { fn, value } = at;
      const text = [fn.name, fn.module, `${format.count(value)} samples, ${format.share(value, this.data.total)}`];
      this.status.textContent = (node ? "" : "Zoomed: ") + text.filter(Boolean).join(" · ");
    }

    key(event) {
      const typing = event.target.closest?.("input, select, textarea, dialog");
      if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
      if (event.key === "/") {
        event.preventDefault();
        this.searchBox.focus();
        this.searchBox.select();
      } else if (event.key === "Escape") this.flame.resetZoom();
      else if (event.key === "i") this.change({ rootOnTop: !this.state.rootOnTop });
      else if (event.key === "r") this.change({ fold: !this.state.fold });
      else if (event.key === "1") this.change({ view: "flame" });
      else if (event.key === "2") this.change({ view: "both" });
      else if (event.key === "3") this.change({ view: "table" });
      else if (event.key === "f") this.flame.holder.focus();
      else if (event.key === "?") jvmprof.help();
    }
  }

  const KEYS = [
    ["/", "search"],
    ["Esc", "end the search, zoom out"],
    ["f", "go to the flame graph"],
    ["← → ↑ ↓", "in the graph: move between frames"],
    ["Enter", "in the graph: zoom to the frame"],
    ["i", "root on top or at the bottom"],
    ["r", "fold recursion"],
    ["1 2 3", "flame graph, both, table"],
  ];
  const SEARCHES = [
    ["total", "part of a name, any case"],
    ['"acme.Order.total"', "the whole name"],
    ["/Order|Cart/", "a regular expression"],
    ["module:libc", "where the code is from; also file: and kind:"],
  ];

  jvmprof.help = function () {
    const list = (rows) =>
      element("dl", {}, ...rows.flatMap(([key, what]) => [element("dt", {}, element("kbd", {}, key)), element("dd", {}, what)]));
    const dialog = element(
      "dialog.help",
      { "aria-label": "Help", onclose: () => dialog.remove(), onclick: (event) => event.target === dialog && dialog.close() },
      element(
        "form",
        { method: "dialog" },
        element("h2", {}, "Keys"),
        list(KEYS),
        element("h2", {}, "Search"),
        list(SEARCHES),
        element("p", {}, "A frame's width is its share of the samples. The order from left to right is by weight, not time."),
        element("button", { autofocus: true }, "Close"),
      ),
    );
    document.body.append(dialog);
    dialog.showModal();
  };

  jvmprof.helpButton = function () {
    return element("button.plain", { type: "button", title: "Help (?)", "aria-label": "Help", onclick: jvmprof.help }, icon("help"));
  };

  jvmprof.ProfileView = ProfileView;
})(globalThis.jvmprof);
