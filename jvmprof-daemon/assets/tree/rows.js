// The rows of the table of functions: samples of a function's own, with those of the JVM and the
// kernel on its behalf, and all with it on the stack; by line and by how it ran.
"use strict";

(function (jvmprof) {
  const NUMBERS = ["self", "attributed", "total"];

  /// `{self, attributed, total}` of three numbers from `at` on.
  const counts = (numbers, at) => Object.fromEntries(NUMBERS.map((name, i) => [name, numbers[at + i]]));

  /// The lines of a function as the data has them: `[{line, self, attributed, total, base}]`.
  function linesOf(numbers, hasBase) {
    const stride = hasBase ? 7 : 4;
    const lines = [];
    for (let at = 0; at < numbers.length; at += stride) {
      const base = hasBase ? counts(numbers, at + 4) : null;
      lines.push({ line: numbers[at], ...counts(numbers, at + 1), base });
    }
    return lines;
  }

  /// The table's rows as the data counted them, `{fn, name, self, attributed, total, lines, how,
  /// base}`.
  jvmprof.tableRows = function ({ top }, functions) {
    return top.function.map((index, row) => ({
      fn: functions[index],
      name: functions[index].name,
      self: top.self[row],
      attributed: top.attributed?.[row] ?? top.self[row],
      total: top.total[row],
      lines: linesOf(top.lines?.[row] ?? [], Boolean(top.base)),
      how: top.how?.[row] ?? [],
      base: top.base ? { self: top.base.self[row], attributed: top.base.attributed[row], total: top.base.total[row] } : null,
    }));
  };

  /// What the time of the kernel, the JVM and native code below it is attributed to: a Java method
  /// without a name, too, but not the cause of a wait.
  const takesCallees = (jvmprof.takesCallees = (fn) => fn.kind === "java" || fn.kind === "jit" || (fn.kind === "marker" && fn.name.startsWith("[unknown")));

  /// The same of a tree as it is drawn: recursion counts once.
  jvmprof.functionRows = function (root) {
    const rows = new Map();
    const open = new Map();
    const rowOf = (fn) => {
      if (!rows.has(fn)) rows.set(fn, newRow(fn, root.sides !== undefined));
      return rows.get(fn);
    };
    const todo = [[root, true, null]];
    while (todo.length) {
      const [node, enters, near] = todo.pop();
      if (!enters) {
        open.set(node.fn, open.get(node.fn) - 1);
        continue;
      }
      const nearest = takesCallees(node.fn) ? node.fn : near;
      if (jvmprof.isCode(node.fn)) {
        count(rowOf(node.fn), node, "self", "own");
        count(rowOf(nearest ?? node.fn), node, "attributed", "own");
        if (!open.get(node.fn)) count(rowOf(node.fn), node, "total", "all");
        open.set(node.fn, (open.get(node.fn) ?? 0) + 1);
        todo.push([node, false, null]);
      }
      for (const child of node.children) todo.push([child, true, nearest]);
    }
    return [...rows.values()];
  };

  function newRow(fn, hasBase) {
    const base = hasBase ? { self: 0, attributed: 0, total: 0 } : null;
    return { fn, name: fn.name, self: 0, attributed: 0, total: 0, lines: [], how: [], base };
  }

  function count(row, node, name, which) {
    const sides = which === "own" ? (node.ownSides ?? [0, node.self]) : (node.sides ?? [0, node.value]);
    row[name] += sides[1];
    if (row.base) row.base[name] += sides[0];
  }

  /// Gives rows of a drawn tree the lines and ways of running that the whole data has of these
  /// functions; only to those with all of their samples, if it `isPart`.
  jvmprof.withLines = function (rows, whole, isPart) {
    const known = new Map(whole.map((row) => [row.fn, row]));
    for (const row of rows) {
      const all = known.get(row.fn);
      if (!all || (isPart && (all.attributed !== row.attributed || all.total !== row.total))) continue;
      // The frames that aren't shown are in the row's own samples.
      row.lines = all.lines.map((line) => (row.self === row.attributed ? withOwn(line) : line));
      row.how = all.how;
    }
    return rows;
  };

  /// The rows of the tree that a ProfileView draws, of which the whole data has `counted`. What is
  /// left of a method's samples has the lines of those whose times are known.
  jvmprof.drawnRows = function ({ tree, whole, functions, part, basePart, times, applied }, counted, isPart, edits) {
    const all = jvmprof.functionRows(tree);
    const rows = basePart ? all : jvmprof.withLines(all, counted, isPart);
    if (!isPart || !times || applied.length) return rows;
    // The functions of what was fetched stand behind those of the whole.
    const counts = (of) => times.lineCounts(whole, functions, of, edits);
    return jvmprof.withPartLines(rows, counts(part), basePart && counts(basePart));
  };

  const withOwn = (line) => ({ ...line, self: line.attributed, base: line.base && { ...line.base, self: line.base.attributed } });

  /// The place of a line: `Order.java:57`.
  jvmprof.placeOf = (fn, line) => `${fn.file || fn.name}:${line}`;

  /// Own work that is a smaller part of a function's samples than this says nothing of its lines.
  const LEAST_OWN_WORK = 0.05;

  /// The samples by which a function's lines are compared in a table sorted by `column`: those of
  /// all that each line cost, or of the function's own work where the table is about that.
  jvmprof.lineWeight = function (row, column) {
    const isOfOwnWork = column !== "total" && row.attributed > LEAST_OWN_WORK * row.total;
    return isOfOwnWork ? "attributed" : "total";
  };

  /// The same for its lines beside each other, of which those of a part know no total.
  jvmprof.listWeight = (row, column) => (row.lines[0]?.total === null ? "attributed" : jvmprof.lineWeight(row, column));

  /// The line that most of a function's samples have, `by` total or attributed: `{place, share}`;
  /// null if none is known.
  jvmprof.hottestLine = function (row, by) {
    const hottest = row.lines.reduce((most, line) => (line[by] > (most?.[by] ?? 0) ? line : most), null);
    return hottest && { place: jvmprof.placeOf(row.fn, hottest.line), share: hottest[by] / row[by] };
  };

  /// How a row's method ran, most samples first: `[{name, samples}]`.
  jvmprof.rowHows = (row) => jvmprof.hows({ how: row.how });
})(globalThis.jvmprof);
