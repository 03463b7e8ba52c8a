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

  // The axis of the forest plot: the same rules as svg.py.
  const ticksOf = (low, high) => {
    const span = high - low;
    if (!(span > 0)) return [low];
    const power = 10 ** Math.floor(Math.log10(span / 5));
    const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => span / size <= 5);
    const found = [];
    for (let k = Math.ceil(low / step - 1e-9); k <= Math.floor(high / step + 1e-9); k++) found.push(k * step);
    return found;
  };
  const spanOf = (intervals) => {
    const ends = intervals.map(([low, , high]) => Math.max(Math.abs(low), Math.abs(high))).sort((a, b) => a - b);
    const middles = intervals.map(([, middle]) => Math.abs(middle) * 1.25);
    const usual = Math.max(...middles, ends[Math.floor(0.8 * (ends.length - 1))] || 0);
    const most = (ends.at(-1) <= 2 * usual ? ends.at(-1) : usual) || 1;
    return [
      Math.max(-most, Math.min(-most / 5, ...intervals.map((each) => each[0]))),
      Math.min(most, Math.max(most / 5, ...intervals.map((each) => each[2]))),
    ];
  };
  const draw = (name, attributes, text) => {
    const made = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const key in attributes) made.setAttribute(key, attributes[key]);
    if (text) made.textContent = text;
    return made;
  };
  const drawForest = (found) => {
    const [low, high] = spanOf(found.filter((each) => each.interval).map((each) => each.interval));
    const place = (value) => 2 + ((value - low) / (high - low)) * 96;
    const clip = (value, from, to) => `${Math.min(Math.max(value, from), to).toFixed(1)}%`;
    const shown = ticksOf(low, high);
    const step = shown.length > 1 ? shown[1] - shown[0] : 1;
    const digits = Math.max(0, -Math.floor(Math.log10(step) + 1e-9));
    forest.querySelector(".axis").replaceChildren(...shown.flatMap((tick) => {
      const x = place(tick), at = clip(x, 0, 100);
      const side = x < 6 ? " s" : x > 94 ? " e" : "";
      const end = [shown[0], shown.at(-1)].includes(tick) && Math.abs(x - place(0)) > (side ? 45 : 30);
      const kind = Math.abs(tick) < step / 2 || end ? "t" : "t n";
      const text = (tick > step / 2 ? "+" : "") + Math.abs(tick).toFixed(digits);
      return [
        draw("text", { class: kind + side, x: at, y: 13 }, tick < -step / 2 ? `−${text}` : text),
        draw("line", { class: "g", x1: at, x2: at, y1: 17, y2: 22 }),
      ];
    }));
    for (const row of all(forest, "tbody tr")) {
      const each = found[row.dataset.r], svg = row.querySelector("svg"), zero = clip(place(0), 0, 100);
      const marks = [];
      if (data.margin) {
        const left = Math.max(place(-data.margin), 0), width = Math.min(place(data.margin), 100) - left;
        marks.push(draw("rect", { class: "m", x: clip(left, 0, 100), width: clip(width, 0, 100), height: 24 }));
      }
      marks.push(draw("line", { class: "z", x1: zero, x2: zero, y2: 24 }));
      if (each.interval) {
        const [from, middle, to] = each.interval.map(place);
        marks.push(draw("line", { class: "i", x1: clip(from, 0.5, 99.5), x2: clip(to, 0.5, 99.5), y1: 12, y2: 12 }));
        if (from < 0) marks.push(draw("text", { class: "a", x: "0%", y: 17 }, "‹"));
        if (to > 100) marks.push(draw("text", { class: "a e", x: "100%", y: 17 }, "›"));
        marks.push(draw("circle", { cx: clip(middle, 1, 99), cy: 12, r: 5 }));
      }
      svg.setAttribute("class", `f ${each.verdict.replace(" ", "-")}`);
      svg.replaceChildren(...marks);
      const note = document.createElement("small");
      note.textContent = each.chance;
      row.lastElementChild.replaceChildren(verdict(each), each.numbers && ` ${each.numbers}`, note);
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
    if (forest) drawForest(primary);
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
