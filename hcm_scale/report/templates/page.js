"use strict";
// The theme is set before the first paint; everything else waits for the document.

(() => {
{% include "theme.js" %}

{% include "table.js" %}

  // All rows are here, as a list of values for each column.
  function localSource({ columns, values }) {
    const numRows = values.rank.length;
    const isText = Object.fromEntries(columns.map((c) => [c.key, c.kind === "text" || c.kind === "words"]));
    const haystack = values.id.map((id, i) => `${id}\n${values.label?.[i] ?? ""}\n${values.flags?.[i] ?? ""}`.toLowerCase());
    const bar = columns.find((c) => c.bar);
    const barTop = values[bar.key].reduce((top, value) => Math.max(top, value ?? 0), 0);
    const order = new Intl.Collator("en", { numeric: true });
    const row = (i) => Object.fromEntries(columns.map(({ key }) => [key, values[key][i]]));

    function matching(view) {
      const wanted = view.query.trim().toLowerCase();
      const found = [];
      for (let i = 0; i < numRows; i++) {
        const kept = (!view.kind || values.evidence[i] === view.kind) && (!view.type || values.type[i] === view.type);
        if (kept && (!view.flagged || values.flagged[i]) && haystack[i].includes(wanted)) found.push(i);
      }
      if (view.sort === "rank") return view.down ? found.reverse() : found;
      const by = values[view.sort];
      const sign = view.down ? -1 : 1;
      return found.sort((a, b) => {
        const [x, y] = [by[a], by[b]];
        if (x === y) return a - b;
        if (x === null || y === null) return x === null ? 1 : -1; // missing values come last either way
        return sign * (isText[view.sort] ? order.compare(x, y) : x - y);
      });
    }

    function find(view, pageRows) {
      const found = matching(view);
      const first = view.page * pageRows;
      return { rows: found.slice(first, first + pageRows).map(row), total: found.length, barTop };
    }

    function csv(view) {
      const quoted = (value) => (typeof value === "string" ? `"${value.replaceAll('"', '""')}"` : String(value ?? ""));
      const keys = columns.map(({ key }) => key);
      const lines = matching(view).map((i) => keys.map((key) => quoted(values[key][i])).join(","));
      return [keys.join(","), ...lines, ""].join("\n");
    }

    return { find, csv, numRows };
  }

  function download(name, text) {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([text], { type: "text/csv" }));
    link.download = name;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 60000);
  }

  function startTable() {
    const data = element("ranking-data");
    const listed = JSON.parse(data.textContent);
    const local = localSource(listed);
    const total = Number(data.dataset.total);
    const hasCard = (rank) => element("node-" + rank) !== null;
    const table = rankedTable({
      columns: listed.columns,
      source: local.find,
      onCsv: (view) => download("ranking.csv", local.csv(view)),
      isDetailed: hasCard,
      nothing: local.numRows < total ? `None of the first ${count(local.numRows)} matches` : "No node matches",
    });
    table.show();
    followRanks(async (rank) => {
      if (!rank || hasCard(rank) || rank > local.numRows) return;
      await table.open(rank);
      element("ranking").scrollIntoView();
    });
  }

  document.addEventListener("DOMContentLoaded", () => {
    startTheme();
    startTable();
  });
})();
