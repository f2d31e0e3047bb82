"use strict";
// The theme is set before the first paint; everything else waits for the document.

(() => {
  const root = document.documentElement;
  const dark = () =>
    root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  const remember = (value) => {
    try {
      if (value) localStorage.setItem("hcm-theme", value);
      return localStorage.getItem("hcm-theme");
    } catch {
      return null; // a page opened from a file may have no storage
    }
  };

  const saved = remember();
  if (saved === "light" || saved === "dark") root.dataset.theme = saved;

  function startTheme() {
    const button = document.getElementById("theme");
    const show = () => button.setAttribute("aria-pressed", String(dark()));
    button.addEventListener("click", () => {
      root.dataset.theme = dark() ? "light" : "dark";
      remember(root.dataset.theme);
      show();
    });
    show();
  }

  // The ranked table: columns and rows come as JSON; what is shown is a pure function of `view`.
  function startTable() {
    const table = document.getElementById("ranking-table");
    if (!table) return;
    const { columns, rows } = JSON.parse(document.getElementById("ranking-data").textContent);
    const body = table.tBodies[0];
    const headers = [...table.tHead.rows[0].cells];
    const search = document.getElementById("ranking-search");
    const status = document.getElementById("ranking-status");
    const [back, next] = ["ranking-back", "ranking-next"].map((id) => document.getElementById(id));
    const pageRows = Number(table.dataset.pageRows);
    const explained = Number(table.dataset.explained);
    const isText = columns.map((c) => c.kind === "text");
    const rankColumn = columns.findIndex((c) => c.key === "rank");
    const barColumn = columns.findIndex((c) => c.bar);
    const barTop = Math.max(...rows.map((r) => r[barColumn] ?? 0), 0);
    const haystack = rows.map((r) => r.filter((_, i) => isText[i]).join("\n").toLowerCase());
    const order = new Intl.Collator("en", { numeric: true });
    const view = { column: rankColumn, down: false, query: "", page: 0 };

    function matching() {
      const wanted = view.query.trim().toLowerCase();
      const found = [...rows.keys()];
      const kept = wanted ? found.filter((i) => haystack[i].includes(wanted)) : found;
      const c = view.column;
      const sign = view.down ? -1 : 1;
      return kept.sort((a, b) => {
        const [x, y] = [rows[a][c], rows[b][c]];
        if (x === y) return a - b;
        if (x === null || y === null) return x === null ? 1 : -1; // missing values come last either way
        return sign * (isText[c] ? order.compare(x, y) : x - y);
      });
    }

    function cell(row, c) {
      const column = columns[c];
      const value = row[c];
      const td = document.createElement("td");
      td.className = column.kind;
      if (value === null || value === "") {
        td.append(column.kind === "text" ? "" : "–");
      } else if (column.key === "id") {
        const link = row[rankColumn] <= explained;
        const name = document.createElement(link ? "a" : "span");
        if (link) name.href = "#node-" + row[rankColumn];
        name.className = "id";
        name.title = value;
        name.append(Object.assign(document.createElement("bdi"), { textContent: value }));
        td.append(name);
      } else if (column.kind === "p") {
        td.append(value < 0.001 ? value.toExponential(0) : value.toFixed(3));
      } else if (column.kind === "score") {
        td.append(value.toFixed(column.digits));
      } else {
        td.append(column.kind === "count" ? value.toLocaleString("en") : value);
      }
      if (c === barColumn && barTop > 0 && value > 0) {
        td.classList.add("meter");
        td.style.setProperty("--share", (value / barTop).toFixed(4));
      }
      return td;
    }

    function line(index) {
      const tr = document.createElement("tr");
      columns.forEach((_, c) => tr.append(cell(rows[index], c)));
      return tr;
    }

    function show() {
      const found = matching();
      const pages = Math.max(1, Math.ceil(found.length / pageRows));
      view.page = Math.min(Math.max(view.page, 0), pages - 1);
      const first = view.page * pageRows;
      const shown = found.slice(first, first + pageRows);
      body.replaceChildren(...shown.map(line));
      const range = `${(first + 1).toLocaleString("en")}–${(first + shown.length).toLocaleString("en")}`;
      status.textContent = found.length ? `${range} of ${found.length.toLocaleString("en")}` : "No node matches";
      back.disabled = view.page === 0;
      next.disabled = view.page === pages - 1;
      headers.forEach((th, c) => {
        const state = c !== view.column ? "none" : view.down ? "descending" : "ascending";
        th.setAttribute("aria-sort", state);
      });
    }

    headers.forEach((th, c) => {
      th.querySelector("button").addEventListener("click", () => {
        const isRank = c === rankColumn || columns[c].key.endsWith("_rank");
        const largestFirst = !isText[c] && !isRank && columns[c].kind !== "p";
        view.down = c === view.column ? !view.down : largestFirst;
        view.column = c;
        view.page = 0;
        show();
      });
    });
    search.addEventListener("input", () => {
      view.query = search.value;
      view.page = 0;
      show();
    });
    back.addEventListener("click", () => (view.page--, show()));
    next.addEventListener("click", () => (view.page++, show()));
    show();
  }

  document.addEventListener("DOMContentLoaded", () => {
    startTheme();
    startTable();
  });
})();
