// The table of functions, sortable: own samples, those with the JVM and the kernel, samples with
// callees. A row's name searches it and has a menu, and the row opens to its lines and to how it
// ran.
"use strict";

(function (jvmprof) {
  const { element, format } = jvmprof;

  const ROWS_AT_ONCE = 200;
  /// Lines of a function that are listed.
  const LINES = 10;
  /// The mapping of generated code, which says no more than a frame's kind does.
  const JVM_MODULE = "jvm";
  const COMPILED = new Set(["C1", "C2", "inlined"]);
  const LINES_OF_COMPILED_CODE =
    "Own samples of compiled code have the line of the next call or safepoint, which in a loop may be another one. With -XX:+DebugNonSafepoints they have their own.";

  const COLUMNS = {
    self: ["Self", "Samples with the function as the leaf"],
    attributed: ["+ JVM, kernel", "Self, with what the kernel, the JVM and native code did for it: their time goes to the nearest Java caller"],
    total: ["Total", "Samples with the function anywhere on the stack"],
  };

  /// The text, of which a line may break beside the arrow alone.
  const breakable = (beforeAfter) => beforeAfter.replaceAll(" ", "\u00a0").replace("\u00a0→\u00a0", " → ");

  /// Characters of a package that say something; less of it would look like the begin of the name.
  const LEAST_OF_PACKAGE = 3;

  /// A name, whose package is cut where there is no room, and left out where next to none would
  /// stand there: the font has one width for all.
  function functionName(fn) {
    const [first, rest] = jvmprof.nameParts(fn).map((part) => element("span", {}, part));
    const least = rest.textContent.length + Math.min(LEAST_OF_PACKAGE, first.textContent.length);
    first.style.maxWidth = `calc((100% - ${least}ch) * 9999)`;
    return element("span.function-name", {}, first, rest);
  }

  class TopTable {
    /// `onChoose(fn)` gets the function that was clicked, `onSort(sort)` what the user sorts by, as
    /// the address has it, `onMenu({name, fn}, x, y)` of which function the user asks for the menu.
    constructor(scroller, { onChoose, onSort, onMenu }) {
      Object.assign(this, { onChoose, onSort, onMenu });
      this.sort = { column: "self", descending: true };
      this.search = null;
      this.rows = [];
      this.open = new Set();
      this.functionOf = new WeakMap();
      this.comparison = null;
      this.colours = new jvmprof.Colours();
      this.body = element("tbody");
      this.headers = { name: this.header("name", "Function", "The name") };
      for (const [column, [title, what]] of Object.entries(COLUMNS)) this.headers[column] = this.header(column, title, what);
      this.more = element("button.more", { type: "button", onclick: () => this.show(this.shown + 4 * ROWS_AT_ONCE) });
      this.table = element("table.top", {}, element("thead", {}, element("tr", {}, ...Object.values(this.headers))), this.body);
      scroller.append(this.table, this.more);
      jvmprof.theme.listeners.push(() => this.show(this.shown ?? ROWS_AT_ONCE));
    }

    header(column, title, what) {
      const button = element("button", { type: "button", title: `${what}. Click to sort`, onclick: () => this.clickHeader(column) }, title);
      return element(`th.${column}`, { scope: "col" }, button);
    }

    /// Numbers are usually sorted from the largest one, names from A.
    clickHeader(column) {
      const { column: at, descending } = this.sort;
      const isUsual = descending === (column !== "name");
      this.onSort(`${at === column && isUsual ? "-" : ""}${column}`);
    }

    /// Sorts as the address says (see state.js). Without a choice, rows are sorted by what a method
    /// cost with all that was done for it; the column of own samples is that where there is none.
    sortBy(sort) {
      const [, reversed, chosen] = /^(-?)(.*)$/.exec(sort);
      const cost = this.hasAttributed ? "attributed" : "self";
      const column = chosen === "" || chosen === "attributed" ? cost : chosen;
      this.sort = { column, descending: (column === "name") === (reversed === "-") };
      this.refresh();
    }

    /// Shows these rows, sorted as the address says; `seen`: functions there are, listed or not.
    /// `hasAttributed`: own samples don't have those of the JVM and the kernel already.
    draw(rows, { total, seen, hasAttributed, sort }) {
      this.total = total;
      this.seen = seen;
      this.rows = rows;
      this.hasAttributed = hasAttributed;
      this.headers.attributed.hidden = !hasAttributed;
      this.nameUnit();
      this.table.classList.toggle("compared", this.comparison !== null);
      const open = new Set([...this.open].map((fn) => fn.name));
      this.open = new Set(rows.filter(({ name }) => open.has(name)).map(({ fn }) => fn));
      this.sortBy(sort);
    }

    /// Names the unit of compared numbers in the heads, where it isn't in the cells.
    nameUnit() {
      const unit = this.comparison?.unitName;
      for (const [column, [title]] of Object.entries(COLUMNS)) {
        this.headers[column].querySelector("button").textContent = unit ? `${title}, ${unit}` : title;
      }
    }

    columns() {
      return Object.keys(COLUMNS).filter((column) => column !== "attributed" || this.hasAttributed);
    }

    find(search) {
      this.search = search;
      this.refresh();
    }

    refresh() {
      const { column, descending } = this.sort;
      const order = descending ? -1 : 1;
      for (const [name, header] of Object.entries(this.headers)) {
        header.setAttribute("aria-sort", name === column ? (descending ? "descending" : "ascending") : "none");
      }
      this.sorted = this.rows.filter((row) => !this.search || this.search.matches(row.fn));
      this.sorted.sort((a, b) => {
        const by = column === "name" ? a.name.localeCompare(b.name) : this.weight(a, column) - this.weight(b, column);
        return order * by || b.self - a.self || b.total - a.total || a.name.localeCompare(b.name);
      });
      this.show(ROWS_AT_ONCE);
    }

    /// What a row is sorted by.
    weight(row, column) {
      return this.comparison ? this.comparison.change([row.base[column], row[column]]) : row[column];
    }

    show(count) {
      this.shown = count;
      if (!this.sorted) return;
      const focused = this.focused();
      this.body.replaceChildren(...this.sorted.slice(0, count).flatMap((row) => this.rowsOf(row)));
      if (focused) this.focus(focused);
      if (!this.sorted.length) {
        const text = this.search ? "No function of the table matches the search." : "No samples.";
        this.body.append(element("tr", {}, element("td.none", { colspan: String(1 + this.columns().length) }, text)));
      }
      const left = this.sorted.length - count;
      const cut = this.seen - this.rows.length;
      this.more.hidden = left <= 0 && cut <= 0;
      this.more.disabled = left <= 0;
      this.more.textContent =
        left > 0
          ? `Show more (${format.count(left)} left)`
          : `${format.count(cut)} lighter functions aren't listed`;
    }

    /// The function whose row has the focus, and which of its buttons; null if none has.
    focused() {
      const button = this.body.contains(document.activeElement) ? document.activeElement : null;
      return button && { fn: this.functionOf.get(button.closest("tr")), button: button.className };
    }

    /// Gives the focus back to what had it before rows were made anew.
    focus({ fn, button }) {
      const rows = [...this.body.rows];
      // Newer data has another function of this name.
      const of = (row) => this.functionOf.get(row);
      const row = rows.find((it) => of(it) === fn) ?? rows.find((it) => of(it)?.name === fn.name);
      row?.querySelector(`button.${button}`)?.focus({ preventScroll: true });
    }

    /// The menu of a function, below its row.
    key(event, fn) {
      if ((event.key !== "m" && event.key !== "ContextMenu") || event.ctrlKey || event.metaKey || event.altKey) return;
      const { left, bottom } = event.currentTarget.getBoundingClientRect();
      this.menu(event, fn, left + 30, bottom);
    }

    menu(event, fn, x, y) {
      if (!jvmprof.isCode(fn)) return;
      event.preventDefault();
      this.onMenu({ name: fn.name, fn }, x, y);
    }

    /// A function's row, and those of its lines if it is open.
    rowsOf(row) {
      const isOpen = this.open.has(row.fn);
      return [this.row(row, isOpen), ...(isOpen ? this.details(row) : [])];
    }

    row(row, isOpen) {
      const { fn } = row;
      const swatch = element("span.swatch", { title: jvmprof.kindName(fn) });
      swatch.style.background = this.comparison
        ? jvmprof.changeColour(this.comparison, [row.base.total, row.total])
        : this.colours.of(fn, row.how, false, false);
      const by = jvmprof.lineWeight(row, this.sort.column);
      const hottest = jvmprof.hottestLine(row, by);
      const place = hottest ? `${hottest.place} ${format.share(hottest.share, 1)}` : fn.file;
      const where = [place, fn.module === JVM_MODULE ? "" : fn.module].filter(Boolean).join(" · ");
      const ofWhat = hottest ? `\nThe share is that of its ${by === "total" ? "samples with all that it calls" : "own work"}` : "";
      const name = element(
        "button.function",
        {
          type: "button",
          title: `${fn.name}\n${where}${ofWhat}\nClick to search; right mouse button or m for its menu`,
          onclick: () => this.onChoose(fn),
          oncontextmenu: (event) => this.menu(event, fn, event.clientX, event.clientY),
        },
        functionName(fn),
        where ? element("span.where", {}, where) : null,
      );
      const cells = [element("td.name", {}, element("div.name-line", {}, this.opener(row, isOpen), swatch, name)), ...this.columns().map((column) => this.cell(row, column))];
      const node = element("tr", { onkeydown: (event) => this.key(event, fn) }, ...cells);
      this.functionOf.set(node, fn);
      return node;
    }

    /// The button that opens a row; room for one where there is nothing to open.
    opener(row, isOpen) {
      const { comparison } = this;
      if (!row.lines.length && !row.how.length && !comparison) return element("span.opener");
      const label = `${comparison ? "Change and lines" : "Lines"} of ${row.fn.name}`;
      const title = comparison ? "What changed, lines, and how it ran" : "Lines, and how it ran";
      return element("button.opener", { type: "button", "aria-expanded": String(isOpen), "aria-label": label, title, onclick: () => this.toggle(row) }, isOpen ? "▾" : "▸");
    }

    toggle(row) {
      if (!this.open.delete(row.fn)) this.open.add(row.fn);
      this.show(this.shown);
      this.focus({ fn: row.fn, button: "opener" });
    }

    details(row) {
      const across = (...children) => element("tr.detail", {}, element("td.line", { colspan: String(1 + this.columns().length) }, ...children));
      const by = jvmprof.listWeight(row, this.sort.column);
      const hottest = row.lines.toSorted((a, b) => b[by] - a[by] || b.total - a.total || a.line - b.line);
      const lines = hottest.slice(0, LINES).map((line) =>
        element(
          "tr.detail",
          {},
          element("td.line", {}, jvmprof.placeOf(row.fn, line.line), " ", element("b", {}, format.share(line[by], row[by]))),
          ...this.columns().map((column) => this.cell(line, !this.hasAttributed && column === "self" ? "attributed" : column)),
        ),
      );
      const hows = jvmprof.rowHows(row);
      const all = hows.reduce((sum, { samples }) => sum + samples, 0);
      const text = hows.map(({ name, samples }) => `${name} ${format.share(samples, all)}`).join(", ");
      if (text) lines.push(across(`Ran: ${text}`));
      if (by === "attributed" && hows.some(({ name }) => COMPILED.has(name))) lines.push(across(LINES_OF_COMPILED_CODE));
      if (this.comparison) lines.unshift(across(...this.columns().map((column) => this.change(row, column))));
      return lines;
    }

    /// What changed, and whether that may be chance.
    change(row, column) {
      const sides = this.sides(row, column);
      return element("div.verdict", {}, `${COLUMNS[column][0]}: `, element("b", {}, this.comparison.beforeAfter(sides)), `, ${this.comparison.verdict(sides)}`);
    }

    sides(row, column) {
      return [row.base?.[column] ?? 0, row[column]];
    }

    cell(row, column) {
      const samples = row[column];
      if (samples === null) return element("td.samples", {});
      if (this.comparison) return this.changeCell(this.sides(row, column));
      const bar = element("span.bar");
      // The track is as wide as the column: 100 % fills it.
      bar.style.width = `${this.total ? (100 * samples) / this.total : 0}%`;
      return element(
        "td.samples",
        {},
        element("span.number", {}, this.measure.number(samples)),
        element("span.percent", {}, format.share(samples, this.total)),
        element("span.track", {}, bar),
      );
    }

    /// How much a number changed, and from what to what; faint where that may be chance.
    changeCell(sides) {
      const { comparison } = this;
      const isNoise = comparison.isNoise(sides);
      const more = comparison.change(sides) > 0;
      return element(
        `td.samples.change${isNoise ? ".noise" : more ? ".more-than" : ".less-than"}`,
        { title: `${comparison.beforeAfter(sides)}; ${comparison.verdict(sides)}` },
        element("span.number", {}, comparison.changeNumber(sides)),
        element("span.percent", {}, breakable(comparison.beforeAfterNumbers(sides))),
        element("span.unseen", {}, comparison.verdict(sides)),
      );
    }
  }

  jvmprof.TopTable = TopTable;
})(globalThis.jvmprof);
