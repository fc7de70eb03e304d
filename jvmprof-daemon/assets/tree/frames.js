// Which frames are shown: all of them, Java's, or the application's. Frames that aren't shown are
// left out of the tree, so that their time is their nearest shown caller's.
"use strict";

(function (jvmprof) {
  jvmprof.FRAMES = { all: "All frames", java: "Java", app: "Application" };

  const SHOWN = new Set(["root", "label", "java", "class", "jit", "marker", "pruned"]);

  /// What a stack of a Java thread begins with, before anything of a program.
  const THREAD_START =
    /^java\.lang\.(Thread\.(run|runWith)|VirtualThread(\$VThreadContinuation\$\d+)?\.run(With)?|ThreadBuilders\$BoundVirtualThread\.run)$|^jdk\.internal\.vm\.Continuation\./;

  /// Packages of the JDK. `javax` is also everybody else's.
  const JDK =
    /^(java|jdk|sun|com\.sun\.(net|security|jndi|crypto|org|proxy|nio|management|beans|tools|jmx|naming|rowset)|javax\.(net|crypto|security|xml|naming|sql|management|print|swing|script|sound|imageio|accessibility|lang|tools|rmi))\./;

  jvmprof.isJdk = (name) => JDK.test(name);

  jvmprof.NO_JAVA_CALLER = { kind: "native", name: "[no Java caller]", file: "", module: "" };

  const collapsed = new Map();

  /// The one function that stands for calls within the JDK that begin in this package.
  function collapsedPackage(name) {
    const parts = name.split(".");
    const type = parts.findIndex((part) => /^[A-Z]/.test(part));
    const text = `${parts.slice(0, type > 0 ? type : -2).join(".")}.*`;
    if (!collapsed.has(text)) collapsed.set(text, { kind: "java", name: text, file: "", module: "jvm", isCollapsed: true, isJdk: true });
    return collapsed.get(text);
  }

  /// Whether a frame is above all code of a thread. A Java frame without a name isn't.
  jvmprof.isAboveCode = (fn) =>
    fn.kind === "root" || fn.kind === "label" || (fn.kind === "marker" && fn.name.startsWith("[truncated"));

  /// What is shown for a function that is called by `above`, as it is shown; null for nothing.
  /// `isExpanded(fn)`, if there is one: which functions of the JDK are shown like the
  /// application's.
  jvmprof.shownFrame = function (fn, above, frames, isExpanded = null) {
    if (frames === "all") return fn;
    if (!SHOWN.has(fn.kind)) return null;
    if (fn.kind !== "java") return fn;
    if (jvmprof.isAboveCode(above) && THREAD_START.test(fn.name)) return null;
    if (frames === "app" && JDK.test(fn.name) && !isExpanded?.(fn)) return above.isCollapsed ? above : collapsedPackage(fn.name);
    return fn;
  };

  /// What the page says of a choice of frames, `[line, more]`.
  jvmprof.framesNotice = function (frames, root, share) {
    if (frames === "all") return null;
    let rest = 0;
    const todo = [root];
    while (todo.length) {
      const node = todo.pop();
      if (node.fn === jvmprof.NO_JAVA_CALLER) rest += node.value;
      else if (jvmprof.isAboveCode(node.fn)) todo.push(...node.children);
    }
    const none = rest ? `; ${share(rest)} of the samples have none` : "";
    const jdk = frames === "app" ? " Calls within the JDK are one frame, named by its first package." : "";
    return [
      `Time of other frames is counted to the nearest Java caller${none}.`,
      `Others are those of the kernel, of native code and of the JVM's stubs.${jdk}`,
    ];
  };
})(globalThis.jvmprof);
