// One query's arithmetic, from the products of its entries with a key's to its mixture of the values.
function view(page, { q, k, v, rows, columns, allowed, query, key }) {
  const asking = page.choice("query", distinct(rows), query), answering = page.choice("key", distinct(columns), key);
  const scaled = page.tick("divide by √d_k", true);
  const hidden = distinct(columns).map((word) => page.tick(`hide “${word}”`));

  const drawings = make("div", { style: "flex: 1 1 100%", "aria-hidden": "true" }), width = q[0].length;
  page.add(drawings);
  const table = page.table("each key: its score, its share, and what it hands over",
    ["key", "q · k", "scaled", "masked", "e^(s − max)", "weight", "entry of v", "weight × entry"]);

  const entry = page.slider("entry of v", { min: 0, max: v[0].length - 1 });

  return () => {
    const place = asking.selectedIndex, chosen = answering.selectedIndex;
    const root = Math.sqrt(width), products = q[place].map((each, feature) => each * k[chosen][feature]);
    const matches = k.map((each) => dot(q[place], each));
    const scores = matches.map((match) => (scaled.checked ? match / root : match));
    const masked = scores.map((score, each) => (hidden[each].checked || !allowed[place][each] ? -Infinity : score));
    const largest = Math.max(...masked), weights = softmax(masked);
    const handed = weights.map((weight, each) => weight * v[each][entry.valueAsNumber]);

    const numbers = { [`q of “${rows[place]}”`]: q[place], [`k of “${columns[chosen]}”`]: k[chosen],
      "their products, entry by entry": products };
    drawings.replaceChildren(...Object.entries(numbers).flatMap(([name, each]) =>
      [make("p", { class: "caption" }, name), bars(each)]));
    table.fill(columns.map((word, each) => [(each === chosen ? "▸ " : "") + word, fixed(matches[each]),
      fixed(scores[each]), fixed(masked[each]), fixed(largest === -Infinity ? 0 : Math.exp(masked[each] - largest)),
      { text: fixed(weights[each]), share: weights[each] }, fixed(v[each][entry.valueAsNumber]), fixed(handed[each])]));
    page.say(`“${rows[place]}” and “${columns[chosen]}”: the ${width} products add up to ${fixed(matches[chosen])}` +
      `${scaled.checked ? `, divided by ${fixed(root)} that is ${fixed(scores[chosen])}` : ""}; weight ` +
      `${fixed(weights[chosen])}. Entry ${entry.value} of the mixture is ${fixed(sum(handed))}.`);
  };
}

// Numbers as bars side by side, up above 0 and down below.
function bars(numbers) {
  const largest = Math.max(...numbers.map(Math.abs)) || 1;
  return draw("svg", { viewBox: `0 -1 ${numbers.length} 2`, preserveAspectRatio: "none",
    style: "width: 100%; height: 34px; margin-bottom: 6px; background: #f2f2f2" },
  ...numbers.map((number, x) => draw("rect", { x, y: -Math.max(number, 0) / largest, width: 0.9,
    height: Math.abs(number) / largest, fill: COLORS[number < 0 ? 1 : 0] })));
}
