// Which time: presets that end now, a range of one's own, and how often to look again.
"use strict";

(function (jvmprof) {
  const { element, format, icon } = jvmprof;

  const MINUTE = 60_000;
  const DAY = 1440 * MINUTE;
  jvmprof.PRESETS = {
    "5m": 5 * MINUTE,
    "15m": 15 * MINUTE,
    "1h": 60 * MINUTE,
    "6h": 360 * MINUTE,
    "24h": DAY,
    "7d": 7 * DAY,
    "30d": 30 * DAY,
  };
  const UNITS = { s: 1000, m: MINUTE, h: 60 * MINUTE, d: DAY, w: 7 * DAY };
  /// The longest range that the collector answers.
  const LONGEST = 400 * UNITS.d;
  const REFRESH = [[0, "Off"], [10, "10 s"], [30, "30 s"], [60, "1 min"]];

  /// A button with a panel below it that closes by Escape and by clicks elsewhere. `fill(panel,
  /// close)` builds it.
  jvmprof.popover = function (button, fill) {
    const panel = element("div.popover.menu", { hidden: true });
    const holder = element("div.holder", {}, button, panel);
    // Listened for on the document and only while it is open. A row that was chosen is drawn anew,
    // and with it goes the focus, so that keys don't arrive in here.
    const escape = (event) => {
      if (event.key !== "Escape") return;
      event.stopPropagation();
      close();
      button.focus();
    };
    const elsewhere = (event) => holder.contains(event.target) || close();
    const close = () => {
      panel.hidden = true;
      panel.replaceChildren();
      button.setAttribute("aria-expanded", "false");
      document.removeEventListener("keydown", escape, { capture: true });
      document.removeEventListener("mousedown", elsewhere);
    };
    button.setAttribute("aria-haspopup", "true");
    button.setAttribute("aria-expanded", "false");
    button.addEventListener("click", () => {
      if (!panel.hidden) return close();
      panel.replaceChildren();
      panel.hidden = false;
      button.setAttribute("aria-expanded", "true");
      document.addEventListener("keydown", escape, { capture: true });
      document.addEventListener("mousedown", elsewhere);
      fill(panel, close);
      panel.classList.toggle("to-left", panel.getBoundingClientRect().right > innerWidth - 8);
      panel.querySelector("input, button")?.focus();
    });
    return holder;
  };

  /// Milliseconds of a range such as `90s`, `15m` or `7d`; null for any other text.
  jvmprof.rangeLength = function (text) {
    const [, number, unit] = /^(\d{1,9})([smhdw])$/.exec(text) ?? [];
    const length = Number(number) * UNITS[unit];
    return length > 0 && length <= LONGEST ? length : null;
  };

  /// `7 d` for `7d`, `5 min` for `5m`.
  const spaced = (range) => range.replace(/(?=\D)/, " ").replace(/m$/, "min");

  /// What `<input type=datetime-local>` takes: local time without a zone.
  function localText(milliseconds) {
    const time = new Date(milliseconds);
    time.setMinutes(time.getMinutes() - time.getTimezoneOffset());
    return time.toISOString().slice(0, 19);
  }

  class TimeControls {
    /// `onChange({range} or {from, to} or {refresh})` gets what the user chose.
    constructor(state, onChange) {
      this.onChange = onChange;
      this.presets = Object.keys(jvmprof.PRESETS).map((range) =>
        element(
          "button",
          { type: "button", "data-range": range, title: `The last ${spaced(range)}`, onclick: () => onChange({ range }) },
          spaced(range),
        ),
      );
      // Where there is no room for a button each.
      this.presetSelect = element(
        "select",
        { "aria-label": "The last", onchange: () => this.presetSelect.value && onChange({ range: this.presetSelect.value }) },
      );
      this.customName = element("span.tool-text", {}, "Custom");
      this.custom = element("button.tool.wide", { type: "button", title: "Choose from when to when" }, icon("clock"), this.customName);
      this.refreshSelect = element(
        "select",
        { "aria-label": "Look again every", onchange: () => onChange({ refresh: Number(this.refreshSelect.value) }) },
        ...REFRESH.map(([seconds, name]) => element("option", { value: String(seconds) }, name)),
      );
      this.now = element("button.tool", { type: "button", title: "Look again now", "aria-label": "Look again now", onclick: () => onChange({}) }, icon("refresh"));
      this.node = element(
        "div.time",
        {},
        element("div.segments.presets", { role: "group", "aria-label": "Time range: the last" }, ...this.presets),
        element("label.select.presets-narrow", {}, this.presetSelect),
        jvmprof.popover(this.custom, (panel, close) => this.fillCustom(panel, close)),
        element("label.select", { title: "Look again by itself" }, element("span.tool-text", {}, "Refresh"), this.refreshSelect),
        this.now,
      );
      this.show(state);
    }

    show(state) {
      this.state = state;
      for (const button of this.presets) button.setAttribute("aria-pressed", String(button.dataset.range === state.range));
      const isPreset = Boolean(state.range) && state.range in jvmprof.PRESETS;
      const name = state.range ? `Last ${spaced(state.range)}` : `${format.time(state.from)} – ${format.time(state.to)}`;
      this.custom.setAttribute("aria-pressed", String(!isPreset));
      this.custom.title = isPreset ? "Choose from when to when" : `${name}: choose from when to when`;
      this.customName.textContent = isPreset ? "Custom" : name;
      this.presetSelect.replaceChildren(
        ...Object.keys(jvmprof.PRESETS).map((range) => element("option", { value: range }, `Last ${spaced(range)}`)),
        ...(isPreset ? [] : [element("option", { value: "" }, state.range ? name : "Custom")]),
      );
      this.presetSelect.value = isPreset ? state.range : "";
      this.refreshSelect.value = String(state.refresh);
      this.refreshSelect.disabled = !state.range;
    }

    fillCustom(panel, close) {
      const choose = (chosen) => {
        close();
        this.onChange(chosen);
      };
      panel.append(jvmprof.rangeForm(jvmprof.bounds(this.state), choose));
    }
  }

  /// A form for a range of one's own; `onChoose({from, to})` gets it.
  jvmprof.rangeForm = function ([from, to], onChoose) {
    const field = (value) => element("input", { type: "datetime-local", step: "1", value: localText(value), required: true });
    const [start, end] = [field(from), field(to)];
    const wrong = element("p.wrong", { role: "alert" });
    const form = element(
      "form.custom",
      {},
      element("label", {}, "From", start),
      element("label", {}, "To", end),
      wrong,
      element("button.button", {}, "Apply"),
    );
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      const chosen = { from: new Date(start.value).getTime(), to: new Date(end.value).getTime() };
      if (chosen.from < chosen.to) onChoose(chosen);
      else wrong.textContent = "The end must be later than the start.";
    });
    return form;
  };

  /// From and to in milliseconds: a preset ends now.
  jvmprof.bounds = function ({ range, from, to }) {
    if (!range) return [from, to];
    const now = Date.now();
    return [now - jvmprof.rangeLength(range), now];
  };

  jvmprof.TimeControls = TimeControls;
})(globalThis.jvmprof);
