// What JVMs' samples were taken in (profile/jvm_activity.rs), by the node in which they end: sums,
// and the data of some of it alone.
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

  const COUNT = jvmprof.ACTIVITIES.length;

  /// Hands `take(activity, samples)` what a row of the column says of `own` samples that end in a
  /// node: an activity that is that of all of them, or pairs.
  function each(row, own, take) {
    if (own <= 0) return;
    if (row.length === 1) take(row[0], own);
    for (let at = 0; at + 1 < row.length; at += 2) take(row[at], row[at + 1]);
  }

  /// Samples by activity, `[activity -> samples]`, of the data and of its base; null where nothing
  /// is known of a JVM.
  jvmprof.activitySamples = function ({ nodes }) {
    if (!nodes.activity?.length) return null;
    const sums = (rows, total) => {
      const all = new Array(COUNT).fill(0);
      const own = total && rows ? jvmprof.ownSamples(nodes.parent, total) : [];
      own.forEach((samples, node) => each(rows[node], samples, (activity, count) => (all[activity] += count)));
      return all;
    };
    return { main: sums(nodes.activity, nodes.total), base: nodes.base ? sums(nodes.base_activity, nodes.base) : null };
  };

  /// The activities that edits choose, as a set of numbers; null for all.
  jvmprof.chosenActivities = function (edits) {
    const keys = edits.filter(({ kind }) => kind === "activity").map(({ what }) => what);
    return keys.length ? new Set(keys.map((key) => jvmprof.ACTIVITIES.findIndex((of) => of.key === key))) : null;
  };

  /// The data with only the samples of these activities. Lines and ways of running stay where all
  /// of a node's samples do.
  jvmprof.ofActivities = function (data, chosen) {
    const { nodes } = data;
    if (!chosen || !nodes.activity?.length) return data;
    const kept = (rows, total) => {
      if (!total || !rows) return {};
      const left = new Array(total.length).fill(0);
      const column = jvmprof.ownSamples(nodes.parent, total).map((own, node) => {
        const row = [];
        each(rows[node], own, (activity, count) => chosen.has(activity) && row.push(activity, count));
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

  /// What of a cut node comes back when the part `[activity -> samples]` of it is drawn by itself.
  jvmprof.withoutPart = function (row, part) {
    if (row.length < 2) return row;
    const rest = row.slice();
    for (let at = 0; at < rest.length; at += 2) rest[at + 1] = Math.max(0, rest[at + 1] - part[rest[at]]);
    return rest;
  };

  /// Samples by activity with callees, a row of numbers for each node.
  jvmprof.activitiesBelow = function (parent, total, rows) {
    const below = parent.map(() => new Array(COUNT).fill(0));
    if (!total || !rows?.length) return below;
    jvmprof.ownSamples(parent, total).forEach((own, node) => each(rows[node], own, (activity, count) => (below[node][activity] += count)));
    for (let node = parent.length - 1; node > 0; node--) below[node].forEach((count, activity) => (below[parent[node]][activity] += count));
    return below;
  };
})(globalThis.jvmprof);
