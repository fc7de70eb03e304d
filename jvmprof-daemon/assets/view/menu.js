// The menu of a frame, or of a function of the table: what can be done with it, by mouse or keys.
"use strict";

(function (jvmprof) {
  const { element } = jvmprof;

  /// The names of a node's stack, the innermost first. In a graph of callers the parent of a node
  /// is what it calls.
  jvmprof.stackOf = function (node) {
    const names = [];
    let top = node;
    for (let at = node; at && at.fn.kind !== "root"; at = at.parent) {
      names.push(at.name);
      top = at;
    }
    return top.hasCallersBelow ? names.reverse() : names;
  };

  /// Copies a text by selecting it. Browsers give pages `navigator.clipboard` only with TLS or from
  /// this machine.
  function copySelected(text) {
    const back = document.activeElement;
    const field = element("textarea.clipboard-text.unseen", { "aria-hidden": "true", tabindex: "-1" });
    field.value = text;
    document.body.append(field);
    field.focus({ preventScroll: true });
    field.select();
    const isCopied = document.execCommand("copy");
    back?.focus?.({ preventScroll: true });
    field.remove();
    return isCopied;
  }

  /// Puts a text on the clipboard, and promises what to say of it.
  jvmprof.copyText = async function (text) {
    const isWritten = await navigator.clipboard?.writeText(text).then(() => true, () => false);
    if (isWritten || copySelected(text)) return "Copied.";
    return `The browser doesn't let this page copy: ${text}`;
  };

  /// What can be done with a node, or with a function of the table, `{name, fn}`, which has neither
  /// a place in a graph nor a stack: `[[title, action]]`. `act` has `zoom(node)`, `edit(text)`,
  /// `search(text)`, `sandwich(name)` and `copy(text)`.
  function entries(node, act) {
    const { fn } = node;
    const isInGraph = node.parent !== undefined;
    const all = isInGraph ? [["Zoom to it", () => act.zoom(node)]] : [];
    if (!jvmprof.isCode(fn)) return all;
    const { name } = fn;
    all.push(
      ["Callers and callees", () => act.sandwich(name)],
      ["Focus: only stacks with it", () => act.edit(`only:${name}`)],
      ["Hide: without stacks with it", () => act.edit(`hide:${name}`)],
    );
    if (fn.isCollapsed) all.push(["Expand: its methods one by one", () => act.edit(`expand:${name}`)]);
    else all.push(["Merge into its callers", () => act.edit(`merge:${name}`)]);
    if (fn.kind === "java" && !fn.isCollapsed) {
      const { type, package: packageName } = jvmprof.packageOf(name);
      if (type) all.push([`Only stacks with class ${type.split(".").pop()}`, () => act.edit(`only:${type}.*`)]);
      if (packageName) all.push([`Only stacks with package ${packageName}`, () => act.edit(`only:${packageName}.*`)]);
      if (packageName) all.push([`Merge package ${packageName} into callers`, () => act.edit(`merge:${packageName}.*`)]);
    }
    all.push(["Search it", () => act.search(`"${name}"`)], ["Copy name", () => act.copy(name)]);
    if (isInGraph) all.push(["Copy stack", () => act.copy(jvmprof.stackOf(node).join("\n"))]);
    return all;
  }

  /// Shows the menu of a node or function at a place of the window; gives the focus back when it
  /// closes.
  jvmprof.showMenu = function (node, x, y, act) {
    document.querySelector(".frame-menu")?.close();
    const back = document.activeElement;
    const menu = element("div.frame-menu", { role: "menu", "aria-label": node.name });
    menu.close = () => {
      menu.remove();
      document.removeEventListener("pointerdown", elsewhere, { capture: true });
      back?.focus?.({ preventScroll: true });
    };
    const elsewhere = (event) => menu.contains(event.target) || menu.close();
    const items = entries(node, act).map(([title, action]) =>
      element("button.menu-row", { type: "button", role: "menuitem", tabindex: "-1", onclick: () => (menu.close(), action()) }, title),
    );
    menu.append(element("div.menu-title", { role: "presentation" }, node.name), ...items);
    menu.addEventListener("keydown", (event) => {
      const at = items.indexOf(document.activeElement);
      const to = { ArrowDown: at + 1, ArrowUp: at - 1 + items.length, Home: 0, End: items.length - 1 }[event.key];
      if (to !== undefined) items[to % items.length].focus();
      else if (event.key === "Escape" || event.key === "Tab") menu.close();
      else if (event.key !== "Enter" && event.key !== " ") return;
      event.stopPropagation();
      if (event.key !== "Enter" && event.key !== " ") event.preventDefault();
    });
    document.querySelector("main").append(menu);
    const { offsetWidth, offsetHeight } = menu;
    menu.style.left = `${Math.max(4, Math.min(x, innerWidth - offsetWidth - 4))}px`;
    menu.style.top = `${Math.max(4, Math.min(y, innerHeight - offsetHeight - 4))}px`;
    document.addEventListener("pointerdown", elsewhere, { capture: true });
    items[0].focus({ preventScroll: true });
  };
})(globalThis.jvmprof);
