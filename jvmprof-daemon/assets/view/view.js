// One profile on the page: figures, search, legend, flame graph and table. The recorded file and
// the collector share it.
"use strict";

(function (jvmprof) {
  const { element, format, icon } = jvmprof;

  /// Frames that are drawn at most after subtrees were fetched, while nothing is zoomed.
  const MOST_NODES = 60_000;

  /// What of the state makes another tree.
  const DRAWN_BY = ["fold", "frames", "edits", "part", "basePart", "by"];

  /// What of the state the browser's way back goes through, one by one.
  const GONE_BACK_FROM = ["edits", "part", "basePart", "sandwich"];

  const ONE_PART = "Choose the part to compare with this one: drag over the load or the heatmap, or use keys there.";

  class ProfileView {
    /// `state` is how it is looked at first (see state.js); `onState(changes)` gets what the user
    /// changed. `fetchStacks(stacks, signal)` promises the tree of some of the stacks (see
    /// requests.js), where that can be had.
    constructor(container, { state = {}, onState = () => {}, fetchStacks = null } = {}) {
      this.onState = onState;
      this.fetchStacks = fetchStacks;
      this.edited = new jvmprof.Answers(fetchStacks, () => this.drawTree());
      this.through = new jvmprof.Answers(fetchStacks, () => this.showSandwich());
      this.state = { ...jvmprof.firstViewState(), ...state };
      this.build(container);
      this.flame = new jvmprof.Flame(this.flameScroller, {
        onFocus: (node) => this.showStatus(node),
        onZoom: (node) => this.zoom(node),
        onMenu: (node, x, y) => this.menu(node, x, y),
      });
      this.table = new jvmprof.TopTable(this.tableScroller, {
        onChoose: (fn) => this.chooseFunction(fn),
        onSort: (sort) => this.change({ sort }),
        onMenu: (of, x, y) => this.menu(of, x, y),
      });
      this.colours = this.table.colours = this.flame.colours;
      this.comparison = null;
      this.found = null;
      this.flame.rootOnTop = this.state.rootOnTop;
      this.applySwitches();
      document.addEventListener("keydown", (event) => jvmprof.viewKey(this, event));
    }

    build(container) {
      this.figures = element("div.figures");
      this.notice = element("div.notices", { role: "status" });
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
      this.framesSelect = this.select("Which frames", jvmprof.FRAMES, (frames) => this.change({ frames }));
      this.colourSelect = this.select("What colours mean", jvmprof.COLOURINGS, (colour) => this.change({ colour }));
      this.bySelect = this.select("What is compared", jvmprof.NORMALISATIONS, (by) => this.change({ by }));
      this.edits = new jvmprof.EditChips((edits) => this.change({ edits }), (parts) => this.change(parts));
      this.activityBar = new jvmprof.ActivityBar((kind, keys) => this.chooseAmong(kind, keys));
      this.heatmap = new jvmprof.Heatmap((part) => this.change(part ? { part } : { part, basePart: null }));
      this.pauseLane = new jvmprof.PauseLane();
      this.sandwichButton = this.tool("sandwich", "Callers and callees of the zoomed or chosen function (s)", () => jvmprof.toggleSandwich(this));
      this.sandwich = new jvmprof.Sandwich({
        onClose: () => this.showCallersOf(""),
        onFocus: (node) => this.showStatus(node),
        onMenu: (node, x, y, zoom) => this.menu(node, x, y, zoom),
        onZoom: (sandwichZoom) => this.change({ sandwichZoom }),
      });
      this.flameScroller = element("div.scroller.flame-scroller");
      this.tableScroller = element("div.scroller.table-scroller");
      this.legend = element("div.legend", { role: "group", "aria-label": "Colours" });
      this.status = element("div.status", { "aria-live": "polite" });
      this.main = element("div.panes", {}, this.tableScroller, this.flameScroller, this.sandwich.node);
      container.append(
        element(
          "div.toolbar",
          {},
          element("label.search", {}, icon("search"), this.searchBox, this.matched),
          this.views,
          element("div.tools", {}, this.resetButton, this.directionButton, this.foldButton, this.sandwichButton),
          element("label.select.frames", { title: "All frames; Java's only; or the application's, with calls within the JDK as one frame (j)" }, this.framesSelect),
          element("label.select", { title: "What the colours of frames mean (c)" }, this.colourSelect),
          element("label.select", { title: "Shares of all samples, or time per time (n)", hidden: true }, this.bySelect),
          this.figures,
        ),
        this.heatmap.node,
        this.pauseLane.node,
        this.activityBar.node,
        this.edits.node,
        this.notice,
        this.main,
        element("footer", {}, this.legend, this.status),
      );
      jvmprof.theme.listeners.push(() => this.showLegend());
    }

    select(label, options, onChange) {
      const select = element("select", { "aria-label": label, onchange: () => onChange(select.value) });
      for (const [value, name] of Object.entries(options)) select.append(element("option", { value }, name));
      return select;
    }

    tool(name, title, onclick) {
      return element("button.tool", { type: "button", title, "aria-label": title, onclick }, icon(name));
    }

    showLegend() {
      const change = (relative) => jvmprof.legendChange(relative);
      const entries = this.comparison
        ? [["more", 1], ["less", -1], ["may be chance", 0]].map(([name, relative]) => ({ name, colour: change(relative) }))
        : this.colours.legend(this.table.rows);
      this.legend.replaceChildren(
        ...entries.map(({ colour, name, search }) => {
          const swatch = element("span.swatch");
          swatch.style.background = colour;
          if (!search) return element("span.legend-entry", {}, swatch, name);
          return element("button", { type: "button", title: `Search ${search}`, onclick: () => this.setSearch(search) }, swatch, name);
        }),
      );
    }

    /// Shows a tree as the collector and the recorded file have it. `sides`: what its two sides are
    /// compared by, if there are two; `unit`: of their numbers; `times`: when samples were taken,
    /// in a recording of `durationMs`, and `clock` its begin and texts of times in it, where these
    /// are of the day; `pauses`: of its JVMs; `mostLacking`: samples that a frame may lack;
    /// `ofThreads`: its groups are threads or their kinds; `isOneProcess`: without groups, all of
    /// it is of one process; `asked`: what was asked for beside it, `{answers, stacks, promise,
    /// tree}` (see answers.js), the last one if it is here.
    show(data, measure, { sides = null, unit = "samples", times = null, durationMs = 0, periodNs = 0, clock = null, pauses = [], mostLacking = 0, ofThreads = false, isOneProcess = true, asked = [] } = {}) {
      this.flame.measure = measure;
      this.table.measure = measure;
      Object.assign(this, { givenSides: sides, unit, times, durationMs, periodNs, clock, pauses, mostLacking, ofThreads, isOneProcess });
      this.whole = data;
      for (const answers of [this.edited, this.through]) answers.clear();
      for (const { answers, stacks, promise, tree } of asked) {
        if (tree) answers.keep(stacks, tree);
        else answers.ask(stacks, promise);
      }
      this.showUnfetched();
    }

    showData(data) {
      this.data = data;
      this.functions = jvmprof.functions(data);
      this.hashes = new jvmprof.PathHashes(data);
      this.drawTree();
    }

    isTime() {
      return this.unit === "samples" || this.unit === "nanoseconds";
    }

    /// What the data says of its samples: see `jvmprof.hasEffect`.
    has() {
      const hasThreadKinds = Boolean(this.whole.nodes.activity?.length);
      return { hasThreadKinds, hasActivities: hasThreadKinds && this.isTime() };
    }

    /// Shows what edits leave, the whole or the chosen part of it, or two parts beside each other,
    /// as it was before anything below a frame was fetched, which may be again then.
    showUnfetched() {
      this.asked = new Set();
      const { whole, times } = this;
      const { part, edits, basePart } = jvmprof.chosenStacks(this);
      // What edits leave of two parts nobody is asked for.
      const answer = basePart ? null : this.edited.treeOf({ part, edits });
      // `applied`: the edits that the data has in it.
      Object.assign(this, { part, basePart, sides: this.givenSides, applied: answer ? edits : [] });
      if (answer || !part) return this.showData(answer ?? whole);
      if (!basePart) return this.showData(times.part(whole, part));
      const { data, sides } = times.compared(whole, [basePart, part], this.periodNs);
      this.sides = sides;
      this.showData(data);
    }

    drawTree() {
      const { part, edits: filters, basePart } = jvmprof.chosenStacks(this);
      const applied = !basePart && this.edited.treeOf({ part, edits: filters }) ? filters : [];
      if (JSON.stringify([part, basePart, applied]) !== JSON.stringify([this.part, this.basePart, this.applied])) return this.showUnfetched();
      this.colourSelect.parentElement.hidden = Boolean(this.sides);
      this.bySelect.parentElement.hidden = !this.sides;
      const { fold, frames, colour, by } = this.state;
      const edits = jvmprof.editsOf(this);
      const left = edits.filter(({ text }) => !applied.includes(text));
      const comparison = this.sides && new jvmprof.Comparison(this.sides, by, this.unit);
      for (const it of [this, this.flame, this.table]) it.comparison = comparison;
      this.colours.by = colour;
      const { data: awake, idle } = jvmprof.withoutIdle(this.data, this.functions, edits);
      const edited = jvmprof.editedData(awake, this.functions, left);
      const chosen = this.isTime() ? jvmprof.chosenActivities(edits) : null;
      const threadKinds = jvmprof.chosenThreadKinds(edits);
      const ofAllKinds = edited.unfiltered && !this.isTime() ? jvmprof.waitsOfAllKinds(this) : edited;
      this.showActivities(ofAllKinds, { chosen, threadKinds });
      this.shown = jvmprof.ofActivities(edited, chosen && jvmprof.chosenActivities(left), jvmprof.chosenThreadKinds(left));
      const options = (this.options = { fold, frames, comparison, isMerged: jvmprof.isMerged(edits), isExpanded: jvmprof.isExpanded(edits) });
      const { root, nodes } = jvmprof.buildTree(this.shown, this.functions, options);
      [this.tree, this.nodes] = [root, nodes];
      const ofEdits = jvmprof.ofActivities(jvmprof.editedData(this.data, this.functions, left), chosen && jvmprof.chosenActivities(left), jvmprof.chosenThreadKinds(left));
      const idleChip = jvmprof.idleChip(jvmprof.withoutIdle(ofEdits, this.functions, edits).idle, ofEdits.total, this.flame.measure, comparison);
      this.edits.show(edits, { part, basePart, clock: this.clock }, frames, this.has(), idleChip);
      this.heatmap.show(this.times, { duration: this.durationMs, periodNs: this.periodNs, clock: this.clock, part, basePart, chosen, threadKinds });
      this.pauseLane.show(this.pauses, { span: this.heatmap.span ?? this.durationMs, part });
      jvmprof.showFigures(this.figures, this.shown, this.flame.measure, { comparison, isWhole: this.shown.total === this.whole.total });
      this.flame.draw(root, root.value);
      this.isEdited = Boolean(idle?.isHidden) || !jvmprof.isWhole(left);
      this.isPart = this.isEdited || (part !== null && !applied.length);
      this.drawTable(this.isPart, edits);
      const isToAsk = this.canFetch() && filters.length > applied.length && jvmprof.lacksStacks(awake, this.shown);
      this.edited.want(isToAsk ? { part, edits: filters } : null);
      this.showLegend();
      this.showNotices();
      this.showZoom();
      this.showSandwich();
      this.search();
    }

    /// Shows where a JVM's time goes, of CPU time, and the kinds of its threads.
    showActivities(data, chosen) {
      const isTime = this.isTime();
      const groups = this.functions.filter(({ kind }) => kind === "label").length;
      const { comparison, ofThreads, isOneProcess, flame: { measure } } = this;
      const all = jvmprof.activitySamples(data);
      this.activityBar.show(isTime ? all : null, jvmprof.threadKindSamples(data), { all, ...chosen, isOne: groups < 2 && isOneProcess, ofThreads, measure, comparison });
    }

    /// Replaces the edits of a kind that chooses among parts of the time.
    chooseAmong(kind, keys) {
      const others = this.state.edits.filter((text) => !text.startsWith(`${kind}:`));
      this.change({ edits: [...others, ...keys.map((key) => `${kind}:${key}`)] });
    }

    drawTable(isPart, edits) {
      const { data } = this;
      const counted = jvmprof.tableRows(data, this.functions);
      const hasJava = counted.some(({ fn }) => fn.kind === "java");
      const isWhole = this.state.frames === "all" && !isPart;
      const rows = isWhole ? counted : jvmprof.drawnRows(this, counted, isPart, edits);
      const seen = isWhole ? data.top.seen : rows.length;
      const { frames, sort } = this.state;
      this.table.draw(rows, { total: this.shown.total, seen, hasAttributed: hasJava && frames === "all", sort });
    }

    /// The menu of a frame, or of a function of the table; `zoom(node)` zooms to one in its graph.
    menu(node, x, y, zoom = (to) => this.zoomTo(to)) {
      jvmprof.showMenu(node, x, y, {
        zoom,
        edit: (text) => this.change({ edits: [...this.state.edits.filter((it) => it !== text), text] }),
        search: (text) => this.setSearch(text),
        sandwich: (name) => this.showCallersOf(name),
        copy: async (text) => (this.status.textContent = await jvmprof.copyText(text)),
      });
    }

    // Zoom. It is kept as the hash of a node of the data, which newer data, other frames and the
    // address know, too.

    /// The nodes of the data that a drawn node was made of, the topmost of each stack, heaviest
    /// first.
    sources(node) {
      const { parent, total } = this.data.nodes;
      const sources = [];
      for (let i = 1; i < this.nodes.length; i++) {
        if (this.nodes[i] === node && (this.nodes[parent[i]] !== node || parent[i] === 0)) sources.push(i);
      }
      return sources.sort((a, b) => total[b] - total[a]);
    }

    zoomTo(node) {
      this.flame.zoomToNode(node);
      this.zoom(node.parent ? node : null);
    }

    zoom(node) {
      const hashes = node ? this.sources(node).map((index) => this.hashes.hex(index)) : [];
      this.change({ zoom: hashes[0] ?? "" });
      if (node) jvmprof.fetchPruned(this, hashes, node);
      else if (this.hasFetchedMuch()) this.showUnfetched();
    }

    hasFetchedMuch() {
      return this.asked.size > 0 && this.data.nodes.parent.length > MOST_NODES;
    }

    /// Shows the zoom that the state has, as far as it is known.
    showZoom() {
      const index = this.state.zoom ? this.hashes.indexOf(this.state.zoom) : -1;
      const node = index > 0 && this.nodes[index] !== this.tree ? this.nodes[index] : null;
      if (node) this.flame.zoomToNode(node);
      this.showZoomed(node);
      if (node) jvmprof.fetchPruned(this, [this.state.zoom], node);
      else if (this.state.zoom && index < 0) jvmprof.fetchPruned(this, [this.state.zoom], null);
      if (this.state.zoom && index < 0 && !this.canFetch()) this.showNotices(jvmprof.NOT_THERE);
    }

    /// What is below a frame of two parts would be that of one.
    canFetch() {
      return Boolean(this.fetchStacks) && !this.basePart;
    }

    showZoomed(node) {
      this.resetButton.disabled = node === null;
      this.zoomedNode = node;
      this.showStatus(null);
    }

    // Callers and callees

    /// Shows those of the function with this name; without a name the graph again.
    showCallersOf(name) {
      this.change({ sandwich: name, sandwichZoom: "" });
    }

    showSandwich() {
      const { sandwich, sandwichZoom, view } = this.state;
      const focused = document.activeElement;
      if (sandwich) this.flame.leave();
      this.main.classList.toggle("has-sandwich", sandwich !== "");
      this.sandwichButton.setAttribute("aria-pressed", String(sandwich !== ""));
      this.sandwich.draw(jvmprof.treeThrough(this, sandwich), sandwich, this.tree.value, sandwichZoom, this.flame);
      this.findInSandwich();
      this.showNotices(this.zoomNotice);
      // The focus of a graph that goes is that of what comes.
      if (sandwich && focused === this.flame.holder) this.focusGraph();
      if (sandwich || !this.sandwich.node.contains(focused)) return;
      if (view === "table") this.sandwichButton.focus();
      else this.focusGraph();
    }

    /// A search for the function itself would only fade all others.
    findInSandwich() {
      const { sandwich, search } = this.state;
      if (sandwich) this.sandwich.find(search === `"${sandwich}"` ? null : this.found);
    }

    focusGraph() {
      if (this.state.sandwich) this.sandwich.focus();
      else this.flame.holder.focus();
    }

    showNotices(text = null) {
      this.zoomNotice = text;
      const share = (samples) => format.share(samples, this.tree.value);
      const shares = (samples) => `${this.flame.measure.number(samples)} (${share(samples)})`;
      const isAll = this.state.frames === "all" && !this.isPart;
      const pruned = { shares, mostLacking: this.mostLacking, isAll, canFetch: this.canFetch() };
      jvmprof.showNotices(this.notice, {
        zoom: text,
        parts: this.basePart && String(this.basePart) === String(this.part) ? ONE_PART : null,
        edits: jvmprof.unansweredNotice("All that the edits leave", this.edited),
        sandwich: jvmprof.unansweredNotice("All callers and callees", this.through),
        comparison: this.comparison?.notice(),
        frames: jvmprof.framesNotice(this.state.frames, this.tree, share),
        pruned: jvmprof.prunedNotice(this.shown, pruned),
      });
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
        else this.focusGraph();
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
      const valid = (this.found = search && !search.error ? search : null);
      this.flame.find(valid);
      this.findInSandwich();
      // A chosen row filters nothing: its neighbours in the table are what one looks at next.
      this.table.find(this.state.search.startsWith('"') ? null : valid);
      this.matched.textContent = search?.error ? "no valid expression" : "";
      this.matched.title = search?.error ?? "";
      if (!valid || !this.tree) return;
      const samples = jvmprof.matchedSamples(this.tree, valid);
      const total = this.tree.value;
      this.matched.textContent = `${format.share(samples, total)} matched`;
      const { number, name } = this.flame.measure;
      if (!this.comparison) this.matched.title = `${number(samples)} of ${number(total)} ${name(total)}`;
    }

    // What the user switches

    change(changes) {
      const before = this.state;
      this.state = { ...before, ...changes };
      this.applySwitches();
      if (this.data) {
        if (DRAWN_BY.some((name) => before[name] !== this.state[name])) this.drawTree();
        else if (before.sandwich !== this.state.sandwich) this.showSandwich();
        // In a small window it stands below the table.
        if (!before.sandwich && this.state.sandwich) this.sandwich.node.scrollIntoView({ block: "nearest" });
        if (before.zoom !== this.state.zoom) this.showZoomed(this.flame.zoomed?.data ?? null);
        if (before.rootOnTop !== this.state.rootOnTop) this.flame.setRootOnTop(this.state.rootOnTop);
        if (before.search !== this.state.search) this.search();
        if (before.colour !== this.state.colour) this.recolour();
        if (before.sort !== this.state.sort) this.table.sortBy(this.state.sort);
      }
      this.onState(changes, GONE_BACK_FROM.some((name) => before[name] !== this.state[name]));
    }

    recolour() {
      this.colours.by = this.state.colour;
      this.flame.redraw();
      this.table.refresh();
      this.showSandwich();
      this.showLegend();
    }

    /// Looks at the profile as the address says, without a call of `onState`.
    applyState(state) {
      this.state = { ...jvmprof.firstViewState(), ...state };
      this.searchBox.value = this.state.search;
      this.flame.rootOnTop = this.state.rootOnTop;
      this.applySwitches();
      if (!this.data) return;
      if (!this.state.zoom && this.hasFetchedMuch()) this.showUnfetched();
      else this.drawTree();
    }

    applySwitches() {
      const { view, rootOnTop, fold, frames, colour, by } = this.state;
      this.framesSelect.value = frames;
      this.colourSelect.value = colour;
      this.bySelect.value = by;
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

    showStatus(node) {
      const at = node ?? this.zoomedNode;
      if (!at) {
        const isTouched = matchMedia("(pointer: coarse)").matches;
        this.status.textContent = isTouched ? "Tap a frame for its details, rest on it for its menu" : "Click a frame to zoom · / search · Esc back · ? keys";
        return;
      }
      const { fn, value, sides } = at;
      const { number, name } = this.flame.measure;
      const what = this.comparison ? this.comparison.beforeAfter(sides) : `${number(value)} ${name(value)}, ${format.share(value, this.tree.value)}`;
      const text = [fn.name, fn.module, what];
      this.status.textContent = (node ? "" : "Zoomed: ") + text.filter(Boolean).join(" · ");
    }

    escape() {
      if (this.state.sandwich) this.showCallersOf("");
      else this.flame.resetZoom();
    }
  }

  jvmprof.ProfileView = ProfileView;
})(globalThis.jvmprof);
