// The page's classic scripts in node: those that need no document.
import { readFileSync } from "node:fs";
import vm from "node:vm";

const assets = new URL("../../../assets/", import.meta.url);

/// Runs scripts of `assets/` in this process and returns the object that they share.
export function load(...names) {
  globalThis.matchMedia ??= () => ({ matches: false, addEventListener() {} });
  globalThis.devicePixelRatio ??= 1;
  globalThis.document ??= { documentElement: { dataset: {} } };
  for (const name of ["view/base.js", ...names]) {
    vm.runInThisContext(readFileSync(new URL(name, assets), "utf8"), { filename: name });
  }
  return globalThis.jvmprof;
}

const KINDS = ["root", "label", "kernel", "native", "jit", "java", "marker", "pruned", "class", "stub"];

/// A tree as the page gets it, of `[[path, samples], ...]`. A path is `kind:name;kind:name`, from the root on; without
/// a kind it is Java's.
export function treeOf(stacks) {
  const data = {
    strings: ["", "all"],
    functions: { kind: [0], name: [1], file: [0], module: [0] },
    nodes: { parent: [0], function: [0], total: [0], lines: [[]], how: [[]] },
    top: { function: [], self: [], total: [], seen: 0 },
    total: 0,
    truncated: [],
    pruned: { nodes: 0, samples: 0 },
  };
  const [functions, nodes] = [new Map(), new Map()];
  const functionOf = (text) => {
    if (functions.has(text)) return functions.get(text);
    const [, kind, name] = /^(?:(\w+):)?(.*)$/.exec(text);
    const id = data.functions.kind.push(KINDS.indexOf(kind ?? "java")) - 1;
    data.functions.name.push(data.strings.push(name) - 1);
    data.functions.file.push(0);
    data.functions.module.push(0);
    functions.set(text, id);
    return id;
  };
  for (const [path, samples] of stacks) {
    let [at, key] = [0, ""];
    data.total += samples;
    data.nodes.total[0] += samples;
    for (const text of path.split(";")) {
      key += `;${text}`;
      if (!nodes.has(key)) {
        nodes.set(key, data.nodes.parent.push(at) - 1);
        data.nodes.function.push(functionOf(text));
        data.nodes.total.push(0);
        data.nodes.lines.push([]);
        data.nodes.how.push([]);
      }
      at = nodes.get(key);
      data.nodes.total[at] += samples;
    }
  }
  return data;
}

/// The times of samples as the page gets them, of columns by entry and `[[milliseconds, entry], ...]`.
export function timesOf({ nodes, ...columns }, samples) {
  const base64 = (numbers) => {
    const bytes = [];
    for (let rest of numbers) {
      for (; rest >= 0x80; rest >>>= 7) bytes.push((rest & 0x7f) | 0x80);
      bytes.push(rest);
    }
    return Buffer.from(bytes).toString("base64");
  };
  const steps = samples.map(([time], i) => time - (samples[i - 1]?.[0] ?? 0));
  const differences = nodes.map((node, i) => node - (nodes[i - 1] ?? 0));
  return { nodes: differences, ...columns, steps: base64(steps), entries: base64(samples.map(([, entry]) => entry)) };
}

/// Nodes of a built tree as `{"a;b": [samples, own]}`.
export function paths(root) {
  const all = {};
  const visit = (node, path) => {
    const at = path ? `${path};${node.name}` : node.name;
    all[at] = [node.value, node.self];
    node.children.forEach((child) => visit(child, at));
  };
  root.children.forEach((child) => visit(child, ""));
  return all;
}
