"use strict";
// The leaderboard: one board at a time, sorting by a column, filters, and the origin of a row.
(() => {
  const all = selector => [...document.querySelectorAll(selector)], find = id => document.getElementById(id);
  const boards = all("section.board"), choose = find("board"), family = find("family"), kind = find("kind");

  function filter() {
    for (const board of boards) {
      board.hidden = board.id !== choose.value;
      let shown = 0;
      const rows = [...board.querySelectorAll("tr[data-family]")];
      for (const row of rows) {
        const fits = one => one.value === "" || row.dataset[one.id] === one.value;
        row.hidden = !(fits(family) && fits(kind));
        shown += !row.hidden;
      }
      if (!board.hidden) find("shown").textContent = `${shown} of ${rows.length} rows`;
    }
    hide();
  }

  // Rows without a value in the column stay at the end, whatever the order.
  function sort(head) {
    const table = head.closest("table"), body = table.tBodies[0], column = head.cellIndex;
    const down = head.getAttribute("aria-sort") === "ascending";
    const key = row => {
      const cell = row.cells[column], value = cell.dataset.value;
      return value !== undefined ? Number(value) : cell.textContent.trim() === "" ? null : cell.textContent.trim();
    };
    const order = (a, b) => {
      const x = key(a), y = key(b);
      if (x === null || y === null) return (x === null) - (y === null);
      const one = typeof x === "number" && typeof y === "number" ? x - y : String(x).localeCompare(String(y));
      return down ? -one : one;
    };
    const rows = [...body.rows].sort(order);
    for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    body.append(...rows);
  }

  const card = find("origin"), isNarrow = () => innerWidth <= 620;
  function show(row) {
    card.replaceChildren(row.querySelector("template").content.cloneNode(true));
    card.hidden = false;
    if (isNarrow()) return; // a sheet at the lower edge, by the style
    const at = row.getBoundingClientRect(), height = card.offsetHeight;
    const below = at.bottom + 6 + height < innerHeight;
    card.style.top = `${below ? at.bottom + 6 : Math.max(6, at.top - 6 - height)}px`;
    card.style.left = `${Math.max(12, Math.min(at.left + 40, innerWidth - card.offsetWidth - 12))}px`;
  }
  function hide() { card.hidden = true; }

  const row_of = event => event.target.closest?.("tr[data-family]");
  document.addEventListener("pointerover", event => {
    if (event.pointerType !== "mouse" || isNarrow()) return;
    const row = row_of(event);
    if (row) show(row); else if (!card.contains(event.target)) hide();
  });
  // A press focuses the button before its click, which must not land on the sheet that appears; keys show it at once.
  document.addEventListener("focusin", event => {
    const row = row_of(event);
    if (!row) hide(); else if (event.target.matches(":focus-visible")) show(row);
  });
  document.addEventListener("click", event => {
    const head = event.target.closest("th button");
    if (head) return sort(head.closest("th"));
    const row = row_of(event);
    if (row) show(row); else if (!card.contains(event.target)) hide();
  });
  document.addEventListener("keydown", event => { if (event.key === "Escape") hide(); });
  addEventListener("scroll", () => { if (!isNarrow()) hide(); }, { passive: true });
  for (const one of [choose, family, kind]) one.addEventListener("change", filter);
  filter();
})();
