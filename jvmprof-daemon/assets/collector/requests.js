// What the collector is asked for, and its answers.
"use strict";

(function (jvmprof) {
  /// How long a page waits for an answer; the collector itself gives up earlier and says why.
  const PATIENCE = 90_000;

  /// Promises the answer to a request; an error says why there is none.
  jvmprof.ask = async function (path, query, signal) {
    let response;
    try {
      response = await fetch(`${path}?${query}`, { signal: AbortSignal.any([signal, AbortSignal.timeout(PATIENCE)]) });
    } catch (error) {
      if (signal.aborted) throw error;
      const reason = error.name === "TimeoutError" ? "didn't answer in time" : "can't be reached";
      throw new Error(`The collector ${reason}. Is it still running?`);
    }
    if (response.ok) return response.json();
    const body = await response.json().catch(() => ({}));
    throw new Error(body.error ?? `The collector answered ${response.status} ${response.statusText}.`);
  };

  /// The query of some of the stacks that a query is of: of a part of the time, what edits leave,
  /// those with a function, or those through the nodes with these hashes, which are in these groups
  /// if there are any.
  jvmprof.stacksQuery = function (whole, { part = null, edits = [], through = "", under = [], groups = [] }) {
    const query = new URLSearchParams(whole);
    if (part) query.set("part", part.join("-"));
    for (const edit of edits) query.append("edit", edit);
    if (through) query.set("through", through);
    for (const hash of under) query.append("under", hash);
    for (const group of groups) query.append("under_group", group);
    return query;
  };
})(globalThis.jvmprof);
