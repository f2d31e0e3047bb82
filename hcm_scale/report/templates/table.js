// The ranked table. `source(view)` finds what to show, {rows, total}, or a promise of it; a row is an object by column.
// `onCsv(view)` downloads. What is shown is a function of `view` alone; `opened` is the rank of the row that is marked.
// On the served page `judge(row)` makes the buttons in the column `verdict`, and `onShown(rows, hasMore)` follows.
const element = (id) => document.getElementById(id);
const count = (value) => value.toLocaleString("en");

function make(tag, className, ...children) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  made.append(...children);
  return made;
}

function written(column, value) {
  if (value === null || value === undefined || value === "") return column.kind === "text" ? "" : "–";
  if (column.kind === "p" && value < 1e-6) return "below 1e-6"; // no tail is known beyond
  if (column.kind === "p") return value < 0.001 ? value.toExponential(0) : value.toFixed(3);
  if (column.kind === "score") return value.toFixed(column.digits);
  if (column.kind === "words") return column.words[value] ?? value;
  if (column.kind === "flag") return value ? "yes" : "";
  return column.kind === "count" ? count(value) : String(value);
}

// What a cell holds: of a reason, text and what stands between backticks, alternating.
function contents(column, text) {
  if (column.key !== "reason") return [text];
  return text.split(/`([^`]*)`/).map((part, at) => (at % 2 ? make("code", "", part) : part));
}

function rankedTable({ columns, source, onCsv, isDetailed, nothing, judge, onShown }) {
  const table = element("ranking-table");
  const headers = [...table.tHead.rows[0].cells];
  const tools = ["search", "kind", "type", "flagged", "verdict"].map((name) => element(`ranking-${name}`));
  const [search, kind, type, flagged, verdict] = tools;
  const view = { sort: "rank", down: false, query: "", kind: "", type: "", flagged: false, verdict: "", page: 0 };
  const pageRows = Number(table.dataset.pageRows);
  let opened = 0;
  let asked = 0;

  function cell(column, row, barTop) {
    if (column.kind === "verdict") return make("td", "verdict", judge(row));
    const value = row[column.key];
    const inside = column.key === "id" ? [] : contents(column, written(column, value));
    const td = make("td", column.kind + (column.minor ? " minor" : ""), ...inside);
    if (column.key === "id") {
      const link = make("a", "id", make("bdi", "", String(value)));
      link.href = "#node-" + row.rank;
      link.title = value;
      td.append(link);
    }
    if (column.key === "reason") {
      td.classList.add("why");
      td.title = value ?? "";
    }
    if (column.bar && barTop > 0 && value > 0) {
      td.classList.add("meter");
      td.style.setProperty("--share", (value / barTop).toFixed(4));
    }
    return td;
  }

  // Every column of a row that has no room of its own elsewhere on the page.
  function detail(row) {
    const list = make("dl", "");
    for (const column of columns) {
      if (column.key !== "id") {
        const inside = contents(column, written(column, row[column.key]) || "–");
        list.append(make("div", "", make("dt", "", column.name), make("dd", "", ...inside)));
      }
    }
    const td = make("td", "text", list);
    td.colSpan = columns.length;
    return make("tr", "detail", td);
  }

  function lines(row, barTop) {
    const tr = make("tr", row.flagged ? "flagged" : "", ...columns.map((column) => cell(column, row, barTop)));
    tr.dataset.rank = row.rank;
    if (row.rank !== opened) return [tr];
    tr.classList.add("opened");
    return isDetailed(row.rank) ? [tr] : [tr, detail(row)];
  }

  async function show() {
    const mine = ++asked;
    const { rows, total, barTop } = await source(view, pageRows);
    if (mine !== asked) return; // an answer that came too late
    table.tBodies[0].replaceChildren(...rows.flatMap((row) => lines(row, barTop)));
    const first = view.page * pageRows;
    element("ranking-status").textContent = total
      ? `${count(first + 1)}–${count(first + rows.length)} of ${count(total)}`
      : nothing;
    element("ranking-back").disabled = view.page === 0;
    element("ranking-next").disabled = first + rows.length >= total;
    headers.forEach((th, c) => {
      const state = columns[c].key !== view.sort ? "none" : view.down ? "descending" : "ascending";
      th.setAttribute("aria-sort", state);
    });
    onShown?.(rows, first + rows.length < total);
  }

  function change(changes) {
    Object.assign(view, { page: 0 }, changes);
    return show();
  }

  // Marks the row of a rank, and goes to its page where all nodes are listed by rank.
  function open(rank) {
    opened = rank;
    Object.assign(view, { sort: "rank", down: false, query: "", kind: "", type: "", flagged: false });
    search.value = "";
    if (kind) kind.value = "";
    if (type) type.value = "";
    if (flagged) flagged.checked = false;
    return change({ page: Math.floor((rank - 1) / pageRows) });
  }

  function mark(rank) {
    opened = rank;
    return show();
  }

  const smallestFirst = (column) => !["score", "flag"].includes(column.kind) && column.key !== "degree";
  headers.forEach((th, c) => {
    th.querySelector("button").addEventListener("click", () => {
      const { key } = columns[c];
      change({ down: key === view.sort ? !view.down : !smallestFirst(columns[c]), sort: key });
    });
  });
  search.addEventListener("input", () => change({ query: search.value }));
  kind?.addEventListener("change", () => change({ kind: kind.value }));
  type?.addEventListener("change", () => change({ type: type.value }));
  flagged?.addEventListener("change", () => change({ flagged: flagged.checked }));
  verdict?.addEventListener("change", () => change({ verdict: verdict.value }));
  element("ranking-back").addEventListener("click", () => change({ page: view.page - 1 }));
  element("ranking-next").addEventListener("click", () => change({ page: view.page + 1 }));
  element("ranking-csv").addEventListener("click", () => onCsv(view));
  return { show, open, mark, change, view };
}

// Calls `go` with the rank behind #node-RANK, now and whenever a link changes it.
function followRanks(go) {
  const follow = () => go(Number((location.hash.match(/^#node-(\d+)$/) || [0, 0])[1]));
  addEventListener("hashchange", follow);
  follow();
}
