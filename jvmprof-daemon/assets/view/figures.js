// The numbers beside the search: how much is shown, and how many stacks are whole; and what the
// page says of what it shows, a line each, such as of frames that aren't drawn.
"use strict";

(function (jvmprof) {
  const { element, format } = jvmprof;

  const figure = (number, name) => element("span.figure", {}, element("b", {}, number), ` ${name}`);

  function truncatedRows(data, cut, measure) {
    const rows = element("dl");
    const row = (name, count) => rows.append(element("dt", {}, name), element("dd", {}, measure.number(count)));
    row("Reached the thread's start", data.total - cut);
    [...data.truncated].sort((a, b) => b[1] - a[1]).forEach(([name, samples]) => row(name, samples));
    return rows;
  }

  function sides(data, measure) {
    const side = (name, count) => element("span.figure", {}, `${name} `, element("b", {}, measure.number(count)), ` ${measure.name(count)}`);
    return [side("before", data.base ?? 0), side("after", data.total)];
  }

  /// Fills the holder. `isWhole`: nothing was taken out of the profile, of which alone it is known
  /// how many stacks are whole.
  jvmprof.showFigures = function (holder, data, measure, { comparison, isWhole }) {
    if (comparison) return holder.replaceChildren(...sides(data, measure));
    const cut = data.truncated.reduce((sum, [, samples]) => sum + samples, 0);
    const whole = () =>
      element(
        "details.figure",
        {},
        element("summary", {}, element("b", {}, format.share(data.total - cut, data.total)), " whole stacks"),
        element("div.popover", {}, truncatedRows(data, cut, measure)),
      );
    holder.replaceChildren(
      figure(measure.number(data.total), measure.name(data.total)),
      ...(measure.more(data.total) ? [figure(measure.more(data.total), measure.moreName)] : []),
      ...(isWhole ? [whole()] : []),
    );
  };

  /// A notice: a text, or `[line, more]`, of which the rest stands below once it is opened.
  function noticeOf(of, said, open) {
    const [line, more] = [said].flat();
    if (!more) return element("p.notice", { "data-of": of }, line);
    const summary = element("summary", {}, line);
    return element("details.notice", { "data-of": of, open }, summary, element("p", {}, more));
  }

  /// Shows these notices, by what they are of; null for none. What is open stays so, and what has
  /// the focus keeps it.
  jvmprof.showNotices = function (holder, notices) {
    const opened = [...holder.querySelectorAll("details[open]")].map((it) => it.dataset.of);
    const said = Object.entries(notices).filter(([, notice]) => notice);
    const shown = said.map(([of, notice]) => noticeOf(of, notice, opened.includes(of)));
    const isSame = (node, at) => Boolean(holder.children[at]?.isEqualNode(node));
    if (shown.length === holder.children.length && shown.every(isSame)) return;
    const focused = holder.contains(document.activeElement) && document.activeElement;
    const of = focused && focused.closest(".notice")?.dataset.of;
    holder.replaceChildren(...shown);
    if (of) shown.find((node) => node.dataset.of === of)?.querySelector("summary")?.focus();
  };

  /// What the page says of frames that were pruned, `[line, more]`; null if none were.
  /// `shares(samples)` writes a number with its share. `mostLacking`: samples that a frame may
  /// lack. `isAll`: the table has all samples. `canFetch`: a zoom gets what is below a frame.
  jvmprof.prunedNotice = function (data, { shares, mostLacking, isAll, canFetch }) {
    const pruned = jvmprof.prunedSamples(data);
    if (pruned <= 0) return null;
    const lacking = mostLacking > 0
      ? ` A frame lacks what it took in hours in which it was among the lightest: at most ${shares(mostLacking)}, which is in [pruned] too.`
      : "";
    const zoom = ": zoom to a frame to see all below it";
    const way = canFetch ? zoom : ", which sums up lighter frames";
    const table = isAll ? "The table counts all of them." : "The table counts what is drawn.";
    const drawn = `Drawn are the heaviest ${format.count(data.nodes.parent.length)} frames.`;
    const rest = "What is lighter is [pruned] below its caller.";
    return [`${shares(pruned)} end in [pruned]${way}.`, `${drawn} ${rest}${lacking} ${table}`];
  };
})(globalThis.jvmprof);
