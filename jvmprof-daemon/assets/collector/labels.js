// Which series: chips of label conditions, pickers of their values, and the label to group by.
"use strict";

(function (jvmprof) {
  const { element, format, icon } = jvmprof;

  const SHOWN = 100;

  /// What isn't a label of series: by main class or else command where there are several, by a
  /// label of samples, or not at all.
  jvmprof.GROUPS = { auto: "program", thread_kind: "kind of thread", "": "nothing" };

  class LabelFilters {
    /// `onChange({matches})` or `onChange({group})`; a match is `{label, value, not}`.
    constructor(container, state, onChange, { name = "Labels", hasGroups = true } = {}) {
      this.onChange = onChange;
      this.labels = [];
      this.chips = element("div.chips", { role: "list", "aria-label": "Label filters" });
      const add = element("button.chip.add", { type: "button" }, icon("plus"), "Add filter");
      this.groupSelect = element("select", { "aria-label": "Group by", onchange: () => onChange({ group: this.groupSelect.value }) });
      this.series = element("span.series");
      container.append(
        element("span.filters-name", {}, name),
        this.chips,
        jvmprof.popover(add, (panel) => this.fillLabels(panel)),
      );
      if (hasGroups) {
        const groups = element("label.select", { title: "A node for each value of the label, below the root" }, "Group by", this.groupSelect);
        container.append(element("span.spacer"), this.series, groups);
      }
      this.show(state);
    }

    /// What the collector knows of labels in the range.
    setLabels(labels) {
      this.labels = labels;
      this.showGroups();
    }

    show(state) {
      this.state = state;
      const labels = new Set(state.matches.map((match) => match.label));
      // Chips stay the same elements, so that an open picker stays open while one chooses in it.
      for (const chip of [...this.chips.children]) if (!labels.has(chip.dataset.label)) chip.remove();
      for (const label of labels) {
        let chip = [...this.chips.children].find((child) => child.dataset.label === label);
        if (!chip) this.chips.append((chip = this.chip(label)));
        chip.querySelector(".chip-text").replaceChildren(element("b", {}, label), ` ${this.conditions(label)}`);
      }
      this.showGroups();
    }

    showGroups() {
      const isLabel = (name) => name !== "__name__" && !Object.hasOwn(jvmprof.GROUPS, name);
      const names = this.labels.map(({ name }) => name).filter(isLabel);
      if (!Object.hasOwn(jvmprof.GROUPS, this.state.group) && !names.includes(this.state.group)) names.unshift(this.state.group);
      const options = names.map((name) => element("option", { value: name }, name));
      const fixed = Object.entries(jvmprof.GROUPS).map(([value, name]) => element("option", { value }, name));
      this.groupSelect.replaceChildren(...fixed, ...options);
      this.groupSelect.value = this.state.group;
    }

    /// `= java or go, ≠ sh`
    conditions(label) {
      const text = [];
      for (const [not, sign] of [[false, "="], [true, "≠"]]) {
        const matches = this.state.matches.filter((match) => match.label === label && match.not === not);
        if (matches.length) text.push(`${sign} ${matches.map((match) => match.value || "(none)").join(" or ")}`);
      }
      return text.join(", ");
    }

    chip(label) {
      const open = element("button.chip-text", { type: "button", title: "Change" });
      const remove = element(
        "button.chip-remove",
        {
          type: "button",
          "aria-label": `Remove the filter on ${label}`,
          onclick: () => this.onChange({ matches: this.state.matches.filter((match) => match.label !== label) }),
        },
        icon("close"),
      );
      return element("div.chip", { role: "listitem", "data-label": label }, jvmprof.popover(open, (panel) => this.fillValues(panel, label)), remove);
    }

    fillLabels(panel) {
      if (!this.labels.length) panel.append(element("p.hint", {}, "No series have samples in this range."));
      const rows = this.labels.map(({ name, count }) =>
        element(
          "button.menu-row",
          {
            type: "button",
            onclick: () => {
              panel.replaceChildren();
              this.fillValues(panel, name);
              panel.querySelector("input")?.focus();
            },
          },
          element("span.menu-name", {}, name),
          element("span.menu-count", {}, count === 1 ? "1 value" : `${format.count(count)} values`),
        ),
      );
      panel.append(...rows);
    }

    fillValues(panel, label) {
      const known = this.labels.find(({ name }) => name === label) ?? { values: [], count: 0 };
      const filter = element("input.menu-filter", { type: "search", placeholder: `Value of ${label}`, "aria-label": `Value of ${label}` });
      const list = element("div.menu-list");
      const show = () => {
        const wanted = filter.value.toLowerCase();
        const chosen = this.state.matches.filter((match) => match.label === label);
        const missing = chosen
          .filter((match) => !known.values.some(({ value }) => value === match.value))
          .map(({ value }) => ({ value, samples: 0 }));
        const values = [...missing, ...known.values].filter(({ value }) => value.toLowerCase().includes(wanted));
        list.replaceChildren(...values.slice(0, SHOWN).map((entry) => this.valueRow(label, entry, show)));
        const hidden = values.length - SHOWN + (wanted ? 0 : known.count - known.values.length);
        if (hidden > 0) list.append(element("p.hint", {}, `${format.count(hidden)} more: type to find them`));
        if (!values.length) list.append(element("p.hint", {}, "No such value in this range."));
      };
      filter.addEventListener("input", show);
      filter.addEventListener("keydown", (event) => {
        if (event.key !== "Enter" || !filter.value) return;
        // What is typed may be a value that isn't among the heaviest ones, or not in this range.
        const found = known.values.filter(({ value }) => value.toLowerCase().includes(filter.value.toLowerCase()));
        this.toggle(label, found.length === 1 ? found[0].value : filter.value, false);
        show();
      });
      panel.append(element("div.menu-title", {}, label), filter, list);
      show();
    }

    valueRow(label, { value, samples }, show) {
      const is = (not) => this.state.matches.some((match) => match.label === label && match.value === value && match.not === not);
      const toggle = (not) => (event) => {
        const row = event.currentTarget.parentElement;
        const place = [...row.parentElement.children].indexOf(row);
        const list = row.parentElement;
        this.toggle(label, value, not);
        show();
        list.children[place]?.children[not ? 1 : 0]?.focus();
      };
      const name = value === "" ? "(none)" : value;
      return element(
        "div.menu-value",
        {},
        element(
          "button.menu-row",
          { type: "button", role: "checkbox", "aria-checked": String(is(false)), onclick: toggle(false) },
          element("span.check", { "aria-hidden": "true" }, is(false) ? "✓" : ""),
          element("span.menu-name", { title: name }, name),
          element("span.menu-count", {}, format.count(samples)),
        ),
        element(
          "button.menu-not",
          { type: "button", title: `All but ${name}`, "aria-label": `All but ${name}`, "aria-pressed": String(is(true)), onclick: toggle(true) },
          "≠",
        ),
      );
    }

    toggle(label, value, not) {
      const others = this.state.matches.filter((match) => match.label !== label || match.value !== value);
      const was = this.state.matches.find((match) => match.label === label && match.value === value);
      this.onChange({ matches: was?.not === not ? others : [...others, { label, value, not }] });
    }
  }

  jvmprof.LabelFilters = LabelFilters;
})(globalThis.jvmprof);
