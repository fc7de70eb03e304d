// The page of one recorded file: the data stands in the page itself, what the user chose in the
// address behind the `#`.
"use strict";

(function (jvmprof) {
  const { element, format } = jvmprof;

  let data;

  /// What is counted, the profile's own default, or what the address says.
  function chosenType(name) {
    return data.types.find((type) => type.name === name) ?? data.types[0];
  }

  /// Those that can be chosen beside the one that the file has.
  const [PROCESS, THREAD_KIND] = ["process", "thread_kind"];

  const chosenGroup = (query) => [PROCESS, THREAD_KIND].find((group) => group === query.get("group")) ?? "";

  /// What stands below the root of a tree as the file has it.
  function groupsOf({ functions }) {
    const hasGroups = functions.kind.some((kind) => jvmprof.KINDS[kind] === "label");
    return !hasGroups ? "nothing" : data.groups === "threads" ? "thread" : "program";
  }

  const hasProcesses = () => data.process_count > 1;

  /// What a process's group is chosen by. Of many processes it isn't known which stacks each has.
  function processOption() {
    if (data.processes?.length) return element("option", { value: PROCESS }, "process");
    const text = `process (${format.count(data.process_count)} are too many)`;
    return element("option", { value: PROCESS, disabled: true }, text);
  }

  function describe({ unit, period_ns: period }) {
    if (unit === "bytes" || unit === "objects") return `allocation, a stack each ${format.bytes(period)}`;
    if (unit === "waiting_time") return `waits, a stack each ${format.duration(period)}`;
    if (unit === "lock_time" || unit === "contentions") return "contended locks";
    if (unit === "wall_time") return "all time of threads, on the CPU and off it";
    return `${format.duration(period)} of CPU time a sample`;
  }

  /// What the head says of what was recorded, or of each side of a comparison.
  function facts(type) {
    const { host, start_ms: start, base_start_ms: baseStart, duration_ns: duration } = data;
    if (!type.sides) return [host, format.time(start), format.duration(duration), describe(type)];
    // Other tools' profiles may not say when they were taken.
    const side = (name, from, { duration_ns: length }) =>
      `${name} ${from > 0 ? format.times(from, from + length / 1e6) : format.duration(length)}`;
    const [before, after] = type.sides;
    return [host, side("before", baseStart, before), side("after", start, after)];
  }

  class Page {
    constructor() {
      this.times = data.times.map((of) => (of.nodes.length ? new jvmprof.SampleTimes(of) : null));
      const query = this.query();
      this.type = chosenType(query.get("type"));
      this.viewState = jvmprof.readViewState(query);
      const when = this.type.sides ? "" : format.time(data.start_ms);
      document.title = [data.title, data.host, when, "jvmprof"].filter(Boolean).join(" · ");
      const subtitle = element("span.subtitle", {});
      this.describe = () => {
        const said = facts(this.type).filter(Boolean);
        subtitle.title = said.join(" · ");
        subtitle.classList.toggle("sides", Boolean(this.type.sides));
        const sides = () => said.map((text) => element("span", {}, text));
        subtitle.replaceChildren(...(this.type.sides ? sides() : [subtitle.title]));
      };
      this.types = element("select.tool.wide", { "aria-label": "What is counted", onchange: () => this.choose(this.types.value) });
      for (const { name } of data.types) this.types.append(element("option", { value: name }, jvmprof.typeName(name)));
      this.types.value = this.type.name;
      this.group = chosenGroup(query);
      this.groups = element("select", { "aria-label": "Group by", onchange: () => this.chooseGroup(this.groups.value) });
      this.kindOption = element("option", { value: THREAD_KIND }, "kind of thread");
      this.groups.append(element("option", { value: "" }), ...(hasProcesses() ? [processOption()] : []), this.kindOption);
      this.groupTool = element("label.select", { title: "A node for each, below the root" }, "Group by", this.groups);
      this.regrouped = new Map();
      document
        .getElementById("header")
        .append(
          element("h1.brand", {}, "jvmprof"),
          element("span.title", { title: data.title }, data.title),
          subtitle,
          element("span.spacer"),
          this.groupTool,
          this.types,
          jvmprof.helpButton(),
          jvmprof.theme.button(),
        );
      const app = document.getElementById("app");
      this.holder = element("div.view");
      this.empty = element("div.empty", { hidden: true });
      app.append(this.holder, this.empty);
      jvmprof.view = new jvmprof.ProfileView(this.holder, {
        state: this.viewState,
        onState: (changes, asNewEntry) => {
          Object.assign(this.viewState, changes);
          this.writeAddress(asNewEntry);
        },
      });
      addEventListener("hashchange", () => this.goTo());
      this.show();
    }

    query() {
      return new URLSearchParams(location.hash.slice(1));
    }

    /// What was taken out of the profile can be gone back from.
    writeAddress(asNewEntry = false) {
      const query = new URLSearchParams();
      if (this.type !== data.types[0]) query.set("type", this.type.name);
      if (this.group) query.set("group", this.group);
      jvmprof.writeViewState(query, this.viewState);
      const text = String(query);
      // Where a browser keeps files from doing that, the page works without an address.
      try {
        const to = text ? `#${text}` : location.pathname + location.search;
        if (asNewEntry) history.pushState(null, "", to);
        else history.replaceState(null, "", to);
      } catch {
        return;
      }
    }

    /// The address was changed by hand.
    goTo() {
      const query = this.query();
      this.viewState = jvmprof.readViewState(query);
      this.type = chosenType(query.get("type"));
      this.types.value = this.type.name;
      this.group = chosenGroup(query);
      jvmprof.view.applyState(this.viewState);
      this.show();
    }

    choose(name) {
      this.type = chosenType(name);
      this.writeAddress();
      this.show();
    }

    /// A frame of other groups isn't there any more to be zoomed to.
    chooseGroup(group) {
      this.group = group;
      this.viewState = { ...this.viewState, zoom: "" };
      this.writeAddress(true);
      jvmprof.view.applyState(this.viewState);
      this.show();
    }

    /// The tree of what is counted and its samples' times, by process or kind of thread if that is
    /// chosen and known of it.
    grouped() {
      const at = this.type.tree;
      const [tree, times] = [data.trees[at], this.times[at] ?? null];
      const hasKinds = jvmprof.hasThreadKinds(tree);
      const isKnown = { [PROCESS]: data.processes?.length > 0 && jvmprof.hasProcesses(tree), [THREAD_KIND]: hasKinds };
      const group = isKnown[this.group] ? this.group : "";
      this.groupTool.hidden = !hasKinds && !hasProcesses();
      Object.assign(this.kindOption, { hidden: !hasKinds, disabled: !hasKinds });
      this.groups.value = group;
      this.groups.options[0].textContent = groupsOf(tree);
      if (!group) return { tree, times, ofThreads: data.groups === "threads" };
      const key = `${group} ${at}`;
      if (!this.regrouped.has(key)) {
        const isByProcess = group === PROCESS;
        const { data: by, nodeOf } = isByProcess ? jvmprof.byProcess(tree, data.processes) : jvmprof.byThreadKind(tree);
        this.regrouped.set(key, { tree: by, times: times?.movedTo(nodeOf) ?? null, ofThreads: !isByProcess });
      }
      return this.regrouped.get(key);
    }

    show() {
      this.describe();
      const { tree, times, ofThreads } = this.grouped();
      const isEmpty = tree.total + (tree.base ?? 0) === 0;
      this.holder.hidden = isEmpty;
      this.empty.hidden = !isEmpty;
      const { sides, unit } = this.type;
      if (!isEmpty) jvmprof.view.show(tree, jvmprof.measure(unit, this.type.period_ns), {
          sides,
          unit,
          times,
          ofThreads,
          isOneProcess: !hasProcesses(),
          durationMs: data.duration_ns / 1e6,
          periodNs: this.type.period_ns,
          pauses: data.pauses ?? [],
        });
      else this.showEmpty();
    }

    showEmpty() {
      const { unit } = this.type;
      const reason = unit === "lock_time" || unit === "contentions"
        ? "No thread of a JVM waited for a lock for long enough while it was recorded: --offcpu-min says how long that is."
        : unit === "waiting_time"
        ? "None of the profiled threads waited for long enough while it was recorded: --offcpu-min says how long that is."
        : unit === "bytes" || unit === "objects"
        ? "No JVM allocated among the profiled processes while it was recorded, or none whose allocations can be seen: jvmprof doctor says which."
        : "None of the profiled processes ran on a CPU while it was recorded. Record for longer, or while there is load.";
      this.empty.replaceChildren(element("h2", {}, "No samples"), element("p", {}, reason));
    }
  }

  globalThis.unpackElement("profile").then((text) => {
    data = JSON.parse(text);
    data.trees.forEach(jvmprof.unpackTree);
    jvmprof.page = new Page();
  });
})(globalThis.jvmprof);
