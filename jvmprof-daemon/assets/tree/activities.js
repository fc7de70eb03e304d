// What JVMs' samples were taken in and by which kind of thread (profile/jvm_activity.rs), by the
// node in which they end: sums, the data of some of it alone, and the data by kinds of threads.
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
  const ACTIVITY_BITS = 4;

  /// What a number of the data stands for: an activity, and a kind of thread (-1: of no JVM).
  const activityOf = (jvmprof.activityOf = (number) => number & ((1 << ACTIVITY_BITS) - 1));
  const threadKindOf = (jvmprof.threadKindOf = (number) => (activityOf(number) === OTHER ? -1 : number >> ACTIVITY_BITS));

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

  /// The data with only the samples of these activities and kinds of threads; null: of all. Lines
  /// and ways of running stay where all of a node's samples do.
  jvmprof.ofActivities = function (data, activities, threadKinds = null) {
    const { nodes } = data;
    if ((!activities && !threadKinds) || !nodes.activity?.length) return data;
    const kept = (rows, total) => {
      if (!total || !rows) return {};
      const left = new Array(total.length).fill(0);
      const column = jvmprof.ownSamples(nodes.parent, total).map((own, node) => {
        const row = [];
        each(rows[node], own, (number, count) => jvmprof.isSampledIn(number, activities, threadKinds) && row.push(number, count));
        for (let at = 1; at < row.length; at += 2) left[node] += row[at];
        return row;
      });
      for (let node = left.length - 1; node > 0; node--) left[nodes.parent[node]] += left[node];
      return { column, left };
    };
    const main = kept(nodes.activity, nodes.total);
    const base = kept(nodes.base_activity, nodes.base);
    const same = (node) => main.left[node] === nodes.total[node];
    const changed = {
      ...nodes,
      total: main.left,
      activity: main.column,
      ...(base.left && { base: base.left, base_activity: base.column }),
      lines: nodes.lines.map((lines, node) => (same(node) ? lines : [])),
      how: nodes.how?.map((how, node) => (same(node) ? how : [])),
    };
    return { ...data, nodes: changed, total: main.left[0], ...(base.left && { base: base.left[0] }) };
  };

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
  const NO_THREAD_KIND = { name: "(no thread_kind)", kinds: new Set([-1, 0]) };
  const THREAD_GROUPS = [...jvmprof.THREAD_KINDS.slice(1).map(({ key }, index) => ({ name: key, kinds: new Set([index + 1]) })), NO_THREAD_KIND];

  /// Whether the data says of some samples by which kind of thread they were taken.
  jvmprof.hasThreadKinds = function (data) {
    const samples = jvmprof.threadKindSamples(data);
    return [samples?.main, samples?.base].some((counts) => counts?.slice(1).some((count) => count > 0));
  };

  const NUMBERS = ["total", "base"];
  const ACTIVITIES = ["activity", "base_activity"];
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

    appendGroup(name) {
      const [text, nothing] = [this.strings.push(name) - 1, this.strings.push("") - 1];
      const label = { kind: jvmprof.KINDS.indexOf("label"), name: text, file: nothing, module: nothing };
      for (const [of, column] of Object.entries(this.functions)) column.push(label[of]);
      return this.append(0, this.functions.kind.length - 1);
    }

    /// Adds what a node of other data has in these columns.
    add(node, { nodes }, index, columns = [...NUMBERS, ...COUNTS]) {
      for (const name of columns.filter((it) => this.nodes[it])) {
        if (NUMBERS.includes(name)) this.nodes[name][node] += nodes[name][index];
        else jvmprof.addCounts(this.nodes[name][node], nodes[name][index]);
      }
    }
  }

  /// Puts the stacks of data below a group of a tree; returns the nodes that its nodes became, -1
  /// for those without samples. Other groups are left out.
  function addBelow(tree, group, data) {
    const { parent, function: functionOf, total, base } = data.nodes;
    const { kind } = data.functions;
    const place = new Int32Array(parent.length).fill(-1);
    const known = new Map();
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
      const key = above * kind.length + functionOf[i];
      if (!known.has(key)) known.set(key, tree.append(above, functionOf[i]));
      place[i] = known.get(key);
      tree.add(place[i], data, i);
    }
    return place;
  }

  /// The data with a group for each kind of thread instead of its other groups, and the nodes that
  /// its nodes became: `{data, nodeOf(node, number)}`, the latter for samples with this number that
  /// end in a node. Lines and ways of running stay where all of a node's samples are of one kind.
  jvmprof.byThreadKind = function (data) {
    const tree = new RegroupedTree(data);
    tree.append(0, data.nodes.function[0]);
    tree.add(0, data, 0, NUMBERS);
    const places = new Map();
    for (const { name, kinds } of THREAD_GROUPS) {
      const part = jvmprof.ofActivities(data, null, kinds);
      if (part.total <= 0 && !(part.base > 0)) continue;
      const place = addBelow(tree, tree.appendGroup(name), part);
      for (const kind of kinds) places.set(kind, place);
    }
    const nodeOf = (node, number) => Math.max(0, places.get(threadKindOf(number))?.[node] ?? 0);
    return { data: { ...data, ...tree }, nodeOf };
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
