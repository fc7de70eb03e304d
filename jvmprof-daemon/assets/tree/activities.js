// What JVMs' samples were taken in, by which kind of thread and of which process
// (profile/jvm_activity.rs), by the node in which they end: sums, the data of some of it alone, and
// the data by kinds of threads or by processes.
"use strict";

(function (jvmprof) {
  /// By the number that stands for it in the data; `says` is what belongs to it.
  jvmprof.ACTIVITIES = [
    { key: "application", name: "Application", says: "Java code of the application and its libraries" },
    { key: "gc", name: "GC", says: "The collector's threads, its pauses, and its barriers in Java threads" },
    { key: "compiler", name: "Compilers", says: "Threads of C1, C2 and JVMCI compilers" },
    { key: "vm", name: "VM operations", says: "VM operations, safepoints, and the JVM's other threads" },
    { key: "class-loading", name: "Class loading", says: "Loading, verifying and linking of classes in Java threads" },
    { key: "kernel", name: "Kernel for Java", says: "The kernel on behalf of Java threads" },
    { key: "native", name: "Native code", says: "Native code that Java threads call, the JVM's own included, and threads of native code" },
    { key: "unknown", name: "Unknown", says: "Stacks that aren't whole, threads of an unknown kind, code without a name" },
    { key: "other", name: "Other processes", says: "Processes that are no JVMs" },
  ];

  /// The same of the kinds of JVMs' threads, which are the values of the label `thread_kind`.
  jvmprof.THREAD_KINDS = [
    { key: "unknown", says: "Threads of which the kind isn't known" },
    { key: "java", says: "Java's platform threads" },
    { key: "virtual", says: "Virtual threads that are mounted" },
    { key: "gc", says: "The collector's threads" },
    { key: "compiler", says: "Threads of C1, C2 and JVMCI compilers" },
    { key: "vm", says: "HotSpot's other threads" },
    { key: "native", says: "Threads that native code started" },
  ];

  const OTHER = jvmprof.ACTIVITIES.length - 1;
  const [ACTIVITY_BITS, THREAD_BITS] = [4, 4];
  const lowBits = (number, count) => number & ((1 << count) - 1);

  /// What a number of the data stands for: an activity, a kind of thread (-1: of no JVM), and the
  /// number of a process, where these are distinguished.
  const activityOf = (jvmprof.activityOf = (number) => lowBits(number, ACTIVITY_BITS));
  const threadKindOf = (jvmprof.threadKindOf = (number) => (activityOf(number) === OTHER ? -1 : lowBits(number >> ACTIVITY_BITS, THREAD_BITS)));
  const processOf = (number) => number >> (ACTIVITY_BITS + THREAD_BITS);

  /// Hands `take(number, samples)` what a row of the column says of `own` samples that end in a
  /// node: a number that is that of all of them, or pairs.
  function each(row, own, take) {
    if (own <= 0) return;
    if (row.length === 1) take(row[0], own);
    for (let at = 0; at + 1 < row.length; at += 2) take(row[at], row[at + 1]);
  }

  /// Samples by activity or by kind of thread, `[index -> samples]`, of the data and of its base;
  /// null where nothing is known of a JVM. `indexOf(number)` is below `count`, or -1.
  function samplesBy(count, indexOf, { nodes, unfiltered }) {
    if (unfiltered) return unfilteredBy(count, indexOf, unfiltered, Boolean(nodes.base));
    if (!nodes.activity?.length) return null;
    const sums = (rows, total) => {
      const all = new Array(count).fill(0);
      const add = (number, samples) => (all[indexOf(number)] += samples);
      const own = total && rows ? jvmprof.ownSamples(nodes.parent, total) : [];
      own.forEach((samples, node) => each(rows[node], samples, (number, of) => indexOf(number) >= 0 && add(number, of)));
      return all;
    };
    return { main: sums(nodes.activity, nodes.total), base: nodes.base ? sums(nodes.base_activity, nodes.base) : null };
  }

  /// The same of data of which only chosen ones are there, and that says how many there were:
  /// `[[number, [samples, samples of the base]], ...]`.
  function unfilteredBy(count, indexOf, unfiltered, hasBase) {
    const sums = (side) => {
      const all = new Array(count).fill(0);
      for (const [number, counts] of unfiltered) if (indexOf(number) >= 0) all[indexOf(number)] += counts[side];
      return all;
    };
    return { main: sums(0), base: hasBase ? sums(1) : null };
  }

  jvmprof.activitySamples = (data) => samplesBy(jvmprof.ACTIVITIES.length, activityOf, data);
  jvmprof.threadKindSamples = (data) => samplesBy(jvmprof.THREAD_KINDS.length, threadKindOf, data);

  /// Those of `all` that edits of a kind choose, as a set of indices; null for all.
  function chosenOf(all, wanted, edits) {
    const keys = edits.filter(({ kind }) => kind === wanted).map(({ what }) => what);
    return keys.length ? new Set(keys.map((key) => all.findIndex((of) => of.key === key))) : null;
  }

  jvmprof.chosenActivities = (edits) => chosenOf(jvmprof.ACTIVITIES, "activity", edits);
  jvmprof.chosenThreadKinds = (edits) => chosenOf(jvmprof.THREAD_KINDS, "thread", edits);

  /// Whether samples with this number are of these activities and kinds of threads.
  jvmprof.isSampledIn = (number, activities, threadKinds) =>
    (activities?.has(activityOf(number)) ?? true) && (threadKinds?.has(threadKindOf(number)) ?? true);

  /// The data with only the samples of these activities and kinds of threads; null: of all.
  jvmprof.ofActivities = function (data, activities, threadKinds = null) {
    if ((!activities && !threadKinds) || !data.nodes.activity?.length) return data;
    return ofNumbers(data, (number) => jvmprof.isSampledIn(number, activities, threadKinds));
  };

  /// The column with the numbers of samples: that of their processes where nothing else is known.
  const numbersColumn = ({ nodes }) => ["activity", "process"].find((name) => nodes[name]?.length);

  /// The data with only the samples whose numbers `isKept` keeps. Lines and ways of running stay
  /// where all of a node's samples do.
  function ofNumbers(data, isKept) {
    const { nodes } = data;
    const name = numbersColumn(data);
    const kept = (rows, total) => {
      if (!total || !rows) return {};
      const left = new Array(total.length).fill(0);
      const column = jvmprof.ownSamples(nodes.parent, total).map((own, node) => {
        const row = [];
        each(rows[node], own, (number, count) => isKept(number) && row.push(number, count));
        for (let at = 1; at < row.length; at += 2) left[node] += row[at];
        return row;
      });
      for (let node = left.length - 1; node > 0; node--) left[nodes.parent[node]] += left[node];
      return { column, left };
    };
    const main = kept(nodes[name], nodes.total);
    const base = kept(nodes.base_activity, nodes.base);
    const same = (node) => main.left[node] === nodes.total[node];
    const changed = {
      ...nodes,
      total: main.left,
      [name]: main.column,
      ...(base.left && { base: base.left, base_activity: base.column }),
      lines: nodes.lines.map((lines, node) => (same(node) ? lines : [])),
      how: nodes.how?.map((how, node) => (same(node) ? how : [])),
    };
    return { ...data, nodes: changed, total: main.left[0], ...(base.left && { base: base.left[0] }) };
  }

  /// Samples of these kinds of threads in each of `count` steps, `{samples, activities}`, of rows
  /// `{number, samples}`: of all activities, and of each.
  jvmprof.threadTimeline = function (rows, threadKinds, count) {
    const activities = jvmprof.ACTIVITIES.map(() => new Array(count).fill(0));
    const samples = new Array(count).fill(0);
    for (const row of rows) {
      if (!jvmprof.isSampledIn(row.number, null, threadKinds)) continue;
      row.samples.forEach((of, step) => {
        samples[step] += of;
        activities[activityOf(row.number)][step] += of;
      });
    }
    return { samples, activities };
  };

  /// Groups by the kind of the thread, named as the collector names them. Of threads of other
  /// processes the kind isn't known, either.
  const NO_THREAD_KIND = { name: "(no thread_kind)", has: (number) => threadKindOf(number) <= 0 };
  const THREAD_GROUPS = [...jvmprof.THREAD_KINDS.slice(1).map(({ key }, index) => ({ name: key, has: (number) => threadKindOf(number) === index + 1 })), NO_THREAD_KIND];

  /// Whether the data says of some samples by which kind of thread they were taken.
  jvmprof.hasThreadKinds = function (data) {
    const samples = jvmprof.threadKindSamples(data);
    return [samples?.main, samples?.base].some((counts) => counts?.slice(1).some((count) => count > 0));
  };

  /// Whether the data says of some samples of which process they are.
  jvmprof.hasProcesses = (data) => numbersColumn(data) !== undefined;

  /// Nodes that are kept of data with other groups than its own: each group may have as many as all
  /// had.
  const MOST_NODES = 60_000;

  const NUMBERS = ["total", "base"];
  const ACTIVITIES = ["activity", "base_activity", "process"];
  const COUNTS = ["lines", "how", ...ACTIVITIES];

  /// A tree that is made of nodes of another one, with the columns that this one has.
  class RegroupedTree {
    constructor({ strings, functions, nodes }) {
      this.strings = strings.slice();
      this.functions = Object.fromEntries(Object.entries(functions).map(([name, column]) => [name, column.slice()]));
      this.nodes = Object.fromEntries(["parent", "function", ...NUMBERS, ...COUNTS].filter((name) => nodes[name]).map((name) => [name, []]));
    }

    /// Appends a node without samples.
    append(parent, fn) {
      const empty = { parent, function: fn, total: 0, base: 0 };
      for (const [name, column] of Object.entries(this.nodes)) column.push(empty[name] ?? []);
      return this.nodes.parent.length - 1;
    }

    appendFunction(kind, name) {
      const [text, nothing] = [this.strings.push(name) - 1, this.strings.push("") - 1];
      const fn = { kind: jvmprof.KINDS.indexOf(kind), name: text, file: nothing, module: nothing };
      for (const [of, column] of Object.entries(this.functions)) column.push(fn[of]);
      return this.functions.kind.length - 1;
    }

    appendGroup(name) {
      return this.append(0, this.appendFunction("label", name));
    }

    /// The function of nodes that have what was cut.
    get pruned() {
      const known = this.functions.kind.indexOf(jvmprof.KINDS.indexOf("pruned"));
      return known < 0 ? this.appendFunction("pruned", "[pruned]") : known;
    }

    /// Adds what a node of other data has in these columns.
    add(node, { nodes }, index, columns = [...NUMBERS, ...COUNTS]) {
      for (const name of columns.filter((it) => this.nodes[it])) {
        if (NUMBERS.includes(name)) this.nodes[name][node] += nodes[name][index];
        else jvmprof.addCounts(this.nodes[name][node], nodes[name][index]);
      }
    }
  }

  /// The samples above which a node is kept, so that there are at most so many in all groups.
  function mostCut(data, groups, most) {
    const { parent, total } = data.nodes;
    const rows = data.nodes[numbersColumn(data)];
    const totals = groups.map(() => new Float64Array(parent.length));
    const add = (node) => (number, samples) => (totals[groups.findIndex(({ has }) => has(number))][node] += samples);
    jvmprof.ownSamples(parent, total).forEach((own, node) => each(rows[node], own, add(node)));
    for (const of of totals) for (let node = parent.length - 1; node > 0; node--) of[parent[node]] += of[node];
    const all = totals.flatMap((of) => [...of.filter((samples) => samples > 0)]);
    return all.length > most ? Float64Array.from(all).sort()[all.length - most - 1] : 0;
  }

  /// Puts the stacks of data below a group of a tree; returns the nodes that its nodes became, -1
  /// for those without samples. Other groups are left out, and nodes with at most `cut` samples are
  /// one with their siblings.
  function addBelow(tree, group, data, cut) {
    const { parent, function: functionOf, total, base } = data.nodes;
    const { kind } = data.functions;
    const place = new Int32Array(parent.length).fill(-1);
    const known = new Map();
    const nodeBelow = (above, fn) => {
      if (!known.has(above)) known.set(above, new Map());
      const below = known.get(above);
      if (!below.has(fn)) below.set(fn, tree.append(above, fn));
      return below.get(fn);
    };
    const { pruned } = cut > 0 ? tree : {};
    place[0] = group;
    tree.add(group, data, 0);
    for (let i = 1; i < parent.length; i++) {
      if (total[i] <= 0 && !(base?.[i] > 0)) continue;
      const above = place[parent[i]];
      if (jvmprof.KINDS[kind[functionOf[i]]] === "label") {
        place[i] = above;
        tree.add(above, data, i, ACTIVITIES);
        continue;
      }
      const isCut = cut > 0 && total[i] <= cut;
      const isBelowCut = isCut && tree.nodes.function[above] === pruned;
      place[i] = isBelowCut ? above : nodeBelow(above, isCut ? pruned : functionOf[i]);
      if (isCut) tree.add(place[i], data, i, isBelowCut ? ACTIVITIES : [...NUMBERS, ...ACTIVITIES]);
      else tree.add(place[i], data, i);
    }
    return place;
  }

  /// The data with these groups, `{name, has(number)}`, instead of its own, and the nodes that its
  /// nodes became: `{data, nodeOf(node, number)}`, the latter for samples with this number that end
  /// in a node. Lines and ways of running stay where all of a node's samples are of one group.
  function regrouped(data, groups, most) {
    const cut = data.nodes.base ? 0 : mostCut(data, groups, most);
    const tree = new RegroupedTree(data);
    tree.append(0, data.nodes.function[0]);
    tree.add(0, data, 0, NUMBERS);
    const places = groups.map(({ name, has }) => {
      const part = ofNumbers(data, has);
      const isEmpty = part.total <= 0 && !(part.base > 0);
      return isEmpty ? null : addBelow(tree, tree.appendGroup(name), part, cut);
    });
    const placeOf = (number) => places[groups.findIndex(({ has }) => has(number))];
    return { data: { ...data, ...tree }, nodeOf: (node, number) => Math.max(0, placeOf(number)?.[node] ?? 0) };
  }

  /// The data with a group for each kind of thread, see `regrouped`.
  jvmprof.byThreadKind = (data, most = MOST_NODES) => regrouped(data, THREAD_GROUPS, most);

  /// The data with a group for each process; `names`: theirs, from the number 1 on.
  jvmprof.byProcess = function (data, names, most = MOST_NODES) {
    const groups = ["(no process)", ...names].map((name, process) => ({ name, has: (number) => processOf(number) === process }));
    return regrouped(data, groups, most);
  };

  /// What of a cut node comes back when a part of it is drawn by itself: rows of both, and of what
  /// is left.
  jvmprof.withoutPart = function (row, part) {
    if (row.length < 2) return row;
    const rest = row.slice();
    for (let at = 0; at < rest.length; at += 2) {
      const of = part.findIndex((number, index) => index % 2 === 0 && number === rest[at]);
      if (of >= 0) rest[at + 1] = Math.max(0, rest[at + 1] - part[of + 1]);
    }
    return rest;
  };

  /// What samples with callees were taken in: a row of pairs for each node.
  jvmprof.activitiesBelow = function (parent, total, rows) {
    const below = parent.map(() => []);
    if (!total || !rows?.length) return below;
    const own = jvmprof.ownSamples(parent, total);
    own.forEach((samples, node) => each(rows[node], samples, (...pair) => jvmprof.addCounts(below[node], pair)));
    for (let node = parent.length - 1; node > 0; node--) jvmprof.addCounts(below[parent[node]], below[node]);
    return below;
  };
})(globalThis.jvmprof);
