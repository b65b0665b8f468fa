// Longformer's and Big Bird's patterns, with their parameters as sliders: who sees whom, and how many pairs that are.

// The hash by which txlib draws random blocks, in whole numbers of 32 bits.
function hashed(seed, row, number) {
  let mixed = Math.imul(number, 0x85EBCA77) + Math.imul(seed, 0xC2B2AE3D);
  for (const summand of [row, 0]) {
    mixed = mixed + summand | 0;
    mixed = Math.imul(mixed ^ mixed >>> 16, 0x21F0AAAD);
    mixed = Math.imul(mixed ^ mixed >>> 15, 0x735A2D97);
    mixed = mixed ^ mixed >>> 15;
  }
  return mixed >>> 0;
}

// The blocks that a row draws among those that window and global blocks leave, by Floyd's way (txlib's random_blocks).
function drawnBlocks(row, count, { random, seed, window, first, last }) {
  const end = Math.max(first, count - last), inside = (each) => Math.min(Math.max(each, first), end);
  const low = inside(row - (window - 1) / 2), high = inside(row + (window + 1) / 2);
  const choices = low - first + end - high, ranks = [];
  for (let number = 0; number < random; number++) {
    const newest = choices - random + number;
    if (newest < 0) continue;
    const rank = hashed(seed, row, number) % (newest + 1);
    ranks.push(ranks.includes(rank) ? newest : rank);
  }
  return ranks.map((rank) => (first + rank < low ? first + rank : rank - low + first + high));
}

const PARTS = { window: COLORS[0], global: COLORS[1], random: COLORS[2] };

// For each query and key the name of the part that lets it be seen, or nothing.
function longformer(length, { radius, gap, globals }) {
  return (query, key) => query < globals || key < globals ? "global"
    : Math.abs(query - key) <= radius * gap && (query - key) % gap === 0 ? "window" : "";
}
function bigBird(length, { size, random, window, blocks, seed }) {
  const last = Math.floor(blocks / 2), first = blocks - last, count = Math.ceil(length / size);
  const chosen = (block) => block < first || block >= count - last;
  const drawn = range(count).map((row) => drawnBlocks(row, count, { random, seed, window, first, last }));
  return (query, key) => {
    const [row, column] = [query, key].map((position) => Math.floor(position / size));
    return chosen(row) || chosen(column) ? "global" : Math.abs(row - column) <= (window - 1) / 2 ? "window"
      : drawn[row].includes(column) ? "random" : "";
  };
}

function view(page, { start }) {
  const names = ["Longformer", "Big Bird"];
  const pattern = page.choice("pattern", names);
  const length = page.slider("length", { min: 16, max: 128, step: 8, value: start.length });
  const causal = page.tick("causal");
  const odd = (place) => String(2 * place + 1), power = (place) => String(2 ** place);
  const controls = [{
    radius: page.slider("window: radius", { min: 0, max: 32, value: start.radius }),
    gap: page.slider("gap (dilation)", { min: 1, max: 8, value: 1 }),
    globals: page.slider("global tokens", { min: 0, max: 8, value: start.globals }),
  }, {
    size: page.slider("size of a block", { min: 0, max: 4, value: Math.log2(start.block), show: power }),
    window: page.slider("window (blocks)", { min: 0, max: 4, value: (start.window - 1) / 2, show: odd }),
    blocks: page.slider("global blocks", { min: 0, max: 6, value: start.blocks }),
    random: page.slider("random blocks", { min: 0, max: 6, value: start.random }),
    seed: page.slider("seed", { min: 0, max: 20, value: 0 }),
  }];
  const query = page.slider("look at query", { min: 0, max: start.length - 1, value: Math.floor(start.length / 2) });

  const drawing = draw("svg", { width: 400, "aria-hidden": "true" });
  const cells = Object.fromEntries(Object.entries(PARTS).map(([name, fill]) => [name, draw("path", { fill })]));
  const paper = draw("path", { fill: "#f0f0f0" });
  const row = draw("rect", { fill: "none", stroke: "#000" });
  drawing.append(paper, ...Object.values(cells), row);
  page.add(make("div", { class: "part" },
    make("p", { class: "caption", "aria-hidden": "true" }, "A row per query, a column per key. ",
    ...Object.entries(PARTS).flatMap(([name, color]) => [make("span", { style: `color: ${color}` }, "■ "), `${name}  `])), drawing));
  const table = page.table("pairs of each kind",
    ["kind", "pairs", "of all"]);

  return () => {
    const family = pattern.selectedIndex, n = length.valueAsNumber;
    for (const [place, group] of controls.entries()) {
      for (const input of Object.values(group)) input.closest("label").style.display = place === family ? "" : "none";
    }
    query.max = n - 1;
    const value = (name) => controls[family][name].valueAsNumber;
    const part = family
      ? bigBird(n, { size: 2 ** value("size"), random: value("random"), window: 2 * value("window") + 1,
        blocks: value("blocks"), seed: value("seed") })
      : longformer(n, { radius: value("radius"), gap: value("gap"), globals: value("globals") });
    const kind = (query, key) => (causal.checked && key > query ? "" : part(query, key));
    const paths = { window: [], global: [], random: [] };
    for (const i of range(n)) {
      for (const j of range(n)) {
        const name = kind(i, j);
        if (name) paths[name].push(`M${j} ${i}h.92v.92h-.92z`);
      }
    }
    drawing.setAttribute("viewBox", `-0.2 -0.2 ${n + 0.4} ${n + 0.4}`);
    paper.setAttribute("d", `M0 0H${n}V${n}H0z`);
    for (const [name, path] of Object.entries(cells)) path.setAttribute("d", paths[name].join(""));
    const asked = query.valueAsNumber;
    for (const [name, place] of Object.entries({ x: 0, y: asked, width: n, height: 0.92, "stroke-width": n / 200 })) row.setAttribute(name, place);
    const count = Object.fromEntries(Object.entries(paths).map(([name, all]) => [name, all.length]));
    const pairs = sum(Object.values(count)), share = (number) => `${fixed(100 * number / n ** 2, 1)} %`;
    table.fill([...Object.entries(count).filter(([name]) => family || name !== "random"), ["together", pairs]]
      .map(([name, number]) => [name, number, share(number)]));
    page.say(`${names[family]}: ${pairs} of ${n * n} pairs, ${share(pairs)}; ${fixed(pairs / n, 1)} keys per query. ` +
      `Query ${asked} sees ${runs(range(n).filter((key) => kind(asked, key)))}.`);
  };
}

// Keys in words: "0, 3–7".
function runs(keys) {
  if (!keys.length) return "no key";
  const ends = keys.filter((key, place) => keys[place + 1] !== key + 1);
  const starts = keys.filter((key, place) => keys[place - 1] !== key - 1);
  return (keys.length === 1 ? "key " : "keys ") + starts.map((start, place) =>
    (start === ends[place] ? start : `${start}–${ends[place]}`)).join(", ");
}
