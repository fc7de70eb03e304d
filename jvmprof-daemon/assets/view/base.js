// What every part of the page uses: elements, numbers, times, the theme.
//
// The scripts are classic ones that share the object `jvmprof`, because browsers refuse to import
// modules in a page that was opened from a file.
"use strict";

globalThis.jvmprof = {};

(function (jvmprof) {
  /// An element with attributes and children. Strings become text nodes, never markup: names come
  /// from the profiled program, which may be hostile.
  jvmprof.element = function (tag, attributes = {}, ...children) {
    const [name, ...classes] = tag.split(".");
    const element = document.createElement(name);
    if (classes.length) element.className = classes.join(" ");
    for (const [key, value] of Object.entries(attributes)) {
      if (value === null || value === undefined || value === false) continue;
      if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
      else element.setAttribute(key, value === true ? "" : value);
    }
    element.append(...children.filter((child) => child !== null && child !== undefined));
    return element;
  };

  const SVG = "http://www.w3.org/2000/svg";
  const ICONS = {
    search: "M7 12A5 5 0 1 0 7 2a5 5 0 0 0 0 10Zm3.6-1.4L14 14",
    close: "M4 4l8 8M12 4l-8 8",
    up: "M8 13V3M4 7l4-4 4 4",
    down: "M8 3v10M4 9l4 4 4-4",
    download: "M8 2v8M4.5 7 8 10.5 11.5 7M3 13.5h10",
    refresh: "M13 8a5 5 0 1 1-1.5-3.5M13 2v3h-3",
    clock: "M8 14A6 6 0 1 0 8 2a6 6 0 0 0 0 12ZM8 5v3l2 1.5",
    plus: "M8 3v10M3 8h10",
    sandwich: "M3 4h10M3 12h10M2 8h12",
    fold: "M3 4h10M3 12h10M8 6v4M6.5 8.5 8 10l1.5-1.5",
    compare: "M5 2v12M5 14l-3-3M5 14l3-3M11 14V2M11 2 8 5M11 2l3 3",
    whole: "M2 6V2h4M14 6V2h-4M2 10v4h4M14 10v4h-4",
    auto: "M8 14A6 6 0 1 0 8 2a6 6 0 0 0 0 12ZM8 2v12",
    light: "M8 11a3 3 0 1 0 0-6 3 3 0 0 0 0 6ZM8 1v1.5M8 13.5V15M1 8h1.5M13.5 8H15M3 3l1 1M12 12l1 1M13 3l-1 1M4 12l-1 1",
    dark: "M13 9.5A5.5 5.5 0 0 1 6.5 3 5.5 5.5 0 1 0 13 9.5Z",
    help: "M6 6a2 2 0 1 1 2.8 1.9c-.5.2-.8.6-.8 1.1v.5M8 12v.1",
  };

  jvmprof.icon = function (name) {
    const svg = document.createElementNS(SVG, "svg");
    svg.setAttribute("viewBox", "0 0 16 16");
    svg.setAttribute("class", "icon");
    svg.setAttribute("aria-hidden", "true");
    const path = document.createElementNS(SVG, "path");
    path.setAttribute("d", ICONS[name]);
    svg.append(path);
    return svg;
  };

  const whole = new Intl.NumberFormat("en");
  const two = (number) => String(number).padStart(2, "0");
  const dateText = (time) => `${time.getFullYear()}-${two(time.getMonth() + 1)}-${two(time.getDate())}`;

  function clockText(time, withSeconds = true) {
    const clock = `${two(time.getHours())}:${two(time.getMinutes())}`;
    return withSeconds ? `${clock}:${two(time.getSeconds())}` : clock;
  }

  jvmprof.format = {
    count: (value) => whole.format(value),

    share(part, of) {
      if (!of) return "0 %";
      const percent = (100 * part) / of;
      if (percent === 0 || percent === 100) return `${percent} %`;
      if (percent < 0.01) return "< 0.01 %";
      if (percent > 99.99) return "> 99.99 %";
      return `${percent.toFixed(percent < 10 || percent > 99 ? 2 : 1)} %`;
    },

    bytes(value) {
      let unit = 0;
      const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
      for (; value >= 1024 && unit < units.length - 1; unit++) value /= 1024;
      return `${unit === 0 ? value : value.toFixed(value < 10 ? 2 : 1)} ${units[unit]}`;
    },

    /// A number of any size in few characters: `0.25`, `12`, `3.4k`, `2M`.
    short(value) {
      for (const [size, name] of [[1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
        if (value >= size) return `${Number((value / size).toPrecision(3))}${name}`;
      }
      return String(Number(value.toPrecision(2)));
    },

    /// A duration in nanoseconds.
    duration(nanoseconds) {
      const seconds = nanoseconds / 1e9;
      if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
      if (seconds < 120) return `${seconds.toFixed(seconds < 10 ? 2 : 1)} s`;
      const minutes = seconds / 60;
      if (minutes < 120) return `${minutes.toFixed(1)} min`;
      return `${(minutes / 60).toFixed(1)} h`;
    },

    /// A time of day with the date where it isn't today's; milliseconds since 1970.
    time(milliseconds, withSeconds = true) {
      const time = new Date(milliseconds);
      const clock = clockText(time, withSeconds);
      if (time.toDateString() === new Date().toDateString()) return clock;
      return `${dateText(time)} ${clock}`;
    },

    /// From when to when. The date stands once where both have the same, and not if it is today's.
    times(from, to) {
      const [start, end] = [new Date(from), new Date(to)];
      const isOneDay = start.toDateString() === end.toDateString();
      if (isOneDay && clockText(start) === clockText(end)) return this.time(from);
      if (isOneDay) return `${this.time(from)} – ${clockText(end)}`;
      return [start, end].map((time) => `${dateText(time)} ${clockText(time)}`).join(" – ");
    },
  };

  /// What a profile can count, by pprof's names of the sample types.
  const TYPE_NAMES = {
    samples: "Samples",
    cpu: "CPU time",
    alloc_space: "Allocated bytes",
    alloc_objects: "Allocated objects",
    off_cpu: "Waiting time",
    waits: "Waits",
    delay: "Waiting for locks",
    contentions: "Contentions of locks",
    caused_delay: "Delay by lock holder",
    caused_contentions: "Caused contentions",
    pause: "Time of pauses",
    pauses: "Pauses of JVMs",
    wall: "Wall-clock time",
  };

  /// What the page calls a sample type; other tools' profiles have types of their own.
  jvmprof.typeName = (type) => (Object.hasOwn(TYPE_NAMES, type) ? TYPE_NAMES[type] : type);

  const plural = (value, one) => (value === 1 ? one : `${one}s`);

  /// How the numbers of a profile are shown: `{row, name(value), number(value), more(value),
  /// moreName}` for samples of CPU time (`periodNs` each), that time, objects, bytes, waits,
  /// contentions or pauses, or the time that they take.
  jvmprof.measure = function (unit, periodNs) {
    const { count, bytes, duration } = jvmprof.format;
    const nothing = () => "";
    if (unit === "bytes") return { row: "Bytes", name: () => "allocated", number: bytes, more: nothing };
    if (unit === "nanoseconds") {
      const samples = (value) => `${count(value)} ${plural(value, "sample")}`;
      return { row: "CPU time", name: () => "of CPU time", number: (value) => duration(value * periodNs), more: samples, moreName: "" };
    }
    if (unit === "objects") {
      return { row: "Objects", name: (value) => plural(value, "object"), number: count, more: nothing };
    }
    if (unit === "waits") return { row: "Waits", name: (value) => plural(value, "wait"), number: count, more: nothing };
    if (unit === "contentions") return { row: "Contentions", name: (value) => plural(value, "contention"), number: count, more: nothing };
    if (unit === "lock_time") return { row: "Delay", name: () => "of waiting for locks", number: duration, more: nothing };
    if (unit === "pauses") return { row: "Pauses", name: (value) => plural(value, "pause"), number: count, more: nothing };
    if (unit === "pause_time") return { row: "Time", name: () => "of pauses", number: duration, more: nothing };
    if (unit === "wall_time") return { row: "Time", name: () => "of threads' time", number: duration, more: nothing };
    if (unit === "waiting_time") return { row: "Waiting", name: () => "of waiting", number: duration, more: nothing };
    const more = (value) => duration(value * periodNs);
    return { row: "Samples", name: (value) => plural(value, "sample"), number: count, more, moreName: "of CPU time" };
  };

  const THEMES = ["auto", "light", "dark"];
  const darkScheme = matchMedia("(prefers-color-scheme: dark)");

  // A browser may deny storage to a page that was opened from a file; the choice then lasts as long
  // as the page.
  function remembered(key) {
    try {
      return localStorage.getItem(key);
    } catch {
      return null;
    }
  }

  function remember(key, value) {
    try {
      localStorage.setItem(key, value);
    } catch {
      // Nothing depends on it.
    }
  }

  jvmprof.theme = {
    choice: THEMES.includes(remembered("jvmprof-theme")) ? remembered("jvmprof-theme") : "auto",
    listeners: [],

    isDark() {
      return this.choice === "dark" || (this.choice === "auto" && darkScheme.matches);
    },

    apply() {
      document.documentElement.dataset.theme = this.isDark() ? "dark" : "light";
      this.listeners.forEach((listener) => listener());
    },

    button() {
      const button = jvmprof.element("button.plain", { type: "button" });
      const show = () => {
        button.replaceChildren(jvmprof.icon(this.choice));
        button.title = `Theme: ${this.choice}`;
        button.setAttribute("aria-label", button.title);
      };
      button.addEventListener("click", () => {
        this.choice = THEMES[(THEMES.indexOf(this.choice) + 1) % THEMES.length];
        remember("jvmprof-theme", this.choice);
        this.apply();
        show();
      });
      show();
      return button;
    },
  };

  darkScheme.addEventListener("change", () => jvmprof.theme.apply());
  jvmprof.theme.apply();
})(globalThis.jvmprof);
