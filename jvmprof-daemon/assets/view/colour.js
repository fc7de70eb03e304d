// What frames are coloured by: the kind of code, the package, how methods ran; or what changed,
// where two profiles are compared.
"use strict";

(function (jvmprof) {
  jvmprof.COLOURINGS = { kind: "Colour by kind", package: "Colour by package", how: "Colour by how it ran" };

  // [hue, saturation, lightness in light, lightness in dark]; names vary lightness and hue a
  // little.
  const COLOURS = {
    java: [145, 52, 66, 34],
    jdk: [176, 26, 70, 36],
    stub: [52, 62, 70, 36],
    class: [310, 40, 72, 38],
    jit: [190, 48, 68, 34],
    native: [218, 68, 77, 43],
    kernel: [25, 82, 71, 40],
    marker: [338, 68, 76, 42],
    label: [230, 14, 80, 33],
    root: [230, 10, 85, 29],
    pruned: [230, 4, 78, 36],
    interpreted: [8, 74, 74, 42],
    C1: [45, 78, 68, 36],
    C2: [145, 52, 66, 34],
    inlined: [176, 44, 68, 34],
    // Beside these ways in which methods ran, the stubs' own colour is that of C1.
    stubBesideWays: [272, 44, 79, 42],
    other: [230, 6, 82, 33],
  };
  /// By the number of what a JVM's samples were taken in.
  const ACTIVITY_COLOURS = [
    [145, 48, 56, 44],
    [268, 48, 64, 58],
    [45, 78, 56, 50],
    [350, 62, 62, 54],
    [188, 56, 48, 42],
    [25, 80, 60, 52],
    [218, 62, 64, 56],
    [300, 10, 66, 46],
    [220, 12, 78, 34],
  ];
  const KIND_LEGEND = ["java", "jdk", "class", "jit", "stub", "native", "kernel", "marker"];
  const PACKAGES_IN_LEGEND = 8;

  function hash(text) {
    let value = 2166136261;
    for (let i = 0; i < text.length; i++) value = Math.imul(value ^ text.charCodeAt(i), 16777619);
    return (value >>> 8) / 0x1000000;
  }

  /// The luminance that a frame may have in dark, so that its name in `--frame-text` has the
  /// contrast of 4.5 that WCAG asks for.
  const MOST_LUMINANCE = 0.163;

  /// WCAG's relative luminance.
  function luminance(hue, saturation, lightness) {
    const [s, l] = [saturation / 100, lightness / 100];
    const part = (n) => {
      const k = (n + hue / 30 + 12) % 12;
      const value = l - s * Math.min(l, 1 - l) * Math.max(-1, Math.min(k - 3, 9 - k, 1));
      return value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
    };
    return 0.2126 * part(0) + 0.7152 * part(8) + 0.0722 * part(4);
  }

  const mostLightnesses = new Map();

  /// The most lightness in dark: yellow is brighter than blue of the same.
  function mostLightness(hue, saturation) {
    const key = `${hue} ${saturation}`;
    if (!mostLightnesses.has(key)) {
      let most = 60;
      while (luminance(hue, saturation, most) > MOST_LUMINANCE) most -= 0.5;
      mostLightnesses.set(key, most);
    }
    return mostLightnesses.get(key);
  }

  function hsl([hue, saturation, light, darkLightness], shade, muted) {
    const dark = jvmprof.theme.isDark();
    const aside = muted ? (dark ? -9 : 9) : 0;
    const lightness = (dark ? darkLightness : light) + (shade - 0.5) * (dark ? 9 : 11) + aside;
    const grey = muted ? 0.22 : dark ? 0.8 : 1;
    const of = [Math.round(hue + (shade - 0.5) * 12), Math.round(saturation * grey)];
    const shown = dark ? Math.min(lightness, mostLightness(...of)) : lightness;
    return `hsl(${of[0]} ${of[1]}% ${shown.toFixed(1)}%)`;
  }

  const kindOf = (fn) => (fn.isJdk ? "jdk" : fn.kind);

  /// The packages that are distinguished: of `com.acme.shop.order`, `com.acme.shop`; of the JDK two
  /// parts are enough.
  function packageName(fn) {
    const parts = jvmprof.packageOf(fn.name).package.split(".");
    return parts.slice(0, fn.isJdk ? 2 : 3).join(".");
  }

  const packageColour = (name) => [360 * hash(name), 48, 70, 36];

  jvmprof.activityColour = function (activity) {
    const [hue, saturation, light, dark] = ACTIVITY_COLOURS[activity];
    return `hsl(${hue} ${saturation}% ${jvmprof.theme.isDark() ? dark : light}%)`;
  };

  /// The way in which most samples of a node ran; null if unknown.
  function mainHow(how) {
    let most = null;
    for (let i = 0; i < how.length; i += 2) if (most === null || how[i + 1] > how[most + 1]) most = i;
    return most === null ? null : jvmprof.HOW_NAMES[how[most]];
  }

  /// Grey where it may be chance, else from pale to full by how much of it is new or gone.
  jvmprof.changeColour = function (comparison, sides, muted = false) {
    if (comparison.isNoise(sides)) return hsl(COLOURS.other, 0.5, muted);
    const relative = comparison.relative(sides);
    const strength = Math.sqrt(Math.abs(relative));
    const dark = jvmprof.theme.isDark();
    const lightness = dark ? 30 + 16 * strength : 88 - 26 * strength;
    const saturation = (muted ? 20 : 35 + 45 * strength).toFixed(0);
    return `hsl(${relative > 0 ? 4 : 214} ${saturation}% ${lightness.toFixed(1)}%)`;
  };

  /// The same in the legend: more, less, or what may be chance.
  jvmprof.legendChange = (relative) =>
    jvmprof.changeColour({ isNoise: () => relative === 0, relative: () => relative }, [0, 0]);

  class Colours {
    constructor() {
      this.by = "kind";
    }

    /// The colour of a function, or of a drawn node.
    of(fn, how = [], muted = false, shaded = true) {
      const shade = shaded ? hash(fn.name) : 0.5;
      if (this.by === "package" && fn.kind === "java") return hsl(packageColour(packageName(fn)), shade, muted);
      if (this.by === "how") {
        const isWay = fn.kind === "java" ? mainHow(how) : fn.kind;
        const colour = { native: COLOURS.native, kernel: COLOURS.kernel, stub: COLOURS.stubBesideWays }[isWay] ?? COLOURS[fn.kind === "java" ? isWay : "other"];
        return hsl(colour ?? COLOURS.other, shade, muted);
      }
      return hsl(COLOURS[kindOf(fn)], shade, muted);
    }

    /// What the legend shows: `[{colour, name, search}]`; `rows` of the table say which packages
    /// are heavy.
    legend(rows) {
      const entry = (key, name, search) => ({ colour: hsl(COLOURS[key], 0.5, false), name, search });
      if (this.by === "how") {
        const ways = ["interpreted", "C1", "C2", "inlined"].map((name) => entry(name, name, null));
        return [...ways, entry("native", "native", "kind:native"), entry("stubBesideWays", "JVM stub", "kind:stub"), entry("kernel", "Kernel", "kind:kernel")];
      }
      if (this.by === "package") {
        return heaviestPackages(rows).map((name) => ({ colour: hsl(packageColour(name), 0.5, false), name, search: `package:${name}` }));
      }
      const names = { java: "Application", jdk: "JDK" };
      const searches = { java: "kind:application", jdk: "kind:jdk" };
      return KIND_LEGEND.map((kind) => entry(kind, names[kind] ?? jvmprof.kindNameOf(kind, rows), searches[kind] ?? `kind:${kind}`));
    }
  }

  function heaviestPackages(rows) {
    const samples = new Map();
    for (const { fn, attributed } of rows) {
      if (fn.kind !== "java") continue;
      const name = packageName(fn);
      samples.set(name, (samples.get(name) ?? 0) + attributed);
    }
    const heaviest = [...samples].sort((a, b) => b[1] - a[1]).slice(0, PACKAGES_IN_LEGEND);
    return heaviest.map(([name]) => name).filter(Boolean);
  }

  jvmprof.Colours = Colours;
})(globalThis.jvmprof);
