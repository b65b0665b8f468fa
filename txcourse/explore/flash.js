// FlashAttention's walk, one tile of scores at a time: what is in fast memory, and the maximum, sum and output so far.

// All steps of the walk. After each: the tile's scores, and for each of its queries the new maximum m, by what the old
// sums are multiplied, the new sum l, and the new output o, which is divided by l at the very end.
function walk(scores, values, size, causal) {
  const steps = [], tile = (start) => range(Math.min(size, scores.length - start)).map((each) => start + each);
  for (let first = 0; first < scores.length; first += size) {
    const rows = tile(first);
    let state = rows.map(() => ({ m: -Infinity, l: 0, o: values[0].map(() => 0) }));
    for (let next = 0; next < scores.length && !(causal && next > rows.at(-1)); next += size) {
      const columns = tile(next);
      state = state.map(({ m, l, o }, place) => {
        const seen = columns.map((column) => (causal && column > rows[place] ? -Infinity : scores[rows[place]][column]));
        const greater = Math.max(m, ...seen);
        const weights = seen.map((score) => Math.exp(score - greater)), rescale = Math.exp(m - greater);
        return { seen, m: greater, rescale, l: rescale * l + sum(weights),
          o: o.map((each, feature) => rescale * each + dot(weights, columns.map((column) => values[column][feature]))) };
      });
      steps.push({ rows, columns, state, last: next + size >= scores.length || (causal && next + size > rows.at(-1)) });
    }
  }
  return steps;
}

function view(page, { scores, values, width, tile }) {
  const sizes = [1, 2, 4].filter((size) => size <= scores.length), n = scores.length;
  const size = page.choice("queries and keys per tile", sizes, sizes.indexOf(tile));
  const causal = page.tick("causal");
  const step = page.slider("step", { min: 1, max: 99, value: 1, show: (number) => `${number} of ${step.max}` });
  let steps;
  const plan = () => {
    steps = walk(scores, values, sizes[size.selectedIndex], causal.checked);
    step.max = steps.length;
  };
  for (const input of [size, causal]) input.addEventListener("input", () => { plan(); step.value = 1; });
  plan();
  for (const [name, change] of [["back", -1], ["next", 1]]) {
    page.button(name, () => { step.value = step.valueAsNumber + change; });
  }

  // The matrix of scores, with the keys and values above it, the queries at its left and the output at its right.
  const unit = 38, left = 62, top = 46, side = left + n * unit + 16;
  const drawing = draw("svg", { viewBox: `0 0 ${side + 62} ${top + n * unit + 6}`, width: side + 62, "aria-hidden": "true" });
  page.add(drawing, make("p", { style: "margin: 4px 0 0", "aria-hidden": "true" },
    make("span", { style: `color: ${COLORS[1]}` }, "■"), " in fast memory  ",
    make("span", { style: `color: ${BLUES[3]}` }, "■"), " was there, is forgotten  ",
    make("span", { style: `color: ${COLORS[2]}` }, "■"), " result, in slow memory"));
  const cell = (x, y, fill, text = "", name = "") => draw("g", { class: name },
    draw("rect", { x: x + 1, y: y + 1, width: unit - 2, height: unit - 2, fill, stroke: "#d9d9d9" }),
    draw("text", { x: x + unit / 2, y: y + unit / 2 + 5, "text-anchor": "middle", style: "font-size: 12px" }, text));
  const table = page.table("for each query in fast memory, after this tile", ["query", "maximum m", "old sums ×", "sum l",
    ...range(values[0].length).map((feature) => `o / l, feature ${feature}`)]);
  const atHand = "#f5b48a", forgotten = BLUES[3], result = "#7fcfb5";

  return () => {
    const now = steps[step.valueAsNumber - 1], before = steps.slice(0, step.valueAsNumber - 1);
    const was = (row, column) => before.some(({ rows, columns }) => rows.includes(row) && columns.includes(column));
    const written = (row) => [...before, now].some(({ rows, last }) => last && rows.includes(row));
    drawing.replaceChildren(
      draw("text", { x: left, y: 10 }, "keys and values"), draw("text", { x: 0, y: top - 6 }, "queries"),
      draw("text", { x: side, y: top - 6 }, "output"),
      ...range(n).flatMap((column) => cell(left + column * unit, 10, now.columns.includes(column) ? atHand : "#fff", `k${column} v${column}`)),
      ...range(n).flatMap((row) => [
        cell(18, top + row * unit, now.rows.includes(row) ? atHand : "#fff", `q${row}`),
        cell(side, top + row * unit, written(row) ? result : now.rows.includes(row) ? atHand : "#fff", written(row) ? `o${row}` : ""),
        ...range(n).map((column) => {
          const here = now.rows.includes(row) && now.columns.includes(column), hidden = causal.checked && column > row;
          const score = here ? fixed(now.state[now.rows.indexOf(row)].seen[now.columns.indexOf(column)]) : "";
          return cell(left + column * unit, top + row * unit,
            here ? atHand : was(row, column) && !hidden ? forgotten : hidden ? "#fff" : "#f0f0f0", score, here ? "here" : "");
        })]));
    table.fill(now.rows.map((row, place) => {
      const { m, rescale, l, o } = now.state[place];
      return [row, fixed(m, 3), rescale ? fixed(rescale, 4) : "–", fixed(l, 4), ...o.map((each) => fixed(each / l, 4))];
    }));
    const [r, c] = [now.rows.length, now.columns.length];
    const span = (places) => (places.length > 1 ? `${places[0]}–${places.at(-1)}` : places[0]);
    const read = sum([...before, now].map(({ rows, columns }) =>
      width * (2 * columns.length + (columns[0] === 0 ? rows.length : 0))));
    const wrote = width * sum([...before, now].map(({ rows, last }) => (last ? rows.length : 0)));
    const fast = width * (2 * r + 2 * c) + r * c + 2 * r; // q and o, k and v, the scores, m and l
    const higher = now.rows.filter((_, place) => now.state[place].rescale < 1 && now.columns[0] > 0);
    page.say(`${r > 1 ? "Queries" : "Query"} ${span(now.rows)}, ${c > 1 ? "keys" : "key"} ${span(now.columns)}. ` +
      (higher.length ? `The maximum rises for ${higher.join(" and ")}: what was summed is scaled down. ` : "") +
      (now.last ? "That was the last tile of the row: o / l is written. " : "") +
      `${fast} numbers are in fast memory; ${read} have been read from slow memory, ${wrote} written. ` +
      `The definition moves ${4 * n * n + 4 * n * width}.`);
  };
}
