"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const table = document.getElementById("scores-table");
  const forest = document.getElementById("forest-table");
  const all = (where, what) => [...where.querySelectorAll(what)];

  // Another baseline: page.py has rendered what then stands in these elements.
  const slots = data.slots.map((selector) => all(document, selector)); // in their first order, before any sorting
  const inflate = (packed) => {
    const bytes = Uint8Array.from(atob(packed), (letter) => letter.charCodeAt(0));
    return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"))).json();
  };
  const rebase = async () => {
    const chosen = base.value, contents = await inflate(data.baselines[chosen][1]);
    if (chosen !== base.value) return;
    slots.forEach((elements, index) => elements.forEach((element, number) => {
      element.innerHTML = contents[index][number];
    }));
    filter();
  };

  // Sorting: the best first, then the worst; rows without a figure stay last.
  const sort = (head, column) => {
    const before = head.getAttribute("aria-sort");
    const upward = before ? before === "descending" : column === 0;
    for (const other of all(table, "thead th")) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", upward ? "ascending" : "descending");
    const valueOf = (row) => {
      const cell = row.cells[column];
      return column === 0 ? cell.textContent : cell.dataset.v === undefined ? NaN : Number(cell.dataset.v);
    };
    const compare = (row, other) => {
      const a = valueOf(row), b = valueOf(other);
      if (column === 0) return a.localeCompare(b, undefined, { numeric: true }) * (upward ? 1 : -1);
      if (isNaN(a) || isNaN(b)) return isNaN(a) - isNaN(b);
      return upward ? a - b : b - a;
    };
    const body = table.tBodies[0];
    body.append(...[...body.rows].sort(compare));
  };
  all(table, "thead th").forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    button.addEventListener("click", () => sort(head, column));
    head.append(button);
  });

  // Filtering.
  const part = document.getElementById("filter"), verdict = document.getElementById("verdict");
  const filter = () => {
    const hidden = new Set(), rows = table.tBodies[0].rows, name = part.value.trim().toLowerCase();
    for (const row of rows) {
      const fits = row.cells[0].textContent.toLowerCase().includes(name)
        && (!verdict.value || row.querySelector(".primary b")?.className === verdict.value);
      if (!fits) hidden.add(row.dataset.r);
    }
    for (const row of [...rows, ...(forest ? forest.tBodies[0].rows : [])]) row.hidden = hidden.has(row.dataset.r);
    document.getElementById("found").textContent = hidden.size ? `${rows.length - hidden.size} of ${rows.length} rows` : "";
  };
  part.addEventListener("input", filter);
  verdict.addEventListener("change", filter);
  const controls = document.getElementById("controls"), base = document.getElementById("base");
  controls.addEventListener("submit", (event) => event.preventDefault());
  for (const [row, [name]] of Object.entries(data.baselines)) base.add(new Option(name, row));
  if (data.left) {
    base.add(new Option(`${data.left} more: name one as the grid’s baseline`));
    base.options[base.length - 1].disabled = true;
  }
  base.value = data.base;
  base.addEventListener("change", rebase);
  controls.hidden = false;

  // What is under the pointer: the title of a mark, and its row's lines in every chart.
  const tip = document.createElement("div");
  tip.id = "tip";
  tip.hidden = true;
  tip.setAttribute("role", "tooltip");
  document.body.append(tip);
  const light = (row) => {
    for (const charts of all(document, ".charts")) charts.classList.toggle("dim", row !== undefined);
    for (const line of all(document, ".charts .l")) line.classList.toggle("on", line.dataset.r === row);
  };
  const enter = (event) => {
    const mark = event.target.closest?.(".charts [data-r], .legend [data-r]");
    if (!mark) return leave();
    const title = mark.querySelector("title");
    if (title) { // the browser's own would come on top of ours
      mark.setAttribute("aria-label", title.textContent);
      title.remove();
    }
    tip.textContent = mark.getAttribute("aria-label") || "";
    tip.hidden = !tip.textContent;
    const box = mark.getBoundingClientRect();
    const x = event.clientX ?? box.left, y = event.clientY ?? box.bottom;
    tip.style.left = `${Math.max(4, Math.min(x + 12, innerWidth - tip.offsetWidth - 8))}px`;
    tip.style.top = `${Math.min(y + 14, innerHeight - tip.offsetHeight - 8)}px`;
    if (mark.closest(".legend") || mark.classList.contains("l")) light(mark.dataset.r);
  };
  const leave = () => {
    if (tip.hidden && !document.querySelector(".dim")) return;
    tip.hidden = true;
    light();
  };
  document.addEventListener("pointerover", enter);
  document.addEventListener("focusin", enter);
  document.addEventListener("keydown", (event) => event.key === "Escape" && leave());
})();
