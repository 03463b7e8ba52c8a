"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const table = document.getElementById("scores-table");
  const forest = document.getElementById("forest-table");
  const all = (where, what) => [...where.querySelectorAll(what)];
  const words = { b: "better", w: "worse", e: "equal", o: "open", s: "one seed", n: "untrained" };
  const unit = 10 ** -data.digits;
  // Whole numbers are in units of the last digit; others are shown with all their digits.
  const value = (field) => (field.includes(".") ? Number(field) : Number(field) * unit);
  const signed = (field) => (field.startsWith("-") ? "−" : "+")
    + (field.includes(".") ? field.replace("-", "") : Math.abs(value(field)).toFixed(data.digits));

  // Differences, as packed.py packs them.
  const unpack = (text) => [...text.matchAll(/([-\d,.]*)([a-zA-Z])/g)].map(([, fields, letter]) => {
    if (letter === "x") return { verdict: "baseline", word: "baseline", numbers: "", chance: "" };
    const [delta, low, high, p = "1000"] = fields.split(",");
    if (letter === "u") {
      const word = delta === "" ? "no result" : "open";
      return { verdict: word, word, numbers: delta === "" ? "" : signed(delta), chance: data.reasons[Number(low)] };
    }
    const own = letter === letter.toUpperCase() ? ", own variance" : "";
    const chance = { 0: "<0.001", 49.9: "<0.05" }[p] ?? (Number(p) / 1000).toFixed(3);
    const verdict = words[letter.toLowerCase()];
    return {
      verdict,
      word: verdict === "equal" ? `equal ±${data.margin}` : verdict,
      numbers: `${signed(delta)} [${signed(low)},\u00a0${signed(high)}]`,
      chance: `p ${chance}${own}`,
      interval: [low, delta, high].map(value),
    };
  });
  const cache = {};
  const against = (base) => (cache[base] ??= data.against[base].map(unpack));

  // The forest plot, as svg.py draws it: its marks are moved to where another baseline puts them.
  const percent = (position, from, to) => `${Math.min(Math.max(position, from), to).toFixed(1).replace(/\.0$/, "")}%`;
  const move = (mark, shown, attributes) => {
    if (shown) mark.removeAttribute("display");
    else mark.setAttribute("display", "none");
    for (const name in attributes) mark.setAttribute(name, attributes[name]);
  };
  const moveForest = (differences, base) => {
    const [low, high, axis] = data.axes[base];
    const scale = (number) => 2 + ((number - low) / (high - low || 1)) * 96;
    forest.querySelector(".axis").outerHTML = axis;
    const edges = [-data.margin, data.margin].map((edge) => Math.min(Math.max(scale(edge), 0), 100));
    for (const row of all(forest, "tbody tr")) {
      const difference = differences[row.dataset.r], svg = row.querySelector("svg"), shown = !!difference.interval;
      const [from, middle, to] = (difference.interval ?? [0, 0, 0]).map(scale);
      const [zero, line, left, right, dot] = [...svg.children].slice(-5);
      const at = percent(scale(0), 0, 100);
      const band = { x: percent(edges[0], 0, 100), width: percent(edges[1] - edges[0], 0, 100) };
      if (data.margin) move(svg.firstElementChild, true, band);
      move(zero, true, { x1: at, x2: at });
      move(line, shown, { x1: percent(from, 0.5, Infinity), x2: percent(to, -Infinity, 99.5) });
      move(left, shown && from < 0);
      move(right, shown && to > 100);
      move(dot, shown, { cx: percent(middle, 1, 99) });
      svg.setAttribute("class", `f ${difference.verdict.replace(" ", "-")}`);
      const note = document.createElement("small");
      note.textContent = difference.chance;
      row.lastElementChild.replaceChildren(verdict(difference), difference.numbers && ` ${difference.numbers}`, note);
    }
  };
  const verdict = (each) => {
    const word = document.createElement("b");
    word.textContent = each.word;
    word.className = each.verdict.replace(" ", "-");
    return word;
  };

  // Another baseline.
  const rebase = (base) => {
    const found = against(base), primary = found[data.primary];
    for (const name of all(document, ".base")) name.textContent = data.rows[base];
    for (const row of all(table, "tbody tr")) {
      data.columns.forEach((column, number) => {
        const place = column === null ? null : row.cells[number + 2].querySelector("small");
        const each = place && found[column][row.dataset.r];
        if (place) place.replaceChildren(verdict(each), each.numbers && ` ${each.numbers}`);
      });
    }
    if (forest) moveForest(primary, base);
    const counted = document.getElementById("counted");
    if (counted) {
      const count = (word) => primary.filter((each) => each.verdict === word).length;
      const parts = [...Object.values(words), "no result"].filter(count).map((word) => `${count(word)} ${word}`);
      counted.textContent = parts.join(", ");
    }
    current = base;
    filter();
  };
  let current = data.base;

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
    const compare = (one, other) => {
      const a = valueOf(one), b = valueOf(other);
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
  const wanted = document.getElementById("filter"), word = document.getElementById("verdict");
  const filter = () => {
    const part = wanted.value.trim().toLowerCase(), found = against(current)[data.primary];
    let left = 0;
    for (const where of [table, forest]) {
      for (const row of where ? all(where, "tbody tr") : []) {
        const fits = data.rows[row.dataset.r].toLowerCase().includes(part)
          && (word.selectedIndex === 0 || found[row.dataset.r].verdict === word.value);
        row.hidden = !fits;
        if (fits && where === table) left++;
      }
    }
    const total = data.rows.length;
    document.getElementById("found").textContent = left === total ? "" : `${left} of ${total} rows`;
  };
  wanted.addEventListener("input", filter);
  word.addEventListener("change", filter);
  const controls = document.getElementById("controls"), base = document.getElementById("base");
  controls.addEventListener("submit", (event) => event.preventDefault());
  for (const place of Object.keys(data.against)) base.add(new Option(data.rows[place], place));
  if (data.left) {
    base.add(new Option(`${data.left} more: name one as the grid’s baseline`));
    base.options[base.length - 1].disabled = true;
  }
  base.value = data.base;
  base.addEventListener("change", () => rebase(Number(base.value)));
  controls.hidden = false;

  // What is under the pointer: the title of a mark, and its row's lines in every chart.
  const tip = document.createElement("div");
  tip.id = "tip";
  tip.hidden = true;
  tip.setAttribute("role", "tooltip");
  document.body.append(tip);
  const light = (place) => {
    for (const charts of all(document, ".charts")) charts.classList.toggle("dim", place !== undefined);
    for (const line of all(document, ".charts .l")) line.classList.toggle("on", line.dataset.r === place);
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
