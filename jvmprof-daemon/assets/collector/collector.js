// The collector's page: what is chosen stands in the address, what was chosen is fetched and shown.
"use strict";

(function (jvmprof) {
  const { ask, element, format, icon } = jvmprof;

  const DEFAULTS = { range: "15m", group: "auto", type: "", refresh: 0, matches: [], base: null, baseMatches: null, heat: "", wrong: [] };
  /// What profiles can count beside samples of CPU time, by series and sample type.
  const SERIES_TYPES = [
    "process_cpu:cpu",
    "memory:alloc_space",
    "memory:alloc_objects",
    "off_cpu:off_cpu",
    "off_cpu:waits",
    "mutex:delay",
    "mutex:contentions",
    "mutex_holders:caused_delay",
    "mutex_holders:caused_contentions",
    "jvm_pauses:pause",
    "jvm_pauses:pauses",
    "wall:wall",
  ];
  const TYPES = { "": jvmprof.typeName("samples") };
  for (const type of SERIES_TYPES) TYPES[type] = jvmprof.typeName(type.split(":")[1]);
  /// CPU time is pushed as samples alone.
  const CPU_TIME = "process_cpu:cpu";
  /// How long an answer waits for the timeline of the chosen kinds of threads, and for what edits
  /// leave: drawn at once, it doesn't flicker.
  const SOON = 1_000;

  // The address

  function conditions(texts) {
    return texts.flatMap((text) => {
      const [, label, not, value] = /^([^=!]+)(!?)=(.*)$/s.exec(text) ?? [];
      return label ? [{ label, value, not: not === "!" }] : [];
    });
  }

  const conditionText = ({ label, value, not }) => `${label}${not ? "!" : ""}=${value}`;

  function readAddress() {
    const query = new URLSearchParams(location.search);
    const state = { ...DEFAULTS, wrong: [] };
    const wrong = (name) => state.wrong.push(`${name}=${query.get(name)}`);
    const [from, to] = [Number(query.get("from")), Number(query.get("to"))];
    if (from > 0 && to > from) Object.assign(state, { range: null, from, to });
    else if (query.has("from") || query.has("to")) wrong(query.has("from") ? "from" : "to");
    else if (jvmprof.rangeLength(query.get("range") ?? DEFAULTS.range)) state.range = query.get("range") ?? DEFAULTS.range;
    else wrong("range");
    state.group = query.get("group") ?? DEFAULTS.group;
    if (Object.hasOwn(TYPES, query.get("type") ?? "")) state.type = query.get("type") ?? "";
    else wrong("type");
    state.refresh = [10, 30, 60].find((seconds) => seconds === Number(query.get("refresh"))) ?? 0;
    if (Object.hasOwn(jvmprof.HEATS, query.get("timeline") ?? "")) state.heat = query.get("timeline") ?? "";
    else wrong("timeline");
    state.matches = conditions(query.getAll("match"));
    state.base = jvmprof.parseBase(query.get("base"));
    if (query.has("base") && !state.base) wrong("base");
    state.baseMatches = query.has("base_match") ? conditions(query.getAll("base_match").filter(Boolean)) : null;
    const view = jvmprof.readViewState(query);
    // A part is one of a time that doesn't move.
    if (state.range || state.heat !== jvmprof.SECONDS) view.part = view.basePart = null;
    return [state, view];
  }

  function selectionQuery(state) {
    const [from, to] = jvmprof.bounds(state);
    const query = new URLSearchParams({ from: String(Math.floor(from)), to: String(Math.ceil(to)) });
    for (const match of state.matches) query.append("match", conditionText(match));
    if (state.group) query.set("group", state.group);
    if (state.type && state.type !== CPU_TIME) query.set("type", state.type);
    return query;
  }

  /// The query of the time and labels that are compared with.
  function baseQuery(state) {
    const [from, to] = jvmprof.baseBounds(state.base, jvmprof.bounds(state));
    return selectionQuery({ ...state, range: null, from, to, matches: state.baseMatches ?? state.matches });
  }

  /// The query of both.
  function comparedQuery(state) {
    const query = selectionQuery(state);
    if (!state.base) return query;
    for (const [name, value] of baseQuery(state)) if (["from", "to", "match"].includes(name)) query.append(`base_${name}`, value);
    return query;
  }

  function address(state, view) {
    const query = selectionQuery(state);
    if (state.range) {
      query.delete("from");
      query.delete("to");
      query.set("range", state.range);
    }
    query.delete("group");
    if (state.group !== DEFAULTS.group) query.set("group", state.group);
    if (state.type) query.set("type", state.type);
    if (state.base) query.set("base", jvmprof.baseText(state.base));
    // Without any condition, the base has none; without the parameter, those of the other side.
    if (state.base && state.baseMatches) for (const text of state.baseMatches.length ? state.baseMatches.map(conditionText) : [""]) query.append("base_match", text);
    if (state.heat) query.set("timeline", state.heat);
    if (state.refresh) query.set("refresh", String(state.refresh));
    jvmprof.writeViewState(query, view);
    return `?${query}`;
  }

  /// What of a state the collector is asked for, as text: how it is looked at isn't in it.
  const askedFor = (state) => {
    const heat = state.heat === jvmprof.SECONDS ? state.heat : "";
    return address({ ...state, heat, refresh: 0 }, {});
  };

  class Page {
    constructor() {
      [this.state, this.viewState] = readAddress();
      this.message = document.getElementById("message");
      this.app = document.getElementById("app");
      this.time = new jvmprof.TimeControls(this.state, (changes) => this.change(changes));
      this.types = element("select.tool.wide", { "aria-label": "What is counted", onchange: () => this.change({ type: this.types.value }) });
      for (const [type, name] of Object.entries(TYPES)) this.types.append(element("option", { value: type }, name));
      this.types.value = this.state.type;
      this.compare = new jvmprof.CompareControls(document.getElementById("base"), this.state, (changes) => this.change(changes));
      this.download = element("a.tool.wide", { title: "Download what is shown as one pprof file, for go tool pprof" }, icon("download"), element("span.tool-text", {}, "pprof"));
      document
        .getElementById("header")
        .append(
          element("h1.brand", {}, "jvmprof"),
          this.time.node,
          this.types,
          this.compare.node,
          element("span.spacer"),
          this.download,
          jvmprof.helpButton(),
          jvmprof.theme.button(),
        );
      this.filters = new jvmprof.LabelFilters(document.getElementById("filters"), this.state, (changes) => this.change(changes));
      this.timeline = new jvmprof.Timeline(document.getElementById("timeline"), (from, to) => this.change({ from, to }));
      this.pauses = new jvmprof.PauseLane({
        clock: (ms) => this.clock(ms),
        time: (ms) => `the ${format.duration(ms * 1e6)} that its profiles cover`,
        allTime: (ms) => `the ${format.duration(ms * 1e6)} that its profiles cover in all`,
        kept: "longest",
        left: () => this.timeline.left,
      });
      this.timelineNote = element("p.notice", { role: "status", hidden: true });
      document.getElementById("timeline").after(this.pauses.node, this.timelineNote);
      this.heats = element("select", { "aria-label": "What the timeline shows", onchange: () => this.changeHeat(this.heats.value) });
      for (const [heat, name] of Object.entries(jvmprof.HEATS)) this.heats.append(element("option", { value: heat }, name));
      document.getElementById("filters").append(element("label.select", { title: "Bars of the load; a line or row for each group; a row for each part of JVMs' time" }, "Timeline", this.heats));
      this.showHeat();
      this.holder = element("div.view");
      this.empty = element("div.empty", { hidden: true });
      this.app.append(this.holder, this.empty);
      this.view = jvmprof.view = new jvmprof.ProfileView(this.holder, {
        state: this.viewState,
        onState: (changes, asNewEntry) => {
          if (changes.part) this.pin();
          Object.assign(this.viewState, changes);
          this.writeAddress(asNewEntry);
          if ("edits" in changes) this.followEdits();
          if ("part" in changes) this.showPauses();
        },
        fetchStacks: (...of) => this.fetchStacks(...of),
      });
      this.holder.hidden = true;
      addEventListener("popstate", () => this.goBack());
      document.addEventListener("visibilitychange", () => document.hidden || this.schedule());
      this.download.addEventListener("click", () => this.refreshDownload());
      this.load();
    }

    change(changes) {
      if (changes.range) this.state = { ...this.state, from: undefined, to: undefined, range: changes.range };
      else if (changes.from) this.state = { ...this.state, ...changes, range: null, refresh: 0 };
      else this.state = { ...this.state, ...changes };
      this.state.wrong = [];
      if (changes.range || changes.from) this.forgetPart();
      this.time.show(this.state);
      this.types.value = this.state.type;
      this.filters.show(this.state);
      this.compare.show(this.state);
      this.writeAddress(Object.keys(changes).length > 0);
      this.load();
    }

    /// Nothing is asked for anew, but for the times of samples.
    changeHeat(heat) {
      const changesTimes = (this.state.heat === jvmprof.SECONDS) !== (heat === jvmprof.SECONDS);
      this.state.heat = heat;
      if (changesTimes) this.forgetPart();
      this.showHeat();
      this.writeAddress(false);
      if (changesTimes) this.load();
    }

    forgetPart() {
      for (const of of [this.viewState, this.view.state]) Object.assign(of, { part: null, basePart: null });
    }

    /// Stays at the time that is shown, since a part of it was chosen.
    pin() {
      if (!this.state.range) return;
      const [from, to] = this.bounds;
      this.state = { ...this.state, from, to, range: null, refresh: 0 };
      this.time.show(this.state);
      if (document.body.classList.contains("loading")) this.load();
      else this.schedule();
    }

    showHeat() {
      this.heats.value = this.state.heat;
      this.timeline.setHeat(this.state.heat);
      this.pauses.draw();
      this.followThreads();
    }

    /// Choices of what is looked at can be gone back from; how it is looked at can't.
    writeAddress(asNewEntry) {
      const to = address(this.state, this.viewState);
      if (to === location.search) return;
      if (asNewEntry) history.pushState(null, "", to);
      else history.replaceState(null, "", to);
    }

    goBack() {
      const [state, view] = readAddress();
      const isAsked = askedFor(state) === this.asked;
      this.state = state;
      this.viewState = view;
      this.showHeat();
      this.time.show(state);
      this.types.value = state.type;
      this.filters.show(state);
      this.compare.show(state);
      this.view.applyState(view);
      this.followEdits();
      this.showPauses();
      if (!isAsked) this.load();
      else if (this.isShown) this.schedule();
    }

    refreshDownload() {
      const query = selectionQuery(this.state);
      if (this.query?.has("times")) query.set("times", "1");
      if (query.has("times") && this.viewState.part) {
        const [from, to] = this.viewState.part.map((ms) => this.bounds[0] + ms);
        for (const [name, value] of Object.entries({ from, to, times: "known" })) query.set(name, String(value));
      }
      this.download.href = `/api/pprof?${query}`;
    }

    schedule() {
      clearTimeout(this.timer);
      if (!this.state.refresh || !this.state.range) return;
      this.timer = setTimeout(() => {
        if (document.hidden) return;
        // What is still being read would be given up, and begun anew.
        if (this.view.edited.pending || this.view.through.pending) this.schedule();
        else this.load();
      }, this.state.refresh * 1000);
    }

    async load() {
      clearTimeout(this.timer);
      this.running?.abort();
      const running = (this.running = new AbortController());
      this.asked = askedFor(this.state);
      this.selection = selectionQuery(this.state);
      const query = new URLSearchParams(this.selection);
      this.bounds = ["from", "to"].map((name) => Number(query.get(name)));
      this.compare.showTimes(this.bounds);
      this.noTimes = this.state.heat === jvmprof.SECONDS ? jvmprof.whyNoTimes(this.state, this.bounds) : null;
      const byTimes = this.state.heat === jvmprof.SECONDS && !this.noTimes;
      if (byTimes) query.set("times", "1");
      this.query = byTimes ? query : comparedQuery(this.state);
      this.isShown = false;
      this.threads = this.pausesAnswer = null;
      // First: the collector reads for few at a time, and what edits leave takes longest.
      const tree = ask("/api/flamegraph", this.query, running.signal);
      const threads = this.chosenThreadKinds() ? this.askThreads() : null;
      const asked = this.askAnswered();
      const soon = (promise) => promise && Promise.race([promise, new Promise((resolve) => setTimeout(resolve, SOON))]);
      this.refreshDownload();
      document.body.classList.add("loading");
      this.app.setAttribute("aria-busy", "true");
      // Without them all else is shown.
      const pauses = ask("/api/pauses", query, running.signal).catch((error) => ({ jvms: [], more_jvms: 0, unreadable: 0, error }));
      try {
        const [timeline, labels, flame, baseLabels] = await Promise.all([
          ask("/api/timeline", query, running.signal),
          ask("/api/labels", query, running.signal),
          tree,
          this.state.base ? ask("/api/labels", baseQuery(this.state), running.signal) : [],
          soon(threads),
          soon(Promise.allSettled(asked.map(({ promise }) => promise))),
        ]);
        this.compare.filters.setLabels(baseLabels);
        this.show(timeline, labels, flame, asked);
      } catch (error) {
        if (running.signal.aborted) return;
        this.asked = null;
        this.showError(error.message);
        // What was asked for beside the tree before is asked for again.
        if (this.view.data) this.view.drawTree();
        // Timeline and labels cost little and help to choose less.
        const rest = ["/api/timeline", "/api/labels"].map((path) => ask(path, query, running.signal));
        const [timeline, labels] = await Promise.allSettled(rest);
        if (timeline.value) this.timeline.show(timeline.value, this.rate(0));
        else this.timeline.clear();
        if (labels.value) this.filters.setLabels(labels.value);
      }
      if (this.running !== running) return;
      this.isShown = true;
      this.followThreads();
      const answer = await pauses;
      if (this.running !== running) return;
      this.pausesAnswer = answer;
      this.showPauses();
      document.body.classList.remove("loading");
      this.app.removeAttribute("aria-busy");
      this.schedule();
    }

    /// A time since the timeline's start as one of the day, to the millisecond.
    clock(ms) {
      const time = Math.round(this.timeline.from + ms);
      return `${format.time(time)}.${String(new Date(time).getMilliseconds()).padStart(3, "0")}`;
    }

    /// The lane of pauses, as far as the answer is there, with the part that the view shows.
    showPauses() {
      if (!this.pausesAnswer) return;
      const { jvms, more_jvms: more, unreadable, error } = this.pausesAnswer;
      const parts = [];
      if (error) parts.push(`Pauses of JVMs aren't shown: ${error.message}`);
      if (unreadable) parts.push(`${format.count(unreadable)} profiles of pauses couldn't be read`);
      const lanes = this.timeline.samples ? jvms : [];
      const part = this.holder.hidden || !this.view.times ? null : this.view.state.part;
      const span = this.timeline.to - this.timeline.from;
      this.pauses.show(lanes, { span, part, more, notice: parts.join("; ") });
    }

    edits() {
      return this.viewState.edits.map(jvmprof.parseEdit).filter(Boolean);
    }

    chosenActivities() {
      return jvmprof.chosenActivities(this.edits());
    }

    chosenThreadKinds() {
      return jvmprof.chosenThreadKinds(this.edits());
    }

    /// The timeline shows what is chosen of activities and of kinds of threads.
    followEdits() {
      this.timeline.choose(this.chosenActivities());
      this.followThreads();
    }

    /// Asks when samples were taken by which kind of thread: `{rows, unreadable}`, or `{error}`.
    async askThreads() {
      const { running } = this;
      this.threads = {};
      const answer = await ask("/api/timeline/threads", this.selection, running.signal).catch((error) => ({ error }));
      if (this.running !== running) return;
      this.threads = answer;
      this.followThreads();
    }

    /// Shows the timeline of the chosen kinds of threads alone, and says so where it is that of
    /// all. When they ran is asked for once it is wanted.
    followThreads() {
      if (!this.isShown) return;
      const kinds = this.timeline.all?.activities ? this.chosenThreadKinds() : null;
      const isOfGroups = jvmprof.isOfGroups(this.state.heat);
      if (kinds && !isOfGroups && !this.threads) this.askThreads();
      const { rows, unreadable, error } = this.threads ?? {};
      const names = this.edits().filter(({ kind }) => kind === "thread").map(({ what }) => what);
      const part = kinds && rows && !isOfGroups ? jvmprof.threadTimeline(rows, kinds, this.timeline.all.samples.length) : null;
      this.timeline.limitTo(part, ` of threads: ${names.join(", ")}`);
      let says = this.hasThreadKinds && !this.timeline.all?.activities && names.length ? "The timeline is that of all threads: which kind waited when isn't counted." : "";
      if (kinds && isOfGroups) says = "The timeline of groups is that of all threads: it counts series, which have no kinds of threads.";
      else if (kinds && error) says = `The timeline is that of all threads, since the profiles that say which kind ran when can't be read: ${error.message}`;
      else if (kinds && !rows) says = "The timeline is that of all threads until the profiles are read that say which kind ran when.";
      else if (kinds && unreadable) says = `The timeline lacks ${format.count(unreadable)} profiles that couldn't be read.`;
      this.timelineNote.textContent = says;
      this.timelineNote.hidden = !says;
    }

    /// The tree of some of the stacks of the very time that is shown, see `jvmprof.stacksQuery`.
    async fetchStacks(stacks, signal = null, query = this.shownQuery) {
      const signals = [this.running.signal, signal].filter(Boolean);
      return (await ask("/api/flamegraph", jvmprof.stacksQuery(query, stacks), AbortSignal.any(signals))).tree;
    }

    /// Asks for what the page shows beside the tree: drawn with it, it isn't less for a moment.
    askAnswered() {
      return jvmprof.answeredStacks(this.view).map(([answers, stacks]) => {
        const asked = { answers, stacks, promise: this.fetchStacks(stacks, null, this.query) };
        asked.promise.then((tree) => (asked.tree = tree), () => {});
        return asked;
      });
    }

    /// What the timeline's bars measure: `{name, of(samples, ms)}`.
    rate(periodNs) {
      if (this.state.type.startsWith("memory:")) return { name: "objects/s", of: (samples, ms) => (samples * 1000) / ms };
      if (/^(off_cpu|mutex|mutex_holders|wall):/.test(this.state.type)) return { name: "stacks/s", of: (samples, ms) => (samples * 1000) / ms };
      if (this.state.type.startsWith("jvm_pauses:")) return { name: "pauses/s", of: (samples, ms) => (samples * 1000) / ms };
      if (!periodNs) return { name: "samples/s", of: (samples, ms) => (samples * 1000) / ms };
      return { name: "CPUs", of: (samples, ms) => (samples * periodNs) / (ms * 1e6) };
    }

    /// Says which parts of the address mean nothing, and what is shown in their place.
    wrongNotice() {
      if (!this.state.wrong.length) return null;
      const parts = this.state.wrong.map((part) => `“${part}”`).join(", ");
      return [
        `The address has ${parts}, which means nothing here.`,
        "Shown is what the controls above say. A range is a number and s, m, h, d or w, such as 7d.",
      ];
    }

    show(timeline, labels, flame, asked) {
      this.shownQuery = this.query;
      const count = format.count(flame.unreadable);
      const lost = `${count} stored profiles couldn't be read and are missing here`;
      const untimed = flame.times ? jvmprof.untimedNotice(flame.times, flame.tree.total) : null;
      jvmprof.showNotices(this.message, {
        wrong: this.wrongNotice(),
        unreadable: flame.unreadable ? `${lost}; the collector's log says why.` : null,
        times: this.noTimes ?? untimed,
      });
      const hasJvm = (this.hasThreadKinds = Boolean(flame.tree.nodes.activity?.length));
      this.timeline.show(timeline, this.rate(flame.period_ns), hasJvm ? flame.activities?.samples : null, this.chosenActivities());
      this.filters.setLabels(labels);
      this.filters.series.textContent = `${format.count(flame.series)} series · ${format.count(flame.profiles)} profiles`;
      const isEmpty = flame.tree.total + (flame.tree.base ?? 0) === 0;
      this.holder.hidden = isEmpty;
      this.empty.hidden = !isEmpty;
      if (isEmpty) this.empty.replaceChildren(...jvmprof.emptyState(timeline.newest_ms, this.state, (changes) => this.change(changes)));
      else {
        const measure = jvmprof.measure(this.state.type === CPU_TIME ? "nanoseconds" : flame.unit, flame.period_ns);
        const [from, to] = this.bounds;
        this.view.show(flame.tree, measure, {
          sides: flame.sides,
          unit: flame.unit,
          mostLacking: flame.most_lacking,
          times: flame.times?.nodes.length ? new jvmprof.SampleTimes(flame.times) : null,
          durationMs: to - from,
          periodNs: flame.period_ns,
          clock: { from, text: (ms) => this.clock(ms) },
          ofThreads: this.state.group === "thread_kind",
          asked,
        });
      }
    }

    showError(text) {
      const again = element("button.button", { type: "button", onclick: () => this.load() }, "Try again");
      this.message.replaceChildren(element("p.error", { role: "alert" }, element("span", {}, text), again));
    }
  }

  jvmprof.page = new Page();
})(globalThis.jvmprof);
