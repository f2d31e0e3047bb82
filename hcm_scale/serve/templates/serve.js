"use strict";
// The page of a whole run: rows and explanations are asked of the server, by addresses beside the page's own.

(() => {
{% include "theme.js" %}

{% include "table.js" %}

  async function ask(address) {
    const reply = await fetch(address);
    if (!reply.ok) throw new Error(await reply.text());
    return reply;
  }

  // The latest question wins: while one is under way the next waits a little, so that typing asks once.
  let typed = 0;
  async function source(view) {
    const mine = ++typed;
    if (view.query) await new Promise((done) => setTimeout(done, 200));
    if (mine !== typed) return { rows: [], total: 0 };
    element("ranking-status").textContent = "…";
    return (await ask("rows?" + new URLSearchParams(view))).json();
  }

  async function explain(rank) {
    if (!rank) return;
    const section = element("explained");
    section.hidden = false;
    element("card").textContent = "…";
    try {
      element("card").innerHTML = await (await ask("explained?rank=" + rank)).text();
    } catch (error) {
      element("card").textContent = error.message;
    }
    section.scrollIntoView();
  }

  document.addEventListener("DOMContentLoaded", () => {
    startTheme();
    const table = rankedTable({
      columns: JSON.parse(element("ranking-data").textContent).columns,
      source,
      onCsv: (view) => (location.href = "scores.csv?" + new URLSearchParams(view)),
      isDetailed: () => true,
      nothing: "No node matches",
    });
    followRanks((rank) => {
      table.mark(rank);
      explain(rank);
    });
  });
})();
