// The table of functions: own samples and samples with callees, sortable, each row a search.
"use strict";

(function (jvmprof) {
  const { element, format } = jvmprof;

  const ROWS_AT_ONCE = 200;

  class TopTable {
    /// `onChoose(fn)` hears which function was clicked.
    constructor(scroller, onChoose) {
      this.onChoose = onChoose;
      this.sort = { column: "self", descending: true };
      this.search = null;
      this.rows = [];
      this.body = element("tbody");
      this.headers = { name: this.header("name", "Function"), self: this.header("self", "Self"), total: this.header("total", "Total") };
      this.more = element("button.more", { type: "button", onclick: () => this.show(this.shown + 4 * ROWS_AT_ONCE) });
      scroller.append(
        element("table.top", {}, element("thead", {}, element("tr", {}, ...Object.values(this.headers))), this.body),
        this.more,
      );
      jvmprof.theme.listeners.push(() => this.show(this.shown ?? ROWS_AT_ONCE));
    }

    header(column, title) {
      const button = element("button", { type: "button", onclick: () => this.sortBy(column) }, title);
      return element(`th.${column}`, { scope: "col" }, button);
    }

    sortBy(column) {
      const same = this.sort.column === column;
      this.sort = { column, descending: same ? !this.sort.descending : column !== "name" };
      this.refresh();
    }

    /// Shows the functions of the data, all of them, or these rows.
    draw(data, functions, total, rows = null) {
      this.total = total;
      this.seen = rows?.length ?? data.top.seen;
      this.rows =
        rows ??
        data.top.function.map((index, row) => ({
          fn: functions[index],
          name: functions[index].name,
          self: data.top.self[row],
          total: data.top.total[row],
        }));
      this.refresh();
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
        const by = column === "name" ? a.name.localeCompare(b.name) : a[column] - b[column];
        return order * by || b.self - a.self || b.total - a.total || a.name.localeCompare(b.name);
      });
      this.show(ROWS_AT_ONCE);
    }

    show(count) {
      this.shown = count;
      if (!this.sorted) return;
      this.body.replaceChildren(...this.sorted.slice(0, count).map((row) => this.row(row)));
      if (!this.sorted.length) {
        const text = this.search ? "No function of the table matches the search." : "No samples.";
        this.body.append(element("tr", {}, element("td.none", { colspan: "3" }, text)));
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

    row({ fn, self, total }) {
      const swatch = element("span.swatch", { title: jvmprof.KIND_NAMES[fn.kind] });
      swatch.style.background = jvmprof.colour(fn.kind);
      const where = [fn.file, fn.module].filter(Boolean).join(" · ");
      const name = element(
        "button.function",
        { type: "button", title: `${fn.name}\n${where}\nClick to search`, onclick: () => this.onChoose(fn) },
        element("span.function-name", {}, fn.name),
        where ? element("span.where", {}, where) : null,
      );
      return element("tr", {}, element("td.name", {}, swatch, name), this.cell(self), this.cell(total));
    }

    cell(samples) {
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
  }

  jvmprof.TopTable = TopTable;
})(globalThis.jvmprof);
