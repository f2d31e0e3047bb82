"use strict";
// The page of a whole run: rows and explanations are asked of the server, by addresses beside the page's own.

(() => {
{% include "theme.js" %}

{% include "table.js" %}

  // Every question says which scores this page shows, `of`: of a run that was made again, ranks are of other nodes.
  let identity = "";
  async function ask(address, body) {
    const text = JSON.stringify({ ...body, of: identity });
    const post = { method: "POST", headers: { "Content-Type": "application/json" }, body: text };
    const page = address + (address.includes("?") ? "&" : "?") + new URLSearchParams({ of: identity });
    const reply = await (body ? fetch(address, post) : fetch(page));
    if (!reply.ok) throw new Error(await reply.text());
    return reply;
  }

  function say(text) {
    element("message").textContent = text;
    element("message").hidden = !text;
  }

  // The latest question wins: while one is under way the next waits a little, so that typing asks once.
  let typed = 0;
  async function source(view) {
    const mine = ++typed;
    if (view.query) await new Promise((done) => setTimeout(done, 200));
    if (mine !== typed) return { rows: [], total: 0 };
    element("ranking-status").textContent = "…";
    try {
      const found = JSON.parse(await askAfterVerdicts("rows?" + new URLSearchParams(view)));
      for (const { rank, id, verdict, by } of found.rows) record(rank, id, verdict, by);
      showCounts(found.counts);
      return found;
    } catch (error) {
      say(error.message);
      return { rows: [], total: 0 };
    }
  }

  // Verdicts. `known` has those of the ranks on the page. One that is given is shown at once as on its way, and as
  // stored when the server has answered; the server is asked in the order of giving. `current` is the rank that keys
  // are about, `walk` the nodes to review next: their ranks and why each was drawn.
  const NAMES = { bad: "Bad", good: "Good", unsure: "Unsure", none: "Undo", next: "Next" };
  const HINTS = { bad: "key b", good: "key g", unsure: "key u", none: "takes this verdict back", next: "key n or j" };
  const known = new Map();
  const given = []; // [rank, verdict before], the last one is undone first
  let [table, unwritable] = [null, ""];
  let [shown, hasMore] = [[], false]; // ranks on the page, and whether there is another page
  let [current, place] = [0, 0]; // a rank, and the place of its row in the table
  let [walk, stored, numGiven] = [new Map(), Promise.resolve(), 0];

  // The text at an address, read after all that was given here is stored.
  async function askAfterVerdicts(address) {
    for (;;) {
      const before = numGiven;
      await stored;
      const text = await (await ask(address)).text();
      if (before === numGiven) return text;
    }
  }

  const isOpen = () => /^#node-\d+$/.test(location.hash);

  function judge(rank, names) {
    const box = make("div", "judge");
    box.dataset.rank = rank;
    for (const name of names) {
      const button = make("button", name, NAMES[name]);
      button.type = "button";
      button.disabled = Boolean(unwritable) && name !== "next";
      button.addEventListener("click", () => {
        select(rank);
        name === "next" ? next() : give(rank, name);
      });
      box.append(button);
    }
    paint(box);
    return box;
  }

  function paint(box) {
    const { verdict, by, isStored } = known.get(Number(box.dataset.rank));
    box.classList.toggle("given", verdict !== "");
    box.classList.toggle("stored", isStored);
    for (const button of box.children) {
      const name = button.className;
      if (name !== "none" && name !== "next") button.setAttribute("aria-pressed", String(name === verdict));
      button.title = name === verdict && by ? "given by " + by : HINTS[name];
    }
  }

  function record(rank, id, verdict, by, isStored = true) {
    known.set(rank, { id, verdict, by, isStored });
    document.querySelectorAll(`.judge[data-rank="${rank}"]`).forEach(paint);
  }

  function showCounts({ verdicts, bad }) {
    element("counter").textContent = `${count(verdicts)} verdict${verdicts === 1 ? "" : "s"}, ${count(bad)} bad`;
  }

  // Stores a verdict; `none` takes one back. `undone` is the entry of `given` that this undoes.
  function give(rank, verdict, undone) {
    const before = known.get(rank);
    if (unwritable || !before || verdict === (before.verdict || "none")) return;
    const { id } = before;
    record(rank, id, verdict === "none" ? "" : verdict, "", false);
    const mine = known.get(rank);
    numGiven++;
    stored = stored.then(async () => {
      try {
        const answer = await (await ask("verdicts", { id, verdict })).json();
        if (!undone) given.push([rank, before.verdict || "none"]);
        if (known.get(rank) === mine) record(rank, id, answer.verdict, answer.by);
        showCounts(answer.counts);
        say("");
      } catch (error) {
        if (undone) given.push(undone);
        if (known.get(rank) === mine) record(rank, id, before.verdict, before.by);
        say(`The verdict on the node of rank ${count(rank)} is not stored: ${error.message}`);
      }
    });
  }

  async function undo() {
    await stored;
    const last = given.pop();
    if (!last) return say("No verdict was given since this page was loaded; Undo beside a node takes its verdict back.");
    go(last[0]);
    give(...last, last);
  }

  function select(rank) {
    current = rank;
    place = Math.max(0, shown.indexOf(rank));
    for (const row of element("ranking-table").tBodies[0].rows) {
      row.classList.toggle("current", Number(row.dataset.rank) === rank);
    }
  }

  // Goes to a node: to its card while cards are read, else to its row.
  function go(rank) {
    if (isOpen() || !shown.includes(rank)) open(rank);
    else {
      select(rank);
      document.querySelector("tr.current").scrollIntoView({ block: "nearest" });
    }
  }

  function open(rank) {
    if (location.hash === "#node-" + rank) explain(rank);
    else location.hash = "#node-" + rank;
  }

  // Goes to the next of the nodes worth a verdict, and draws new ones after the last.
  async function review() {
    const ranks = [...walk.keys()];
    let rank = ranks.slice(ranks.indexOf(current) + 1).find((other) => !known.get(other)?.verdict);
    try {
      if (!rank) {
        await stored;
        walk = new Map(await (await ask("review", {})).json());
        [rank] = walk.keys();
      }
      rank ? open(rank) : say("Every node has a verdict.");
    } catch (error) {
      say(error.message);
    }
  }

  async function teach() {
    element("teach").disabled = true;
    say("Ranking all nodes again…");
    try {
      await stored;
      await ask("teach", {});
      history.replaceState(null, "", "?sort=taught_rank");
      location.reload(); // the list by taught rank, and what was taught
    } catch (error) {
      element("teach").disabled = false;
      say(error.message);
    }
  }

  async function next() {
    if (isOpen() && walk.has(current)) return review();
    const before = shown;
    const at = before.indexOf(current);
    let rank = before[at < 0 ? place : at + 1];
    if (!rank) {
      await table.show(); // rows that no longer pass the filter have made room
      rank = shown.find((other) => !before.includes(other));
    }
    if (!rank && hasMore) {
      await table.change({ page: table.view.page + 1 });
      rank = shown[0];
    }
    rank ? go(rank) : say("This is the end of the list.");
  }

  function onShown(rows, more) {
    shown = rows.map((row) => row.rank);
    hasMore = more;
    select(shown.includes(current) || isOpen() || !shown.length ? current : shown[0]);
  }

  function onKey(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, select")) return;
    const verdicts = { b: "bad", g: "good", u: "unsure" };
    const others = { z: undo, Backspace: undo, n: next, j: next, ...(onCases() && { m: next }) };
    const key = event.key.length === 1 ? event.key.toLowerCase() : event.key;
    if (key === "Enter" && event.target === document.body && current) open(current);
    if (!(key in verdicts || key in others)) return;
    event.preventDefault();
    if (event.repeat) return;
    if (onCases()) onCaseKey(key);
    else key in others ? others[key]() : give(current, verdicts[key]);
  }

  async function explain(rank) {
    if (!rank) return;
    const section = element("explained");
    const isFirst = section.hidden;
    section.hidden = false;
    element("card").textContent = "…";
    try {
      const text = await askAfterVerdicts("explained?rank=" + rank);
      if (rank !== current) return; // another one was opened meanwhile
      element("card").innerHTML = text;
      const bar = element("card-verdict");
      record(rank, bar.dataset.id, bar.dataset.verdict, bar.dataset.by);
      if (walk.has(rank)) bar.append(make("p", "", "Worth a verdict: " + walk.get(rank)));
      bar.append(judge(rank, Object.keys(NAMES)));
    } catch (error) {
      element("card").textContent = error.message;
    }
    (isFirst ? section : element("card")).scrollIntoView(); // how to read a card is read once
  }

  // Cases: pages of cards, asked for when the tab is opened. `bars` are their verdict bars, keys are about `bar`.
  let [casePage, bars, bar] = [0, [], null];
  const undos = []; // what takes back each thing that was said of cases, the last one first
  const onCases = () => location.hash === "#cases";

  async function openCases(marked) {
    if (!onCases()) return;
    const [section, list] = [element("cases"), element("case-list")];
    section.hidden = false;
    if (!bars.length) list.textContent = "…";
    try {
      list.innerHTML = await askAfterVerdicts("cases?page=" + casePage);
      bars = [...list.querySelectorAll(".case-verdict")];
      bars.forEach(caseButtons);
      markCase(barOf(marked) || bars[0]);
      const pages = list.querySelector(".pages");
      element("cases-before").disabled = casePage === 0;
      element("cases-after").disabled = casePage >= Number(pages.dataset.last);
    } catch (error) {
      list.textContent = error.message;
    }
    (barOf(marked)?.closest("article") || section).scrollIntoView();
  }

  const barOf = (name) => bars.find((one) => one.dataset.case === name);

  function caseButtons(one) {
    const card = one.closest("article");
    const box = make("div", "judge");
    for (const name of ["bad", "good", "unsure", "none"]) {
      const button = make("button", name, NAMES[name]);
      button.type = "button";
      button.disabled = Boolean(unwritable);
      button.addEventListener("click", () => giveCase(one, name));
      box.append(button);
    }
    const note = make("input", "note-text");
    Object.assign(note, { type: "text", placeholder: "a note, kept with the verdict", maxLength: 1000, disabled: Boolean(unwritable) });
    one.append(box, note);
    card.addEventListener("click", () => markCase(one));
    memberButtons(card.querySelector(".one-member"));
    changeButtons(card, one.dataset.case);
    const around = card.querySelector(".around");
    around.addEventListener("toggle", async () => {
      const inside = around.lastElementChild;
      if (!around.open || inside.firstChild) return;
      inside.textContent = "…";
      try {
        inside.innerHTML = await (await ask("around?case=" + one.dataset.case)).text();
      } catch (error) {
        inside.textContent = error.message;
      }
    });
    paintCase(one, true);
  }

  // Merging a case, taking it apart, and taking members out or putting them in; `back` is what undoes it.
  function changeButtons(card, name) {
    const [other, member] = [card.querySelector(".other"), card.querySelector(".one-member select")];
    const parts = [...card.querySelectorAll("[data-how=apart]")].map((button) => button.dataset.value);
    const merge = () => changeCase(name, "merge", [other.value], ({ moved }) => [name, "apart", moved]);
    const acts = {
      merge,
      apart: (part) => changeCase(name, "apart", [part], () => [part, "merge", [parts.find((one) => one !== part)]]),
      in: (id) => changeCase(name, "in", [id], () => [name, "out", [id]]),
      out: () => changeCase(name, "out", [member.value], ({ moved }) => [name, "in", moved.slice(0, 1)]),
    };
    other.addEventListener("keydown", (event) => event.key === "Enter" && merge());
    other.disabled = Boolean(unwritable);
    for (const button of card.querySelectorAll("[data-how]")) {
      button.disabled = Boolean(unwritable);
      button.addEventListener("click", () => acts[button.dataset.how](button.dataset.value));
    }
  }

  // Changes a case, and shows the page on which it is now.
  function changeCase(name, how, values, back) {
    stored = stored.then(async () => {
      try {
        const answer = await (await ask("cases", { case: name, how, values })).json();
        if (back) undos.push(() => changeCase(...back(answer)));
        casePage = answer.page;
        openCases(answer.case); // which waits for this
        say("");
      } catch (error) {
        say(`The case is as it was: ${error.message}`);
      }
    });
  }

  // Verdicts on one member of a case, which count for it whatever is said of the case.
  function memberButtons(details) {
    if (!details) return;
    const [select, said] = [details.querySelector("select"), details.querySelector("output")];
    const box = make("div", "judge given");
    said.before(box);
    for (const verdict of ["bad", "good", "unsure", "none"]) {
      const button = make("button", verdict, NAMES[verdict]);
      Object.assign(button, { type: "button", disabled: Boolean(unwritable) });
      button.addEventListener("click", () => {
        const id = select.value;
        stored = stored.then(async () => {
          try {
            const answer = await (await ask("verdicts", { id, verdict })).json();
            said.textContent = `${id}: ${answer.verdict || "no verdict"}`;
            showCounts(answer.counts);
          } catch (error) {
            say(`The verdict on ${id} is not stored: ${error.message}`);
          }
        });
      });
      box.append(button);
    }
  }

  function paintCase(one, isStored) {
    const { verdict } = one.dataset;
    one.classList.toggle("given", verdict !== "");
    one.firstElementChild.classList.toggle("given", verdict !== "");
    one.firstElementChild.classList.toggle("stored", isStored);
    for (const button of one.firstElementChild.children) {
      if (button.className !== "none") button.setAttribute("aria-pressed", String(button.className === verdict));
    }
  }

  function markCase(one) {
    bar = one || null;
    for (const other of bars) other.closest("article").classList.toggle("current", other === bar);
  }

  // Stores a verdict on a case; its note stays typed if it is not stored.
  function giveCase(one, verdict, isUndo) {
    const before = one.dataset.verdict || "none";
    const note = one.querySelector(".note-text").value;
    if (unwritable || (verdict === before && note === (one.dataset.note || ""))) return;
    one.dataset.verdict = verdict === "none" ? "" : verdict;
    paintCase(one, false);
    numGiven++;
    stored = stored.then(async () => {
      try {
        const answer = await (await ask("verdicts", { case: one.dataset.case, verdict, note })).json();
        if (!isUndo) undos.push(() => takeBack(one.dataset.case, before));
        Object.assign(one.dataset, { verdict: answer.verdict, note });
        one.closest("article").querySelector(".judged").textContent = answer.judged;
        showCounts(answer.counts);
        say("");
      } catch (error) {
        one.dataset.verdict = before === "none" ? "" : before;
        say(`The verdict on case ${one.dataset.number} is not stored: ${error.message}`);
      }
      paintCase(one, true);
    });
  }

  // Gives the verdict that a case had before, wherever it is told now.
  async function takeBack(name, verdict) {
    const one = barOf(name);
    if (one) return markCase(one), giveCase(one, verdict, true);
    stored = stored.then(() => ask("verdicts", { case: name, verdict })).catch((error) => say(error.message));
    await openCases();
  }

  async function turnCases(step) {
    casePage += step;
    await openCases();
  }

  async function onCaseKey(key) {
    if (key in { b: 1, g: 1, u: 1 }) bar && giveCase(bar, { b: "bad", g: "good", u: "unsure" }[key]);
    else if (key === "n" || key === "j") {
      const next = bars[bars.indexOf(bar) + 1];
      if (next) {
        markCase(next);
        next.closest("article").scrollIntoView({ block: "nearest" });
      } else if (!element("cases-after").disabled) await turnCases(1);
      else say("This is the last case.");
    } else if (key === "m") {
      const details = bar?.closest("article").querySelector(".change");
      if (!details) return;
      details.open = true;
      details.querySelector(".other").focus();
    } else {
      await stored;
      const last = undos.pop();
      last ? last() : say("Nothing was said of a case since this page was loaded.");
    }
  }

  // The strangest edges: ranked by the server when they are first asked for, and asked for once.
  let edges = null;
  async function openEdges() {
    if (location.hash !== "#edges") return;
    const [section, list] = [element("edges"), element("edge-list")];
    section.hidden = false;
    if (!edges) list.textContent = "Ranking all edges…";
    section.scrollIntoView();
    try {
      edges ??= ask("edges").then((reply) => reply.text());
      const text = await edges;
      if (!list.firstElementChild) list.innerHTML = text;
    } catch (error) {
      edges = null;
      list.textContent = error.message;
    }
  }

  document.addEventListener("DOMContentLoaded", () => {
    startTheme();
    const data = JSON.parse(element("ranking-data").textContent);
    ({ unwritable, identity } = data);
    for (const open of [openEdges, () => openCases()]) {
      addEventListener("hashchange", open);
      open();
    }
    element("cases-before").addEventListener("click", () => turnCases(-1));
    element("cases-after").addEventListener("click", () => turnCases(1));
    if (unwritable) say(`No verdicts can be given here: ${unwritable} cannot be written by this server.`);
    table = rankedTable({
      columns: data.columns,
      source,
      onCsv: (view) => (location.href = "scores.csv?" + new URLSearchParams(view)),
      isDetailed: () => true,
      nothing: "No node matches",
      judge: (row) => judge(row.rank, ["bad", "good", "unsure", "none"]),
      onShown,
    });
    const asked = new URLSearchParams(location.search).get("sort");
    if (data.columns.some(({ key }) => key === asked)) table.view.sort = asked;
    for (const [name, act] of Object.entries({ review, teach })) {
      element(name).addEventListener("click", act);
      element(name).disabled = Boolean(unwritable);
    }
    document.addEventListener("keydown", onKey);
    followRanks((rank) => {
      if (rank) select(rank);
      table.mark(rank);
      explain(rank);
    });
  });
})();
