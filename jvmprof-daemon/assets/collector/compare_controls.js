// What the chosen time and labels are compared with: another time, other labels, or both.
"use strict";

(function (jvmprof) {
  const { element, format, icon } = jvmprof;

  const DAY = 86_400_000;
  const SHIFTS = {
    before: ["The time before", (length) => length],
    "1d": ["A day before", () => DAY],
    "7d": ["A week before", () => 7 * DAY],
    same: ["The same time", () => 0],
  };

  /// What the address has: `base=before`, `1d`, `7d`, `same`, or `FROM-TO` in milliseconds since
  /// 1970; null for nothing.
  jvmprof.parseBase = function (text) {
    if (Object.hasOwn(SHIFTS, text ?? "")) return { shift: text };
    const [, from, to] = /^(\d{1,15})-(\d{1,15})$/.exec(text ?? "") ?? [];
    return Number(from) < Number(to) ? { from: Number(from), to: Number(to) } : null;
  };

  jvmprof.baseText = ({ shift, from, to }) => shift ?? `${from}-${to}`;

  /// From and to of the base, beside those of the range.
  jvmprof.baseBounds = function (base, [from, to]) {
    if (!base.shift) return [base.from, base.to];
    const by = SHIFTS[base.shift][1](to - from);
    return [from - by, to - by];
  };

  class CompareControls {
    /// `onChange({base, baseMatches})` gets what is compared with; null for nothing.
    constructor(bar, state, onChange) {
      this.onChange = onChange;
      this.name = element("span.tool-text", {}, "Compare");
      this.button = element("button.tool.wide", { type: "button", title: "Compare with another time or other labels" }, icon("compare"), this.name);
      this.node = jvmprof.popover(this.button, (panel, close) => this.fill(panel, close));
      this.before = element("b", {});
      this.after = element("b", {});
      this.shift = element("span");
      this.chips = element("div.base-filters");
      this.filters = new jvmprof.LabelFilters(this.chips, this.filterState(state), ({ matches }) => matches && onChange({ baseMatches: matches }), { name: "labels", hasGroups: false });
      const stop = element("button.button", { type: "button", onclick: () => onChange({ base: null, baseMatches: null }) }, "Stop comparing");
      this.bar = bar;
      const before = element("span.filters-name.side-time", {}, "before ", this.before, this.shift);
      const after = element("span.filters-name.side-time", {}, "after ", this.after);
      bar.append(element("div.side", {}, before, this.chips), after, stop);
      this.show(state);
    }

    filterState(state) {
      return { ...state, matches: state.baseMatches ?? state.matches };
    }

    show(state) {
      this.state = state;
      this.bar.hidden = !state.base;
      this.button.setAttribute("aria-pressed", String(Boolean(state.base)));
      this.filters.show(this.filterState(state));
      this.showTimes(jvmprof.bounds(state));
    }

    /// Says from when to when both sides are; a time that moves is another one with each answer.
    showTimes([from, to]) {
      const { base } = this.state;
      if (!base) return;
      this.before.textContent = format.times(...jvmprof.baseBounds(base, [from, to]));
      this.shift.textContent = base.shift ? ` (${SHIFTS[base.shift][0].toLowerCase()})` : "";
      this.after.textContent = format.times(from, to);
    }

    fill(panel, close) {
      const choose = (base) => {
        close();
        this.onChange({ base, baseMatches: this.state.baseMatches });
      };
      panel.append(element("div.menu-title", {}, "Compare with"));
      for (const [shift, [name]] of Object.entries(SHIFTS)) {
        const hint = shift === "same" ? "of other labels, which are chosen then" : "";
        panel.append(
          element("button.menu-row", { type: "button", onclick: () => choose({ shift }) }, element("span.menu-name", {}, name), element("span.menu-count", {}, hint)),
        );
      }
      const range = this.state.base ? jvmprof.baseBounds(this.state.base, jvmprof.bounds(this.state)) : jvmprof.bounds(this.state);
      panel.append(jvmprof.rangeForm(range, choose));
    }
  }

  jvmprof.CompareControls = CompareControls;
})(globalThis.jvmprof);
