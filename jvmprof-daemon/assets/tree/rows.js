// The rows of the table of functions: samples of a function's own, with those of the JVM and the kernel on its behalf,
// and all with it on the stack; by line and by how it ran.
"use strict";

(function (jvmprof) {
  const NUMBERS = ["self", "attributed", "total"];

  const isCode = (fn) => !["root", "label", "pruned"].includes(fn.kind);

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

  /// The table's rows as the data counted them, `{fn, name, self, attributed, total, lines, how, base}`.
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

  /// The same of a tree as it is drawn: recursion counts once. Its frames are what is shown, so that a function's own
  /// samples have those of what isn't.
  jvmprof.functionRows = function (root) {
    const rows = new Map();
    const open = new Map();
    const todo = [[root, true]];
    while (todo.length) {
      const [node, enters] = todo.pop();
      if (!enters) {
        open.set(node.fn, open.get(node.fn) - 1);
        continue;
      }
      if (isCode(node.fn)) {
        const row = rows.get(node.fn) ?? newRow(node.fn, root.sides !== undefined);
        rows.set(node.fn, row);
        count(row, node, !open.get(node.fn));
        open.set(node.fn, (open.get(node.fn) ?? 0) + 1);
        todo.push([node, false]);
      }
      for (const child of node.children) todo.push([child, true]);
    }
    return [...rows.values()];
  };

  function newRow(fn, hasBase) {
    const base = hasBase ? { self: 0, attributed: 0, total: 0 } : null;
    return { fn, name: fn.name, self: 0, attributed: 0, total: 0, lines: [], how: [], base };
  }

  function count(row, node, isOutermost) {
    const [own, all] = node.sides ? [node.ownSides[1], node.sides[1]] : [node.self, node.value];
    row.self += own;
    row.attributed += own;
    if (row.base) {
      row.base.self += node.ownSides[0];
      row.base.attributed += node.ownSides[0];
    }
    if (!isOutermost) return;
    row.total += all;
    if (row.base) row.base.total += node.sides[0];
  }

  /// Gives rows of a drawn tree the lines and ways of running that the whole data has of these functions.
  jvmprof.withLines = function (rows, whole) {
    const known = new Map(whole.map((row) => [row.fn, row]));
    for (const row of rows) {
      const { lines, how } = known.get(row.fn) ?? row;
      // The frames that aren't shown are in the row's own samples.
      row.lines = lines.map((line) => ({ ...line, self: line.attributed }));
      row.how = how;
    }
    return rows;
  };

  /// The place of a line: `Order.java:57`.
  jvmprof.placeOf = (fn, line) => `${fn.file || fn.name}:${line}`;

  /// The line that most of a function's samples have, those of its own work first: `{place, share}`; null if none is
  /// known.
  jvmprof.hottestLine = function (row) {
    const by = row.attributed > 0 ? "attributed" : "total";
    const hottest = row.lines.reduce((most, line) => (line[by] > (most?.[by] ?? 0) ? line : most), null);
    return hottest && { place: jvmprof.placeOf(row.fn, hottest.line), share: hottest[by] / row[by] };
  };

  /// How a row's method ran, most samples first: `[{name, samples}]`.
  jvmprof.rowHows = (row) => jvmprof.hows({ how: row.how });
})(globalThis.jvmprof);
