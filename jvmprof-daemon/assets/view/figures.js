// The numbers beside the search: how much is shown, and how many stacks are whole; and what is said
// of frames that aren't drawn.
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

  /// What the page says of frames that were pruned; null if none were. `shares(samples)` writes a
  /// number with its share. `mostLacking`: samples that a frame may lack. `isAll`: the table has
  /// all samples. `canFetch`: a zoom gets what is below a frame.
  jvmprof.prunedNotice = function (data, { shares, mostLacking, isAll, canFetch }) {
    const pruned = jvmprof.prunedSamples(data);
    if (pruned <= 0) return null;
    const lacking = mostLacking > 0
      ? ` A frame lacks what it took in hours in which it was among the lightest: at most ${shares(mostLacking)}, which is in [pruned] too.`
      : "";
    const way = canFetch ? " Zoom to a frame to see all below it." : "";
    const table = isAll ? "The table counts all of them." : "The table counts what is drawn.";
    return (
      `Drawn are the heaviest ${format.count(data.nodes.parent.length)} frames; ${shares(pruned)} ` +
      `end in [pruned], which sums up lighter ones.${lacking}${way} ${table}`
    );
  };
})(globalThis.jvmprof);
